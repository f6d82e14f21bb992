"""From the settings of a hunt to its verdict: opens what a hunt needs, runs it under a view, closes everything."""

import threading
import time
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import click
import msgspec

from perfbisect.core.domain.events import BuildFinished, HuntEnded, HuntStarted, LabEvent, RunFinished, Warned
from perfbisect.core.domain.facts import HostFacts
from perfbisect.core.domain.orders import Verdict
from perfbisect.core.domain.settings import Settings
from perfbisect.core.inference.prior import suspected
from perfbisect.errors import INTERRUPTED, PerfBisectError, UsageError, in_words
from perfbisect.host.events import ConnectionEvent, ConnectionState
from perfbisect.host.facts import read_fingerprint
from perfbisect.host.fair_lock import FairLock
from perfbisect.host.lock import Lease, WaitCallback, wait
from perfbisect.host.protocol import Host
from perfbisect.host.registry import connect
from perfbisect.host.stoppable import StoppableHost
from perfbisect.hunt.host_locks import hold_all
from perfbisect.hunt.loop import Log, SearchProblem, Told, hunt
from perfbisect.hunt.merge_base import stands_in
from perfbisect.hunt.prior_hunts import experienced, failures_before
from perfbisect.hunt.view import View
from perfbisect.hunt.workers import Crew, Member, Tell, Threads
from perfbisect.lab.build import store
from perfbisect.lab.build.candidates import Candidates
from perfbisect.lab.checks.finding import CheckRequest
from perfbisect.lab.checks.preflight import inspect_host, warnings
from perfbisect.lab.guarded_lab import GuardedLab, changed
from perfbisect.lab.host_lab import Earlier, HostLab, LabHost
from perfbisect.lab.protocol import Lab
from perfbisect.lab.upkeep import storage
from perfbisect.lab.workload.fingerprint import fingerprint
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.find import load_host
from perfbisect.recipes.inheritance import variant_of
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.requested import check_fit, load_requested, requested_builder
from perfbisect.recipes.workload import Workload
from perfbisect.report.command import go_on_with
from perfbisect.repository.describe import describe
from perfbisect.repository.range import Range, read_range
from perfbisect.repository.resolve import is_dirty, open_repository
from perfbisect.repository.touched import touched
from perfbisect.store.history import History


@dataclass(frozen=True, slots=True)
class PreparedHost:
    """One host of a hunt, looked at."""

    entry: HostEntry
    host: Host
    facts: HostFacts
    warnings: tuple[Warned, ...]
    build_entry: HostEntry | None  # of the host where builds are made, if that is another
    build_host: Host | None

    @classmethod
    def visit(
        cls,
        name: str,
        settings: Settings,
        builder: Builder,
        workloads: tuple[Workload, ...],
        waiting: WaitCallback | None,
    ) -> "PreparedHost":
        """Inspect the host of that name. Raises the error of whatever is wrong there."""
        entry = load_host(name, settings.hosts_path)
        host = connect(entry)
        if waiting:
            wait(host, waiting)
        inspection = inspect_host(CheckRequest(host, entry, settings.metric, builder, settings.variant, workloads))
        build_entry = load_host(entry.built_elsewhere, settings.hosts_path) if entry.built_elsewhere else None
        build_host = connect(build_entry) if build_entry else None
        if build_host:
            machines = [each.run(["uname", "-m"]).stdout.strip() for each in (host, build_host)]
            if machines[0] != machines[1]:
                raise UsageError(
                    f"Host {name} is {machines[0]} and its build_host {build_host.name} is {machines[1]}: what is built there"
                    " does not run here.",
                    "Choose a build_host of the same architecture in hosts.toml.",
                )
        return cls(
            entry, host, read_fingerprint(host, inspection.answers), warnings(inspection), build_entry, build_host
        )


