"""Sets up a session: loads recipes, reads the range of commits, and checks the hosts.

Commits that --skip names are never built, and the search makes no assumption about their speed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from perfbisect.core.domain.events import Commit, Event, SessionStarted, Warned
from perfbisect.core.domain.facts import LEFT_OUT, HostFacts, SkipFacts
from perfbisect.core.domain.metrics import INSTRUCTIONS
from perfbisect.core.domain.settings import NO_TRIAL, WITH_RUNS, Patch, Settings, TrialRequest, TrialType
from perfbisect.core.inference.ancestry import with_suspected_weights
from perfbisect.errors import UsageError
from perfbisect.host.lock import WaitCallback, lock_identity
from perfbisect.host.protocol import Host
from perfbisect.hunt.patches import PartSearch, check_patches, patches_of
from perfbisect.hunt.session_hosts import BuildHost, BuildHostChecks, HostLocks, PreparedHost, have_common_build_hosts
from perfbisect.lab.building.candidates import Candidates
from perfbisect.lab.building.links import layouts_unavailable_warning
from perfbisect.lab.building.plan import InstalledBuild, build_fingerprint
from perfbisect.lab.building.shared_builds import SharedBuilds
from perfbisect.lab.checks.preflight import layout_obstacle
from perfbisect.lab.host_lab import EarlierAttempts, HostLab
from perfbisect.lab.measure import counting
from perfbisect.lab.workload.lua import fingerprint
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.builder_reader import find_variant
from perfbisect.recipes.configuration import load_configuration
from perfbisect.recipes.inventory import HostEntry, load_host
from perfbisect.recipes.requested import ServerConfig, check_overrides, load_requested, requested_builder, with_settings
from perfbisect.recipes.workload import Workload, load_training_workloads
from perfbisect.repository.commits import commits_in_set, commits_touching, describe_commit, tags_named_like_branches
from perfbisect.repository.discovery import has_uncommitted_changes, open_repository
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
    left_out: tuple[SkipFacts, ...] = ()  # candidates that --skip excludes
    patches: tuple[Patch, ...] = ()  # of the recipe and of --patch
    shared: SharedBuilds | None = None  # shared builds, if the user has configured them
    measured: tuple[Workload, ...] = ()  # the workloads of all hunts, or of the trial (of a proof: of the hunts)
    untouched: tuple[str, ...] = ()  # suspected paths that no commit of the range touches
    parts: PartSearch | None = None  # of `bisect narrow`: the search in the diff; ``span`` is its present round
    # Of a hunt for a drop that a comparison found: words of the command → events of the comparison about the ends:
    # (commit of a build or visit of a run, event).
    measured_ends: Mapping[tuple[str, ...], Sequence[tuple[str, Event]]] = field(default_factory=dict)
    # Of a trial:
    request: TrialRequest = NO_TRIAL  # the builds and workloads of the rounds
    works: tuple[Workload, ...] = ()  # the workloads of the request
    repository: Repository | None = None  # with the measured commits; None if all builds are prebuilt
    configs: tuple[ServerConfig, ...] = ()  # each build's additions to the server's configuration in the recipe
    prebuilt: Mapping[int, InstalledBuild] = field(default_factory=dict)  # number of a build → its installed binaries

    @classmethod
    def set_up(
        cls, requested: Sequence[Settings], waiting: WaitCallback | None = None, begun: Sequence[Recipes] = ()
    ) -> tuple["SessionSetup", ...]:
        """The setups of several hunts that differ only in their workloads. Each recipe is loaded and each host checked
        once. If ``waiting`` is given, the check of a host waits until no other session measures on the host. ``begun``
        has the recipes of all hunts of a resumed session, beginning with the ``requested`` hunts; profile-guided builds
        are trained with the workloads of all these hunts. Raises UsageError and EnvironmentFailure."""
        recipes = begun or [load_requested(settings) for settings in requested]
        first, builder, measured = requested[0], recipes[0][0], tuple(workload for _, workload in recipes)
        common = cls._first_workload_setup(first, builder, measured[: len(requested)], waiting)
        setups = []
        for settings, workload in zip(requested, measured, strict=False):
            suspects_agree = settings.suspects == first.suspects
            span, untouched = (common.span, common.untouched) if suspects_agree else read_hunt_range(settings, builder)
            classes = replace(settings.prior, host_classes=common.settings.prior.host_classes)
            setup = replace(common, settings=replace(settings, prior=classes), workload=workload, measured=measured)
            setups.append(replace(setup, span=span, untouched=untouched)._adapted_to_metric())
        return tuple(setups)

    @classmethod
    def of_trial(
        cls, settings: Settings, waiting: WaitCallback | None, span: CommitRange, workloads: tuple[Workload, ...]
    ) -> "SessionSetup":
        """The setup of a trial; ``span`` contains the builds that the trial compares. Raises the errors of
        ``set_up``."""
        builder = requested_builder(settings)
        check_overrides(builder, workloads, settings)
        return cls._first_workload_setup(settings, builder, workloads, waiting, span)._adapted_to_metric()

    @classmethod
    def _first_workload_setup(
        cls,
        settings: Settings,
        builder: Builder,
        workloads: tuple[Workload, ...],
        waiting: WaitCallback | None,
        builds: CommitRange | None = None,
    ) -> "SessionSetup":
        """The setup for the first workload, before ``_adapted_to_metric``. ``builds`` are a trial's builds."""
        entries = [load_host(name, settings.hosts_path) for name in settings.hosts]
        settings = replace(settings, prior=replace(settings.prior, host_classes=host_classes(entries)))
        # Without a repository nothing is built, so the host needs no compiler.
        needed = builder if settings.repository else msgspec.structs.replace(builder, build=None)
        span, untouched = (builds, ()) if builds else read_hunt_range(settings, builder)
        skipped = () if builds else candidates_to_skip(settings, span)
        patches = patches_of(settings, builder)
        patch_warnings = check_patches(patches, settings, builder, span, is_range=not builds)
        have_common_build_hosts(entries)  # raises UsageError for a wrong combination of build hosts
        checks = BuildHostChecks(settings, needed, waiting)
        hosts = tuple(PreparedHost.prepare(entry, settings, needed, workloads, checks) for entry in entries)
        dirty = settings.repository and has_uncommitted_changes(open_repository(Path(settings.repository)))
        uncommitted = f"{settings.repository} has uncommitted changes, which are not measured"
        warned = (
            *([Warned(uncommitted, "Commit the changes first.")] if dirty else []),
            *(() if builds else shared_machine_warnings(hosts)),
            *ambiguous_name_warnings(settings, (settings.good, settings.bad, *settings.skips)),
            *patch_warnings,
            *(warning for host in hosts for warning in host.warnings),
        )
        setup = cls(
            settings, builder, workloads[0], hosts, span, warned, skipped, patches, shared_builds(), workloads, untouched
        )  # fmt: skip
        setup.training()  # raises an error if a workload of the training does not exist
        return setup

    def _adapted_to_metric(self) -> "SessionSetup":
        """The setup, adapted to its metric, and with warnings about suspected paths and options without effect."""
        setup = self.for_settings(self.settings)
        in_recipes = self.builder.suspects | self.workload.suspects
        of_user = (path for path in self.untouched if path not in in_recipes)
        untouched = (
            Warned(
                f"--suspect {path} has no effect: no commit of the range changes a file that matches {path}.",
                "Check the pattern. Paths are relative to the top of the repository.",
            )
            for path in of_user
        )
        return replace(setup, warnings=(*setup.warnings, *untouched, *options_without_effect(setup)))

    def for_settings(self, settings: Settings) -> "SessionSetup":
        """The setup with other settings. Runs are counted exactly if all hosts count the metric by the same method."""
        methods = {settings.metric == INSTRUCTIONS and counting.counting_method(site.host) for site in self.hosts}
        method = (len(methods) == 1 and methods.pop()) or ""
        hosts = tuple(replace(site, count_method=method, beside_method="") for site in self.hosts)
        setup = replace(self, settings=settings, hosts=hosts)
        exact = all(setup.count_method(site, setup.workload) for site in hosts)
        prior = replace(settings.prior, exact=exact, count_cost=None)
        return with_instruction_counts(with_feasible_layouts(replace(setup, settings=replace(settings, prior=prior))))

    def for_next_attempt(self, settings: Settings) -> "SessionSetup":
        """The setup for another attempt at the session, with settings that a build or a run has changed."""
        setup = replace(
            self, builder=requested_builder(settings), workload=with_settings(self.workload, settings),
            works=tuple(with_settings(workload, settings) for workload in self.works),
        ).for_settings(settings)  # fmt: skip
        run_hash, build_hash = setup.run_hash(setup.workload), setup.build_hash()
        request = self.request
        if works := tuple(  # one run measures all results of a command
            replace(work, run_hash=setup.run_hash(setup.works[0 if request.shared else number]))
            for number, work in enumerate(request.works)
        ):
            results = works[0].for_outputs(settings)
            request = replace(request, works=results or works, metric=settings.metric, shared=bool(results))
        settings = replace(setup.settings, run_hash=run_hash, build_hash=build_hash)
        return replace(setup, settings=settings, request=request)

    @property
    def first_host(self) -> Host:
        """The first host."""
        return self.hosts[0].host

    @property
    def common_build_hosts(self) -> tuple[BuildHost, ...]:
        """The build hosts that make builds in advance for all measuring hosts; empty if each build is made when a host
        needs it."""
        return self.hosts[0].build_hosts if have_common_build_hosts([site.entry for site in self.hosts]) else ()

    @property
    def facts(self) -> HostFacts:
        """The facts about the first host."""
        return self.hosts[0].facts

    @property
    def purpose(self) -> str:
        """A description of this session, which other sessions show while they wait for the host."""
        request, settings = self.request, self.settings
        if not request.works:
            return f"a hunt for {settings.builder} {settings.workload}, {settings.good}..{settings.bad},"
        names = request.series.text if request.series else ", ".join(subject.name for subject in request.subjects)
        article = "an" if request.kind is TrialType.NOISE else "a"
        return f"{article} {request.kind.trial_noun} of {request.builder}, {names},"

    @property
    def title(self) -> str:
        """A short title of the session: the name of the result, the kind of trial and its builder, or the workload."""
        if self.settings.output and self.settings.outputs:
            return self.settings.output.result
        return f"{self.request.kind.trial_noun} {self.request.builder}" if self.request.works else self.workload.name

    def run_hash(self, workload: Workload) -> str:
        """A hash of all parts of the setup that affect the results of the workload's runs."""
        return fingerprint(
            self.builder,
            workload,
            [site.entry for site in self.hosts],
            [self.count_method(site, workload) for site in self.hosts],
        )

    def count_method(self, site: PreparedHost, workload: Workload) -> str:
        """The method by which a host counts the metric exactly in runs of the workload; "" if runs are timed."""
        return "" if counting.counting_obstacle(self.builder, workload) else site.count_method

    def training(self) -> tuple[Workload, ...]:
        """The workloads that train the builds of a variant with profile-guided optimization; empty for other variants.

        Raises RecipeError for a workload that does not exist.
        """
        return load_training_workloads(self.builder, self.settings.variant, self.measured, self.settings.workloads_path)

    def build_hash(self) -> str:
        """A hash of all parts of the recipe that affect builds."""
        return build_fingerprint(self.builder, find_variant(self.builder, self.settings.variant), self.patches)

    def lab(
        self, candidates: Candidates, earlier: EarlierAttempts, site: PreparedHost, workload: Workload, locks: HostLocks
    ) -> HostLab:
        """The lab that builds and measures candidates on one host, with one workload."""
        lab_host = locks.lab_host(site.host, site.entry)
        building = [locks.lab_host(build_host.host, build_host.entry) for build_host in site.build_hosts]
        building += [lab_host] if site.can_build else []
        return HostLab(
            lab_host, self.builder, self.settings.variant, workload, candidates, earlier, tuple(building),
            counted=self.count_method(site, workload), training=self.training(),
        )  # fmt: skip

    def candidates(self, commits: tuple[str, ...]) -> Candidates:
        """The candidates to build and measure: ``commits`` of the session's repository."""
        path, repository = self.settings.repository, self.repository
        repository = repository or (open_repository(Path(path)) if path else None)
        return Candidates(
            repository=repository,
            commits=commits,
            describe=lambda commit: describe_commit(repository, commit) if repository else Commit(commit),
            ends={
                self.span.candidates[0]: "the merge base",  # overwritten if it is good
                self.span.candidates[-1]: "the bad revision",
                self.settings.good_commit: "the good revision",
            },
            patches=self.patches,
            has_remedies=self.settings.remedies and not self.request.works,
            prebuilt=self.prebuilt,
            is_range=not self.request.works,
            is_linear=self.parts is None,
        )

    def start_event(self, number: int, resumed: bool) -> SessionStarted:
        """The first event of an attempt; ``number`` is the number of the session."""
        settings, span, further = self.settings, self.span, tuple(site.facts for site in self.hosts[1:])
        if self.request.works:
            names = tuple(build_host.host.name for build_host in self.hosts[0].build_hosts)
            return SessionStarted(number, self.facts, resumed, further=further, build_hosts=names, request=self.request)
        started = SessionStarted(
            number, self.facts, resumed, settings.builder, settings.workload, settings.good, settings.bad, span.commits,
            span.candidates, span.merges, settings.metric, settings.prior.host_classes, span.graph.branch_points,
            further=further, build_hosts=tuple(build_host.host.name for build_host in self.common_build_hosts),
        )  # fmt: skip
        return self.parts.with_parts(started) if self.parts else started


