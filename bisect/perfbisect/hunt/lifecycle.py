"""The work of a session before its first measurement, and after its verdict or its last measurement."""

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
    MergeBaseComparison,
    NotReproduced,
    PlannedRuns,
    Purpose,
    Reason,
    Verdict,
    explained_step,
)
from perfbisect.core.domain.settings import ChangeDirection, Pairing, Settings
from perfbisect.core.stats.fitness import fitness_facts
from perfbisect.errors import PerfBisectError, UsageError
from perfbisect.host.lock import HostLock
from perfbisect.hunt.explanation import measure_reason, store_changed_functions
from perfbisect.hunt.further_runs import confirming_runs, setup_by_instructions
from perfbisect.hunt.labs import LabMaker
from perfbisect.hunt.loop import FixedPlan, run
from perfbisect.hunt.patches import build_errors
from perfbisect.hunt.search_problem import (
    SavedLog,
    SearchProblem,
    TimedEvent,
    WorkersFor,
    log_opening,
    log_verdict,
    run_search,
)
from perfbisect.hunt.session_hosts import HostLocks
from perfbisect.hunt.setup import SessionSetup
from perfbisect.lab.host_watch import change_warnings
from perfbisect.report.command_line import command_to_run
from perfbisect.repository.commits import describe_commit
from perfbisect.repository.discovery import open_repository
from perfbisect.store.history import History
from perfbisect.store.prior_data import read_failed_builds
from perfbisect.wording.quantities import ratio
from perfbisect.wording.text import metric_title

MAX_DESCRIBED = 100  # largest number of suspects with a description, because each description needs a call of git
REMEMBERED = 30 * 86400.0  # seconds for which a failed build is not tried again


