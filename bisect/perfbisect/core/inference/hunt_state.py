"""The state of a hunt, folded once from its events; views and reports read it. Pure.

It is keyed by commit (full hash), not by candidate: a hunt may begin with a range of its own, to compare good with the
merge base, and what was measured then stays known. ``classify`` says on which side of the change a commit is.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from enum import StrEnum

from perfbisect.core.domain.events import (
    PASSING,
    BuildCancelled,
    BuildFinished,
    BuildStarted,
    CandidateSkipped,
    ChangedFunctions,
    Commit,
    Counted,
    Decided,
    Event,
    HuntEnded,
    HuntStarted,
    MetricChosen,
    PairingChosen,
    Planned,
    Profiled,
    Remedied,
    RunFinished,
    Studied,
    TrialEnded,
    TrialStarted,
    Unexplained,
    Warned,
)
from perfbisect.core.domain.facts import LEFT_OUT, BuildFacts, RunFacts, SkipFacts, hit_rate
from perfbisect.core.domain.orders import (
    SAME,
    Belief,
    CodePlacement,
    Interval,
    Measure,
    NotReproduced,
    Purpose,
    Step,
    Verdict,
    named_steps,
)
from perfbisect.core.inference.noise_model import EXACT, USUAL
from perfbisect.core.inference.observations import (
    Binaries,
    Logged,
    counted_exactly,
    host_of,
    observations,
    without_refused,
)
from perfbisect.core.inference.relative_speed import relative_speeds, step_ratio
from perfbisect.core.inference.set_aside import SetAside

SURE = 0.95
MUTABLE = ("tested", "log", "aside", "studied", "in_flight", "cancelled", "warnings", "binaries", "since")


@dataclass(frozen=True, slots=True)
class Tested:
    """A commit that was built, measured or skipped, and what that took."""

    commit: Commit  # its hash alone unless a build of it was announced
    builds: tuple[BuildFacts, ...] = ()  # in order of time, those that were used again included
    runs: tuple[RunFacts, ...] = ()
    skip: SkipFacts | None = None  # the latest failure; None once a run has succeeded after it
    same_as: str | None = None  # a commit built earlier whose binary is the same
    failed_seconds: float = 0.0  # spent on builds that failed
    run_seconds: float = 0.0  # starts and warm-up included

    def with_run(self, run: RunFacts, seconds: float) -> "Tested":
        """The same after a run that took so long. Runs are most of a log: this is quicker than ``replace``."""
        took = self.run_seconds + seconds
        return Tested(self.commit, self.builds, (*self.runs, run), None, self.same_as, self.failed_seconds, took)

    @property
    def made(self) -> tuple[BuildFacts, ...]:
        """The builds that were really made."""
        return tuple(build for build in self.builds if not build.reused)

    @property
    def reused(self) -> bool:
        """Whether the latest build was still there from earlier."""
        return bool(self.builds) and self.builds[-1].reused

    @property
    def shared(self) -> bool:
        """Whether nothing was built for it, and its build came from the shared ones."""
        return not self.made and any(build.shared for build in self.builds)

    @property
    def build_seconds(self) -> float:
        """Spent on all builds, failed ones and those that came from the shared ones included."""
        taken = sum(build.seconds for build in self.builds if build.shared or not build.reused)
        return taken + self.failed_seconds

    @property
    def hit_rate(self) -> float | None:
        """Share of compilations that ccache answered; None when nothing was compiled."""
        return hit_rate(self.made)


@dataclass(slots=True, eq=False)
class HuntState:
    """What the events of a hunt have shown so far. ``add`` changes it, ``after`` leaves it as it is."""

    started: HuntStarted | None = None  # the latest
    commits: tuple[str, ...] = ()  # of the present range, by candidate: the good end first, the bad one last
    node: dict[str, int] = field(default_factory=dict)  # commit → candidate
    tested: dict[str, Tested] = field(default_factory=dict)  # by commit, in order of time
    log: list[tuple[float, Logged]] = field(default_factory=list)  # what observations are made of, with its times
    aside: SetAside = field(default_factory=SetAside)
    remedy: tuple[str, ...] = ()  # what was done so that commits build: a sentence
    chosen: MetricChosen = field(default_factory=lambda: MetricChosen("", ""))  # empty where nothing was changed
    pairing: PairingChosen | None = None  # where it was chosen how builds are compared
    warnings: dict[str, str] = field(default_factory=dict)  # text → advice
    belief: Belief | None = None  # about the present range
    studied: list[Studied] = field(default_factory=list)
    in_flight: dict[str, tuple[str, float]] = field(default_factory=dict)  # build host → what it builds, and since when
    cancelled: list[float] = field(default_factory=list)  # seconds of each build that was ended before it was finished
    purpose: Purpose | None = None  # of the latest order
    found: tuple[Step, ...] = ()  # changes that were proven by then; the verdict has them, too
    verdict: Verdict | None = None  # of the present session
    elapsed: float = 0.0  # seconds of all sessions
    binaries: Binaries = field(default_factory=Binaries)
    last: float | None = None  # when the latest event happened
    since: dict[str, float] = field(default_factory=dict)  # when each host did its latest work in this session

    def after(self, at: float, event: Event) -> "HuntState":
        """The state after ``event``, which happened ``at`` seconds since the epoch."""
        if isinstance(event, PASSING):
            return self
        following = replace(self, **{name: copy(getattr(self, name)) for name in MUTABLE})
        following.add(at, event)
        return following

    def begin_session(self, at: float) -> None:
        """A process began to work on the hunt; the time before it is not the hunt's."""
        self.last, self.since = at, {}

    def add(self, at: float, event: Event) -> None:
        """Take the next event, which happened ``at`` seconds since the epoch."""
        if isinstance(event, PASSING):
            return
        before = at if self.last is None else self.last
        self.elapsed += max(0.0, at - before)
        self.last = at
        match event:
            case HuntStarted():
                self._start(event)
            case MetricChosen(metric):
                self.chosen, self.pairing = event, None
                if self.started:
                    self.started = replace(self.started, metric=metric)
            case Remedied():
                self.remedy, self.belief, self.found, self.binaries = (event.sentence,), None, (), Binaries()
                self.aside.take(self.log)
                for sha, row in self.tested.items():
                    skip = row.skip if row.skip and row.skip.stage == LEFT_OUT else None
                    self.tested[sha] = replace(row, runs=(), skip=skip, same_as=None)
            case PairingChosen():
                self.pairing = event
            case Warned(text, advice):
                self.warnings[text] = advice
            case Decided(decision):
                self.belief = decision.belief
                self.purpose = decision.order.purpose if isinstance(decision.order, Measure) else None
                self.found = decision.found or named_steps(decision.order)
                if isinstance(decision.order, Measure) and self.build_hosts and self.started:  # it may have waited
                    self.since[self.started.hosts[decision.order.host].name] = at
            case BuildStarted(commit=commit):
                self.tested[commit.sha] = replace(self.row(commit.sha), commit=commit)
            case BuildFinished(facts=build):
                row = self.row(build.commit)
                same = self.binaries.same_as(self._place(event), build) or row.same_as
                runs = self.aside.give_back(build, self.log)
                self._log(at, event, replace(row, builds=(*row.builds, build), runs=(*row.runs, *runs), same_as=same))
            case BuildCancelled(seconds=seconds):
                self.cancelled.append(seconds)
            case CandidateSkipped(facts=skip):
                row = self.row(skip.commit)
                lost = skip.seconds if skip.of_build and not skip.for_another else 0.0
                self._log(at, event, replace(row, skip=skip, failed_seconds=row.failed_seconds + lost))
            case RunFinished(facts=run):
                row = self.row(run.commit)
                took = max(at - self.since.get(event.host, before), run.seconds)
                if run.round and any(getattr(each.facts, "round", "") == run.round for _, each in self.log[-4:]):
                    took = 0.0  # it ran beside that one
                self._log(at, event, row.with_run(run, took))
            case Counted() | Profiled() | Planned() | ChangedFunctions() | Unexplained():
                self.studied.append(event)
            case HuntEnded(verdict):
                self.verdict = verdict
            case TrialStarted() | TrialEnded():  # of no hunt
                pass
        self._follow_builds(at, event)
        if isinstance(event, BuildStarted | BuildFinished | CandidateSkipped | RunFinished) and event.host:
            self.since[event.host] = at

    def _follow_builds(self, at: float, event: Event) -> None:
        """Note which builds are made ahead at this moment."""
        match event:
            case BuildStarted(commit=commit, host=host) if host in self.build_hosts:
                self.in_flight[host] = commit.sha, at
            case BuildFinished(host=host) | BuildCancelled(host=host) | CandidateSkipped(host=host):
                self.in_flight.pop(host, None)
            case HuntStarted() | HuntEnded():
                self.in_flight.clear()
            case _:
                pass

    def _start(self, event: HuntStarted) -> None:
        """A session, or another range, begins."""
        self.started, self.verdict, self.since = event, None, {}
        self.use_range(event.candidates)

    def use_range(self, commits: tuple[str, ...]) -> None:
        """Count candidates in this range; beliefs about another one are void. Binaries are compared within a range."""
        if self.commits == commits:
            return
        self.commits, self.node = commits, {commit: candidate for candidate, commit in enumerate(commits)}
        self.belief, self.purpose, self.found, self.binaries = None, None, (), Binaries()
        for _, event in self.log:
            if isinstance(event, BuildFinished) and event.facts.commit in self.node:
                self.binaries.same_as(self._place(event), event.facts)

    def _place(self, event: Logged) -> int:
        """The number of an event's host, where there are several."""
        return host_of(event.host, {name: number for number, name in enumerate(self.hosts)}, self.build_hosts)

    def _log(self, at: float, event: Logged, row: Tested) -> None:
        """Keep an event that observations are made of, and the row of its commit."""
        self.log.append((at, event))
        self.tested[event.facts.commit] = row

    @property
    def hosts(self) -> list[str]:
        """The names of the hosts, where there are several."""
        return [facts.name for facts in self.started.hosts] if self.started and self.started.further else []

    @property
    def build_hosts(self) -> tuple[str, ...]:
        """The names of the hosts that build ahead."""
        return self.started.build_hosts if self.started else ()

    def built(self, candidate: int) -> BuildFacts | None:
        """The latest build of a candidate; None where it was not built."""
        return next(reversed(self.row(self.commits[candidate]).builds), None)

    def row(self, sha: str) -> Tested:
        """What is known of a commit; nothing but its hash if it was not tested."""
        return self.tested.get(sha) or Tested(Commit(sha))

    def binary_of(self, sha: str) -> str:
        """The first commit that was built with the binary of a commit."""
        return self.row(sha).same_as or sha

    def measured(self, sha: str) -> bool:
        """Whether a commit, or another one with the same binary, has been measured."""
        binary = self.binary_of(sha)
        return any(row.runs and self.binary_of(other) == binary for other, row in self.tested.items())

    @property
    def unused(self) -> list[Tested]:
        """What was built in vain: neither the commit nor another one with the same binary was measured."""
        return [row for sha, row in self.tested.items() if row.made and not self.measured(sha)]

    def runs_like(self, *shas: str) -> list[RunFacts]:
        """The runs of these commits and of others with the same binaries, in order of time."""
        binaries = {self.binary_of(sha) for sha in shas}
        runs = (run for sha, row in self.tested.items() if self.binary_of(sha) in binaries for run in row.runs)
        return sorted(runs, key=lambda run: run.started)

    def runs_of(self, step: Step, *, exact: bool) -> tuple[list[RunFacts], list[RunFacts]]:
        """The runs of both sides of a step, parents first, that were counted exactly, or that were timed."""
        sides = (
            self.runs_like(*(self.commits[parent] for parent in step.parents)),
            self.runs_like(self.commits[step.candidate]),
        )
        before, after = ([run for run in runs if bool(run.counted) is exact] for runs in sides)
        return before, after