def shared_builds() -> SharedBuilds | None:
    """The user's store of shared builds, or None. Raises RecipeError for a mistake in the user's configuration."""
    shared = load_configuration().shared
    return SharedBuilds(shared.builds, shared.secret()) if shared.builds else None


def options_without_effect(setup: SessionSetup) -> Iterator[Warned]:
    """If runs are counted exactly, so that their length is fixed, a warning that --time and --warmup have no effect."""
    options = [f"--{name}" for name in ("time", "warmup") if name in setup.settings.overrides]
    if options and setup.settings.prior.exact and counting.can_set_length(setup.workload):
        yield Warned(
            f"{' and '.join(options)} {'has' if len(options) == 1 else 'have'} no effect on runs whose instructions are"
            " counted exactly: the first build decides the length of these runs"
        )


def with_feasible_layouts(setup: SessionSetup) -> SessionSetup:
    """The setup, unchanged if randomized layouts are possible; otherwise without randomized layouts, and with a warning
    that says why."""
    # A hunt by exact counts keeps possible layouts, too, because `--metric auto` may time its builds.
    settings = setup.settings
    if not settings.policy.layouts:
        return setup
    reason = "nothing is built from source"
    if settings.repository:
        reason = layout_obstacle(setup.builder, settings.variant, settings.system)
    if not reason:
        return setup
    policy = replace(settings.policy, layouts=False)
    without = replace(setup, settings=replace(settings, policy=policy, linkable=False))
    if settings.prior.exact:  # the placement of code does not change a count
        return without
    return replace(without, warnings=(*setup.warnings, layouts_unavailable_warning(reason)))


