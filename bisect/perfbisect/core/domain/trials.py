"""Measurements without a search: one build against itself (`bisect noise`), several against the first of them
(`bisect compare`), or the ends of a hunt and bad without the culprit (`bisect prove`).

A trial consists of rounds. In each, every build is visited once for every workload. The order is reversed from one round
to the next, so that slow changes of the machine favour no build.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from perfbisect.core.domain.events import (
    PASSING,
    BuildFinished,
    CandidateSkipped,
    Event,
    LabEvent,
    PairingChosen,
    RunFinished,
    TrialEnded,
    TrialStarted,
)
from perfbisect.core.domain.facts import HostFacts, RunFacts, SkipFacts
from perfbisect.core.domain.settings import PAIRS_FIRST, Pairing, TrialRequest, TrialType

FOUND = ("key", "binary", "version", "seconds")  # of a TrialBuild: what is not asked for
PAIRS = 8  # runs of a build beside itself, which show how much a pair varies


@dataclass(frozen=True, slots=True)
class TrialRun:
    """One run of a trial. Numbers are positions in its settings."""

    round: int  # never shared by two sessions, as the machine may have changed between them
    work: int
    subject: int
    at: float  # when it ended, in seconds since the epoch
    cost: float  # seconds since the run before, or since its visit was ordered
    facts: RunFacts


@dataclass(frozen=True, slots=True)
class TrialSkip:
    """A build that failed in a workload; it is not tried there again."""

    work: int
    subject: int
    at: float
    facts: SkipFacts


@dataclass(frozen=True, slots=True)
class DropHunt:
    """The hunt for a drop of a comparison, in its present state. Numbers are positions in the request of the comparison."""

    work: int
    first: int  # the build before the drop
    last: int
    hunt: int  # its number in the history
    state: str  # as `bisect history` lists it: running, interrupted, found, not reproduced …
    culprit: str = ""  # full hash of the commit that the verdict names
    subject: str = ""  # of that


@dataclass(slots=True)
class Trial:
    """A trial and what it has measured so far: the events of its log, folded. ``add`` changes it."""

    id: int
    request: TrialRequest  # with what is known of its builds
    host: HostFacts
    started: float  # seconds since the epoch
    state: str = "running"  # or "interrupted", "failed", "done"
    runs: list[TrialRun] = field(default_factory=list)
    skips: list[TrialSkip] = field(default_factory=list)
    failure: str = ""  # why it could not go on
    origin: str = ""  # whose it is, if it was imported
    hunts: tuple[DropHunt, ...] = ()  # of a comparison, for its drops
    pairing: PairingChosen | None = None  # where it was chosen how builds are compared
    # Host → its last event; "" → the log's last entry.
    since: dict[str, float] = field(default_factory=dict, compare=False)

    @classmethod
    def begun(cls, at: float, started: TrialStarted) -> "Trial":
        """The trial that begins ``at`` seconds since the epoch."""
        return cls(started.trial, started.request, started.host, at, since={"": at})

    def add(self, at: float, event: Event) -> None:
        """Take the next event of the log, which happened ``at`` seconds since the epoch."""
        if isinstance(event, PASSING):  # which are not in the log
            return
        host = getattr(event, "host", "") if isinstance(event, LabEvent) else ""
        before = max(self.since.get("", at), self.since.get(host, 0.0))
        match event:
            case TrialStarted(request=request, host=facts):
                if not self.runs:  # what kept it from measuring anything is tried again
                    self.skips.clear()
                self.request, self.host = self._as_known(request), facts
                self.state, self.failure, self.since = "running", "", {}
            case BuildFinished(number, build):
                # Each workload asks for the build anew.
                seconds = build.seconds or self.request.subjects[number].seconds
                self._note(number, key=build.key, binary=build.binary, seconds=seconds, trouble="")
            case CandidateSkipped(number, skip) if skip.of_build:
                self._note(number, trouble=skip.reason)
            case CandidateSkipped(number, skip, workload=work):
                self.skips.append(TrialSkip(work, number, at, skip))
            case RunFinished(number, run, workload=work, round=made):
                self.runs.append(TrialRun(made, work, number, at, max(at - before, run.seconds), run))
            case PairingChosen():
                self.pairing = event
            case TrialEnded():
                self.state = "done"
            case _:
                pass
        self.since[host] = at

    def _note(self, number: int, **known: Any) -> None:
        """Enter what is known of a build."""
        subjects = list(self.request.subjects)
        subjects[number] = replace(subjects[number], **known)
        self.request = replace(self.request, subjects=tuple(subjects))

    def _as_known(self, request: TrialRequest) -> TrialRequest:
        """The request of another sitting, with what is known of its builds from earlier ones."""
        known = [
            replace(
                new,
                **{name: getattr(new, name) or getattr(old, name) for name in FOUND},
                trouble=old.trouble if self.runs else "",
            )
            for old, new in zip(self.request.subjects, request.subjects, strict=True)
        ]
        return replace(request, subjects=tuple(known))

    @property
    def name(self) -> str:
        """Its short name: c3, n4, p5."""
        return f"{self.request.kind[0]}{self.id}"

    @property
    def together(self) -> bool:
        """Whether each build is measured at the same time as the first one, as far as that is chosen."""
        return self.pairing.together if self.pairing else self.request.pairing is Pairing.TOGETHER

    @property
    def next_round(self) -> int:
        """The number of the round after the latest of which there is a run."""
        return max((run.round for run in self.runs), default=-1) + 1

    @property
    def pairs_made(self) -> int:
        """How many pairs of runs were made at the same time."""
        return sum(bool(run.facts.round) for run in self.runs) // 2

    @property
    def pairs_to_try(self) -> int:
        """How many pairs are still to be made beside the rounds: to choose a way, or by an A/A to show what they vary."""
        alone = self.request.kind is TrialType.NOISE
        both = alone or len({each.commit or each.name for each in self.request.subjects[:2]}) > 1
        open_ = both and self.request.pairing is Pairing.AUTO and not self.pairing
        return max(0, (PAIRS if alone else PAIRS_FIRST) - self.pairs_made) if open_ else 0

    def counting(self, work: int | None = None) -> list[TrialRun]:
        """The runs of a workload, or of all, that were made in the way in which builds are compared."""
        return [run for run in self.runs if work in (None, run.work) and bool(run.facts.round) is self.together]

    def pairs(self) -> list[tuple[int, int]]:
        """Workload and build of each visit of a round, without failed builds and workloads whose baseline failed.

        In a series of releases one that fails is a gap, the first one like any other. A proof needs all its builds: it has no visit any more once one of them has failed.
        """
        failed = {(skip.work, skip.subject) for skip in self.skips}
        if self.request.kind is TrialType.PROVE and (failed or any(each.trouble for each in self.request.subjects)):
            return []
        base = None if self.request.series and not self.together else 0
        return [
            (work, number)
            for work in range(len(self.request.works))
            for number, subject in enumerate(self.request.subjects)
            if not subject.trouble and not failed & {(work, number), (work, base)}
        ]

    def rounds_to_do(self) -> range:
        """The numbers of the rounds that are still to be made; an incomplete round does not count."""
        runs = Counter((run.round, run.work, run.subject) for run in self.counting())
        pairs = [pair for pair in self.pairs() if pair[1] or not self.together]
        made = {run.round for run in self.runs}
        whole = sum(all(runs[number, *pair] >= self.request.runs for pair in pairs) for number in made)
        return range(self.next_round, self.next_round + self.request.rounds - whole)


def order(subjects: Sequence[int], turn: int, *, shuffled: bool = False) -> Iterator[int]:
    """The order in which subjects are visited: forwards in one turn, backwards in the next, as in A B C, C B A.

    ``shuffled``: in an order that is drawn anew for every two turns. Where subjects are many, a round is long, and a machine
    that is slow for a part of it would otherwise slow down neighbours, as a change of speed does.
    """
    drawn = list(subjects)
    if shuffled:
        Random(turn // 2).shuffle(drawn)
    return iter(drawn) if turn % 2 == 0 else reversed(drawn)
