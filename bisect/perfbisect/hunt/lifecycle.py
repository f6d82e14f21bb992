"""What a session does before its plan gives orders, and what it does afterwards."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from perfbisect.core.domain.events import Commit, RunFinished, SessionEnded, SessionStarted, Warned
from perfbisect.core.domain.facts import RunFacts, SkipFacts
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.metrics import INSTRUCTIONS
from perfbisect.core.domain.orders import (
    UNKNOWN,
    CodePlacement,
    Found,
    Inconclusive,
    Interval,
    Measure,
    MergeBase,
    NotReproduced,
    Purpose,
    Reason,
    Share,
    Verdict,
    first_step,
)
from perfbisect.core.domain.settings import Direction, Pairing, Settings
from perfbisect.core.stats.fitness import fitness_facts
from perfbisect.errors import PerfBisectError, UsageError
from perfbisect.host.lock import HostLock
from perfbisect.hunt.explanation import measure_reason, store_changed_functions
from perfbisect.hunt.further_runs import by_instructions, confirming_runs
from perfbisect.hunt.labs import SessionLabs
from perfbisect.hunt.loop import Listed, run
from perfbisect.hunt.patches import build_errors
from perfbisect.hunt.search_problem import SavedLog, SearchProblem, TimedEvent, WorkersFor, ending, opening, pursue
from perfbisect.hunt.session_hosts import HostLocks
from perfbisect.hunt.setup import SessionSetup
from perfbisect.lab.host_watch import changed
from perfbisect.report.command_line import command_to_run
from perfbisect.repository.commits import describe
from perfbisect.repository.discovery import open_repository
from perfbisect.store.history import History
from perfbisect.store.prior_data import read_failures
from perfbisect.wording.quantities import ratio
from perfbisect.wording.text import metric_title

DESCRIBED = 100  # suspects, of which each takes a call of git
REMEMBERED = 30 * 86400.0  # seconds for which a failed build is not tried again


class SessionLifecycle:
    """A trial, or one hunt of a session. Its ``problem`` and ``labs`` are those of the search once ``opening`` has ended."""

    def __init__(
        self,
        log: SavedLog,
        setup: SessionSetup,
        held: Mapping[str, HostLock],
        locks: HostLocks,
        resumed: bool,
        together: int = 1,
        why: float | None = None,
    ) -> None:
        """``together`` is the number of hunts that the session carries out: each gets its share of the time for reasons.

        ``why``: the hunt has a verdict, and goes on for its reason alone, for so many seconds; 0: as usual.
        """
        self.log, self.setup = log, setup
        self._held, self._locks, self._resumed, self._together, self._why = held, locks, resumed, together, why
        settings = setup.settings
        self.problem: SearchProblem | None = None
        if not setup.request.works:
            self.problem = SearchProblem(
                setup.span.graph, setup.span.candidates, settings.policy, settings.metric,
                settings.hosts if len(setup.hosts) > 1 else (), settings.prior,
                tuple(each.host.name for each in setup.ahead),
            )  # fmt: skip
        events = (entry.event for entry in log.history.events(log.hunt))
        self._before = [event for event in events if isinstance(event, SessionStarted)]
        self.labs = self._labs_of(setup)

    def opening(self) -> Generator[TimedEvent, None, bool]:
        """The events up to the first order of the plan; false where the hunt has ended without one."""
        log, setup, problem = self.log, self.setup, self.problem
        started = setup.started(log.hunt, self._resumed)
        if not problem:
            yield log.append(started)
        for warning in (*setup.warnings, *changes_since(self._before, setup)):
            yield log.append(warning)
        if not problem:
            return True
        settings = setup.settings
        # Bad is built only after the merge base was found to equal good; later runs of it do not reopen that.
        bad_is_known = any(event.facts.commit == problem.commits[-1] for _, event in log.entries)
        if not (
            setup.span.base == setup.span.good
            or bad_is_known
            or (yield from merge_base_equals_good(problem, started, settings, log, self.labs.workers))
        ):
            return False
        failed = () if self._resumed or settings.retry_failed else known_failures(log.history, settings, log.began)
        yield from opening(problem, started, log, failed, setup.left_out)
        if not setup.workload.asks:  # else the first run may show a way that measures less
            logged = [event.facts for _, event in log.entries]
            entered = {facts.visit if isinstance(facts, RunFacts) else facts.commit for facts in logged}
            before = setup.before.get(setup.workload.filter, ())
            yield from (log.append(event) for name, event in before if name not in entered)
        # Readings of the same binaries count again where options were added to all builds.
        if pending := [node for node, commit in enumerate(problem.commits) if commit in log.state.aside]:
            orders = iter([Measure((Share(node, 0),), Purpose.SEARCH) for node in pending])
            yield from run(Listed(orders), log.append, self.labs.workers(problem.commits))
        return True

    def changed_over(self, time: Interval, last: bool) -> Generator[TimedEvent, None, SearchProblem | None]:
        """What is searched by instructions, where time does not tell the ends apart and they do; see ``by_instructions``."""
        assert self.problem, "a hunt has a problem"
        changed = yield from by_instructions(
            self.setup, self.problem, self.log, time, lambda other: self._labs_of(other).workers, last=last
        )
        if changed is None:
            return None
        settings = changed.settings
        self.setup, self.labs = changed, self._labs_of(changed)
        self.problem = replace(self.problem, policy=settings.policy, metric=settings.metric, prior=settings.prior)
        return self.problem

    @property
    def needs_other_order(self) -> bool:
        """Whether a state in the diff of a commit has failed for a reason that tells a better order of its parts."""
        parts, failed = self.setup.parts, build_errors(event for _, event in self.log.entries)
        return parts is not None and not parts.present.proven and bool(parts.new_needs(failed))

    def next_round(self, verdict: Verdict) -> Generator[TimedEvent, None, SearchProblem | None]:
        """What is searched after the verdict of a round in the diff of a commit; None after the last."""
        parts, log = self.setup.parts, self.log
        assert parts, "a hunt for commits has one round"
        assert self.problem, "a hunt has a problem"
        if not parts.advance(verdict, build_errors(event for _, event in log.entries)):
            return None
        setup = self.setup = replace(self.setup, span=parts.span)
        self.labs = self._labs_of(setup)
        started = setup.started(log.hunt, False)
        with log.history.transaction():
            log.history.change_range(log.hunt, started)
            entered = log.append(started)
        yield entered
        self.problem = replace(self.problem, graph=setup.span.graph, commits=setup.span.candidates)
        return self.problem

    def closing(self, verdict: Verdict | None) -> Generator[TimedEvent]:
        """The end of a trial; or what the verdict of a hunt lacks, its end, and then its reason."""
        log, setup, problem = self.log, self.setup, self.problem
        if not (problem and verdict):
            yield log.append(SessionEnded(fitness=fitness_facts(log.state)))
            return
        settings = setup.settings
        match verdict:
            case _ if self._why is not None:  # it was said before
                pass
            case Found() if settings.prior.exact and any(
                isinstance(event, RunFinished) and not event.facts.counted for _, event in log.entries
            ):
                usual = setup.by_metric(replace(settings, metric=setup.workload.metric))
                yield from confirming_runs(verdict, problem, log, self._workers_of(usual))
            case CodePlacement():
                counting = setup.by_metric(replace(settings, metric=INSTRUCTIONS))
                if counting.settings.prior.exact:
                    yield from confirming_runs(verdict, problem, log, self._workers_of(counting))
            case _:
                pass
        explains = settings.explain and first_step(verdict) is not None
        yield ending(problem, log, verdict, reason_follows=explains, suspects=suspects(verdict, log, settings))
        if explains:
            usual = setup.by_metric(replace(settings, metric=setup.workload.metric)) if settings.prior.exact else setup
            workers = partial(self._workers_of(usual), problem.commits)
            yield from measure_reason(
                verdict, log, workers, usual.builder, usual.workload, self._together, self._why or 0.0
            )
            yield from store_changed_functions(verdict, log, Path(settings.repository))
            yield ending(problem, log, verdict)

    def _labs_of(self, setup: SessionSetup) -> SessionLabs:
        return SessionLabs(setup, self.log, self._before, self._held, self._locks)

    def _workers_of(self, setup: SessionSetup) -> WorkersFor:
        """What works after a verdict, for which no budget counts, by builds as they were."""
        settings = replace(setup.settings, policy=setup.settings.policy.unlimited(), remedies=False)
        return self._labs_of(replace(setup, settings=settings)).workers


def suspects(verdict: Verdict, log: SavedLog, settings: Settings) -> tuple[Commit, ...]:
    """The suspects of a verdict that were never built, as the user's clone describes them."""
    known = (
        [verdict] if isinstance(verdict, Inconclusive) else [each.known for each in getattr(verdict, "unsettled", ())]
    )
    unknown = [
        sha
        for each in known
        for node in each.candidates
        if not log.state.row(sha := log.state.commits[node]).commit.date
    ]
    with suppress(PerfBisectError, OSError):  # the set stands without
        repository = open_repository(Path(settings.repository))
        return tuple(describe(repository, sha) for sha in unknown[:DESCRIBED])
    return ()


