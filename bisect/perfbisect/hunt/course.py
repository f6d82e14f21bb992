"""The course of one hunt in a session: what comes before its search, and what follows its verdict."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from perfbisect.core.domain.events import HuntStarted, RunFinished, TrialStarted, Warned
from perfbisect.core.domain.metrics import INSTRUCTIONS
from perfbisect.core.domain.orders import CodePlacement, Found, Interval, Verdict, first_step
from perfbisect.host.lock import HostLock
from perfbisect.hunt.auto_metric import by_instructions
from perfbisect.hunt.build_hosts import HostLocks
from perfbisect.hunt.explanation import change_reader, explain, read_change
from perfbisect.hunt.further_runs import culprit_timed, placement_counted
from perfbisect.hunt.labs import HuntLabs
from perfbisect.hunt.merge_base import merge_base_equals_good
from perfbisect.hunt.prior_hunts import known_failures
from perfbisect.hunt.search_problem import (
    SavedLog,
    SearchProblem,
    TimedEvent,
    WorkersFor,
    ending,
    made_again,
    opening,
)
from perfbisect.hunt.setup import HuntSetup
from perfbisect.lab.guarded_lab import changed


class HuntCourse:
    """One hunt of a session. Its ``problem`` and ``labs`` are those of the search once ``opening`` has ended."""

    def __init__(
        self,
        log: SavedLog,
        setup: HuntSetup,
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
        self.problem = SearchProblem(
            setup.span.graph, setup.span.candidates, settings.policy, settings.metric,
            settings.hosts if len(setup.hosts) > 1 else (), settings.prior,
            tuple(each.host.name for each in setup.ahead),
        )  # fmt: skip
        self._before = [entry.event for entry in log.history.events(log.hunt) if isinstance(entry.event, HuntStarted)]
        self.labs = self._labs_of(setup)

    def opening(self) -> Generator[TimedEvent, None, bool]:
        """The events up to the search, beginning with warnings; false where the hunt has ended without one."""
        log, setup = self.log, self.setup
        settings, started = setup.settings, setup.started(log.hunt, self._resumed)
        for warning in (*setup.warnings, *changes_since(self._before, setup)):
            yield log.append(warning)
        # Bad is built only after the merge base was found to equal good; later runs of it do not reopen that.
        bad_is_known = any(event.facts.commit == self.problem.commits[-1] for _, event in log.entries)
        if not (
            setup.span.good_is_ancestor
            or bad_is_known
            or (yield from merge_base_equals_good(self.problem, started, settings, log, self.labs.workers))
        ):
            return False
        failed = () if self._resumed or settings.retry_failed else known_failures(log.history, settings, log.began)
        yield from opening(self.problem, started, log, failed, setup.left_out)
        yield from made_again(self.problem, log, self.labs.workers)
        return True

    def changed_over(self, time: Interval, last: bool) -> Generator[TimedEvent, None, SearchProblem | None]:
        """What is searched by instructions, where time does not tell the ends apart and they do; see ``by_instructions``."""
        changed = yield from by_instructions(
            self.setup, self.problem, self.log, time, lambda other: self._labs_of(other).workers, last=last
        )
        if changed is None:
            return None
        settings = changed.settings
        self.setup, self.labs = changed, self._labs_of(changed)
        self.problem = replace(self.problem, policy=settings.policy, metric=settings.metric, prior=settings.prior)
        return self.problem

    def closing(self, verdict: Verdict | None) -> Generator[TimedEvent]:
        """What the verdict lacks, the end of the hunt, and then its reason."""
        assert verdict, "a hunt ends with a verdict"
        log, setup, commits = self.log, self.setup, self.problem.commits
        settings = setup.settings
        match verdict:
            case _ if self._why is not None:  # it was said before
                pass
            case Found(step) if settings.prior.exact and any(
                isinstance(event, RunFinished) and not event.facts.counted for _, event in log.entries
            ):
                usual = setup.by_metric(replace(settings, metric=setup.workload.metric))
                yield from culprit_timed(step, self.problem, log, self._workers_of(usual))
            case CodePlacement(step):
                counting = setup.by_metric(replace(settings, metric=INSTRUCTIONS))
                if counting.settings.prior.exact:
                    yield from placement_counted(step, self.problem, log, self._workers_of(counting))
            case _:
                pass
        explains = settings.explain and first_step(verdict) is not None
        yield ending(self.problem, log, verdict, reason_follows=explains)
        if explains:
            usual = setup.by_metric(replace(settings, metric=setup.workload.metric)) if settings.prior.exact else setup
            workers = partial(self._workers_of(usual), commits)
            yield from explain(verdict, log, workers, usual.builder, usual.workload, self._together, self._why or 0.0)
            yield from read_change(verdict, commits, log, change_reader(settings.repository))
            yield ending(self.problem, log, verdict)

    def _labs_of(self, setup: HuntSetup) -> HuntLabs:
        return HuntLabs(setup, self.log, self._before, self._held, self._locks)

    def _workers_of(self, setup: HuntSetup) -> WorkersFor:
        """What works after a verdict, for which no budget counts, by builds as they were."""
        settings = replace(setup.settings, policy=setup.settings.policy.unlimited(), remedies=False)
        return self._labs_of(replace(setup, settings=settings)).workers


def changes_since(before: Sequence[HuntStarted | TrialStarted], setup: HuntSetup) -> tuple[Warned, ...]:
    """Warnings about hosts that are not as they were when they last took part."""
    last = {facts.name: facts for event in before for facts in event.hosts}
    return tuple(
        warning
        for site in setup.hosts
        if site.facts.name in last
        for warning in changed(site.host.name, last[site.facts.name], site.facts)
    )
