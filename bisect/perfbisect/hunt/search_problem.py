"""The input of a hunt's search, the function that runs the search, and the hunt's log in the history."""

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from perfbisect.core.domain.events import (
    BuildFinished,
    CandidateSkipped,
    Commit,
    Decided,
    Event,
    Foreseen,
    LabEvent,
    MetricChosen,
    RunFinished,
    SessionEnded,
    SessionStarted,
    Warned,
)
from perfbisect.core.domain.facts import SkipFacts
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import ALL_FREE, Decision, Fleet, Interval, Measure, Purpose, Verdict
from perfbisect.core.domain.session_state import SessionState, fold
from perfbisect.core.domain.settings import MAX_PROBABILITY, NOTHING_KNOWN, Pairing, Policy, PriorKnowledge
from perfbisect.core.inference.analysis import PLAIN
from perfbisect.core.inference.instruction_counts import instruction_change, with_count_result
from perfbisect.core.inference.observations import count_own_runs, read_observations
from perfbisect.core.search.acquisition import detectable_effect, expected_runs
from perfbisect.core.search.counts import LEAST
from perfbisect.core.search.decide import build_bounds, decide, run_bounds
from perfbisect.core.search.situation import ExtraCost, Situation
from perfbisect.hunt.loop import SearchPlanner, Workers, run
from perfbisect.process import CLOCK
from perfbisect.store.history import History
from perfbisect.wording.quantities import figure, percent, span_of

TimedEvent = tuple[float, Event]  # (seconds since the epoch, event)
MIN_NOISE_RUNS = 10  # after this number of runs, a host's noise is known well enough for warnings
MIN_CONSTANT_RUNS = 4  # a metric is called constant if this number of runs, or more, have one value
UNSTEADY, SHORT = 0.1, 1.0  # runs shorter than SHORT seconds with a noise above UNSTEADY are called too short
# Runs longer than LONG seconds are called too long, if shorter runs would show the change as well.
LONG = 30.0
MANY = 300  # a warning is shown if a hunt will probably need at least this number of runs
# The commits of a graph's nodes → workers that measure these commits.
WorkersFor = Callable[[tuple[str, ...]], Workers[LabEvent]]


@dataclass(frozen=True, slots=True)
class SearchProblem:
    """The input of a search that does not change during the search: the graph of the range, the commit of each node,
    the rules of the search, and the hosts."""

    graph: Graph
    commits: tuple[str, ...]
    policy: Policy
    metric: str
    hosts: tuple[str, ...] = ()  # the names of the hosts; empty for a single host
    prior: PriorKnowledge = NOTHING_KNOWN
    build_hosts: tuple[str, ...] = ()  # the names of the hosts that build ahead

    def situation(self, state: SessionState, fleet: Fleet = ALL_FREE, *, shares_builds: bool = False) -> Situation:
        """The situation (all data on which the next decision depends), from the state of the hunt's log.

        ``shares_builds`` is true if several hunts share builds, and this hunt is one of these hunts. If the metric has
        changed from time to counted instructions, the readings do not include the timed runs, but the timed runs are
        charged to the budget of runs.
        """
        chosen, policy = state.pairing, self.policy
        if self.hosts:  # each host has builds of its own, so a build may be stale on one host and clean on another
            policy = replace(policy, incremental=False)
        if chosen:
            policy = replace(policy, pairing=Pairing.PAIRED if chosen.together else Pairing.INTERLEAVED, chosen=True)
        runs = [event.facts for _, event in state.log if isinstance(event, RunFinished)]
        excluded = state.run_count - sum(not run.for_another for run in runs)  # number of runs that no longer count
        spent = ExtraCost(excluded + (sum(not run.counted for run in runs) if self.prior.exact else 0))
        by_cpu = chosen is not None and chosen.by_cpu
        node = {commit: index for index, commit in enumerate(self.commits)}
        hosts = self.hosts, self.build_hosts
        readings = read_observations(state.log, node, self.metric, state.began, *hosts, by_cpu=by_cpu)
        proofs = frozenset(node[sha] for sha in state.proofs if sha in node)
        situation = Situation(
            self.graph, readings, policy, self.prior, fleet, shares_builds=shares_builds, extra_cost=spent
        )
        return replace(situation, clean=state.clean, proofs=proofs)


