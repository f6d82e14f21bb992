"""Set up a session: load its recipes, read its range, check its hosts.

What --skip leaves out of a range is never built, and counts neither as fast nor as slow.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from perfbisect.core.domain.events import Commit, Event, SessionStarted, Warned
from perfbisect.core.domain.facts import LEFT_OUT, HostFacts, SkipFacts
from perfbisect.core.domain.metrics import INSTRUCTIONS
from perfbisect.core.domain.settings import SEARCH, WITH_RUNS, Patch, Settings, TrialRequest, TrialType
from perfbisect.core.inference.ancestry import with_suspicions
from perfbisect.errors import UsageError
from perfbisect.host.lock import WaitCallback, machine
from perfbisect.host.protocol import Host
from perfbisect.hunt.patches import PartSearch, check_patches, patches_of
from perfbisect.hunt.session_hosts import BuildHost, BuildHostChecks, HostLocks, PreparedHost, build_ahead
from perfbisect.lab.building.candidates import Candidates
from perfbisect.lab.building.links import unavailable
from perfbisect.lab.building.plan import InstalledBuild, build_fingerprint
from perfbisect.lab.building.shared_builds import SharedBuilds
from perfbisect.lab.checks.preflight import obstacle
from perfbisect.lab.host_lab import Earlier, HostLab
from perfbisect.lab.measure import counting
from perfbisect.lab.workload.lua import fingerprint
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.builder_reader import variant_of
from perfbisect.recipes.configuration import load_configuration
from perfbisect.recipes.inventory import HostEntry, load_host
from perfbisect.recipes.requested import ServerConfig, as_measured, check_fit, load_requested, requested_builder
from perfbisect.recipes.workload import Workload, load_training
from perfbisect.repository.commits import commits_of, commits_touching, describe, tags_and_branches
from perfbisect.repository.discovery import is_dirty, open_repository
from perfbisect.repository.git import Repository
from perfbisect.repository.range import CommitRange, read_range

Recipes = tuple[Builder, Workload]


@dataclass(frozen=True, slots=True)
class SessionSetup:
    """The recipes, the range and the hosts of a hunt or a trial, loaded and checked."""

    settings: Settings
    builder: Builder
    workload: Workload
    hosts: tuple[PreparedHost, ...]
    span: CommitRange
    warnings: tuple[Warned, ...]
    left_out: tuple[SkipFacts, ...] = ()  # what is not measured, whatever happens
    patches: tuple[Patch, ...] = ()  # the recipe's, and those of --patch
    shared: SharedBuilds | None = None  # that the user has configured
    measured: tuple[Workload, ...] = ()  # all workloads: of a trial, of hunts together, or of those that a trial proves
    untouched: tuple[str, ...] = ()  # suspected paths that no commit of the range touches
    parts: PartSearch | None = None  # of a search in the diff of a commit, whose present round is ``span``
    # Of a hunt: filter of the runs → builds (by commit) and runs (by visit) of its ends, from a comparison just before
    measured_ends: Mapping[tuple[str, ...], Sequence[tuple[str, Event]]] = field(default_factory=dict)
    # Of a trial:
    request: TrialRequest = SEARCH  # what is measured in rounds
    works: tuple[Workload, ...] = ()  # those of the request
    repository: Repository | None = None  # with the commits that are measured; None for prebuilt binaries alone
    configs: tuple[ServerConfig, ...] = ()  # what each build's server is configured with beside the recipe
    prebuilt: Mapping[int, InstalledBuild] = field(default_factory=dict)  # of the builds those that need not be made

    @classmethod
    def set_up(
        cls, requested: Sequence[Settings], waiting: WaitCallback | None = None, begun: Sequence[Recipes] = ()
    ) -> tuple["SessionSetup", ...]:
        """The setups of hunts that differ in their workloads only: their recipes are loaded and their hosts checked once.

        With ``waiting`` a host is checked only when no other session measures there. ``begun`` are the recipes of all hunts
        that were begun together, those that go on first: builds may be trained with the workloads of all. Raises UsageError
        and EnvironmentFailure.
        """
        recipes = begun or [load_requested(each) for each in requested]
        first, builder, measured = requested[0], recipes[0][0], tuple(workload for _, workload in recipes)
        common = cls._checked(first, builder, measured[: len(requested)], waiting)
        setups = []
        for settings, workload in zip(requested, measured, strict=False):
            same = settings.suspects == first.suspects
            span, untouched = (common.span, common.untouched) if same else read_hunt_range(settings, builder)
            classes = replace(settings.prior, host_classes=common.settings.prior.host_classes)
            setup = replace(common, settings=replace(settings, prior=classes), workload=workload, measured=measured)
            setups.append(replace(setup, span=span, untouched=untouched)._complete())
        return tuple(setups)

    @classmethod
    def of_trial(
        cls, settings: Settings, waiting: WaitCallback | None, span: CommitRange, workloads: tuple[Workload, ...]
    ) -> "SessionSetup":
        """The setup of a trial, whose builds are ``span``. Raises as ``set_up``."""
        builder = requested_builder(settings)
        check_fit(builder, workloads, settings)
        return cls._checked(settings, builder, workloads, waiting, span)._complete()

    @classmethod
    def _checked(
        cls,
        settings: Settings,
        builder: Builder,
        workloads: tuple[Workload, ...],
        waiting: WaitCallback | None,
        builds: CommitRange | None = None,
    ) -> "SessionSetup":
        """The setup of the first workload, but for what depends on its metric; a trial has its ``builds``."""
        entries = [load_host(name, settings.hosts_path) for name in settings.hosts]
        settings = replace(settings, prior=replace(settings.prior, host_classes=host_classes(entries)))
        # Without a repository nothing is built, so the host needs no compiler.
        needed = builder if settings.repository else msgspec.structs.replace(builder, build=None)
        span, untouched = (builds, ()) if builds else read_hunt_range(settings, builder)
        skipped = () if builds else left_out(settings, span)
        patches = patches_of(settings, builder)
        idle = check_patches(patches, settings, builder, span, is_range=not builds)
        build_ahead(entries)
        checks = BuildHostChecks(settings, needed, waiting)
        hosts = tuple(PreparedHost.prepare(entry, settings, needed, workloads, checks) for entry in entries)
        dirty = settings.repository and is_dirty(open_repository(Path(settings.repository)))
        uncommitted = f"{settings.repository} has uncommitted changes, which are not measured"
        warned = (
            *([Warned(uncommitted, "Commit them first.")] if dirty else []),
            *(() if builds else on_one_machine(hosts)),
            *both_tag_and_branch(settings, (settings.good, settings.bad, *settings.skips)),
            *idle,
            *(warning for each in hosts for warning in each.warnings),
        )
        setup = cls(
            settings, builder, workloads[0], hosts, span, warned, skipped, patches, shared_builds(), workloads, untouched
        )  # fmt: skip
        setup.training()  # a mistake in a name ends it here
        return setup

    def _complete(self) -> "SessionSetup":
        setup = self.by_metric(self.settings)
        in_recipes = self.builder.suspects | self.workload.suspects
        said = (path for path in self.untouched if path not in in_recipes)
        unmet = (Warned(f"No commit of the range touches {path}, which you suspect") for path in said)
        return replace(setup, warnings=(*setup.warnings, *unmet, *without_effect(setup)))

    def by_metric(self, settings: Settings) -> "SessionSetup":
        """The same hunt with other ``settings``; their metric is counted exactly if all hosts can, by one method."""
        methods = {counting.method(each.host) if settings.metric == INSTRUCTIONS else "" for each in self.hosts}
        counts = methods.pop() if len(methods) == 1 else ""
        hosts = tuple(replace(each, counts=counts, beside="") for each in self.hosts)
        setup = replace(self, settings=settings, hosts=hosts)
        exact = all(setup.counted(each, setup.workload) for each in hosts)
        prior = replace(settings.prior, exact=exact, count_cost=None)
        return counted_beside(with_layouts(replace(setup, settings=replace(settings, prior=prior))))

    def again(self, settings: Settings) -> "SessionSetup":
        """The setup of another attempt by ``settings``, which a build or a run has changed."""
        setup = replace(
            self, builder=requested_builder(settings), workload=as_measured(self.workload, settings),
            works=tuple(as_measured(each, settings) for each in self.works),
        ).by_metric(settings)  # fmt: skip
        run_hash, build_hash = setup.run_hash(setup.workload), setup.build_hash()
        request = self.request
        if works := tuple(  # those of one command have one run
            replace(named, run_hash=setup.run_hash(setup.works[0 if request.shared else number]))
            for number, named in enumerate(request.works)
        ):
            results = works[0].showing(settings)
            request = replace(request, works=results or works, metric=settings.metric, shared=bool(results))
        return replace(
            setup, settings=replace(setup.settings, run_hash=run_hash, build_hash=build_hash), request=request
        )

    @property
    def host(self) -> Host:
        """The first host."""
        return self.hosts[0].host

    @property
    def ahead(self) -> tuple[BuildHost, ...]:
        """The hosts that build ahead for all that measure; none: each measuring host has its builds made when it needs them."""
        return self.hosts[0].build_hosts if build_ahead([each.entry for each in self.hosts]) else ()

    @property
    def facts(self) -> HostFacts:
        """The facts of the first host."""
        return self.hosts[0].facts

    @property
    def purpose(self) -> str:
        """Shown to other sessions that find the host busy."""
        request, settings = self.request, self.settings
        if not request.works:
            return f"a hunt for {settings.builder} {settings.workload}, {settings.good}..{settings.bad},"
        names = request.series.text if request.series else ", ".join(subject.name for subject in request.subjects)
        article = "an" if request.kind is TrialType.NOISE else "a"
        return f"{article} {request.kind.noun} of {request.builder}, {names},"

    @property
    def title(self) -> str:
        """What is measured, in a few words."""
        if self.settings.output and self.settings.outputs:
            return self.settings.output.result
        return f"{self.request.kind.noun} {self.request.builder}" if self.request.works else self.workload.name

    def run_hash(self, workload: Workload) -> str:
        """A hash of everything that a run of the workload depends on."""
        return fingerprint(
            self.builder,
            workload,
            [each.entry for each in self.hosts],
            [self.counted(each, workload) for each in self.hosts],
        )

    def counted(self, site: PreparedHost, workload: Workload) -> str:
        """How the runs of the workload are counted exactly at ``site``; "" where they are timed."""
        return "" if counting.obstacle(self.builder, workload) else site.counts

    def training(self) -> tuple[Workload, ...]:
        """The workloads with which builds of the variant are trained; none where they are not optimised with a profile.

        Raises RecipeError for a workload that does not exist.
        """
        return load_training(self.builder, self.settings.variant, self.measured, self.settings.workloads_path)

    def build_hash(self) -> str:
        """A hash of everything in the recipe that builds depend on."""
        return build_fingerprint(self.builder, variant_of(self.builder, self.settings.variant), self.patches)

    def lab(
        self, candidates: Candidates, earlier: Earlier, site: PreparedHost, workload: Workload, locks: HostLocks
    ) -> HostLab:
        """A lab that measures these candidates at ``site``."""
        place = locks.place(site.host, site.entry)
        places = [locks.place(each.host, each.entry) for each in site.build_hosts]
        places += [place] if site.can_build else []
        return HostLab(
            place, self.builder, self.settings.variant, workload, candidates, earlier, tuple(places),
            counted=self.counted(site, workload), training=self.training(),
        )  # fmt: skip

    def candidates(self, commits: tuple[str, ...]) -> Candidates:
        """Commits of the session's repository as the candidates of a lab."""
        path, repository = self.settings.repository, self.repository
        repository = repository or (open_repository(Path(path)) if path else None)
        return Candidates(
            repository=repository,
            commits=commits,
            describe=lambda commit: describe(repository, commit) if repository else Commit(commit),
            ends={
                self.span.candidates[0]: "the merge base",  # unless it is good itself
                self.span.candidates[-1]: "the bad end",
                self.settings.good_commit: "the good end",
            },
            patches=self.patches,
            remedies=self.settings.remedies and not self.request.works,
            prebuilt=self.prebuilt,
            is_range=not self.request.works,
            in_line=self.parts is None,
        )

    def started(self, number: int, resumed: bool) -> SessionStarted:
        """The first event of an attempt at the session."""
        settings, span, further = self.settings, self.span, tuple(each.facts for each in self.hosts[1:])
        if self.request.works:
            builders = tuple(each.host.name for each in self.hosts[0].build_hosts)
            return SessionStarted(
                number, self.facts, resumed, further=further, build_hosts=builders, request=self.request
            )
        started = SessionStarted(
            number, self.facts, resumed, settings.builder, settings.workload, settings.good, settings.bad, span.commits,
            span.candidates, span.merges, settings.metric, settings.prior.host_classes, span.graph.branch_points,
            further=further, build_hosts=tuple(each.host.name for each in self.ahead),
        )  # fmt: skip
        return self.parts.with_parts(started) if self.parts else started