class SessionLifecycle:
    """Does the work before and after the measurements of a trial, or of one hunt of a session.

    After a call of ``opening``, the attribute ``problem`` is the input of the search, and the attribute ``labs`` can
    measure the candidates.
    """

    def __init__(
        self,
        log: SavedLog,
        setup: SessionSetup,
        held: Mapping[str, HostLock],
        locks: HostLocks,
        is_resumed: bool,
        hunt_count: int = 1,
        reason_seconds: float | None = None,
    ) -> None:
        """``hunt_count`` is the number of hunts of the session; the time for measuring the reasons of changes is
        divided between these hunts.

        If ``reason_seconds`` is given, the hunt already has its verdict, and only the reason of the change is measured,
        for ``reason_seconds`` seconds; 0 means the usual time.
        """
        self.log, self.setup = log, setup
        self._held, self._locks, self._is_resumed = held, locks, is_resumed
        self._hunt_count, self._reason_seconds = hunt_count, reason_seconds
        settings = setup.settings
        self.problem: SearchProblem | None = None
        if not setup.request.works:
            self.problem = SearchProblem(
                setup.span.graph, setup.span.candidates, settings.policy, settings.metric,
                settings.hosts if len(setup.hosts) > 1 else (), settings.prior,
                tuple(build_host.host.name for build_host in setup.common_build_hosts),
            )  # fmt: skip
        events = (entry.event for entry in log.history.events(log.hunt))
        self._earlier_starts = [event for event in events if isinstance(event, SessionStarted)]
        self.labs = self._labs_of(setup)

    def opening(self) -> Generator[TimedEvent, None, bool]:
        """The events before the first measurement of the search. Returns false if the hunt has ended before this
        measurement."""
        log, setup, problem = self.log, self.setup, self.problem
        started = setup.start_event(log.hunt, self._is_resumed)
        if not problem:
            yield log.append(started)
        for warning in (*setup.warnings, *changed_host_warnings(self._earlier_starts, setup)):
            yield log.append(warning)
        if not problem:
            return True
        settings = setup.settings
        # If bad was built, an earlier attempt has found that the merge base is as fast as good, and this is not
        # repeated.
        has_bad = any(event.facts.commit == problem.commits[-1] for _, event in log.entries)
        if not (
            setup.span.base == setup.span.good
            or has_bad
            or (yield from check_merge_base_equals_good(problem, started, settings, log, self.labs.workers))
        ):
            return False
        failed = () if self._is_resumed or settings.retry_failed else known_failures(log.history, settings, log.began)
        yield from log_opening(problem, started, log, failed, setup.left_out)
        if not setup.workload.asks:  # the first run may show words with which a command measures less
            facts_of_log = [event.facts for _, event in log.entries]
            logged = {facts.visit if isinstance(facts, RunFacts) else facts.commit for facts in facts_of_log}
            copied = setup.measured_ends.get(setup.workload.filter, ())
            yield from (log.append(event) for name, event in copied if name not in logged)
        # If options were added to all builds, runs of earlier builds are excluded. They are built again now: if the
        # binary is the same, its runs become valid again.
        if pending := [node for node, commit in enumerate(problem.commits) if commit in log.state.excluded_runs]:
            orders = iter([Measure((PlannedRuns(node, 0),), Purpose.SEARCH) for node in pending])
            yield from run(FixedPlan(orders), log.append, self.labs.workers(problem.commits))
        return True

    def change_metric(self, ratio: Interval, has_ended: bool) -> Generator[TimedEvent, None, SearchProblem | None]:
        """Change the metric of the hunt to counted instructions. Returns the new input of the search, or None if good
        and bad do not differ in their numbers of instructions."""
        assert self.problem, "a hunt has a problem"
        changed = yield from setup_by_instructions(
            self.setup, self.problem, self.log, ratio, lambda setup: self._labs_of(setup).workers, has_ended=has_ended
        )
        if changed is None:
            return None
        settings = changed.settings
        self.setup, self.labs = changed, self._labs_of(changed)
        self.problem = replace(self.problem, policy=settings.policy, metric=settings.metric, prior=settings.prior)
        return self.problem

    @property
    def has_new_needs(self) -> bool:
        """Whether a failed build of this round shows, for the first time, that a part of a diff needs another part.
        Such a need ends the round, because the next round must add the parts in another sequence."""
        parts, errors = self.setup.parts, build_errors(event for _, event in self.log.entries)
        return parts is not None and not parts.present.proven and bool(parts.new_needs(errors))

    def begin_diff_round(self, verdict: Verdict) -> Generator[TimedEvent, None, SearchProblem | None]:
        """Begin the next round of a search in a diff, after the verdict of the present round. Returns the input of the
        search in the next round, or None after the last round."""
        parts, log = self.setup.parts, self.log
        assert parts, "a hunt for commits has one round"
        assert self.problem, "a hunt has a problem"
        if not parts.choose_next_round(verdict, build_errors(event for _, event in log.entries)):
            return None
        setup = self.setup = replace(self.setup, span=parts.range_of_round)
        self.labs = self._labs_of(setup)
        started = setup.start_event(log.hunt, False)
        with log.history.transaction():
            log.history.store_range_of_round(log.hunt, started)
            logged = log.append(started)
        yield logged
        self.problem = replace(self.problem, graph=setup.span.graph, commits=setup.span.candidates)
        return self.problem

    def finish_session(self, verdict: Verdict | None) -> Generator[TimedEvent]:
        """Carry out the last phase of a trial (store its end) or of a hunt: make further runs, store the verdict, and
        measure the reason of the change."""
        log, setup, problem = self.log, self.setup, self.problem
        if not (problem and verdict):
            yield log.append(SessionEnded(fitness=fitness_facts(log.state)))
            return
        settings = setup.settings
        in_usual_metric = replace(settings, metric=setup.workload.metric)
        has_timed_runs = any(isinstance(event, RunFinished) and not event.facts.counted for _, event in log.entries)
        match verdict:
            case _ if self._reason_seconds is not None:  # an earlier attempt made all other runs
                pass
            case Found() if settings.prior.exact and has_timed_runs:
                usual = setup.for_settings(in_usual_metric)
                yield from confirming_runs(verdict, problem, log, self._workers_after_verdict(usual))
            case CodePlacement():
                counting = setup.for_settings(replace(settings, metric=INSTRUCTIONS))
                if counting.settings.prior.exact:
                    yield from confirming_runs(verdict, problem, log, self._workers_after_verdict(counting))
            case _:
                pass
        explains = settings.explain and explained_step(verdict) is not None
        described = describe_unbuilt_suspects(verdict, log, settings)
        yield log_verdict(problem, log, verdict, reason_follows=explains, suspects=described)
        if explains:
            usual = setup.for_settings(in_usual_metric) if settings.prior.exact else setup
            workers = partial(self._workers_after_verdict(usual), problem.commits)
            seconds = self._reason_seconds or 0.0
            yield from measure_reason(verdict, log, workers, usual.builder, usual.workload, self._hunt_count, seconds)
            yield from store_changed_functions(verdict, log, Path(settings.repository))
            yield log_verdict(problem, log, verdict)

    def _labs_of(self, setup: SessionSetup) -> LabMaker:
        return LabMaker(setup, self.log, self._earlier_starts, self._held, self._locks)

    def _workers_after_verdict(self, setup: SessionSetup) -> WorkersFor:
        """The workers for the measurements that follow a verdict. Budgets do not limit these measurements. If a build
        fails, it is not repeated with other compiler options."""
        settings = replace(setup.settings, policy=setup.settings.policy.unlimited(), remedies=False)
        return self._labs_of(replace(setup, settings=settings)).workers


