"""A trial begins, or goes on where its log ends: the same driver and the same sittings as those of hunts."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from perfbisect.clock import CLOCK
from perfbisect.core.domain.events import TrialStarted
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import Settings, TrialBuild, TrialType
from perfbisect.errors import CannotGoOn, UsageError
from perfbisect.host.lock import HostLock, WaitCallback
from perfbisect.hunt.driver import Member
from perfbisect.hunt.fitness import warnings_of_unfit
from perfbisect.hunt.host_locks import lock_hosts, tell_number
from perfbisect.hunt.leased_hosts import known_nodes
from perfbisect.hunt.loop import Listed
from perfbisect.hunt.notification import Begun
from perfbisect.hunt.search_problem import SavedLog
from perfbisect.hunt.session import Leased
from perfbisect.hunt.sitting import OpenView, Sitting, refuse_imported
from perfbisect.hunt.trials.builds import configured
from perfbisect.hunt.trials.passes import TrialCourse, workers_of
from perfbisect.hunt.trials.proof import claim_of, proof_setup
from perfbisect.hunt.trials.setup import TrialSetup
from perfbisect.recipes.requested import requested_builder, requested_workloads
from perfbisect.report.command_line import command_on
from perfbisect.store.history import History

Say = Callable[[str], None]  # is given remarks


def begin(
    plan: TrialSetup, path: Path | None, open_view: OpenView, say: Say, begun: Begun | None = None
) -> SessionState:
    """Begin a trial in the history at ``path`` and follow it to its end. ``begun`` gets its name."""
    with lock_hosts(plan.setup, plan.waiting, plan.purpose) as held, closing(History.open(path)) as history:
        warnings = (*plan.setup.warnings, *warnings_of_unfit(history, plan.setup))
        plan = replace(plan, setup=replace(plan.setup, warnings=warnings)).with_prebuilt(say)
        number = history.begin(plan.setup.settings, plan.setup.facts, plan.request, CLOCK.now())
        return follow(history, number, plan, open_view, held, begun, resumed=False)


def resume(
    name: str,
    path: Path | None,
    open_view: OpenView,
    waiting: WaitCallback | None,
    continued: Callable[[Settings], Settings],
    begun: Begun | None,
    say: Say,
    leased: Leased | None = None,
) -> SessionState:
    """Continue the trial of that name where its log ends; see ``hunt.session.resume``.

    Raises UsageError for one that is complete, CannotGoOn where new runs could not be compared with its earlier ones.
    """
    with closing(History.open(path)) as history:
        trial = history.trial(name)
        refuse_imported(history, trial.id, "it is not gone on with here", name)
        if trial.state == "done":
            raise UsageError(f"{name} is complete.", f"See it: {command_on('show', name, history.path)}")
        settings = continued(history.settings(trial.id))
        started = [entry.event for entry in history.events(trial.id) if isinstance(entry.event, TrialStarted)]
        with (
            leased(settings, known_nodes(started)) if leased else nullcontext(),
            set_up_again(history, trial, settings, continued, waiting, say) as plan,
            lock_hosts(plan.setup, waiting, plan.purpose) as held,
        ):
            plan = plan.with_prebuilt(say)
            check_unchanged(trial, plan)
            return follow(history, trial.id, plan, open_view, held, begun, resumed=True)


@contextmanager
def set_up_again(
    history: History,
    trial: SessionState,
    settings: Settings,
    continued: Callable[[Settings], Settings],
    waiting: WaitCallback | None,
    say: Say,
) -> Iterator[TrialSetup]:
    """The setup of a trial that goes on."""
    request = trial.request
    if request.reverts:
        claim = claim_of(history, request.reverts.hunt)
        claim = replace(claim, settings=settings, together=tuple(map(continued, claim.together)))
        with proof_setup(claim, request.rounds, request.runs, waiting, say) as plan:
            yield plan
        return
    builder = requested_builder(settings)
    workloads = requested_workloads(settings, builder, ",".join(work.name for work in request.works))
    subjects = [configured(as_requested(each), builder) for each in request.subjects]
    yield TrialSetup.make(
        request.kind, settings, subjects, workloads, request.rounds, request.runs, waiting, series=request.series,
        branch=request.branch,
    )  # fmt: skip


def as_requested(build: TrialBuild) -> TrialBuild:
    """A build without what was found of it."""
    return TrialBuild(build.name, build.commit, build.path, variant=build.variant, config=build.config)


def check_unchanged(trial: SessionState, plan: TrialSetup) -> None:
    """Raise CannotGoOn when the workloads, binaries or configurations of a trial have changed."""
    before, now = trial.request, plan.request
    alike = [
        (old.commit, old.config_hash) == (new.commit, new.config_hash) and new.key in ("", old.key)
        for old, new in zip(before.subjects, now.subjects, strict=True)
    ]
    if before.works != now.works or not all(alike):
        raise CannotGoOn(
            f"{trial.name} cannot go on: its runs would be made in another way than before, so they could not be"
            " compared with the earlier ones.",
            "Its workloads, their files, the binaries or a configuration have changed: undo that, or begin a new one.",
        )


def follow(
    history: History,
    number: int,
    plan: TrialSetup,
    open_view: OpenView,
    held: Mapping[str, HostLock],
    begun: Begun | None,
    *,
    resumed: bool,
) -> SessionState:
    """Measure, showing every event, until all rounds are made. Raises as ``Sitting.carry_out``."""
    log = SavedLog(history, number)
    name = f"{plan.request.kind[0]}{number}"
    tell_number(held, name)
    if begun:
        begun(name)
    course = TrialCourse(log, plan, resumed)

    members, plan_of = [Member(None, log, course)], Listed(course.orders())
    sitting = Sitting(
        history, name, [title(plan)], members, plan.setup, plan_of, lambda: workers_of(course, held), resumed
    )
    sitting.carry_out(open_view)
    return history.read_trial(number)


def title(plan: TrialSetup) -> str:
    """What is measured, in a few words."""
    kind = {TrialType.NOISE: "noise", TrialType.COMPARE: "comparison", TrialType.PROVE: "proof"}[plan.request.kind]
    return f"{kind} {plan.request.builder}"