def shared_builds() -> SharedBuilds | None:
    """The shared builds of the user's configuration; None without any. Raises RecipeError for a mistake in it."""
    shared = load_configuration().shared
    return SharedBuilds(shared.builds, shared.secret()) if shared.builds else None


def without_effect(setup: SessionSetup) -> Iterator[Warned]:
    """A warning about options on the time of runs, where a number of operations decides how long they are."""
    given = [f"--{name}" for name in ("time", "warmup") if name in setup.settings.overrides]
    if given and setup.settings.prior.exact and counting.has_length(setup.workload):
        yield Warned(
            f"{' and '.join(given)} {'has' if len(given) == 1 else 'have'} no effect on runs in which instructions are"
            " counted exactly: the first build decides how long these are"
        )


def with_layouts(setup: SessionSetup) -> SessionSetup:
    """The setup without randomized layouts where there can be none, with the reason.

    A hunt by exact counts uses none, but builds as if it did: `--metric auto` times the same builds.
    """
    settings = setup.settings
    if not settings.policy.layouts:
        return setup
    built = bool(settings.repository)
    reason = obstacle(setup.builder, settings.variant, settings.system) if built else "nothing is built from source"
    if not reason:
        return setup
    policy = replace(settings.policy, layouts=False)
    without = replace(setup, settings=replace(settings, policy=policy, linkable=False))
    if settings.prior.exact:  # placement of code does not change a count
        return without
    return replace(without, warnings=(*setup.warnings, unavailable(reason)))


