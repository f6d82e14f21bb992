"""Trials: builds measured in rounds, without a search; every run is kept as it ends."""

import time
from collections import defaultdict
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfbisect.core.domain.events import BuildFinished, BuildStarted, CandidateSkipped, LabEvent, RunFinished, Warned
from perfbisect.core.domain.orders import Measure, Purpose, Share
from perfbisect.core.domain.trials import Asked, Kind, Subject, Trial, TrialRun, TrialSkip, order
from perfbisect.core.stats.sampling_plan import noise_of_trial
from perfbisect.errors import EnvironmentFailure, PerfBisectError, UsageError, in_words
from perfbisect.host.fair_lock import FairLock
from perfbisect.host.lock import Lease
from perfbisect.hunt.host_locks import hold_all
from perfbisect.hunt.setup import hear
from perfbisect.hunt.trials.setup import Plan
from perfbisect.hunt.trials.view import Progress
from perfbisect.lab.build import prebuilt
from perfbisect.lab.build.pipeline import Built
from perfbisect.lab.guarded_lab import GuardedLab
from perfbisect.lab.host_lab import Earlier, HostLab
from perfbisect.store.history import History


def perform(plan: Plan, path: Path | None, progress: Progress) -> tuple[Trial, bool]:
    """Build and measure; the trial, and whether all was measured that was asked for: false when Ctrl-C ended it.

    A comparison that was interrupted goes on when the same builds are asked for again.
    """
    scene = plan.scene
    with ExitStack() as stack:
        held = stack.enter_context(hold_all(scene, plan.waiting, plan.purpose))
        history = stack.enter_context(closing(History.open(path)))
        stack.enter_context(closing(progress))
        for warned in scene.warnings:
            progress.warn(warned)
        shop = TrialRunner(plan, held[scene.host.name], progress)
        stack.enter_context(hear((scene.host, scene.sites[0].build_host), shop.hear))
        try:
            asked = replace(plan.asked, subjects=shop.build())
        except EnvironmentFailure as failure:
            so_far = replace(plan.asked, subjects=tuple(shop.subjects))
            failed = history.begin_trial(so_far, scene.facts, plan.commits(), time.time())
            history.end_trial(failed.id, time.time(), str(failure))
            raise
        trial = history.resume_trial(asked, scene.facts) if asked.kind is Kind.COMPARE else None
        if trial:
            progress.say(f"going on with {trial.name}, of which {len(trial.runs)} runs are there")
            trial = replace(trial, asked=asked, failure="")
        else:
            trial = history.begin_trial(asked, scene.facts, plan.commits(), time.time())
        try:
            shop.measure(trial, history)
        except KeyboardInterrupt:
            return replace(trial, state="interrupted"), False
        except (PerfBisectError, OSError) as trouble:
            told = in_words(trouble)
            history.end_trial(trial.id, None if goes_on(trial, told) else time.time(), str(told))
            told.advice = advice(trial, told)
            raise told from told.__cause__
        finally:
            if asked.kind is Kind.NOISE and (found := noise_of_trial(trial)):
                history.record_noise(trial.id, found)
        history.end_trial(trial.id, time.time())
    return replace(trial, state="done"), True


def goes_on(trial: Trial, failure: PerfBisectError) -> bool:
    """Whether a trial that has failed can be gone on with: not when the data, or the server's settings, have changed."""
    return bool(trial.runs) and trial.asked.kind is Kind.COMPARE and not isinstance(failure, UsageError)


def advice(trial: Trial, failure: PerfBisectError) -> str:
    """What to do, and what becomes of what was measured."""
    if not trial.runs:
        return failure.advice
    if isinstance(failure, UsageError):
        return f"What was measured before is kept as {trial.name}; the same command now begins anew."
    then = "; the same command goes on with it" if goes_on(trial, failure) else ""
    return f"{failure.advice}\nWhat was measured is kept as {trial.name}{then}.".strip()


