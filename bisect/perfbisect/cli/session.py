"""From the settings of a hunt to its verdict: opens what a hunt needs, runs it under a view, closes everything."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import click
import msgspec

from perfbisect.cli.view import View
from perfbisect.core.event import BuildFinished, HuntStarted, Warned
from perfbisect.core.measurement import HostFacts
from perfbisect.core.order import Verdict
from perfbisect.core.prior import suspected
from perfbisect.core.settings import Settings
from perfbisect.errors import INTERRUPTED, PerfBisectError, UsageError
from perfbisect.host.connect import connect
from perfbisect.host.facts import read_fingerprint
from perfbisect.host.lock import Held, Waiting, hold, wait
from perfbisect.host.protocol import Host
from perfbisect.host.ssh import SshHost
from perfbisect.hunt import Log, Quest, Told, check_base, hunt, verdict_of
from perfbisect.lab import storage
from perfbisect.lab.checks.finding import Task
from perfbisect.lab.lab import HostLab
from perfbisect.lab.preflight import look_at, warnings
from perfbisect.lab.protocol import Lab
from perfbisect.lab.watch import Watched, changed
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.find import load_builder, load_host, load_workload
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.workload import Workload
from perfbisect.repository.describe import describe
from perfbisect.repository.range import Range, read_range
from perfbisect.repository.resolve import is_dirty, open_repository
from perfbisect.repository.touched import touched
from perfbisect.store.history import History

REMEMBERED = 30 * 86400.0  # seconds for which a failed build is not tried again


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything a hunt stands on, loaded and checked."""

    settings: Settings
    builder: Builder
    workload: Workload
    entry: HostEntry
    host: Host
    facts: HostFacts
    span: Range
    warnings: tuple[Warned, ...]

    @classmethod
    def set_up(cls, settings: Settings, waiting: Waiting | None = None, span: Range | None = None) -> "Scene":
        """Load the recipes, read the range and look at the host. Raises the error of whatever is wrong.

        With ``waiting`` the host is first looked at when nobody else measures there. ``span`` is given where no range
        is to be read.
        """
        builder = load_builder(settings.builder, settings.builders_path)
        workload = load_workload(settings.workload, builder.driver, settings.workloads_path)
        workload = msgspec.structs.replace(workload, **settings.overrides)
        entry = load_host(settings.host, settings.hosts_path)
        span = span or span_of(settings, builder)
        host = connect(entry)
        if waiting:
            wait(host, waiting)
        look = look_at(Task(host, entry, settings.metric, builder, settings.variant, workload))
        warned = warnings(look)
        if is_dirty(open_repository(Path(settings.repository))):
            unseen = Warned(
                f"{settings.repository} has uncommitted changes, which are not measured", "Commit them first."
            )
            warned = (unseen, *warned)
        return cls(settings, builder, workload, entry, host, read_fingerprint(host, look.answers), span, warned)

    @property
    def purpose(self) -> str:
        """What others are told who find the host busy."""
        asked = self.settings
        return f"a hunt for {asked.builder} {asked.workload}, {asked.good}..{asked.bad},"

    def lab(self, commits: tuple[str, ...], known: Mapping[str, str]) -> HostLab:
        """A lab that measures these commits on the host; ``known`` is the build key of each that was built before."""
        repository = open_repository(Path(self.settings.repository))
        return HostLab(
            host=self.host,
            entry=self.entry,
            builder=self.builder,
            variant=self.settings.variant,
            workload=self.workload,
            repository=Path(self.settings.repository),
            commits=commits,
            describe=lambda commit: describe(repository, commit),
            known=known,
            ends={
                self.span.candidates[0]: "the merge base",  # unless it is good itself
                self.span.candidates[-1]: "the bad end",
                self.settings.good_commit: "the good end",
            },
        )

    def started(self, hunt_id: int, resumed: bool) -> HuntStarted:
        """The first event of a session."""
        return HuntStarted(
            hunt=hunt_id,
            builder=self.settings.builder,
            workload=self.settings.workload,
            host=self.facts,
            good=self.settings.good,
            bad=self.settings.bad,
            commits=self.span.commits,
            candidates=self.span.candidates,
            merges=self.span.merges,
            resumed=resumed,
            metric=self.settings.metric,
        )


def span_of(settings: Settings, builder: Builder) -> Range:
    """The range of a hunt, read from its repository."""
    repository = open_repository(Path(settings.repository))
    ends, first_parent = (settings.good_commit, settings.bad_commit), settings.first_parent
    span = read_range(repository, *ends, builder.ignore, first_parent=first_parent)
    found = touched(repository, *ends, settings.suspects, first_parent=first_parent)
    return replace(span, graph=suspected(span.graph, span.candidates, found, settings.suspects))