def describe_unbuilt_suspects(verdict: Verdict, log: SavedLog, settings: Settings) -> tuple[Commit, ...]:
    """The authors, dates and subjects of at most 100 commits that are suspects of a verdict and were never built, read
    from the user's clone.

    The result is empty if the clone cannot be read.
    """
    unsettled = [part.known for part in getattr(verdict, "unsettled", ())]
    inconclusive = [verdict] if isinstance(verdict, Inconclusive) else unsettled
    suspects = [log.state.commits[node] for part in inconclusive for node in part.candidates]
    not_described = [sha for sha in suspects if not log.state.facts_of(sha).commit.date]
    with suppress(PerfBisectError, OSError):  # the verdict needs no descriptions of commits
        repository = open_repository(Path(settings.repository))
        return tuple(describe_commit(repository, sha) for sha in not_described[:MAX_DESCRIBED])
    return ()


def changed_host_warnings(earlier_starts: Sequence[SessionStarted], setup: SessionSetup) -> tuple[Warned, ...]:
    """A warning about each host whose hardware, system or settings have changed since an earlier attempt of the
    session."""
    last = {facts.name: facts for event in earlier_starts for facts in event.hosts}
    return tuple(
        warning
        for site in setup.hosts
        if site.facts.name in last
        for warning in change_warnings(site.host.name, last[site.facts.name], site.facts)
    )


def check_merge_base_equals_good(
    problem: SearchProblem, started: SessionStarted, settings: Settings, log: SavedLog, workers_for: WorkersFor
) -> Generator[TimedEvent, None, bool]:
    """Measure whether the merge base of good and bad is as fast as good.

    If the comparison is inconclusive, the hunt ends and the function returns false. Raises UsageError if the merge base
    and good differ in speed, because the hunt then cannot use the merge base in place of good.
    """
    base, good = problem.commits[0][:10], settings.good_commit[:10]
    verdict = yield from compare_merge_base(problem, started, settings.good_commit, log, workers_for)
    from_merge_base = command_to_run(replace(settings, good=base), log.history.path)
    match verdict:
        case NotReproduced() | CodePlacement():
            yield log.append(Warned(f"The merge base {base} is as fast as good {good}, and is used in its place."))
            return True
        case Found(step):
            direction = ChangeDirection.RISE if step.ratio.middle > 1 else ChangeDirection.DROP
            policy = replace(settings.policy, direction=direction)
            between = replace(settings, good=base, bad=settings.good, policy=policy)
            raise UsageError(
                f"The merge base {base} cannot be used in place of good {good}, because their speeds differ:"
                f" {metric_title(problem.metric)} of good is {ratio(step.ratio)} of the merge base's.",
                f"To hunt the change between the merge base and good: {command_to_run(between, log.history.path)}\n"
                f"To hunt a change between the merge base and bad: {from_merge_base}",
            )
        case Inconclusive():
            yield log.append(started)  # the last such event must have the range of the hunt, not the merge base
            yield log.append(
                Warned(
                    "bad was not measured, because the merge base is compared with good first",
                    f"To hunt from the merge base, without good: {from_merge_base}",
                )
            )
            compared = MergeBaseComparison(base, good, verdict)
            yield log.append(SessionEnded(Inconclusive((), (), UNKNOWN, Reason.MERGE_BASE, detail=compared)))
            return False
        case _:
            raise AssertionError(f"{verdict} is no verdict on a range of one commit")


def compare_merge_base(
    problem: SearchProblem, started: SessionStarted, good: str, log: SavedLog, workers_for: WorkersFor
) -> Generator[TimedEvent, None, Verdict]:
    """Search for a change between the merge base and good, for better or for worse. Returns the verdict.

    A hunt compares the merge base with good if good is not an ancestor of bad. The budgets of the hunt also limit
    the runs of this comparison.
    """
    between = replace(
        problem,
        graph=Graph.straight_history(1),
        commits=(problem.commits[0], good),
        policy=replace(problem.policy, direction=ChangeDirection.ANY, all_steps=False, pairing=Pairing.INTERLEAVED),
    )
    comparison = replace(started, candidates=between.commits, commits=1, merges=0, branch_points=0, of_merge_base=True)
    yield log.append(comparison)
    return (yield from run_search(between, log, workers_for(between.commits)))


def known_failures(history: History, settings: Settings, now: float) -> tuple[SkipFacts, ...]:
    """The failed builds of hunts of the last 30 days, on hosts of the same host class (hosts of the same model) as the
    first host."""
    by_host = settings_by_host_of_class(settings)
    failures = [facts for on_host in by_host for facts in read_failed_builds(history, on_host, now - REMEMBERED)]
    return tuple({facts.commit: facts for facts in failures}.values())


def settings_by_host_of_class(settings: Settings) -> list[Settings]:
    """Copies of the settings, each with a single host: first the first host, then each further host of the same host
    class (hosts of the same model).

    If the host classes are not known yet, the list has only the settings with the first host.
    """
    classes = settings.prior.host_classes or ("",)
    alike = (name for name, host_class in zip(settings.hosts, classes, strict=False) if host_class == classes[0])
    return [replace(settings, host=name, further_hosts=()) for name in alike]