def counted_beside(setup: SessionSetup) -> SessionSetup:
    """The setup of a hunt by time whose first host counts instructions beside that, where it can.

    What cannot be counted exactly, such as a server, is counted during its timed runs if the processor has counters.
    """
    settings, (first, *others) = setup.settings, setup.hosts
    wanted = settings.counts and settings.choose_metric and not settings.prior.exact and not setup.request.works
    alone = not counting.obstacle(setup.builder, setup.workload)
    if not wanted or not (method := counting.method(first.host)) or not (alone or method == counting.PERF):
        return setup
    prior = replace(settings.prior, count_cost=counting.cost(method, setup.workload) if alone else WITH_RUNS)
    hosts = replace(first, beside=method if alone else ""), *others
    return replace(setup, hosts=hosts, settings=replace(settings, prior=prior))


def host_classes(entries: Sequence[HostEntry]) -> tuple[str, ...]:
    """The class of each host, by default its name; empty for a single host. Raises UsageError for one given twice."""
    names = [entry.name for entry in entries]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"Host {twice[0]} is given twice.", "Give each host once.")
    return tuple(entry.kind or entry.name for entry in entries) if len(entries) > 1 else ()


def on_one_machine(hosts: Sequence[PreparedHost]) -> Iterator[Warned]:
    """A warning about each host that shares its machine with another one of the hunt, where both work at the same time."""
    first: dict[str, str] = {}
    every = [host for each in hosts for host in (each.host, *(one.host for one in each.build_hosts))]
    for name, host in {host.name: host for host in every}.items():
        if (other := first.setdefault(machine(host), name)) != name:
            yield Warned(f"hosts {other} and {name} are one machine: what one of them does disturbs the other")