def follow_anew(scene: Scene, path: Path | None, view: View, waiting: Waiting | None = None) -> Verdict:
    """Begin a hunt in the history at ``path`` and follow it to its verdict."""
    with hold(scene.host, scene.purpose, waiting) as held, closing(History.open(path)) as history:
        warned = (*scene.warnings, *room_for(history, scene))
        scene = replace(scene, settings=experienced(history, scene.settings), warnings=warned)
        hunt_id = history.begin(scene.settings, scene.facts, scene.started(0, False), time.time())
        return follow(history, hunt_id, scene, view, held, resumed=False)


def experienced(history: History, settings: Settings) -> Settings:
    """The settings with what earlier hunts on the host teach: how noisy a run is, and how many runs a build costs."""
    policy, costs = settings.policy, history.costs(settings)
    if costs.build and costs.run:
        policy = replace(policy, build_cost=costs.build / costs.run)
    return replace(settings, policy=replace(policy, noise=history.noise(settings)))


def room_for(history: History, scene: Scene) -> tuple[Warned, ...]:
    """Is there room for the builds and the data of the hunt, as far as earlier ones tell?"""
    builds, datasets = history.kept(scene.settings)
    expected = storage.expected_builds(len(scene.span.candidates), scene.settings.policy.max_builds)
    return storage.too_little(scene.host, builds, datasets, expected)


def go_on(hunt_id: int | None, path: Path | None, view: View, waiting: Waiting | None = None) -> Verdict:
    """Go on with a hunt (None: the latest) of the history at ``path`` where its log ends."""
    with closing(History.open(path)) as history:
        hunt_id = history.latest() if hunt_id is None else hunt_id
        scene = Scene.set_up(history.settings(hunt_id), waiting)
        if scene.span.candidates != history.candidates(hunt_id):
            raise UsageError(
                f"Hunt {hunt_id} cannot go on: its range in {scene.settings.repository} is not what it was.",
                "Its recipe's ignore list or the repository has changed; begin a new hunt with: bisect run",
            )
        with hold(scene.host, scene.purpose, waiting) as held:
            return follow(history, hunt_id, scene, view, held, resumed=True)


def follow(history: History, hunt_id: int, scene: Scene, view: View, held: Held, *, resumed: bool) -> Verdict:
    """Hunt, showing every event, until there is a verdict. An interruption or a failure says how to go on."""
    verdict: Verdict | None = None

    def tell(sentence: str) -> None:
        at, event = log.append(Warned(sentence))
        view.show(event, at)

    log = Log(history, hunt_id)
    if isinstance(scene.host, SshHost):
        scene.host.link.tell = tell
    with closing(view):
        try:
            if resumed:
                view.recall((entry.at, entry.event) for entry in history.events(hunt_id))
            for at, event in events(log, scene, held, resumed):
                view.show(event, at)
                verdict = verdict_of(event) or verdict
        except (KeyboardInterrupt, BrokenPipeError):  # Ctrl-C, or nobody reads any more
            view.close()
            click.echo(f"Interrupted. What was measured is kept; go on with: bisect resume {hunt_id}", err=True)
            raise SystemExit(INTERRUPTED) from None
        except PerfBisectError as failure:
            failure.advice = f"{failure.advice}\nWhat was measured is kept; go on with: bisect resume {hunt_id}".strip()
            raise
    assert verdict is not None, "a hunt ends with a verdict"
    return verdict


def events(log: Log, scene: Scene, held: Held, resumed: bool) -> Iterator[Told]:
    """Everything that happens in one session of a hunt, the warnings before it included."""
    settings = scene.settings
    quest = Quest(scene.span.graph, scene.span.candidates, settings.policy, settings.metric)
    started = scene.started(log.hunt, resumed)
    known = {event.facts.commit: event.facts.key for _, event in log.entries if isinstance(event, BuildFinished)}

    def lab(commits: tuple[str, ...]) -> Lab:
        return Watched(scene.lab(commits, known), scene.host, held, scene.facts)

    before = [entry.event.host for entry in log.history.events(log.hunt) if isinstance(entry.event, HuntStarted)]
    for warning in (*scene.warnings, *(changed(scene.host.name, before[-1], scene.facts) if before else ())):
        yield log.append(warning)
    if not scene.span.good_is_ancestor:
        yield from check_base(quest, started, settings.good_commit, log, lab)
    failed = () if resumed else log.history.build_failures(settings, log.began - REMEMBERED)
    yield from hunt(quest, started, log, lab, failed)