def fold(events: Iterable[tuple[float, Event]], sessions: Sequence[float] = ()) -> HuntState:
    """The state after events with their times; ``sessions`` are the times at which processes began to work."""
    state, begins = HuntState(), [*sessions]
    for at, event in events:
        while begins and begins[0] <= at:
            state.begin_session(begins.pop(0))
        state.add(at, event)
    return state


def ratios(
    state: HuntState, metric: str, hosts: Sequence[str] = (), host_classes: Sequence[str] = ()
) -> dict[str, Interval]:
    """The metric of each measured commit relative to the good end, equal binaries taken together.

    ``hosts`` and ``host_classes`` are the names and classes where there are several hosts. The good end has no entry.
    Commits of the range are compared by their own runs alone, as the search compares them.
    """
    if not state.commits or not state.log:
        return {}
    outside = dict.fromkeys(event.facts.commit for _, event in state.log if event.facts.commit not in state.node)
    wider = state.node | {sha: len(state.commits) + place for place, sha in enumerate(outside)}
    found: dict[str, Interval] = {}
    model = EXACT if counted_exactly(state.log, metric) else USUAL
    for node in (wider, state.node) if outside else (state.node,):
        by_cpu = state.pairing is not None and state.pairing.by_cpu
        seen = observations(state.log, node, metric, state.log[0][0], hosts, state.build_hosts, by_cpu=by_cpu)
        seen = without_refused(seen, state.pairing)
        speeds = relative_speeds(seen, len(state.commits) - 1, host_classes, model)
        found |= {sha: speeds[number] for sha, number in node.items() if number in speeds}
    good = state.commits[0]
    same = [sha for sha in state.tested if sha != good and state.binary_of(sha) == state.binary_of(good)]
    return found | dict.fromkeys(same, SAME)


