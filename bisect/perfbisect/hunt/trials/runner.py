"""Run a trial: builds measured in rounds, without a search. Every run is in the history as soon as it ends."""

from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from perfbisect.clock import CLOCK
from perfbisect.core.domain.events import (
    BuildFinished,
    BuildStarted,
    CandidateSkipped,
    Decided,
    Event,
    LabEvent,
    RunFinished,
    TrialEnded,
    TrialStarted,
    Warned,
)
from perfbisect.core.domain.orders import Measure, Purpose, Share
from perfbisect.core.domain.settings import TrialBuild, TrialRequest, TrialType
from perfbisect.core.domain.trials import Trial, TrialSkip, order
from perfbisect.errors import EnvironmentFailure, PerfBisectError, UsageError, in_words
from perfbisect.host.lock import HostLock
from perfbisect.hunt.build_hosts import HostLocks
from perfbisect.hunt.host_locks import lock_hosts, tell_number
from perfbisect.hunt.labs import connection_events, hosts_of
from perfbisect.hunt.loop import Listed, Workers, run
from perfbisect.hunt.notification import Begun
from perfbisect.hunt.setup import PreparedHost
from perfbisect.hunt.trials.setup import TrialPlan
from perfbisect.hunt.trials.view import Progress
from perfbisect.hunt.workers import InlineWorkers
from perfbisect.lab.build import prebuilt
from perfbisect.lab.build.links import LayoutSeeds
from perfbisect.lab.build.plan import Built
from perfbisect.lab.guarded_lab import GuardedLab, Lab
from perfbisect.lab.host_lab import Earlier, HostLab
from perfbisect.store.history import History


def run_trial(plan: TrialPlan, path: Path | None, progress: Progress, begun: Begun | None = None) -> tuple[Trial, bool]:
    """Build and measure; returns the trial, and whether it is complete: false when Ctrl-C ended it. ``begun`` gets its name.

    An interrupted comparison or proof continues when the same builds are requested again.
    """
    setup = plan.setup
    with ExitStack() as stack:
        held = stack.enter_context(lock_hosts(setup, plan.waiting, plan.purpose))
        history = stack.enter_context(closing(History.open(path)))
        stack.enter_context(closing(progress))
        for warned in setup.warnings:
            progress.warn(warned)
        runner = TrialRunner(plan, held, progress)
        for site in setup.hosts:
            stack.enter_context(connection_events(hosts_of(site), runner.append))
        try:
            request = replace(plan.request, subjects=runner.build())
        except EnvironmentFailure as reason:
            failed = runner.begin(history, replace(plan.request, subjects=tuple(runner.subjects)), None)
            runner.end(str(reason), finally_=True)
            if begun:
                begun(failed.name)
            raise
        trial = history.unfinished_trial(request, setup.facts) if request.kind is not TrialType.NOISE else None
        if trial:
            progress.say(f"continuing {trial.name}, which has {len(trial.runs)} runs")
        trial = runner.begin(history, request, trial)
        tell_number(held, trial.name)
        if begun:
            begun(trial.name)
        try:
            runner.measure(trial)
        except KeyboardInterrupt:
            return replace(trial, state="interrupted"), False
        except (PerfBisectError, OSError) as trouble:
            failure = in_words(trouble)
            runner.end(str(failure), finally_=not can_continue(trial, failure))
            failure.advice = advice(trial, failure)
            raise failure from failure.__cause__
        runner.end()
    return replace(trial, state="done"), True


def can_continue(trial: Trial, failure: PerfBisectError) -> bool:
    """Whether a failed trial can be continued: not when the data or the server's settings have changed."""
    return bool(trial.runs) and trial.request.kind is not TrialType.NOISE and not isinstance(failure, UsageError)


