"""Measurements without a search: one build against itself or its layouts (`bisect noise`), several against the first of them
(`bisect compare`), or the ends of a hunt and bad without the culprit (`bisect prove`).

A trial consists of rounds. In each, every build is visited once for every workload. The order is reversed from one round
to the next, so that slow changes of the machine favour no build.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

from perfbisect.core.domain.facts import HostFacts, RunFacts, SkipFacts

BY_HAND = "by hand"  # begins the origin of a trial that perfbisect has not measured


class TrialType(StrEnum):
    """The type of a trial."""

    NOISE = "noise"  # of one build; any after it are its layouts: the n-th is linked again with seed n
    COMPARE = "compare"
    PROVE = "prove"  # its builds are good, bad, and bad without the culprit


@dataclass(frozen=True, slots=True)
class TrialBuild:
    """One build that is measured."""

    name: str  # as written: a revision with its variant and configuration, or the name given to prebuilt binaries
    commit: str = ""  # full hash; empty for prebuilt binaries
    path: str = ""  # of prebuilt binaries: a folder on the host, or a tarball
    key: str = ""  # of the build; empty without one
    binary: str = ""  # hash of what is measured of it
    version: str = ""  # as prebuilt binaries report it
    trouble: str = ""  # why there is no build
    variant: str = ""  # of its own; empty for that of the trial
    config: str = ""  # of its server, beside the recipe's: a name of the recipe's configs, or the path of a file
    config_hash: str = ""  # of what that says
    seconds: float = field(default=0.0, compare=False)  # that it took to build; 0 where it was there, or is prebuilt


@dataclass(frozen=True, slots=True)
class TrialWorkload:
    """One workload."""

    name: str
    group: str
    warmup: float  # seconds
    time: float
    run_hash: str = ""  # of the workload and its files; empty in trials of older releases


@dataclass(frozen=True, slots=True)
class Reverts:
    """What the third build of a proof lacks."""

    hunt: int  # that named the commits
    commits: tuple[str, ...]  # full hashes, newest first


@dataclass(frozen=True, slots=True)
class Series:
    """What makes a comparison a series of releases, in the order of their versions."""

    text: str  # the range as written: 8.0.20..8.0.40
    left_out: tuple[tuple[str, str], ...]  # releases of the range that are not measured, with the reason
    options: tuple[str, ...]  # of a `bisect run` of the same system on the same host


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """The settings of a trial; the first subject is the baseline."""

    kind: TrialType
    builder: str
    variant: str
    host: str
    metric: str
    overrides: Mapping[str, str | int | float | bool]  # of the workloads
    subjects: tuple[TrialBuild, ...]
    works: tuple[TrialWorkload, ...]
    rounds: int
    runs: int  # in each visit
    reverts: Reverts | None = None  # of a proof
    series: Series | None = None  # of a comparison of the releases of a range


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


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial and what it has measured so far; ``runs`` and ``skips`` grow."""

    id: int
    request: TrialRequest
    host: HostFacts
    started: float  # seconds since the epoch
    state: str = "running"  # or "interrupted", "failed", "done"
    runs: list[TrialRun] = field(default_factory=list)
    skips: list[TrialSkip] = field(default_factory=list)
    failure: str = ""  # why it could not go on
    origin: str = ""  # whose it is, if it was imported; begins with BY_HAND if perfbisect has not measured it
    hunts: tuple[DropHunt, ...] = ()  # of a comparison, for its drops

    @property
    def name(self) -> str:
        """Its short name: c3, n4, p5."""
        return f"{self.request.kind[0]}{self.id}"

    def pairs(self) -> list[tuple[int, int]]:
        """Workload and build of each visit of a round, without failed builds and workloads whose baseline failed.

        In a series of releases one that fails is a gap, the first one like any other. A proof needs all its builds: it has no visit any more once one of them has failed.
        """
        failed = {(skip.work, skip.subject) for skip in self.skips}
        if self.request.kind is TrialType.PROVE and (failed or any(each.trouble for each in self.request.subjects)):
            return []
        base = None if self.request.series else 0
        return [
            (work, number)
            for work in range(len(self.request.works))
            for number, subject in enumerate(self.request.subjects)
            if not subject.trouble and not failed & {(work, number), (work, base)}
        ]

    def rounds_to_do(self) -> range:
        """The numbers of the rounds that are still to be made; an incomplete round does not count."""
        pairs, runs = self.pairs(), Counter((run.round, run.work, run.subject) for run in self.runs)
        made = {run.round for run in self.runs}
        whole = sum(all(runs[number, *pair] >= self.request.runs for pair in pairs) for number in made)
        first = max(made, default=-1) + 1
        return range(first, first + self.request.rounds - whole)


def order(subjects: Sequence[int], turn: int, *, shuffled: bool = False) -> Iterator[int]:
    """The order in which subjects are visited: forwards in one turn, backwards in the next, as in A B C, C B A.

    ``shuffled``: in an order that is drawn anew for every two turns. Where subjects are many, a round is long, and a machine
    that is slow for a part of it would otherwise slow down neighbours, as a change of speed does.
    """
    drawn = list(subjects)
    if shuffled:
        Random(turn // 2).shuffle(drawn)
    return iter(drawn) if turn % 2 == 0 else reversed(drawn)