def changes_since(before: Sequence[SessionStarted], setup: SessionSetup) -> tuple[Warned, ...]:
    """Warnings about hosts that are not as they were when they last took part."""
    last = {facts.name: facts for event in before for facts in event.hosts}
    return tuple(
        warning
        for site in setup.hosts
        if site.facts.name in last
        for warning in changed(site.host.name, last[site.facts.name], site.facts)
    )


def merge_base_equals_good(
    problem: SearchProblem, started: SessionStarted, settings: Settings, log: SavedLog, workers_for: WorkersFor
) -> Generator[TimedEvent, None, bool]:
    """Measure the merge base against good: true when they are equally fast. When that is inconclusive, the hunt ends.

    Raises UsageError when they are not: then a change lies between the merge base and good.
    """
    base, good = problem.commits[0][:10], settings.good_commit[:10]
    verdict = yield from compare_merge_base(problem, started, settings.good_commit, log, workers_for)
    own_side = command_to_run(replace(settings, good=base), log.history.path)
    match verdict:
        case NotReproduced() | CodePlacement():
            yield log.append(Warned(f"The merge base {base} is as fast as good and stands in for it."))
            return True
        case Found(step):
            direction = Direction.RISE if step.ratio.middle > 1 else Direction.DROP
            policy = replace(settings.policy, direction=direction)
            between = replace(settings, good=base, bad=settings.good, policy=policy)
            raise UsageError(
                f"The merge base {base} does not have the speed of good {good}, so it cannot stand in for it:"
                f" {metric_title(problem.metric)} of good is {ratio(step.ratio)} of that of the merge base.",
                f"To hunt the change between them: {command_to_run(between, log.history.path)}\n"
                f"To hunt one on bad's own side of the fork: {own_side}",
            )
        case Inconclusive():
            yield log.append(started)  # the range of the hunt again, in place of the two commits compared
            yield log.append(
                Warned("bad was not measured: the merge base comes first", f"To hunt without good: {own_side}")
            )
            compared = MergeBase(base, good, verdict)
            yield log.append(SessionEnded(Inconclusive((), (), UNKNOWN, Reason.MERGE_BASE, detail=compared)))
            return False
        case _:
            raise AssertionError(f"{verdict} is no verdict on a range of one commit")


