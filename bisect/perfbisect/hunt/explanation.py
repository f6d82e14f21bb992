"""After the verdict: culprit and parent are measured again in turns, for the reason. See ``core/explain``.

One part after another: see ``PARTS``. Their events are stored in the log of the hunt, whose verdict stands,
and no decision reads them. What an earlier session has measured is not measured again. A part that fails is left out with
a sentence, until the reason is measured again.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfbisect.clock import CLOCK
from perfbisect.core.domain.events import (
    BuildFinished,
    BuildStarted,
    CandidateSkipped,
    Counted,
    Event,
    HuntStarted,
    LabEvent,
    Planned,
    Profiled,
    RunFinished,
    Studied,
    Unexplained,
    Warned,
)
from perfbisect.core.domain.orders import Measure, Purpose, Share, Verdict, first_step
from perfbisect.core.explain.evidence import Explanation
from perfbisect.core.explain.explanation import explanation
from perfbisect.errors import PerfBisectError, in_words
from perfbisect.hunt.explanation_parts import PARTS, Part
from perfbisect.hunt.loop import Listed, Workers, run
from perfbisect.hunt.search_problem import SavedLog, TimedEvent
from perfbisect.lab.measure.counting import has_length
from perfbisect.lab.measure.visit import StudyMaker
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.workload import EVENTS, Workload
from perfbisect.wording.quantities import duration
from perfbisect.wording.text import advised

SHARE = 0.1  # of the time of a hunt for all parts, but for rounds that are always taken or have begun
LEAST = 90.0  # seconds for them in a short hunt
NO_LENGTH = f"; with {{{EVENTS}}} in place of a number in the command, a short run would be enough"
SHORTEST = 1.0  # seconds of a run that says anything

WorkersOf = Callable[[StudyMaker], Workers[LabEvent]]


@dataclass(frozen=True, slots=True)
class PartLog:
    """The log as a part of the explanation writes it: its own events, and nothing that the search reads."""

    log: SavedLog
    part: str
    builds: tuple[int, int]

    def append(self, event: Event, workload: int | None = None) -> TimedEvent:
        """Make an event of the part durable; others are returned to be shown. One of ``builds`` that fails ends the part."""
        match event:
            case CandidateSkipped(candidate, skip, host=host) if candidate in self.builds:
                return self.log.append(Unexplained(self.part, f"{skip.stage}: {skip.reason}", host))
            case Counted() | Profiled() | Planned() | Unexplained() | Warned():
                return self.log.append(event)
            case _:
                return CLOCK.now(), event


def explain(
    verdict: Verdict,
    commits: Sequence[str],
    log: SavedLog,
    workers_of: WorkersOf,
    builder: Builder,
    workload: Workload,
    together: int = 1,
    seconds: float = 0.0,
) -> Generator[TimedEvent]:
    """Measure for the reason of the verdict's first step what the log does not contain yet.

    ``together`` is the number of hunts that have shared the time of this one. ``seconds`` it may take; 0: as usual.
    """
    if (step := first_step(verdict)) is None:
        return
    builds = step.candidate, step.parents[0]
    before = [(entry.at, entry.event) for entry in log.history.events(log.hunt)]
    seen = [event for _, event in before]
    host = best_host(seen, commits[step.candidate])
    left = seconds or max(LEAST, SHARE * worked(before) / together)
    for number, part in enumerate(PARTS):
        suit = [each for each in PARTS[number:] if each.suits(builder, workload, seen)]
        if part not in suit:
            continue
        allowed = left * part.share / sum(each.share for each in suit)
        began = CLOCK.now()
        others = measured_on(host, seen, commits, but=builds) if part.of_all else ()
        try:
            for at, event in take(part, commits, builds, others, host, before, log, workers_of, allowed, workload):
                seen.append(event)
                yield at, event
        except (PerfBisectError, OSError) as trouble:
            failure = in_words(trouble)
            yield log.append(Unexplained(part.name, advised(str(failure), failure.advice)))
        left -= CLOCK.now() - began


def take(
    part: Part,
    commits: Sequence[str],
    builds: tuple[int, int],
    others: Sequence[int],
    host: str,
    before: Sequence[tuple[float, Event]],
    log: SavedLog,
    workers_of: WorkersOf,
    allowed: float,
    workload: Workload,
) -> Generator[TimedEvent]:
    """The rounds of one part that are missing, as far as the time allows; ``allowed`` is in seconds.

    Another round is begun only if it ends in time as far as can be known: from the longest turn so far or, before the
    first, from what a visit took in the search. A round that has begun is finished.
    """
    events = [event for _, event in before]
    done = turns_done([event for event in events if part.has(event)])
    usual = start_up(before)
    least = sum(part.least(workload, [one for one in events if is_run_of(commits[build], one)]) for build in builds)
    if least > max(0.0, allowed) and not any(done.values()):
        needed = (
            f"it would take {duration(least)} or more, and {duration(max(0.0, allowed))} are left of the time for the reason"
            f" (`bisect why --max-time`){NO_LENGTH * (not has_length(workload))}"
        )
        yield log.append(Unexplained(part.name, needed))
        return
    seconds = max(SHORTEST, allowed / (len(builds) * part.rounds) - usual)
    workers = workers_of(part.study(seconds, events))
    host_number = workers.hosts.index(host) if host in workers.hosts else 0
    failed = False

    def orders() -> Iterator[Measure]:
        began, turns = CLOCK.now(), [0.0]
        for number in range(part.rounds):
            if 2 * number > part.rounds and part.enough(so_far(events, commits, builds)):
                break
            missing = [build for build in (builds if number % 2 == 0 else builds[::-1]) if done[build] <= number]
            for place, build in enumerate(missing):
                start = CLOCK.now()
                longest = max(turns) or usual + SHORTEST
                late = place == 0 and start - began + longest * len(missing) > allowed  # one side alone says nothing
                if failed or (late and not (part.always(workload) and number == 0)):
                    return
                yield Measure((Share(build, 1),), Purpose.EXPLAIN, host_number)
                turns.append(CLOCK.now() - start)
        for build in others:
            if failed or CLOCK.now() - began + max(turns) > allowed:
                return
            if not done[build]:
                yield Measure((Share(build, 1),), Purpose.EXPLAIN, host_number)

    for at, event in without_stored_builds(run(Listed(orders()), PartLog(log, part.name, builds), workers)):
        failed = failed or isinstance(event, Unexplained)
        events.append(event)
        yield at, event


def so_far(events: Iterable[Event], commits: Sequence[str], builds: tuple[int, int]) -> Explanation:
    """What was measured for the reason so far."""
    culprit, parent = (commits[build] for build in builds)
    return explanation([event for event in events if isinstance(event, Studied)], parent, culprit)


def without_stored_builds(events: Iterable[TimedEvent]) -> Iterator[TimedEvent]:
    """The events without builds that were there already: each part has these again for each of its turns."""
    begun: TimedEvent | None = None
    for at, event in events:
        if isinstance(event, BuildStarted):
            begun = at, event
        elif begun and isinstance(event, BuildFinished) and event.facts.reused:
            begun = None
        else:
            if begun:
                yield begun
            begun = None
            yield at, event


def turns_done(events: Sequence[Counted | Profiled | Planned]) -> Counter[int]:
    """The turns of each candidate: in each, one event of every sort happens. One that was interrupted counts."""
    turns: Counter[int] = Counter()
    for (candidate, _), number in Counter((event.candidate, sort(event)) for event in events).items():
        turns[candidate] = max(turns[candidate], number)
    return turns


def sort(event: Counted | Profiled | Planned) -> str:
    """What distinguishes an event of a part from the others of the same turn."""
    match event:
        case Counted(group=group):
            return group
        case Profiled(facts=profile):
            return profile.event
        case Planned(facts=plan):
            return plan.statement


def is_run_of(commit: str, event: Event) -> bool:
    """Whether it is a timed run of that commit."""
    return isinstance(event, RunFinished) and event.facts.commit == commit and not event.facts.counted


def worked(events: Sequence[tuple[float, Event]]) -> float:
    """Seconds that the sessions of a hunt have worked; what passed between two sessions is left out."""
    return sum(
        later - earlier for (earlier, _), (later, event) in pairwise(events) if not isinstance(event, HuntStarted)
    )


def measured_on(host: str, events: Sequence[Event], commits: Sequence[str], but: Sequence[int]) -> tuple[int, ...]:
    """The candidates that have runs on a host, oldest commit first.

    By commit: good and its merge base, measured before the search, have the candidates of another range.
    """
    runs = {event.facts.commit for event in events if isinstance(event, RunFinished) and event.host == host}
    return tuple(node for node, commit in enumerate(commits) if commit in runs and node not in but)


def start_up(events: Sequence[tuple[float, Event]]) -> float:
    """Seconds that most visits of a hunt took beside what was timed: the upper quartile, as not each run begins a visit."""
    beside = sorted(
        later - earlier - event.facts.seconds
        for (earlier, _), (later, event) in pairwise(events)
        if isinstance(event, RunFinished)
    )
    return max(0.0, beside[3 * len(beside) // 4]) if beside else 0.0


def best_host(events: Sequence[Event], culprit: str) -> str:
    """The host with most runs of the culprit: its parent was measured there, too. Empty if there is only one."""
    runs = Counter(event.host for event in events if isinstance(event, RunFinished) and event.facts.commit == culprit)
    return max(runs, key=lambda name: runs[name], default="")