@dataclass(frozen=True, slots=True)
class HuntSetup:
    """Everything a hunt stands on, loaded and checked."""

    settings: Settings
    builder: Builder
    workload: Workload
    sites: tuple[PreparedHost, ...]
    span: Range
    warnings: tuple[Warned, ...]

    @classmethod
    def set_up(
        cls,
        settings: Settings,
        waiting: WaitCallback | None = None,
        span: Range | None = None,
        workloads: tuple[Workload, ...] = (),
    ) -> "HuntSetup":
        """Load the recipes, read the range and look at the hosts. Raises the error of whatever is wrong.

        With ``waiting`` a host is first looked at when nobody else measures there. ``span`` is given where no range
        is to be read, ``workloads`` where there are several.
        """
        if workloads:
            builder = requested_builder(settings)
            check_fit(builder, workloads, settings)
        else:
            builder, workload = load_requested(settings)
            workloads = (workload,)
        settings = replace(settings, prior=replace(settings.prior, host_classes=host_classes(settings)))
        # Where nothing is built the host need not be able to.
        needed = builder if settings.repository else msgspec.structs.replace(builder, build=None)
        idle: tuple[str, ...] = ()
        if span is None:
            span, idle = span_of(settings, builder)
        sites = tuple(PreparedHost.visit(name, settings, needed, workloads, waiting) for name in settings.hosts)
        warned = tuple(warning for site in sites for warning in site.warnings)
        own = (path for path in idle if path not in (builder.suspects | workloads[0].suspects))
        warned += tuple(Warned(f"No commit of the range touches {path}, which you suspect") for path in own)
        if settings.repository and is_dirty(open_repository(Path(settings.repository))):
            unseen = Warned(
                f"{settings.repository} has uncommitted changes, which are not measured", "Commit them first."
            )
            warned = (unseen, *warned)
        return cls(settings, builder, workloads[0], sites, span, warned)

    @property
    def host(self) -> Host:
        """The first host."""
        return self.sites[0].host

    @property
    def facts(self) -> HostFacts:
        """Of the first host."""
        return self.sites[0].facts

    @property
    def purpose(self) -> str:
        """What others are told who find the host busy."""
        asked = self.settings
        return f"a hunt for {asked.builder} {asked.workload}, {asked.good}..{asked.bad},"

    def method(self, workload: Workload) -> str:
        """A hash of all that a run of the workload is told."""
        return fingerprint(self.builder, workload, [site.entry for site in self.sites])

    def made(self) -> str:
        """A hash of all that the recipe says of builds."""
        return store.fingerprint(self.builder, variant_of(self.builder, self.settings.variant))

    def lab(
        self,
        candidates: Candidates,
        earlier: Earlier,
        site: PreparedHost,
        workload: Workload,
        locks: Mapping[str, FairLock],
    ) -> HostLab:
        """A lab that measures these candidates at a site; ``locks`` are those of the hosts, by name."""
        build_place = None
        if site.build_host and site.build_entry:
            build_place = LabHost(site.build_host, site.build_entry, locks[site.build_host.name])
        place = LabHost(site.host, site.entry, locks[site.host.name])
        return HostLab(place, self.builder, self.settings.variant, workload, candidates, earlier, build_place)

    def candidates(self, commits: tuple[str, ...]) -> Candidates:
        """Commits of the hunt's repository as the candidates of a lab."""
        repository = cache(lambda: open_repository(Path(self.settings.repository)))
        return Candidates(
            repository=Path(self.settings.repository),
            commits=commits,
            describe=lambda commit: describe(repository(), commit),
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
            further=tuple(site.facts for site in self.sites[1:]),
            host_classes=self.settings.prior.host_classes,
            branch_points=self.span.graph.branch_points,
        )


def span_of(settings: Settings, builder: Builder) -> tuple[Range, tuple[str, ...]]:
    """The range of a hunt, read from its repository; and the suspected paths that no commit of it touches."""
    repository = open_repository(Path(settings.repository))
    ends, first_parent = (settings.good_commit, settings.bad_commit), settings.first_parent
    span = read_range(repository, *ends, builder.ignore, first_parent=first_parent)
    found = touched(repository, *ends, settings.suspects, first_parent=first_parent)
    suspicious = replace(span, graph=suspected(span.graph, span.candidates, found, settings.suspects))
    return suspicious, tuple(path for path in settings.suspects if not found[path])


