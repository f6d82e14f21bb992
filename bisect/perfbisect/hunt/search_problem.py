"""A hunt through the loop: the search is its planner, the history its log."""

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
from perfbisect.core.domain.settings import CAP, NOTHING_KNOWN, Pairing, Policy, PriorKnowledge
from perfbisect.core.inference.analysis import PLAIN
from perfbisect.core.inference.instruction_counts import shown_by, with_counts
from perfbisect.core.inference.observations import count_runs, observations
from perfbisect.core.search.acquisition import runs_of_one, smallest_effect
from perfbisect.core.search.counts import LEAST
from perfbisect.core.search.decide import decide, likely_builds, likely_runs
from perfbisect.core.search.situation import Situation, Spent
from perfbisect.hunt.loop import Search, Workers, run
from perfbisect.process import CLOCK
from perfbisect.store.history import History
from perfbisect.wording.quantities import figure, percent, span_of

TimedEvent = tuple[float, Event]  # seconds since the epoch, what happened
NOISE_KNOWN = 10  # runs, after which the noise of a host is known well enough to say what it means
SAME = 4  # runs, after which one number in all of them is a constant
UNSTEADY, SHORT = 0.1, 1.0  # noise above which runs shorter than so many seconds are far too short
LONG = 30.0  # seconds of a run from which on shorter ones are advised, where these would show the change as well
MANY = 300  # runs, from which on a hunt says how many it will probably take
WorkersFor = Callable[[tuple[str, ...]], Workers[LabEvent]]  # commits of a graph's nodes → who measures them


@dataclass(frozen=True, slots=True)
class SearchProblem:
    """One question put to the search: a graph, the commit of each node, and the rules."""

    graph: Graph
    commits: tuple[str, ...]
    policy: Policy
    metric: str
    hosts: tuple[str, ...] = ()  # their names, where there are several
    prior: PriorKnowledge = NOTHING_KNOWN
    build_hosts: tuple[str, ...] = ()  # the names of those that build ahead

    def situation(self, state: SessionState, fleet: Fleet = ALL_FREE, *, shared: bool = False) -> Situation:
        """What the next decision depends on, by a log.

        Runs that were timed before instructions were counted are no readings, and count as spent.
        """
        chosen, policy = state.pairing, self.policy
        if self.hosts:  # each has a build of its own: one may be stale where another is clean
            policy = replace(policy, incremental=False)
        if chosen:
            pairing = Pairing.PAIRED if chosen.together else Pairing.INTERLEAVED
            policy = replace(policy, pairing=pairing, chosen=True)
        runs = [event.facts for _, event in state.log if isinstance(event, RunFinished)]
        aside = state.run_count - sum(not run.for_another for run in runs)  # set aside with their builds
        spent = Spent(aside + (sum(not run.counted for run in runs) if self.prior.exact else 0))
        by_cpu = chosen is not None and chosen.by_cpu
        node = {commit: index for index, commit in enumerate(self.commits)}
        seen = observations(state.log, node, self.metric, state.began, self.hosts, self.build_hosts, by_cpu=by_cpu)
        proofs = frozenset(node[sha] for sha in state.proofs if sha in node)
        known = Situation(self.graph, seen, policy, self.prior, fleet, shared=shared, elsewhere=spent)
        return replace(known, clean=state.clean, proofs=proofs)


class SavedLog:
    """The log of a session, or of one hunt of several: what earlier attempts left in the history, and everything since."""

    def __init__(self, history: History, hunt: int) -> None:
        self.history = history
        self.hunt = hunt
        self.began = history.began(hunt)
        events = ((entry.at, entry.event) for entry in history.events(hunt))
        self.state = fold(events, history.attempts(hunt), SessionState(hunt, began=self.began))
        history.session_log(hunt, self.state)
        self.entries = self.state.log
        CLOCK.go_on_from(max(self.began, self.state.last or 0.0))
        self.state.begin_session(CLOCK.now())

    def append(self, event: Event, workload: int | None = None) -> TimedEvent:
        """Make ``event`` durable, then return it with its time."""
        at = CLOCK.now()
        self.history.append(self.hunt, event, at)
        return at, event


def pursue(problem: SearchProblem, log: SavedLog, workers: Workers[LabEvent]) -> Generator[TimedEvent, None, Verdict]:
    """Search until there is a verdict; the last event is the Decided that carries it."""
    planner = Search(partial(problem.situation, log.state))
    event: Event | None = None
    with closing(run(planner, log.append, workers)) as events:
        for at, event in events:
            yield at, event
    assert isinstance(event, Decided)
    assert not isinstance(event.decision.order, Measure), "the search ends only with a verdict"
    return event.decision.order


def outlook(problem: SearchProblem, decision: Decision, log: SavedLog) -> Warned | None:
    """That the hunt will take very many runs, once its noise is known. It goes on all the same.

    Where counts show a change, too, they find its place, and time proves it: as if there were two candidates.
    """
    ends = ([run for run in log.state.runs_like(problem.commits[end]) if run.counted] for end in (0, -1))
    shown = shown_by(*ends) if problem.prior.count_cost else None
    effect, noise = decision.belief.effect, decision.belief.noise
    order, runs = decision.order, [event.facts for _, event in log.entries if isinstance(event, RunFinished)]
    if (
        not isinstance(order, Measure) or not decision.evidence or not effect.known
    ):  # nothing was measured in this way yet
        return None
    if sum(bool(run.layout) is order.fresh and not run.counted for run in runs) < NOISE_KNOWN:
        return None
    change = max(abs(math.expm1(math.log(effect.middle))), problem.policy.min_effect)
    counts = shown and shown.clear and LEAST * abs(math.log(effect.middle)) <= shown.loss
    candidates = 2 if counts else len(problem.commits)
    needed = runs_of_one(candidates, min(change, CAP), noise, problem.prior.build_cost)
    if needed < MANY:
        return None
    varying = f"runs are taken to vary by {percent(noise)}{' in randomized layouts' * order.fresh}"
    text = f"{varying}, so a change of {percent(change)} takes some {float(f'{needed:.1g}'):,.0f} runs to find"
    return Warned(
        text, "What would help: a quieter host; or exact counts (--metric instructions/o), where they can be had."
    )