def effect_of(
    state: HuntState, step: Step, metric: str, hosts: Sequence[str] = (), host_classes: Sequence[str] = ()
) -> Interval | None:
    """What a step does to a metric that was not hunted, by the runs of the commit and of those it was compared with.

    Of several, the one that differs least. None where two runs of each have no value for it, or where hosts are of
    several classes.
    """
    if len(set(host_classes)) > 1 or not state.log:
        return None
    seen = observations(state.log, state.node, metric, state.log[0][0], hosts, state.build_hosts)
    seen = without_refused(seen, state.pairing)
    each = [step_ratio(seen, len(state.commits) - 1, step.candidate, parent) for parent in step.parents]
    known = [ratio for ratio in each if ratio is not None]
    return min(known, key=lambda ratio: abs(math.log(ratio.middle))) if known and len(known) == len(each) else None


class Classification(StrEnum):
    """What is known of a commit that was built, measured or skipped; the values are those of reports in JSON."""

    BASELINE = "base"  # the good end
    GOOD = "good"  # as fast as the good end
    BAD = "bad"  # as slow as the bad end
    CULPRIT = "culprit"
    UNCLEAR = "measured"
    BUILT = "built"  # and not measured
    SKIPPED = "skipped"
    NOW = "now"  # being built or measured: for live views


