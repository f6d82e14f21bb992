"""Holds the data of a session that views show: the state from the session's log, the phase of the session, and the
build or run on each host. The module reads no clock: the time is a parameter.

Some fields of ``SessionView`` are set only in hunts, and some only in trials.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from perfbisect.core.domain.events import Commit, Event, ExecutionStarted, SessionStarted
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.metrics import INSTRUCTIONS, operations_per_second, shown_metric
from perfbisect.core.domain.orders import (
    Belief,
    CodePlacement,
    Found,
    Inconclusive,
    Interval,
    Measure,
    NotReproduced,
    Purpose,
    Several,
    Verdict,
)
from perfbisect.core.domain.session_state import SessionState, TestedCommit
from perfbisect.core.inference.classification import Classification, classify
from perfbisect.wording.quantities import chance
from perfbisect.wording.text import printable, printable_commit
from perfbisect.wording.trials import ratio_title

TimedEvent = tuple[float, Event]  # seconds since the epoch, what happened
Report = Callable[[int], str]  # returns the command that shows the report of a hunt
REPORT = "bisect show {}".format  # for the default history


@dataclass(frozen=True, slots=True)
class SessionRow:
    """The line of a session in a list of several sessions."""

    title: str
    hunt: int | None  # the number of a hunt that has begun; else None
    state: str = ""  # in words; "": the view of the session has the state
    is_running: bool = True  # only running sessions are drawn


@dataclass(frozen=True, slots=True)
class LatestBuild:
    """A build that is in progress, or the latest finished build of its host. Times are seconds since the epoch."""

    candidate: int
    since: float
    done_steps: int = 0
    total_steps: int = 0  # 0: unknown
    stage: str = ""
    is_finished: bool = False


@dataclass(frozen=True, slots=True)
class LatestRun:
    """A run that is in progress, or the latest finished run of its host. Times are seconds since the epoch."""

    candidate: int
    since: float
    number: int
    runs_of_order: int
    purpose: Purpose
    planned_seconds: float  # with warm-up; 0: unknown
    samples: tuple[float, ...] = ()
    execution: ExecutionStarted | None = None  # of a counted run: the present execution
    is_finished: bool = False


Activity = LatestBuild | LatestRun  # what a host does, or has done last


@dataclass(frozen=True, slots=True)
class OrderGroup:
    """Successive work orders (measurements) with the same purpose. ``runs_before`` and ``runs_after`` are numbers of
    runs since the start of the hunt."""

    latest_order: Measure
    runs_before: int  # runs of the hunt before the first of these orders
    runs_after: int  # runs of the hunt after all of these orders


@dataclass(frozen=True, slots=True)
class ExpectedRuns:
    """The numbers of rounds and runs that a trial will have at its end."""

    rounds: int = 0
    runs: int = 0
    may_change: bool = False  # whether the numbers may change, because paired or interleaved runs are not yet chosen


@dataclass(frozen=True, slots=True, eq=False)
class SessionView:
    """All data that the screen of a session shows. Times are seconds since the epoch."""

    state: SessionState = field(default_factory=SessionState)
    tested: Mapping[int, TestedCommit] = field(default_factory=dict)  # candidate → its results, for tested candidates
    ratios_to_good: Mapping[str, Interval] = field(default_factory=dict)  # relative to the good end, by commit
    began: float | None = None  # of this attempt
    ended: float | None = None
    search_verdict: Verdict | None = None  # set when the search ends; the reason of the change may still be measured
    is_verdict_final: bool = False  # the verdict is final, and its reason is measured
    reason: str = ""  # the reason of the change that the verdict names; "" until it is known
    latest_activity: Activity | None = None  # on the host of the latest event, build hosts excepted
    activity_by_host: Mapping[str, Activity | None] = field(default_factory=dict)  # also of build hosts
    search_start: tuple[float, float] | None = None  # when the search began, and its bits at that time
    order_group: OrderGroup | None = None  # the latest orders of this attempt
    layout_ratio: str = ""  # the ratio so far, while a commit is compared in randomized layouts
    report_command: Report = REPORT  # the command that shows the report of a hunt
    expected_runs: ExpectedRuns = ExpectedRuns()  # of a trial
    forecast: str = ""  # the forecast of builds and runs, once the ends are measured
    place: str = ""  # of a trial: the present round, workload and build
    has_moved: bool = False  # whether the latest event changed ``place``

    @property
    def trial_state(self) -> SessionState | None:
        """The state of the session if the session is a trial; None for a hunt."""
        return self.state if self.state.request.works else None

    @property
    def name(self) -> str:
        """The name of the session in commands and lists, such as "hunt 12" or "c3"; "" before the name is known."""
        if self.trial_state:
            return self.trial_state.name
        return f"hunt {self.hunt_start.session}" if self.hunt_start else ""

    @property
    def hunt_start(self) -> SessionStarted | None:
        """The event that defines the range of a hunt; None before this event, and for a trial."""
        return self.state.started

    @property
    def measuring_hosts(self) -> list[str]:
        """The names of the hosts that measure, not of build hosts. If the session has only one host and no build host,
        the list is empty."""
        if self.trial_state:
            return [*self.activity_by_host] if len(self.activity_by_host) > 1 else []
        start = self.hunt_start
        return self.state.hosts_if_several or ([start.host.name] if start and start.build_hosts else [])

    @property
    def builds_on_build_hosts(self) -> int:
        """The number of builds in progress on build hosts."""
        return sum(
            isinstance(doing := self.activity_by_host.get(name), LatestBuild) and not doing.is_finished
            for name in self.state.build_hosts
        )

    @property
    def report_hint(self) -> str:
        """A line with the command that shows the full report; "" before the number of the hunt is known."""
        return f"Full report: {self.report_command(self.hunt_start.session)}" if self.hunt_start else ""

    def sha(self, candidate: int) -> str:
        """The full hash of a candidate."""
        return self.state.commits[candidate] if candidate < len(self.state.commits) else f"candidate {candidate}"

    def commit(self, candidate: int) -> Commit:
        """A candidate's commit. If only the hash of the commit is known, the subject is empty. The texts are safe to
        print.
        """
        commit, started = self.state.facts_of(self.sha(candidate)).commit, self.state.started
        return printable_commit(started.with_part_title(commit, candidate) if started else commit)

    def activity_title(self, activity: Activity) -> tuple[str, str]:
        """Two texts that describe a build or run in progress. In a hunt, they are the short hash and the subject of the
        commit. For a build of a trial, they are the name of the build and "". For a run of a trial, the first text has
        the round, the workload and the build, and the second text has the number of the run.
        """
        if self.trial_state and isinstance(activity, LatestRun):
            return self.place, f"run {activity.number} of {activity.runs_of_order}"
        if self.trial_state:
            return printable(self.trial_state.request.subjects[activity.candidate].name), ""
        commit = self.commit(activity.candidate)
        return commit.short_sha, commit.subject

    def activity_of(self, candidate: int) -> Activity | None:
        """The build or run in progress of a candidate; None if no host works on the candidate. If several hosts work on
        the candidate, the first host's."""
        in_progress = (doing for doing in self.activity_by_host.values() if doing is not None and not doing.is_finished)
        return next((doing for doing in in_progress if doing.candidate == candidate), None)

    def classification(self, candidate: int) -> Classification | None:
        """The classification of a candidate, such as fast or slow. None if the candidate was not built, measured or
        skipped, and no host works on it.
        """
        if self.activity_of(candidate) is not None:
            return Classification.NOW
        return classify(self.state, self.sha(candidate), self.ratios_to_good) if candidate in self.tested else None

    def is_baseline(self, candidate: int) -> bool:
        """Whether a candidate has the same binary as the good end."""
        return self.state.first_with_same_binary(self.sha(candidate)) == self.state.first_with_same_binary(self.sha(0))

    def ratio(self, candidate: int) -> Interval | None:
        """The ratio of a candidate's metric to the metric of the good end; None if the ratio is unknown, or if the
        candidate has the same binary as the good end."""
        sha = self.sha(candidate)
        if self.is_baseline(candidate):
            return None
        return self.ratios_to_good.get(sha, self.ratios_to_good.get(self.state.first_with_same_binary(sha)))

    @property
    def ratio_title(self) -> str:
        """The short name of the ratio that is shown: rQPS, rcpu/o, …"""
        return ratio_title(self.metric, self.state.pairing)

    @property
    def pair_in_randomized_layouts(self) -> tuple[int, ...]:
        """During a proof in randomized layouts, two candidates: the candidate to prove, and the first candidate with
        which it is compared. Otherwise empty."""
        order = self.order_group.latest_order if self.order_group else None
        proves = order is not None and order.fresh and order.purpose is Purpose.CONFIRM
        return tuple(share.candidate for share in order.plan[:2]) if order and proves else ()

    @property
    def metric(self) -> str:
        """The metric that is compared."""
        return self.hunt_start.metric if self.hunt_start else self.state.request.metric or "qps"

    def shown_metric_of(self, run: RunFacts) -> str:
        """The metric whose value is displayed for a run."""
        return shown_metric(run, self.metric, self.state.chosen.usual)

    @property
    def ends_differ(self) -> bool:
        """Whether the hunt now assumes that good and bad differ. Only in this case is the probability of a culprit
        meaningful.
        """
        is_refuted = isinstance(self.state.verdict, NotReproduced | CodePlacement)
        return self.state.purpose is not Purpose.ENDS and not is_refuted

    @property
    def leader(self) -> tuple[int, float] | None:
        """The most probable culprit and its probability; None if no candidate is clearly the most probable, or if good
        and bad may not differ."""
        belief = self.state.belief
        if belief is None or len(belief.culprit) < 2 or not self.ends_differ:
            return None
        candidate = int(np.argmax(belief.culprit))
        second, share = np.sort(belief.culprit)[-2:].tolist()
        return (candidate, share) if share >= 0.5 or share >= max(1.1 * second, 2 / (len(belief.culprit) - 1)) else None

    @property
    def no_leader_text(self) -> str:
        """The text that is shown if no candidate is clearly the most probable culprit."""
        if self.ends_differ:
            likely = (
                f"; {credible_set_size(self.state.belief, 0.95)} candidates remain likely" if self.state.belief else ""
            )
            return f"no commit is clearly most probable yet{likely}"
        of_merge_base = self.hunt_start and self.hunt_start.of_merge_base
        ends = "good and the merge base are equally fast" if of_merge_base else "good and bad differ"
        return f"it is not known yet whether {ends}"

    @property
    def verdict_or_progress(self) -> str:
        """The verdict of a hunt in a few words, or, before the verdict, the most probable culprit. For a trial, the
        progress of the trial."""
        if self.trial_state:
            return "done" if self.trial_state.state == "done" else self.place or "starting"
        match self.search_verdict:
            case None if self.leader:
                candidate, share = self.leader
                return f"most probable: {self.commit(candidate).short_sha}, {chance(share)}"
            case None:
                return self.no_leader_text if self.hunt_start else "starting"
            case Found(step):
                return f"culprit {self.commit(step.candidate).short_sha}, {chance(step.probability)}"
            case Several(steps):
                where = ", ".join(self.commit(step.candidate).short_sha for step in steps)
                return f"changes at {where}" if where else "no change for the worse is named"
            case NotReproduced():
                return "not reproduced"
            case CodePlacement(step):
                return f"code placement, at {self.commit(step.candidate).short_sha}"
            case Inconclusive():
                return "inconclusive"

    def stopped_at(self, time: float) -> "SessionView":
        """The view, changed for a session that has stopped and whose latest event was at ``time`` (epoch seconds)."""
        return replace(self, ended=self.ended or time, latest_activity=None, activity_by_host={})

    @property
    def highest_rate(self) -> float:
        """The highest rate of all runs so far, in operations per second."""
        ended = [operations_per_second(run) or 0.0 for row in self.tested.values() for run in row.runs]
        activities = self.activity_by_host.values()
        current = [qps for doing in activities if isinstance(doing, LatestRun) for qps in doing.samples]
        return max((*ended, *current), default=0.0)