def with_instruction_counts(setup: SessionSetup) -> SessionSetup:
    """The setup, changed so that the first host also counts instructions, if the hunt measures time and the first host
    can count instructions."""
    # The instructions of a server cannot be counted exactly, so perf counts them during the timed runs.
    settings, (first, *further_hosts) = setup.settings, setup.hosts
    may_count = settings.counts and settings.choose_metric and not settings.prior.exact and not setup.request.works
    exactly = not counting.counting_obstacle(setup.builder, setup.workload)
    if not (method := may_count and counting.counting_method(first.host)) or not (exactly or method == counting.PERF):
        return setup
    prior = replace(settings.prior, count_cost=counting.count_cost(method, setup.workload) if exactly else WITH_RUNS)
    hosts = replace(first, beside_method=method if exactly else ""), *further_hosts
    return replace(setup, hosts=hosts, settings=replace(settings, prior=prior))


def host_classes(entries: Sequence[HostEntry]) -> tuple[str, ...]:
    """The class of each host, by default its name; empty for a single host. Raises UsageError for a repeated host."""
    names = [entry.name for entry in entries]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"Host {twice[0]} is given twice.", "Give each host once.")
    return tuple(entry.kind or entry.name for entry in entries) if len(entries) > 1 else ()


def shared_machine_warnings(hosts: Sequence[PreparedHost]) -> Iterator[Warned]:
    """A warning about each host or build host that shares its machine with another host of the hunt."""
    host_of_machine: dict[str, str] = {}
    connected = [host for site in hosts for host in (site.host, *(builder.host for builder in site.build_hosts))]
    for name, host in {host.name: host for host in connected}.items():
        if (first := host_of_machine.setdefault(lock_identity(host), name)) != name:
            yield Warned(
                f"hosts {first} and {name} are one machine: work on one host disturbs the runs of the other",
                "Give only one of the two hosts.",
            )