def classify(state: HuntState, sha: str, ratios: Mapping[str, Interval]) -> Classification:
    """The classification of a commit; ``ratios`` are those to the good end.

    The ends are what the user says they are. Between them the search's belief decides, or, outside of the range, the
    commit's own interval.
    """
    good, bad = state.commits[0], state.commits[-1]
    build = state.binary_of(sha)
    if state.row(sha).skip is not None:
        return Classification.SKIPPED
    if sha == good:
        return Classification.BASELINE
    if sha in {state.commits[step.candidate] for step in named_steps(state.verdict)}:
        return Classification.CULPRIT
    if build == state.binary_of(good):
        return Classification.GOOD
    if not state.measured(sha):
        return Classification.BUILT
    if build == state.binary_of(bad):
        return Classification.BAD
    candidate = state.node.get(build, state.node.get(sha))
    if candidate is not None and state.belief is not None and len(state.belief.slow) == len(state.commits):
        return by_belief(state, float(state.belief.slow[candidate]))
    return by_interval(ratios.get(bad), ratios.get(sha, ratios.get(build)))


def by_belief(state: HuntState, slow: float) -> Classification:
    """For a build that is slow with this probability. Without a change between the ends there are no sides."""
    if state.belief is None or state.belief.change < SURE or isinstance(state.verdict, NotReproduced | CodePlacement):
        return Classification.UNCLEAR
    return Classification.BAD if slow > SURE else Classification.GOOD if slow < 1 - SURE else Classification.UNCLEAR


def by_interval(bad: Interval | None, own: Interval | None) -> Classification:
    """The end to which the whole of the commit's own interval is nearer, if the bad end differs from the good one."""
    if bad is None or own is None or not bad.excludes_one:
        return Classification.UNCLEAR
    lowest, highest = math.log(own.low) if own.low else -math.inf, math.log(own.high)
    near, far = sorted((lowest / math.log(bad.middle), highest / math.log(bad.middle)))
    return Classification.GOOD if far < 0.5 else Classification.BAD if near > 0.5 else Classification.UNCLEAR