def compare_merge_base(
    problem: SearchProblem, started: SessionStarted, good: str, log: SavedLog, workers_for: WorkersFor
) -> Generator[TimedEvent, None, Verdict]:
    """Where good is not an ancestor of bad, compare it with the merge base, which is to stand in for it.

    Returns the verdict on a change in either direction from the merge base to good. The budgets of the hunt apply.
    """
    between = replace(
        problem,
        graph=Graph.line(1),
        commits=(problem.commits[0], good),
        policy=replace(problem.policy, direction=Direction.ANY, all_steps=False, pairing=Pairing.INTERLEAVED),
    )
    only = replace(started, candidates=between.commits, commits=1, merges=0, branch_points=0, of_merge_base=True)
    yield log.append(only)
    return (yield from pursue(between, log, workers_for(between.commits)))


def known_failures(history: History, settings: Settings, now: float) -> tuple[SkipFacts, ...]:
    """Builds that failed in earlier hunts on hosts of the first one's class."""
    found = {
        facts.commit: facts
        for one in on_each_like_first(settings)
        for facts in read_failures(history, one, now - REMEMBERED)
    }
    return tuple(found.values())


def on_each_like_first(settings: Settings) -> list[Settings]:
    """The settings with each host of the first one's class as the only host, the first one first; alone before classes are known."""
    classes = settings.prior.host_classes or ("",)
    alike = (name for name, one in zip(settings.hosts, classes, strict=False) if one == classes[0])
    return [replace(settings, host=name, further_hosts=()) for name in alike]