def ambiguous_name_warnings(settings: Settings, revisions: Iterable[str]) -> Iterator[Warned]:
    """A warning about each revision whose name is the name of both a tag and a branch."""
    repository = Path(settings.repository)
    for name in tags_named_like_branches(open_repository(repository), revisions) if settings.repository else ():
        yield Warned(f"{name} is a tag and a branch: the tag is measured", f"Write heads/{name} for the branch.")


def read_hunt_range(settings: Settings, builder: Builder) -> tuple[CommitRange, tuple[str, ...]]:
    """The range of a hunt, and those suspected paths that no commit of the range changes."""
    repository = open_repository(Path(settings.repository))
    ends, first_parent = (settings.good_commit, settings.bad_commit), settings.first_parent
    span = read_range(repository, *ends, builder.ignore, first_parent=first_parent)
    touching = commits_touching(repository, *ends, settings.suspects, first_parent=first_parent)
    suspicious = replace(span, graph=with_suspected_weights(span.graph, span.candidates, touching, settings.suspects))
    return suspicious, tuple(path for path in settings.suspects if not touching[path])


def candidates_to_skip(settings: Settings, span: CommitRange) -> tuple[SkipFacts, ...]:
    """The candidates that --skip leaves out, oldest first. Raises UsageError if --skip matches all candidates, no
    candidate, or an end."""
    ends = {
        span.candidates[0]: "the merge base",  # overwritten if it is good
        settings.good_commit: "the good revision",
        span.candidates[-1]: "the bad revision",
        settings.bad_commit: "the bad revision",
    }
    skip_of: dict[str, str] = {}  # commit → the text of --skip that leaves it out
    repository = open_repository(Path(settings.repository)) if settings.skips else None
    for text, resolved in settings.skips.items():
        assert repository
        commits = commits_in_set(repository, resolved)
        for commit, name in ends.items():
            if commit in commits:
                raise UsageError(
                    f"--skip {text} excludes {name} ({commit[:10]}), but a hunt must measure this commit.",
                    f"Omit --skip {text}, or choose another {'bad' if name == 'the bad revision' else 'good'} revision.",
                )
        skipped = [commit for commit in span.candidates if commit in commits]
        if not skipped:
            raise UsageError(
                f"--skip {text} has no effect, because it names no candidate of {settings.good}..{settings.bad}.",
                "A candidate is a commit of the range that changes at least one path that the recipe does not ignore.",
            )
        skip_of = dict.fromkeys(skipped, text) | skip_of
    inner = set(span.candidates[1 + span.graph.branch_points : -1])
    if inner and inner <= skip_of.keys():
        raise UsageError(
            f"--skip excludes all candidates between {settings.good} and {settings.bad}, so there is nothing to search.",
            "Omit --skip, or give --skip fewer commits.",
        )
    skipped = [commit for commit in span.candidates if commit in skip_of]
    return tuple(SkipFacts(commit, LEFT_OUT, f"by --skip {skip_of[commit]}", "", 0.0) for commit in skipped)