def foreseen(problem: SearchProblem, decision: Decision, state: SessionState) -> Foreseen | None:
    """How many builds and runs the hunt will probably take, by what the ends have shown; None before the search begins."""
    effect, noise, order, policy = decision.belief.effect, decision.belief.noise, decision.order, problem.policy
    if not isinstance(order, Measure) or order.purpose is Purpose.ENDS or not effect.low or math.isinf(effect.high):
        return None
    smallest = smallest_effect(problem.situation(state)) if policy.auto_effect else policy.min_effect
    small, large = sorted(1 - math.exp(-abs(math.log(each))) for each in (effect.low, effect.high))
    drops = [min(max(each, smallest), CAP) for each in (large, small * effect.excludes_one)]
    choices = len(problem.graph.candidates)
    builds, runs = likely_builds(choices, policy), likely_runs(choices, drops, noise, problem.prior.build_cost, policy)
    cost = f"{span_of(*builds, 'build')} and {span_of(*runs, 'run')}"
    differ = f"the ends differ by {percent(abs(effect.middle - 1))} and runs vary by {percent(noise)}"
    least = ""
    if smallest < policy.min_effect:
        shown = "the limits show" if policy.max_minutes or policy.max_runs else "an hour shows"
        least = f"; changes of {percent(smallest)} or more are hunted, which {shown} here"
    return Foreseen(f"about {cost} in all, as {differ}{least}")


def constant(log: SavedLog) -> Warned | None:
    """That all runs, of both ends at least, have printed the same number."""
    runs = [event.facts for _, event in log.entries if isinstance(event, RunFinished) and not event.facts.counted]
    printed = {run.reported for run in runs}
    if len(runs) < SAME or len({run.commit for run in runs}) < 2 or len(printed) > 1 or None in printed:
        return None
    same = figure(printed.pop())
    return Warned(
        f"every run has printed the same number, {same}", "Does the pattern of --rate or --cost find a constant?"
    )


def ill_timed(change: Interval, noise: float, seconds: Sequence[float]) -> Warned | None:
    """That runs which took so many seconds are far too short for their noise, or far longer than the change needs."""
    if len(seconds) < NOISE_KNOWN or not change.known:
        return None
    typical = median(seconds)
    took = f"runs take {figure(typical)} s and vary by {percent(noise)}"
    if noise > UNSTEADY and typical < SHORT:
        return Warned(took, "Longer ones vary less: let the benchmark repeat its work for a few seconds.")
    if typical > LONG and abs(math.log(change.middle)) > PLAIN * noise:
        size = percent(abs(change.middle - 1))
        return Warned(took, f"Shorter ones show {size} as well: a tenth of the work is enough.")
    return None


def opening(
    problem: SearchProblem,
    started: SessionStarted | None,
    log: SavedLog,
    failed: Sequence[SkipFacts] = (),
    left_out: Sequence[SkipFacts] = (),
) -> Iterator[TimedEvent]:
    """What a hunt enters before its search: ``started``, unless the session has begun already, and what is not tried.

    ``failed`` are builds that failed in earlier hunts; they are not tried again, except at the ends. ``left_out`` is
    what the user does not want to be tried at all.
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


def ending(
    problem: SearchProblem,
    log: SavedLog,
    verdict: Verdict,
    *,
    reason_follows: bool = False,
    suspects: tuple[Commit, ...] = (),
) -> TimedEvent:
    """Enter the verdict, which ends the hunt."""
    counted = with_counts(verdict, problem.commits, log.entries)
    return log.append(SessionEnded(counted, reason_follows, suspects=suspects))


def replay(
    problem: SearchProblem, events: Sequence[TimedEvent], began: float, *, shared: bool = False
) -> Iterator[tuple[int, Decision]]:
    """What the search would have decided at each decision of a log, under the rules of ``problem``.

    ``shared``: it is known to be of a hunt of several workloads; else a log shows that by builds that were made for another.
    Yields (runs of the range made so far, decision) and ends with the first verdict; that has what was counted after it.
    No host is touched. What was decided by another metric before is left out.
    """
    changes = [place for place, (_, event) in enumerate(events) if isinstance(event, MetricChosen)]
    begins = changes[-1] if changes else -1
    log = [(at, event) for at, event in events if isinstance(event, BuildFinished | CandidateSkipped | RunFinished)]
    shared = shared or any(isinstance(event, BuildFinished) and event.facts.for_another for _, event in log)
    state = SessionState(began=began)
    for place, (at, event) in enumerate(events):
        if not isinstance(event, Decided):
            state.add(at, event)
            continue
        if place > begins:
            now = problem.situation(state, event.fleet, shared=shared)
            decision = decide(now)
            order = decision.order
            if not isinstance(order, Measure):
                decision = replace(decision, order=with_counts(order, problem.commits, log))
            yield count_runs(now.observations), decision
            if not isinstance(order, Measure):
                return
        state.add(at, event)  # afterwards: it may end the use of incremental builds
