"""An attempt: one process carries out a session and shows every event.

The text of an error that ends the attempt contains the command that continues the session.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perfbisect.core.domain.events import LabEvent, MetricChosen, SessionEnded, SessionStarted
from perfbisect.core.domain.orders import Verdict
from perfbisect.core.domain.settings import ChangeDirection, PrintedResult, Settings, TrialRequest, TrialType
from perfbisect.errors import (
    ENVIRONMENT,
    USAGE,
    Interrupted,
    NoMetricValues,
    PerfBisectError,
    RangeEndFailed,
    RunFailed,
    StdoutClosed,
    UsageError,
    as_perfbisect_error,
)
from perfbisect.host.lock import HostLock, WaitCallback
from perfbisect.hunt.driver import HuntsPlanner, SessionDriver, SessionMember
from perfbisect.hunt.labs import workers_of
from perfbisect.hunt.lifecycle import SessionLifecycle
from perfbisect.hunt.loop import FixedPlan, Planner, Workers
from perfbisect.hunt.notification import Begun, Notifier, pushing
from perfbisect.hunt.resolve import worse_direction
from perfbisect.hunt.search_problem import SavedLog, TimedEvent
from perfbisect.hunt.session_hosts import HostLocks
from perfbisect.hunt.setup import SessionSetup
from perfbisect.hunt.trials.rounds import RoundsPlan
from perfbisect.hunt.watching import View
from perfbisect.lab.building.candidates import RemedyWorked
from perfbisect.lab.building.log_parser import KnownFailure
from perfbisect.lab.workload.command import OutputNumbersRecognised
from perfbisect.process import CLOCK
from perfbisect.recipes.outputs import RecognisedOutput, SeveralResults
from perfbisect.report.command_line import bisect_command, command_to_run
from perfbisect.report.hunt_report import read_hunt_report
from perfbisect.store.batches import Batch, batch_jobs_of_hunt, end_batch, enter_batch_hunt_status
from perfbisect.store.history import History
from perfbisect.store.prior_data import read_run_noise
from perfbisect.ui.stream import note
from perfbisect.wording.table import cut
from perfbisect.wording.text import printable, shell_words
from perfbisect.wording.verdicts import exit_status

MAX_FILTER_LENGTH = 100  # largest number of characters of a filter in a sentence
OpenView = Callable[[Mapping[int, str]], View]  # takes the titles of the members by number; returns a view


@dataclass(frozen=True, slots=True)
class CommandCallbacks:
    """The functions by which a session calls back the command that has begun or resumed the session, and the path of
    the history."""

    history_path: Path | None
    open_view: OpenView
    waiting: WaitCallback | None = None  # is called while the session waits for a host; None: the session does not wait
    on_begin: Begun | None = None  # is called with the name of each hunt or trial, once the history has it
    say: Callable[[str], None] = lambda _: None  # is called with remarks for the user


@dataclass(frozen=True, slots=True)
class HuntOutcome:
    """The result of a hunt: its verdict, or its failure. For a trial, ``verdict`` and ``failure`` are None."""

    hunt: int
    verdict: Verdict | None
    failure: PerfBisectError | None = None

    @property
    def status(self) -> int:
        """The exit status that `bisect run` would have for this hunt alone."""
        return ENVIRONMENT if self.verdict is None else exit_status(self.verdict)


@dataclass(slots=True)
class SessionAttempt:
    """The work of this process on a session: on one trial, or on one or several hunts."""

    history: History
    caller: CommandCallbacks
    numbers: Sequence[int]
    batch: Batch | None  # None for a single hunt or a trial
    held: Mapping[str, HostLock]
    # Index of a hunt that cannot go on → the error; None: the session is not resumed.
    resume_failures: Mapping[int, PerfBisectError] | None = None
    # Seconds for the reason of a verdict, if only the reason is measured; 0: the usual time; None: the session goes on.
    reason_seconds: float | None = None
    # Limit of the policy (``max_runs``) → how much more the hunts of a resumed session may spend.
    added_limits: Mapping[str, float] = field(default_factory=dict)
    members: list[SessionMember] = field(default_factory=list)
    name: str = ""  # the name of the session in commands: 12, b3, c4

    def carry_out(self, setups: Mapping[int, SessionSetup]) -> tuple[HuntOutcome, ...]:
        """Carry out the session and show every event, until each hunt or trial of the session has ended. Returns the
        verdict or the failure of each hunt. ``setups`` are the setups of the hunts or trials that continue, by their
        index in the session. Raises Interrupted, or the failure of the session, with the command that continues the
        session. If additional compiler options make a failed build succeed, or if the format of the benchmark's output
        is recognised, the work continues with changed setups.
        """
        history, numbers, failures = self.history, self.numbers, self.resume_failures or {}
        logs = [SavedLog(history, number) for number in numbers]
        if self.added_limits:
            setups = self._with_added_limits(logs, setups)
        first = next(iter(setups.values()))
        is_trial = bool(first.request.works)
        names = [f"{first.request.kind[0]}{number}" if is_trial else str(number) for number in numbers]
        self.name = self.batch.name if self.batch else names[0]
        for lock in self.held.values():  # sessions that wait for the host show this name
            lock.set_session_name(self.name)
        locks = HostLocks(self.held, [build_host.host.name for build_host in first.common_build_hosts], first.shared)
        is_resumed = self.resume_failures is not None
        lifecycles = {
            index: SessionLifecycle(logs[index], setup, self.held, locks, is_resumed, len(logs), self.reason_seconds)
            for index, setup in setups.items()
        }
        common_problem = next(iter(lifecycles.values())).problem
        was_announced, self.members = bool(self.members), []
        for index, log in enumerate(logs):
            lifecycle, settings = lifecycles.get(index), history.settings(numbers[index])
            problem = common_problem and replace(common_problem, metric=settings.metric)
            problem = lifecycle.problem if lifecycle else problem
            lacks_verdict = (lifecycle and self.reason_seconds is None) or index in failures
            verdict = None if lacks_verdict else verdict_of(history, log.hunt)
            may_change = settings.choose_metric and not (is_trial or settings.narrows or settings.outputs)
            change_metric = lifecycle.change_metric if lifecycle and may_change else None
            output = settings.output if settings.outputs else None
            member = SessionMember(problem, log, lifecycle, verdict, failures.get(index), change_metric, output=output)
            if lifecycle and lifecycle.setup.parts:
                member.diff_lifecycle = lifecycle
            self.members.append(member)

        def workers() -> Workers[LabEvent]:
            """The workers (hosts and build hosts) of the session, for the hunts or trials that have not ended."""
            labs = {index: lifecycle.labs for index, lifecycle in lifecycles.items() if self.members[index].is_open}
            span = next(iter(lifecycles.values())).setup.span  # the range, in `bisect narrow` of the present round
            return workers_of(labs, span.candidates, together=len(logs) > 1)

        for index, member in enumerate(self.members):
            if member.failure:
                self.store_failure(index, member.failure)
            elif member.lifecycle:
                self._store_status_in_batch(index, None)
                if self.caller.on_begin and not was_announced:
                    self.caller.on_begin(names[index])
        plan: Planner = FixedPlan(RoundsPlan(logs[0], first).orders()) if is_trial else HuntsPlanner(self.members)
        titles = [
            setups[index].title if index in setups else history.settings(number).workload
            for index, number in enumerate(numbers)
        ]
        try:
            with pushing(history.path, numbers, note):
                driver = SessionDriver(self.members, plan, workers, self.store_failure)
                interruption = self._carry_out_in_view(driver, titles, first)
        except (RemedyWorked, OutputNumbersRecognised):
            self.resume_failures, next_setups = failures, {}
            for index, setup in setups.items():
                if verdict_of(history, numbers[index]) is None:
                    settings = history.settings(numbers[index])  # with the new metric, if the hunt has chosen one
                    next_setups[index] = setup.for_next_attempt(settings)
                    if settings.output or settings.outputs:
                        settings = replace(settings, run_hash=next_setups[index].settings.run_hash)
                        history.update_settings(numbers[index], settings)
            return self.carry_out(next_setups)
        outcomes = tuple(
            HuntOutcome(number, None if member.failure else member.verdict, member.failure)
            for number, member in zip(numbers, self.members, strict=True)
        )
        if self.batch and all(outcome.verdict for outcome in outcomes):
            end_batch(history, self.batch.id, CLOCK.now())
        if interruption:
            raise interruption
        return outcomes

    def _with_added_limits(
        self, logs: Sequence[SavedLog], setups: Mapping[int, SessionSetup]
    ) -> Mapping[int, SessionSetup]:
        """The setups with new limits for runs, builds and minutes. A new limit is the amount that the hunts of the
        session have spent so far, plus the amount in ``added_limits``.

        The new limits are stored in the settings of each hunt.
        """
        states, added, self.added_limits = [log.state for log in logs], self.added_limits, {}
        attempted = {sha for state in states for sha, row in state.tested.items() if row.builds or row.failed_seconds}
        spent = {
            "max_runs": sum(state.run_count for state in states),
            "max_builds": len(attempted),
            "max_minutes": (CLOCK.now() - min(state.began for state in states)) / 60,
        }
        limits: dict[str, Any] = {name: spent[name] + amount for name, amount in added.items()}

        def with_limits(settings: Settings) -> Settings:
            return replace(settings, policy=replace(settings.policy, **limits))

        for number in self.numbers:
            self.history.update_settings(number, with_limits(self.history.settings(number)))
        return {index: replace(setup, settings=with_limits(setup.settings)) for index, setup in setups.items()}

    def store_failure(self, index: int, failure: PerfBisectError) -> None:
        """Store in the history that a hunt or trial cannot continue; if the hunt belongs to a batch, also store this in
        the batch."""
        with suppress(PerfBisectError):  # an error of the history itself cannot be stored
            self.history.enter_failure(self.numbers[index], str(failure), CLOCK.now())
            self._store_status_in_batch(index, ENVIRONMENT, str(failure))

    def _store_status_in_batch(self, index: int, status: int | None, failure: str = "") -> None:
        """If a hunt belongs to a batch, store the exit status of the hunt in the batch."""
        if self.batch:
            enter_batch_hunt_status(self.history, self.batch.id, index, status, failure)
        elif status is not None:
            for batch, number, _ in batch_jobs_of_hunt(self.history, self.numbers[index]):
                enter_batch_hunt_status(self.history, batch, number, status, failure)

    def _carry_out_in_view(
        self, driver: SessionDriver, titles: Sequence[str], setup: SessionSetup
    ) -> Interrupted | None:
        """Carry out the session, and show its events in a view.

        Returns an exception, without raising it, if the session was interrupted after all verdicts, while the reasons
        of the changes were measured; otherwise None.
        """
        history, numbers, begun = self.history, self.numbers, self.caller.on_begin
        view = self.caller.open_view(dict(zip(numbers, titles, strict=True)))

        def show(index: int, timed_event: TimedEvent) -> None:
            verdict = timed_event[1].verdict if isinstance(timed_event[1], SessionEnded) else None
            if verdict:  # the verdict is stored before it is shown, because this process may end meanwhile
                self.members[index].verdict = verdict
                self._store_status_in_batch(index, exit_status(verdict))
            view.add_events(numbers[index], [timed_event])
            if verdict and isinstance(begun, Notifier):
                begun.notify_end(str(numbers[index]))

        with closing(view):
            try:
                for number in numbers if self.resume_failures is not None else ():
                    view.add_earlier_events(number, ((entry.at, entry.event) for entry in history.events(number)))
                with closing(driver.events()) as events:
                    for index, timed_event in events:
                        show(index, timed_event)
            except (KeyboardInterrupt, StdoutClosed):  # Ctrl-C, or the reader of the output has ended
                view.close()
                verdicts = [verdict for number in numbers if (verdict := verdict_of(history, number))]
                if len(verdicts) == len(numbers):
                    return self._interrupted_reason_study(numbers, verdicts)
                named = [number for number, member in zip(numbers, self.members, strict=True) if member.named]
                reports = [read_hunt_report(history, number) for number in named]
                lines = [f"\n{line}" for report in reports for line in report.proven_so_far_sentences]
                message = f"Interrupted. All measurements are kept. To continue: {self._resume_command}"
                raise Interrupted(f"{message}{''.join(lines)}") from None
            except RemedyWorked as mended:
                for index, member in enumerate(self.members):
                    if member.is_open:
                        settings = replace(history.settings(numbers[index]), flags=mended.event.flags)
                        with history.transaction():
                            history.update_settings(numbers[index], settings)
                            timed_event = member.log.append(mended.event)
                        show(index, timed_event)
                raise
            except OutputNumbersRecognised as recognised:
                try:
                    outputs = recognised.workload.recognised_outputs
                    outputs = outputs or measured_outputs(recognised.found, setup.request)
                except SeveralResults as several:
                    raise self._store_and_advise(several, setup.settings) from None
                for index, member in enumerate(self.members):
                    of_member = member.lifecycle.setup if member.lifecycle and not member.verdict else None
                    workloads = (of_member.workload, *of_member.works) if of_member else ()
                    if of_member and (recognised.workload in workloads or member.output):
                        stored = history.settings(numbers[index])
                        if recognised.workload.recognised_outputs:  # only the filter, which selects one result, is new
                            history.update_settings(numbers[index], replace(stored, filter=recognised.words))
                            continue
                        settings = replace(settings_for_results(history, stored, outputs), filter=recognised.words)
                        with history.transaction():
                            history.update_settings(numbers[index], settings)
                            words = cut(shell_words(recognised.words), MAX_FILTER_LENGTH)
                            alone = f", selected with {words}" if recognised.words else ""
                            chosen = MetricChosen(settings.metric, f"{recognised.found.summary}{alone}.", stored.metric)
                            timed_event = member.log.append(chosen)
                        show(index, timed_event)
                raise
            except (PerfBisectError, OSError) as error:
                raise self._store_and_advise(as_perfbisect_error(error), setup.settings) from error.__cause__
        return None

    def _store_and_advise(self, failure: PerfBisectError, settings: Settings) -> PerfBisectError:
        """The failure of the session, completed by advice. The failure is also stored for each hunt or trial of the
        session that has no verdict."""
        for index, member in enumerate(self.members):
            if member.failure is None and verdict_of(self.history, self.numbers[index]) is None:
                self.store_failure(index, failure)
        failure.advice = f"{failure.advice}\n{self.advice_after(failure, settings)}".strip()
        return failure

    def advice_after(self, failure: PerfBisectError, settings: Settings) -> str:
        """Advice on how to continue after a failure, or on what to change first; "" if the failure already contains
        this advice."""
        cause = failure.__cause__
        if isinstance(failure, NoMetricValues) or failure.exit_status == USAGE:
            return ""
        if isinstance(cause, KnownFailure) and cause.known.flags.options:
            flags = settings.flags.with_missing(cause.known.flags)
            return f"Begin a new hunt: {command_to_run(replace(settings, flags=flags), self.history.path)}"
        if not isinstance(failure, RangeEndFailed):
            return f"All measurements are kept. To continue: {self._resume_command}"
        if settings.quick and isinstance(cause, RunFailed):
            return "Correct --run, or install the programs that it needs, and begin a new hunt: builds are used again."
        if settings.quick and settings.quick.build is not None:
            return f"Correct --build, and begin a new hunt. Or install what the machine lacks, and continue: {self._resume_command}"
        return f"Correct the recipe, or install what the machine lacks. To continue: {self._resume_command}"

    def _interrupted_reason_study(self, hunt_numbers: Sequence[int], verdicts: Sequence[Verdict]) -> Interrupted:
        """The exception for an interruption after the verdicts, while the reasons of the changes were measured. The
        exception has the exit status of the verdicts, because the interruption changes no verdict.
        """
        commands = " and ".join(bisect_command("why", str(number), self.history.path) for number in hunt_numbers)
        verdict = "The verdict is final" if len(hunt_numbers) == 1 else "The verdicts are final"
        interruption = Interrupted(f"Interrupted. {verdict}. To measure the rest of the reason: {commands}")
        interruption.exit_status = max(map(exit_status, verdicts))
        return interruption

    @property
    def _resume_command(self) -> str:
        return bisect_command("resume", self.name, self.history.path)


def measured_outputs(recognised: RecognisedOutput, request: TrialRequest) -> tuple[PrintedResult, ...]:
    """The benchmark results that a session measures, if it recognised the format of the benchmark's output: all results
    in a comparison, otherwise one result.

    Raises SeveralResults if an output has several results and the user has not chosen one of them.
    """
    has_several = request.kind is TrialType.COMPARE and not (request.series or request.branch)
    return recognised.outputs if has_several else (recognised.only_result,)


def settings_for_results(history: History, settings: Settings, outputs: Sequence[PrintedResult]) -> Settings:
    """The settings of a hunt that measures the benchmark results ``outputs``, with the noise of earlier hunts by the
    same metric.

    For example, a rise of a duration is worse, but a rise of a rate is better. If the old and the new metric differ in
    this, the direction of the hunt (rise or drop) is reversed, so that the hunt still searches for a change for the
    worse.
    """
    policy, metric = settings.policy, outputs[0].metric
    if policy.direction is not ChangeDirection.ANY and worse_direction(metric) is not worse_direction(settings.metric):
        is_rise = policy.direction is ChangeDirection.RISE
        policy = replace(policy, direction=ChangeDirection.DROP if is_rise else ChangeDirection.RISE)
    settings = replace(settings, metric=metric, policy=policy)
    settings = replace(settings, outputs=tuple(outputs)) if outputs[1:] else replace(settings, output=outputs[0])
    return replace(settings, prior=replace(settings.prior, noise=read_run_noise(history, settings)))


def verdict_of(history: History, number: int) -> Verdict | None:
    """The verdict of a hunt that has ended, from its latest attempt; None if the hunt has not ended."""
    last: Verdict | None = None
    for entry in history.events(number):
        if isinstance(entry.event, SessionEnded | SessionStarted):
            last = entry.event.verdict if isinstance(entry.event, SessionEnded) else None
    return last


def refuse_imported(history: History, session: int, consequence: str, name: str = "") -> None:
    """Raise UsageError if the session was imported from another user, because its settings contain commands that this
    user has not written.

    The message ends with the clause ``consequence``, such as "it cannot be resumed here". ``name`` is the name of a
    trial, or "" for a hunt.
    """
    if owner := history.origin(session):
        relation, if_own = "imported from", ""
        if not history.columns(session, "origin")[0]:
            relation = "made by"
            command = shell_words(["bisect", "history", "import", str(history.path), "--own"])
            if_own = f" If the session is your own, from another machine: `{command}` adds it to your own history and prints its new id; then repeat this command with the new id, without --history."
        raise UsageError(
            f"{name or f'Hunt {session}'} was {relation} {printable(owner)}: {consequence}, because its commands, its"
            " repository and its hosts are not yours.",
            f"To repeat the measurements here: `{bisect_command('show', name or session, history.path)}` prints the command; check it"
            f" before you run it.{if_own}",
        )