class SavedLog:
    """The stored log of a trial or of one hunt: the events of earlier attempts, and the events of this attempt."""

    def __init__(self, history: History, hunt: int) -> None:
        self.history, self.hunt, self.began = history, hunt, history.start_time(hunt)
        events = ((entry.at, entry.event) for entry in history.events(hunt))
        self.state = fold(events, history.attempt_starts(hunt), SessionState(hunt, began=self.began))
        history.session_log(hunt, self.state)
        self.entries = self.state.log
        CLOCK.advance_to(max(self.began, self.state.last or 0.0))
        self.state.begin_attempt(CLOCK.now())

    def append(self, event: Event, workload: int | None = None) -> TimedEvent:
        """Store an event; returns the event with the time of storing it."""
        at = CLOCK.now()
        self.history.append(self.hunt, event, at)
        return at, event


def run_search(
    problem: SearchProblem, log: SavedLog, workers: Workers[LabEvent]
) -> Generator[TimedEvent, None, Verdict]:
    """Search until there is a verdict, and return the verdict. Yields all events; the last event is the ``Decided``
    event with the verdict.
    """
    planner = SearchPlanner(partial(problem.situation, log.state))
    event: Event | None = None
    with closing(run(planner, log.append, workers)) as events:
        for at, event in events:
            yield at, event
    assert isinstance(event, Decided)
    assert not isinstance(event.decision.order, Measure), "the search ends only with a verdict"
    return event.decision.order


def many_runs_warning(problem: SearchProblem, decision: Decision, log: SavedLog) -> Warned | None:
    """A warning if the hunt will probably take 300 runs or more; None if the hunt will take fewer runs, or if the noise
    is unknown.

    If exact counts of instructions also show the change, the expected number of runs is computed for only two
    candidates, because the counts find the culprit, and timed runs are only necessary for the proof.
    """
    ends = ([run for run in log.state.runs_of_equal_binaries(problem.commits[end]) if run.counted] for end in (0, -1))
    difference = instruction_change(*ends) if problem.prior.count_cost else None
    effect, noise = decision.belief.effect, decision.belief.noise
    order, runs = decision.order, [event.facts for _, event in log.entries if isinstance(event, RunFinished)]
    if not isinstance(order, Measure) or not decision.evidence or not effect.has_known_bound:  # not measured yet
        return None
    if sum(bool(run.layout) is order.fresh and not run.counted for run in runs) < MIN_NOISE_RUNS:
        return None
    change = max(abs(math.expm1(math.log(effect.middle))), problem.policy.min_effect)
    counts = difference and difference.is_clear and LEAST * abs(math.log(effect.middle)) <= difference.log_rise
    candidates = 2 if counts else len(problem.commits)
    needed = expected_runs(candidates, min(change, MAX_PROBABILITY), noise, problem.prior.build_cost)
    if needed < MANY:
        return None
    varying = f"the noise of runs is estimated as {percent(noise)}{' in randomized layouts' * order.fresh}"
    text = f"{varying}, so a search for a change of {percent(change)} takes some {float(f'{needed:.1g}'):,.0f} runs"
    advice = "A quieter host needs fewer runs; and so do exact counts (--metric instructions/o), if the host can count."
    return Warned(text, advice)


def forecast_builds_and_runs(problem: SearchProblem, decision: Decision, state: SessionState) -> Foreseen | None:
    """A forecast of the numbers of builds and runs that the hunt will take, computed from the readings of good and bad.

    None if the search needs further runs of good and bad first, or if the confidence interval of the ratio of bad to
    good has no finite limits.
    """
    effect, noise, order, policy = decision.belief.effect, decision.belief.noise, decision.order, problem.policy
    if not isinstance(order, Measure) or order.purpose is Purpose.ENDS or not effect.low or math.isinf(effect.high):
        return None
    smallest = detectable_effect(problem.situation(state)) if policy.auto_effect else policy.min_effect
    small, large = sorted(1 - math.exp(-abs(math.log(limit))) for limit in (effect.low, effect.high))
    drops = [min(max(drop, smallest), MAX_PROBABILITY) for drop in (large, small * effect.excludes_one)]
    choices = len(problem.graph.candidates)
    builds, runs = build_bounds(choices, policy), run_bounds(choices, drops, noise, problem.prior.build_cost, policy)
    cost = f"{span_of(*builds, 'build')} and {span_of(*runs, 'run')}"
    difference = f"good and bad differ by {percent(abs(effect.middle - 1))} and runs vary by {percent(noise)}"
    hunted = ""
    if smallest < policy.min_effect:
        budget = "within the limits" if policy.max_minutes or policy.max_runs else "within an hour"
        hunted = f"; changes of {percent(smallest)} or more are hunted, because this host can show them {budget}"
    return Foreseen(f"about {cost} in all, because {difference}{hunted}")