def both_tag_and_branch(settings: Settings, written: Iterable[str]) -> Iterator[Warned]:
    """A warning for each revision, or end of a range, that is the name of a tag and of a branch."""
    for name in tags_and_branches(open_repository(Path(settings.repository)), written) if settings.repository else ():
        yield Warned(f"{name} is a tag and a branch: the tag is measured", f"Write heads/{name} for the branch.")


def read_hunt_range(settings: Settings, builder: Builder) -> tuple[CommitRange, tuple[str, ...]]:
    """The range of a hunt from its repository, and the suspected paths that no commit of it touches."""
    repository = open_repository(Path(settings.repository))
    ends, first_parent = (settings.good_commit, settings.bad_commit), settings.first_parent
    span = read_range(repository, *ends, builder.ignore, first_parent=first_parent)
    found = commits_touching(repository, *ends, settings.suspects, first_parent=first_parent)
    suspicious = replace(span, graph=with_suspicions(span.graph, span.candidates, found, settings.suspects))
    return suspicious, tuple(path for path in settings.suspects if not found[path])


def left_out(settings: Settings, span: CommitRange) -> tuple[SkipFacts, ...]:
    """The candidates that the settings leave out, oldest first.

    Raises UsageError where an end would be left out, or every candidate between them, and for what leaves out nothing.
    """
    by: dict[str, str] = {}  # commit → as written
    repository = open_repository(Path(settings.repository)) if settings.skips else None
    for text, resolved in settings.skips.items():
        assert repository
        found = commits_of(repository, resolved)
        for commit, name in _ends(settings, span).items():
            if commit in found:
                raise UsageError(
                    f"--skip {text} leaves out {name}, {commit[:10]}, without which nothing can be compared.",
                    "Give another end, or leave out less.",
                )
        own = [commit for commit in span.candidates if commit in found]
        if not own:
            raise UsageError(
                f"--skip {text} leaves out nothing: none of its commits is a candidate of"
                f" {settings.good}..{settings.bad}.",
                "Candidates are the commits of that range that change a path which the recipe does not ignore.",
            )
        by = dict.fromkeys(own, text) | by
    inner = set(span.candidates[1 + span.graph.branch_points : -1])
    if inner and inner <= by.keys():
        raise UsageError(
            f"--skip leaves out every candidate between {settings.good} and {settings.bad}, so there is nothing to search.",
            "Leave out less.",
        )
    return tuple(
        SkipFacts(commit, LEFT_OUT, f"by --skip {by[commit]}", "", 0.0) for commit in span.candidates if commit in by
    )


def _ends(settings: Settings, span: CommitRange) -> Mapping[str, str]:
    """The commits that a hunt cannot do without, with their names."""
    return {
        span.candidates[0]: "the merge base",  # unless it is good itself
        settings.good_commit: "the good end",
        span.candidates[-1]: "the bad end",
        settings.bad_commit: "the bad end",
    }