RUNS_PER_BIT = 4.0  # first guess: one build and this number of runs halve the range
CONFIRMING = 6.0  # estimated number of runs of a culprit's proof
PRIOR_BITS = 1.0  # weight of the first guess, in observed bits
OVERDUE = 0.1  # after an estimated time has passed, this share of it is shown as the time that is left


def minutes_left(view: SessionView, now: float) -> float | None:
    """Estimated minutes from ``now`` (epoch seconds) until the verdict; None while too little is known.

    In a hunt, the estimate is the number of missing bits of information (the entropy of the culprit), times the time
    that the search has needed for each bit so far, plus the time of the runs of the proof. In a trial, the estimate is
    the number of remaining runs times the median time of a run.
    """
    if view.trial_state:
        costs = [run.cost for run in view.trial_state.runs]
        return (view.expected_runs.runs - view.state.run_count) * median(costs) / 60 if costs else None
    belief = view.state.belief
    exact = view.state.metric == INSTRUCTIONS  # otherwise counted runs are longer than timed runs
    timed = [row for row in view.tested.values() if row.runs and (exact or not any(run.counted for run in row.runs))]
    ran_in = [row.run_seconds / 60 / len(row.runs) for row in timed]
    if belief is None or view.state.verdict is not None or not ran_in:
        return None
    build = median([row.build_seconds / 60 for row in view.tested.values() if row.new_builds] or [0.0])
    run = median(ran_in)
    missing, at, confirms = entropy_in_bits(belief), view.state.last or now, view.state.purpose is Purpose.CONFIRM
    since, at_first = view.search_start or (at, missing)
    guess, gained = build + RUNS_PER_BIT * run, max(0.0, at_first - missing)
    per_bit = ((at - since) / 60 + PRIOR_BITS * guess) / (gained + PRIOR_BITS)
    orders = view.order_group if view.state.purpose is not Purpose.SEARCH else None
    ordered = orders.runs_after - view.state.run_count if orders else 0
    total = missing * per_bit + (ordered + CONFIRMING * (not confirms)) * run
    return max(total - (now - at) / 60, OVERDUE * total)


def entropy_in_bits(belief: Belief) -> float:
    """The Shannon entropy, in bits, of the probability distribution of the culprit; 0 if a single candidate has all of
    the probability."""
    share = belief.culprit[belief.culprit > 0]
    share = share / share.sum() if len(share) else share
    return float(-(share * np.log2(share)).sum())


def credible_set_size(belief: Belief, share: float) -> int:
    """The size of the smallest set of candidates that contains the culprit with the probability ``share``."""
    cumulative = np.cumsum(np.sort(belief.culprit)[::-1])
    return min(len(cumulative), int(np.searchsorted(cumulative, share * cumulative[-1])) + 1)