def host_classes(settings: Settings) -> tuple[str, ...]:
    """The class of each host, by its own name if the inventory tells none; empty for a single host.

    Raises UsageError for a host that is named twice, and when all changes are asked for on hosts of several classes.
    """
    names = settings.hosts
    if len(names) < 2:
        return ()
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"Host {twice[0]} is named twice.", "Name each host once.")
    classes = tuple(load_host(name, settings.hosts_path).kind or name for name in names)
    if settings.policy.all_steps and len(set(classes)) > 1:
        raise UsageError(
            f"All changes (--all) can be hunted on hosts of one class only; these are of {len(set(classes))}:"
            f" {', '.join(dict.fromkeys(classes))}.",
            "Hunt without --all, or on one host; or, if they are alike, give them one `class` in hosts.toml.",
        )
    return classes


def follow_anew(scene: HuntSetup, path: Path | None, view: View, waiting: WaitCallback | None = None) -> Verdict:
    """Begin a hunt in the history at ``path`` and follow it to its verdict."""
    with hold_all(scene, waiting) as held, closing(History.open(path)) as history:
        warned = (*scene.warnings, *room_for(history, scene))
        settings = replace(
            experienced(history, scene.settings), run_hash=scene.method(scene.workload), build_hash=scene.made()
        )
        scene = replace(scene, settings=settings, warnings=warned)
        hunt_id = history.begin(scene.settings, scene.facts, scene.started(0, False), time.time())
        return follow(history, hunt_id, scene, view, held, resumed=False)


def room_for(history: History, scene: HuntSetup) -> tuple[Warned, ...]:
    """Is there room for the builds and the data of the hunt, as far as earlier ones tell?"""
    expected = storage.expected_builds(len(scene.span.candidates), scene.settings.policy.max_builds)
    return tuple(
        warning
        for site in scene.sites
        for warning in storage.too_little(
            site.host, *history.kept(replace(scene.settings, host=site.host.name)), expected
        )
    )


def go_on(hunt_id: int | None, path: Path | None, view: View, waiting: WaitCallback | None = None) -> Verdict:
    """Go on with a hunt (None: the latest) of the history at ``path`` where its log ends."""
    with closing(History.open(path)) as history:
        hunt_id = history.latest() if hunt_id is None else hunt_id
        scene = HuntSetup.set_up(history.settings(hunt_id), waiting)
        if scene.span.candidates != history.candidates(hunt_id):
            raise UsageError(
                f"Hunt {hunt_id} cannot go on: its range in {scene.settings.repository} is not what it was.",
                "Its recipe's ignore list or the repository has changed; begin a new hunt with: bisect run",
            )
        if scene.settings.run_hash not in ("", scene.method(scene.workload)):
            raise UsageError(
                f"Hunt {hunt_id} cannot go on: its runs would be made in another way than before, so those of then and"
                " of now cannot be compared.",
                f"Workload {scene.workload.suite}/{scene.workload.name} or its files, what the recipe of"
                f" {scene.builder.name} says of sysbench and perf, or the processors and the memory in hosts.toml have"
                " changed: undo that, or begin a new hunt with: bisect run",
            )
        if scene.settings.build_hash != (made := scene.made()):  # nothing was built, or the lab refuses to go on
            history.update_recipe_hash(hunt_id, made)
        with hold_all(scene, waiting) as held:
            return follow(history, hunt_id, scene, view, held, resumed=True)


def follow(
    history: History, hunt_id: int, scene: HuntSetup, view: View, held: Mapping[str, Lease], *, resumed: bool
) -> Verdict:
    """Hunt, showing every event, until there is a verdict. An interruption or a failure says how to go on."""
    verdict: Verdict | None = None

    def tell(event: LabEvent) -> None:
        if threading.current_thread() is threading.main_thread():  # the history belongs to it
            view.show(event, log.append(event)[0])

    log = Log(history, hunt_id)
    again = go_on_with(hunt_id, history.path)
    alone = len(scene.sites) == 1  # or else the workers subscribe
    with hear((scene.host, scene.sites[0].build_host) if alone else (), tell), closing(view):
        try:
            if resumed:
                view.recall((entry.at, entry.event) for entry in history.events(hunt_id))
            with closing(events(log, scene, held, resumed)) as told:
                for at, event in told:
                    view.show(event, at)
                    verdict = event.verdict if isinstance(event, HuntEnded) else verdict
        except (KeyboardInterrupt, BrokenPipeError):  # Ctrl-C, or nobody reads any more
            view.close()
            click.echo(f"Interrupted. What was measured is kept; go on with: {again}", err=True)
            raise SystemExit(INTERRUPTED) from None
        except (PerfBisectError, OSError) as trouble:
            failure = in_words(trouble)
            with suppress(PerfBisectError):  # of the history itself
                history.fail(hunt_id, str(failure), time.time())
            own = "\nIts commands are kept, too: with others, begin a new hunt." if scene.settings.quick else ""
            failure.advice = f"{failure.advice}\nWhat was measured is kept; go on with: {again}{own}".strip()
            raise failure from failure.__cause__
    assert verdict is not None, "a hunt ends with a verdict"
    return verdict