def advice(trial: Trial, failure: PerfBisectError) -> str:
    """What to do, and what happens to the runs so far."""
    if not trial.runs:
        return failure.advice
    if isinstance(failure, UsageError):
        return f"What was measured before is kept as {trial.name}; the same command now begins a new one."
    then = "; the same command continues it" if can_continue(trial, failure) else ""
    return f"{failure.advice}\nWhat was measured is kept as {trial.name}{then}.".strip()


Way = tuple[str, str]  # the variant of a build and the hash of its configuration


@dataclass(frozen=True, slots=True)
class TrialLab:
    """Measures several workloads; candidate ``workload * builds + build`` is a build in one of them."""

    labs: tuple[
        tuple[Lab, ...], ...
    ]  # of each workload, for each build; builds of one variant and configuration share one
    builds: int

    def order(self, work: int, build: int, runs: int) -> Measure:
        """The order for one visit; without ``runs`` it only builds."""
        return Measure((Share(work * self.builds + build, runs),), Purpose.ENDS)

    def measure(self, order: Measure) -> Generator[LabEvent]:
        """Carry out an order; the events have the numbers of builds."""
        [share] = order.plan
        work, build = divmod(share.candidate, self.builds)
        return self.labs[work][build].measure(replace(order, plan=(Share(build, share.runs),)))


@dataclass(frozen=True, slots=True)
class LabOfHosts:
    """Measures hosts against each other: each build is a host, with a lab of its own."""

    labs: tuple[Lab, ...]

    def measure(self, order: Measure) -> Generator[LabEvent]:
        """Carry out an order on the host that it is for."""
        [share] = order.plan
        yield from self.labs[share.candidate % len(self.labs)].measure(order)