def constant_metric_warning(log: SavedLog) -> Warned | None:
    """A warning if all timed runs of at least two builds have printed the same number, which is then probably no
    measurement; otherwise None."""
    runs = [event.facts for _, event in log.entries if isinstance(event, RunFinished) and not event.facts.counted]
    printed = {run.reported for run in runs}
    if len(runs) < MIN_CONSTANT_RUNS or len({run.commit for run in runs}) < 2 or len(printed) > 1 or None in printed:
        return None
    advice = "Check that the pattern of --rate or --cost does not find a constant."
    return Warned(f"every run has printed the same number, {figure(printed.pop())}", advice)


def run_length_warning(change: Interval, noise: float, seconds: Sequence[float]) -> Warned | None:
    """A warning if runs that take ``seconds`` are so short that their noise is large, or longer than a change of this
    size needs; otherwise None."""
    if len(seconds) < MIN_NOISE_RUNS or not change.has_known_bound:
        return None
    typical = median(seconds)
    lengths = f"runs take {figure(typical)} s and vary by {percent(noise)}"
    if noise > UNSTEADY and typical < SHORT:
        return Warned(lengths, "Longer runs vary less: let the benchmark repeat its work for a few seconds.")
    if typical > LONG and abs(math.log(change.middle)) > PLAIN * noise:
        size = percent(abs(change.middle - 1))
        return Warned(lengths, f"Shorter runs show a change of {size} as well: a tenth of the work is enough.")
    return None


def log_opening(
    problem: SearchProblem,
    started: SessionStarted | None,
    log: SavedLog,
    failed: Sequence[SkipFacts] = (),
    left_out: Sequence[SkipFacts] = (),
) -> Iterator[TimedEvent]:
    """Store the events that precede a search: the event ``started``, if it is not None, and an event for each candidate
    that the search skips from the beginning.

    ``failed`` are builds that failed in earlier hunts, which this hunt does not try again; ``left_out`` are commits
    that the user has excluded. Good and bad are never skipped.
    """
    if started:
        yield log.append(started)
    inner = {commit: node for node, commit in enumerate(problem.commits) if 0 < node < len(problem.commits) - 1}
    skipped = {event.facts.commit for _, event in log.entries if isinstance(event, CandidateSkipped)}
    remembered = (replace(facts, reason=f"{facts.reason} (in an earlier hunt)", seconds=0.0) for facts in failed)
    for facts in (*left_out, *remembered):
        if facts.commit in inner and facts.commit not in skipped:
            skipped.add(facts.commit)
            yield log.append(CandidateSkipped(inner[facts.commit], facts))


def log_verdict(
    problem: SearchProblem,
    log: SavedLog,
    verdict: Verdict,
    *,
    reason_follows: bool = False,
    suspects: tuple[Commit, ...] = (),
) -> TimedEvent:
    """Store the event that ends a hunt. The verdict in this event is ``verdict``, completed by the result of exact
    counts."""
    counted = with_count_result(verdict, problem.commits, log.entries)
    return log.append(SessionEnded(counted, reason_follows, suspects=suspects))


def recompute_decisions(
    problem: SearchProblem, events: Sequence[TimedEvent], began: float, *, shares_builds: bool = False
) -> Iterator[tuple[int, Decision]]:
    """Compute the decisions of a logged hunt again, with the present version of the search and the rules of
    ``problem``. Nothing is measured.

    Yields each decision up to the first verdict, with the number of runs of the range's commits before the decision. If
    instructions were counted after the verdict, the verdict contains the result of the counts. If the hunt changed its
    metric, the decisions before the change of metric are left out. ``shares_builds`` is true if several hunts share
    builds, and this hunt is one of these hunts. ``shares_builds`` is assumed if the log has builds that were made for
    another hunt.
    """
    metric_changes = [index for index, (_, event) in enumerate(events) if isinstance(event, MetricChosen)]
    last_change = metric_changes[-1] if metric_changes else -1
    log = [(at, event) for at, event in events if isinstance(event, BuildFinished | CandidateSkipped | RunFinished)]
    shares_builds |= any(isinstance(event, BuildFinished) and event.facts.for_another for _, event in log)
    state = SessionState(began=began)
    for index, (at, event) in enumerate(events):
        if not isinstance(event, Decided):
            state.add(at, event)
            continue
        if index > last_change:
            situation = problem.situation(state, event.fleet, shares_builds=shares_builds)
            decision = decide(situation)
            order = decision.order
            if not isinstance(order, Measure):
                decision = replace(decision, order=with_count_result(order, problem.commits, log))
            yield count_own_runs(situation.observations), decision
            if not isinstance(order, Measure):
                return
        state.add(at, event)  # after the decision, because the event may end the use of incremental builds