@dataclass
class TrialRunner:
    """Where the builds of a trial are made and measured."""

    plan: Plan
    held: Lease
    progress: Progress
    subjects: list[Subject] = field(default_factory=list)
    labs: dict[int, HostLab] = field(default_factory=dict)  # number of a workload → who measures it
    taken: dict[int, Built] = field(default_factory=dict)  # number of a subject → prebuilt binaries
    # Of each workload, the data of each build in earlier sessions, which has to be the same now.
    datasets: dict[int, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    watched: GuardedLab = field(init=False)  # the lab in use; its host is looked at before each visit

    def __post_init__(self) -> None:
        """Nothing is done before ``build``."""
        self.subjects = list(self.plan.asked.subjects)

    def build(self) -> tuple[Subject, ...]:
        """Build everything, or find it built; the subjects with what is known of their builds.

        Raises EnvironmentFailure when the base cannot be built, or nothing to compare it with; UsageError for binaries
        that are not there.
        """
        scene = self.plan.scene
        for number, subject in enumerate(self.subjects):
            if subject.path:
                self.progress.say(f"reading {subject.path}")
                taken = prebuilt.take(scene.host, scene.builder, subject.name, subject.path)
                self.taken[number] = taken
                self.subjects[number] = replace(
                    subject, key=taken.facts.key, binary=taken.facts.binary, version=taken.version
                )
        self.watched = GuardedLab(self.new_lab(0), scene.host, self.held, scene.facts)
        self.lab(0)
        base, *others = self.subjects
        if base.trouble or (others and all(other.trouble for other in others)):
            first = next(subject for subject in self.subjects if subject.trouble)
            raise EnvironmentFailure(f"Nothing can be measured, because {first.name} cannot be built: {first.trouble}")
        return tuple(self.subjects)

    def hear(self, event: LabEvent) -> None:
        """Tell what the user should know."""
        if isinstance(event, Warned):
            self.progress.warn(event)

    def new_lab(self, work: int) -> HostLab:
        """A lab for one workload."""
        scene = self.plan.scene
        candidates = replace(scene.candidates(scene.span.candidates), prebuilt=self.taken, is_range=False)
        earlier = Earlier(datasets=self.datasets[work])
        return scene.lab(candidates, earlier, scene.sites[0], self.plan.workloads[work], defaultdict(FairLock))

    def lab(self, work: int) -> HostLab:
        """The lab of a workload, with everything that can be built."""
        if work in self.labs:
            return self.labs[work]
        self.labs[work] = self.watched.lab = lab = self.new_lab(work)
        for number, subject in enumerate(self.subjects):
            if subject.trouble or number in self.taken:
                continue
            for event in self.watched.measure(Measure((Share(number, 0),), Purpose.ENDS)):
                match event:
                    case BuildStarted(commit=about) if not subject.key:  # or else it is only found again
                        self.progress.say(f"building {about.short}  {about.title}")
                    case BuildFinished(facts=facts):
                        self.subjects[number] = replace(subject, key=facts.key, binary=facts.binary)
                    case CandidateSkipped(facts=skip):
                        self.subjects[number] = replace(subject, trouble=skip.reason)
                        self.progress.warn(Warned(f"{subject.name} is left out: {skip.reason}", f"See {skip.log}."))
                    case _:
                        self.hear(event)
        return lab

    def measure(self, trial: Trial, history: History) -> None:
        """Make the rounds that are still to be made; each run is in the history before anything else happens."""
        asked = trial.asked
        for run in trial.runs:
            self.datasets[run.work][run.facts.commit] = run.facts.dataset
        rounds = trial.rounds_to_do()
        self.progress.expect(len(rounds) * len(trial.pairs()) * asked.runs)
        for turn, number in enumerate(rounds):
            for work in range(len(asked.works)):
                for subject in order(range(len(asked.subjects)), number):
                    if (work, subject) in trial.pairs():
                        self.say(asked, turn, len(rounds), work, subject)
                        self.visit(trial, history, number, work, subject)
        if trial.skips and (asked.kind is Kind.NOISE or not trial.runs):
            first = trial.skips[0]
            name, what = asked.subjects[first.subject].name, asked.works[first.work].name
            so_much = "" if trial.runs else "Nothing was measured: "
            raise EnvironmentFailure(
                f"{so_much}{name} fails in {what}: {first.facts.reason}", f"See {first.facts.log}."
            )

    def say(self, asked: Asked, turn: int, rounds: int, work: int, subject: int) -> None:
        """Where we are."""
        if asked.kind is Kind.NOISE:
            self.progress.say(f"visit {turn + 1} of {rounds}")
        else:
            name = asked.subjects[subject].name
            self.progress.say(f"round {turn + 1} of {rounds}: {asked.works[work].name}, {name}")

    def visit(self, trial: Trial, history: History, number: int, work: int, subject: int) -> None:
        """Measure one build with one workload."""
        self.watched.lab = self.lab(work)
        began = time.time()
        for event in self.watched.measure(Measure((Share(subject, trial.asked.runs),), Purpose.ENDS)):
            match event:
                case RunFinished(facts=facts):
                    now = time.time()
                    run = TrialRun(number, work, subject, now, now - began, facts)
                    began = now
                    history.add_to_trial(trial.id, run)
                    trial.runs.append(run)
                    self.progress.ran(facts)
                case CandidateSkipped(facts=skip):
                    failed = TrialSkip(work, subject, time.time(), skip)
                    history.skip_in_trial(trial.id, failed)
                    trial.skips.append(failed)
                    name, what = trial.asked.subjects[subject].name, trial.asked.works[work].name
                    self.progress.warn(Warned(f"{name} fails in {what}: {skip.reason}", f"See {skip.log}."))
                case _:
                    self.hear(event)