class TrialRunner:
    """Makes and measures the builds of a trial: its rounds are the orders of the loop, and it is the loop's log."""

    def __init__(self, plan: TrialPlan, held: Mapping[str, HostLock], progress: Progress) -> None:
        self.plan = plan
        self.progress = progress
        self.subjects = list(plan.request.subjects)
        self._held = held
        self._prebuilt: dict[int, Built] = {}  # number of a subject → its binaries
        self._visit: tuple[int, int, int] | None = None  # round, workload, subject; None while builds are made
        # Of each workload and way: commit → key of its data in earlier sessions, known before the first visit.
        self._loaded: dict[tuple[int, Way], dict[str, str]] = defaultdict(dict)
        self._warned: list[Warned] = []
        self._trial: Trial | None = None
        self._early: list[LabEvent] = []  # what happened before the trial was entered
        self._events: dict[int, int] = {}  # number of a workload → length of its counted runs

    def build(self) -> tuple[TrialBuild, ...]:
        """Make the builds that do not exist; the subjects with the facts of their builds.

        Raises EnvironmentFailure when the baseline cannot be built, or nothing to compare it with (in a series of
        releases: fewer than two of them); UsageError for binaries that do not exist.
        """
        setup = self.plan.setup
        for number, subject in enumerate(self.subjects):
            if subject.path:
                if setup.builder.installed:
                    site = setup.hosts[number]
                    taken = prebuilt.in_place(site.host, setup.builder, site.facts)
                else:
                    self.progress.say(f"reading {subject.path}")
                    taken = prebuilt.take(setup.host, setup.builder, subject.name, subject.path)
                self._prebuilt[number] = taken
                self.subjects[number] = replace(
                    subject,
                    path="" if setup.builder.installed else subject.path,
                    key=taken.facts.key,
                    binary=taken.facts.binary,
                    version=taken.version,
                )
        labs = [self._labs_at(site) for site in setup.hosts]
        self._lab = labs[0]
        guarded = [
            GuardedLab(lab, site.host, self._held[site.host.name], site.facts)
            for lab, site in zip(labs, setup.hosts, strict=True)
        ]
        self._workers: Workers[LabEvent] = InlineWorkers(
            setup.host.name, LabOfHosts(tuple(guarded)) if setup.builder.installed else guarded[0]
        )
        self._obey(self._builds(0))
        base, *others = self.subjects
        made = sum(not subject.trouble for subject in self.subjects)
        if made < 2 and others if self.plan.request.series else base.trouble or (others and made < 2):
            first = next(subject for subject in self.subjects if subject.trouble)
            raise EnvironmentFailure(f"Nothing can be measured, because {first.name} cannot be built: {first.trouble}")
        return tuple(self.subjects)

    def begin(self, history: History, request: TrialRequest, trial: Trial | None) -> Trial:
        """Enter the trial, or that an earlier one goes on, and what has happened until then."""
        facts, now, resumed = self.plan.setup.facts, CLOCK.now(), trial is not None
        number = trial.id if trial else history.begin_trial(self.plan.setup.settings, request, facts, now)
        self._history, self._trial = history, trial or Trial(number, request, facts, now)
        self._enter(TrialStarted(number, request, facts, resumed))
        for event in self._early:
            self._enter(event)
        return self._trial

    def end(self, failure: str = "", *, finally_: bool = True) -> None:
        """Enter that the trial is complete or has failed; without ``finally_`` it can be gone on with."""
        assert self._trial
        if finally_:
            self._enter(TrialEnded())
        if failure:
            self._history.fail(self._trial.id, failure, CLOCK.now())

    def _enter(self, event: Event) -> None:
        """Append an event to the log."""
        assert self._trial
        at = CLOCK.now()
        self._history.append(self._trial.id, event, at)
        self._trial.add(at, event)

    def measure(self, trial: Trial) -> None:
        """Make the rounds that are still to be made; each run is in the history before anything else happens.

        Raises EnvironmentFailure when the build of an A/A fails, other than in a layout, or nothing could be measured.
        """
        for earlier in trial.runs:
            way = self._way(earlier.subject)
            self._loaded[earlier.work, way][earlier.facts.commit] = earlier.facts.dataset
            self._events[earlier.work] = earlier.facts.events
        self.progress.expect(len(trial.rounds_to_do()) * len(trial.pairs()) * trial.request.runs)
        self._obey(self._visits(trial))
        for skip in trial.skips:
            if not trial.runs or (trial.request.kind is TrialType.NOISE and not skip.subject):
                nothing = "" if trial.runs else "Nothing was measured: "
                raise EnvironmentFailure(f"{nothing}{self._fails(skip)}", f"See {skip.facts.log}.")

    def append(self, event: LabEvent | Decided, workload: int | None = None) -> None:
        """Keep an event, and show what the user should know of it."""
        if isinstance(event, Warned):
            if event not in self._warned:  # what is true of a build is said by the lab of each workload
                self._warned.append(event)
                self.progress.warn(event)
        elif self._visit is None:
            self._note_build(event)
        else:
            self._note_visit(event, *self._visit)

    def _labs_at(self, site: PreparedHost) -> TrialLab:
        first = {self._way(number): number for number in reversed(range(len(self.subjects)))}
        labs = []
        for work in range(len(self.plan.workloads)):
            made = {way: self._lab_of(work, site, number) for way, number in first.items()}
            labs.append(tuple(made[self._way(number)] for number in range(len(self.subjects))))
        return TrialLab(tuple(labs), len(self.subjects))

    def _way(self, number: int) -> "Way":
        subject = self.subjects[number]
        return subject.variant, subject.config_hash

    def _lab_of(self, work: int, site: PreparedHost, number: int) -> HostLab:
        """The lab for a workload and the builds of the variant and configuration of the build ``number``."""
        plan, setup = self.plan, self.plan.setup
        variant = self.subjects[number].variant or setup.settings.variant
        candidates = replace(
            setup.candidates(setup.span.candidates),
            repository=plan.repository,
            describe=plan.describe,
            prebuilt=self._prebuilt,
            layouts={number: number for number in range(1, len(self.subjects))} if self._of_layouts else {},
            is_range=False,
        )
        earlier = Earlier(datasets=self._loaded[work, self._way(number)], events=self._events.get(work, 0))
        # A proof measures builds of its hunt, which may have been made to be linked again.
        seeds = LayoutSeeds() if self._of_layouts or setup.settings.policy.layouts else None
        of_variant = replace(setup, settings=replace(setup.settings, variant=variant))
        locks = HostLocks(shared=setup.shared)
        lab = of_variant.lab(candidates, earlier, site, plan.workloads[work], locks, seeds=seeds)
        return replace(lab, config=plan.configs[number])

    @property
    def _of_layouts(self) -> bool:
        return self.plan.request.kind is TrialType.NOISE and len(self.subjects) > 1

    def _obey(self, orders: Iterator[Measure]) -> None:
        for _ in run(Listed(orders), self, self._workers):
            pass

    def _builds(self, work: int) -> Iterator[Measure]:
        """Make every build that can be made, or find it, for one workload."""
        self._visit = None
        for number, subject in enumerate(self.subjects[:1] if self._of_layouts else self.subjects):
            if not subject.trouble and number not in self._prebuilt:
                yield self._lab.order(work, number, 0)

    def _visits(self, trial: Trial) -> Iterator[Measure]:
        """The visits of the rounds that are still to be made."""
        request, rounds, built = trial.request, trial.rounds_to_do(), {0}
        for turn, number in enumerate(rounds):
            for work in range(len(request.works)):
                for subject in order(range(len(request.subjects)), number, shuffled=request.series is not None):
                    if (work, subject) not in trial.pairs():
                        continue
                    name = f"{request.works[work].name}, {request.subjects[subject].name}"
                    place = f"{turn + 1} of {len(rounds)}"
                    alone = len(request.subjects) == 1
                    self.progress.say(f"visit {place}" if alone else f"round {place}: {name}")
                    if work not in built:
                        built.add(work)
                        yield from self._builds(work)
                    self._visit = (number, work, subject)
                    yield self._lab.order(work, subject, request.runs)

    def _note_build(self, event: LabEvent | Decided) -> None:
        if self._trial and not isinstance(event, Decided):
            self._enter(event)
        elif not isinstance(event, Decided):
            self._early.append(event)
        match event:
            case BuildStarted(candidate=number, commit=commit) if not self.subjects[number].key:
                variant = self.subjects[number].variant
                self.progress.say(f"building {commit.short}{variant and '@'}{variant}  {commit.title}")
            case BuildFinished(candidate=number, facts=facts):
                if facts.linker and self._of_layouts:
                    self.progress.say(f"layouts are made by {facts.linker}")
                took = facts.seconds or self.subjects[number].seconds  # each workload asks for the build anew
                subject = replace(self.subjects[number], key=facts.key, binary=facts.binary, seconds=took)
                self.subjects[number] = subject
            case CandidateSkipped(candidate=number, facts=skip):
                subject = self.subjects[number] = replace(self.subjects[number], trouble=skip.reason)
                self.progress.warn(Warned(f"{subject.name} is left out: {skip.reason}", f"See {skip.log}."))
            case _:
                pass

    def _note_visit(self, event: LabEvent | Decided, number: int, work: int, subject: int) -> None:
        if isinstance(event, RunFinished | CandidateSkipped):
            self._enter(replace(event, workload=work, round=number, candidate=subject))
            if isinstance(event, RunFinished):
                self.progress.ran(event.facts)
            if isinstance(event, CandidateSkipped):
                failed = TrialSkip(work, subject, 0.0, event.facts)
                self.progress.warn(Warned(self._fails(failed), f"See {event.facts.log}."))

    def _fails(self, skip: TrialSkip) -> str:
        assert self._trial
        request = self._trial.request
        return f"{request.subjects[skip.subject].name} fails in {request.works[skip.work].name}: {skip.facts.reason}"
