"""An A/A: one build, measured in visits, every run kept as it ends."""

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from perfbisect.cli.progress import Progress
from perfbisect.cli.session import Scene
from perfbisect.core.event import BuildFinished, BuildStarted, RunFinished, Warned
from perfbisect.core.graph import Graph
from perfbisect.core.measurement import RunFacts
from perfbisect.core.noise import Noise, best_runs, best_seconds, noise_in, smallest_drop
from perfbisect.core.order import Measure, Purpose, Share
from perfbisect.core.settings import Settings
from perfbisect.host.lock import Waiting, hold
from perfbisect.lab.protocol import Lab
from perfbisect.lab.watch import Watched
from perfbisect.repository.describe import describe
from perfbisect.repository.range import Range
from perfbisect.repository.resolve import open_repository
from perfbisect.store.history import History
from perfbisect.store.trials import ENOUGH

Keep = Callable[[RunFacts, float, float], None]  # a run, when it ended, its seconds


@dataclass(frozen=True, slots=True)
class Row:
    """What can be seen with so many runs on either side."""

    runs: int
    visits: int
    seconds: float  # for both sides
    drop: float


@dataclass(frozen=True, slots=True)
class Advice:
    """How to measure this on that host."""

    runs: int  # in each visit
    seconds: int | None  # of each run; None where nothing tells


@dataclass
class Trial:
    """An A/A and what it has measured so far."""

    settings: Settings
    scene: Scene
    runs: list[tuple[int, RunFacts]] = field(default_factory=list)  # number of the visit, facts
    first: list[float] = field(default_factory=list)  # seconds of the first run of each visit, the opening included
    later: list[float] = field(default_factory=list)  # of each further run

    @classmethod
    def set_up(cls, settings: Settings, waiting: Waiting | None) -> "Trial":
        """Load the recipes and look at the host, as before a hunt."""
        commit = settings.good_commit
        alone = Range(commit, commit, commit, 0, 0, Graph.line(0), (commit,))
        return cls(settings, Scene.set_up(settings, waiting, alone))

    def measure(
        self, visits: int, runs: int, path: Path | None, progress: Progress, waiting: Waiting | None = None
    ) -> bool:
        """Build and measure; false when Ctrl-C ended it early."""
        scene, settings = self.scene, self.settings
        commit = settings.good_commit
        purpose = f"an A/A of {settings.builder} {settings.workload}, {settings.good},"
        with hold(scene.host, purpose, waiting) as held, closing(History.open(path)) as history, closing(progress):
            for warned in scene.warnings:
                progress.warn(warned)
            alone = scene.lab((commit,), {})
            alone.ends = {commit: "the revision"}
            lab = Watched(alone, scene.host, held, scene.facts)
            described = describe(open_repository(Path(settings.repository)), commit)
            number = history.begin_trial(settings, scene.facts, described, time.time())
            progress.expect(visits * runs)
            try:
                for visit in range(visits):
                    progress.say(f"visit {visit + 1} of {visits}")
                    self._visit(visit, runs, lab, progress, partial(history.add_to_trial, number, visit))
            except KeyboardInterrupt:
                return False
            finally:
                if found := self.noise():
                    history.conclude_trial(number, found)
        return True

    def _visit(self, visit: int, runs: int, lab: Lab, progress: Progress, keep: Keep) -> None:
        """Measure once; each run is given to ``keep`` as it ends."""
        began, done = time.time(), 0
        for event in lab.measure(Measure((Share(0, runs),), Purpose.ENDS)):
            match event:
                case BuildStarted(commit=about):
                    progress.say(f"building {about.short}  {about.title}")
                case BuildFinished():
                    began = time.time()
                case RunFinished(facts=facts):
                    now = time.time()
                    cost, began = now - began, now
                    keep(facts, now, cost)
                    self.runs.append((visit, facts))
                    (self.later if done else self.first).append(cost)
                    done += 1
                    progress.ran(facts)
                case Warned():
                    progress.warn(event)
                case _:
                    pass

    def noise(self) -> Noise | None:
        """What the runs come to; None when they are too few."""
        return noise_in(self.runs, self.settings.metric)

    def costs(self) -> tuple[float, float]:
        """Seconds of a run, and of opening a visit. Loading the data for the first visit does not count."""
        planned = self.scene.workload.warmup + self.scene.workload.time
        run = median(self.later or self.first or [planned])
        return run, max(0.0, median(self.first[1:] or self.first or [run]) - run)

    def advice(self, found: Noise) -> Advice:
        """How often and how long to run."""
        run, visit = self.costs()
        return Advice(best_runs(found, run, visit), best_seconds(found, self.scene.workload.time, run))

    def row(self, found: Noise, runs: int) -> Row:
        """One line of the table: ``runs`` on each side, as many in a visit as is best."""
        run, opening = self.costs()
        each = min(runs, self.advice(found).runs)
        visits = math.ceil(runs / each)
        return Row(runs, visits, 2 * (runs * run + visits * opening), smallest_drop(found, visits, runs / visits))

    def sentences(self, found: Noise) -> list[str]:
        """The advice in words."""
        advice, now = self.advice(found), self.scene.workload.time
        told = []
        if found.shared and found.between is not None:
            most = "more than one run in a visit teaches nothing new" if advice.runs == 1 else f"{advice.runs} runs"
            told.append(f"Best for the time it takes: {most}{'' if advice.runs == 1 else ' in each visit'}.")
        if advice.seconds is None:
            told.append("Too few report intervals in a run to tell how long runs should be.")
        elif 0.6 * now <= advice.seconds <= 1.6 * now:
            told.append(f"Runs of {now:g} s are about as long as is best.")
        else:
            what = "shorter" if advice.seconds < now else "longer"
            told.append(f"Runs could be {what}: --time {advice.seconds} is best for the time it takes.")
        if len(self.runs) >= ENOUGH:
            told.append("Hunts on this host with this builder and workload now begin with this noise.")
        else:
            told.append(f"Fewer than {ENOUGH} runs: hunts do not begin with this noise.")
        return told