@contextmanager
def hear(hosts: Sequence[Host | None], tell: Tell) -> Iterator[None]:
    """Forward connection events (retrying, restored) to ``tell`` as warnings."""

    def forward(event: ConnectionEvent) -> None:
        if event.state is not ConnectionState.LOST:  # that is raised as an error
            with suppress(KeyboardInterrupt):  # the reader has stopped
                tell(Warned(event.text))

    with ExitStack() as subscriptions:
        for host in hosts:
            if host:
                subscriptions.callback(host.subscribe(forward))
        yield


def events(log: Log, scene: HuntSetup, held: Mapping[str, Lease], resumed: bool) -> Generator[Told]:
    """Everything that happens in one session of a hunt, the warnings before it included."""
    settings = scene.settings
    hosts = settings.hosts if len(scene.sites) > 1 else ()
    quest = SearchProblem(
        scene.span.graph, scene.span.candidates, settings.policy, settings.metric, hosts, settings.prior
    )
    started = scene.started(log.hunt, resumed)
    known: dict[str, dict[str, str]] = {name: {} for name in settings.hosts}
    loaded: dict[str, dict[str, str]] = {name: {} for name in settings.hosts}
    for _, event in log.entries:
        if isinstance(event, BuildFinished):
            known[event.host or settings.host][event.facts.commit] = event.facts.key
        elif isinstance(event, RunFinished):
            loaded[event.host or settings.host][event.facts.commit] = event.facts.dataset
    begun = [entry.event for entry in log.history.events(log.hunt) if isinstance(entry.event, HuntStarted)]
    first = {facts.name: facts for event in reversed(begun) for facts in event.hosts}  # at the very start

    locks: dict[str, FairLock] = defaultdict(FairLock)  # of each host: one thing at a time

    def watched(site: PreparedHost, commits: tuple[str, ...]) -> GuardedLab:
        name = site.host.name
        then = first.get(name, site.facts)
        earlier = Earlier(known[name], loaded[name], then.memory_mib, then.cores)
        lab = scene.lab(scene.candidates(commits), earlier, site, scene.workload, locks)
        return GuardedLab(lab, site.host, held[site.host.name], site.facts)

    def member(site: PreparedHost, commits: tuple[str, ...]) -> Member:
        stop = threading.Event()
        build_host = StoppableHost(site.build_host, stop) if site.build_host else None
        lab = watched(replace(site, host=StoppableHost(site.host, stop), build_host=build_host), commits)
        return Member(site.host.name, lab, stop, partial(hear, (site.host, site.build_host)))

    def lab(commits: tuple[str, ...]) -> Lab | Crew:
        if len(scene.sites) == 1:
            return watched(scene.sites[0], commits)
        return Threads(tuple(member(site, commits) for site in scene.sites))

    before = {facts.name: facts for event in begun for facts in event.hosts}
    for warning in scene.warnings:
        yield log.append(warning)
    for site in scene.sites:
        if site.facts.name in before:
            for warning in changed(site.host.name, before[site.facts.name], site.facts):
                yield log.append(warning)
    # Once bad is built the merge base was shown to stand in for good; what it is measured since is not to undo that.
    bad_is_known = any(event.facts.commit == quest.commits[-1] for _, event in log.entries)
    if not (scene.span.good_is_ancestor or bad_is_known or (yield from stands_in(quest, started, settings, log, lab))):
        return
    failed = () if resumed or settings.retry_failed else failures_before(log.history, settings, log.began)
    yield from hunt(quest, started, log, lab, failed)
