"""Set up a trial: load its recipes and workloads, check its host."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfbisect.core.domain.events import Commit, Warned
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.settings import (
    Pairing,
    Reverts,
    Series,
    Settings,
    TrialBuild,
    TrialRequest,
    TrialType,
    TrialWorkload,
)
from perfbisect.host.lock import WaitCallback
from perfbisect.hunt.setup import HuntSetup, both_tag_and_branch
from perfbisect.lab.building import prebuilt
from perfbisect.lab.building.plan import Built
from perfbisect.recipes.requested import ServerConfig, load_config, overridden, typed
from perfbisect.recipes.workload import Workload
from perfbisect.repository.commits import describe
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.git import Repository
from perfbisect.repository.range import CommitRange


@dataclass(frozen=True, slots=True)
class TrialSetup:
    """The recipes, the workloads and the host of a trial, loaded and checked; nothing is built yet."""

    request: TrialRequest
    setup: HuntSetup
    workloads: tuple[Workload, ...]
    waiting: WaitCallback | None
    repository: Repository | None  # with the commits that are measured; None for prebuilt binaries alone
    configs: tuple[ServerConfig, ...] = ()  # what each build's server is configured with beside the recipe
    prebuilt: Mapping[int, Built] = field(default_factory=dict)  # of the builds those that need not be made

    @classmethod
    def make(
        cls,
        kind: TrialType,
        settings: Settings,
        subjects: Sequence[TrialBuild],
        workloads: Mapping[str, Workload],
        rounds: int,
        runs: int,
        waiting: WaitCallback | None,
        reverts: Reverts | None = None,
        repository: Repository | None = None,
        series: Series | None = None,
        trained: tuple[Workload, ...] = (),
        branch: str = "",
    ) -> "TrialSetup":
        """Check the host, as before a hunt; ``workloads`` are those of the suites.

        ``repository`` is by default that of the settings. ``trained`` are the workloads for which builds are optimised, where
        a variant trains with what is measured; by default the trial's own.
        """
        names = tuple(subject.commit or subject.name for subject in subjects)
        alone = CommitRange(names[0], names[-1], names[0], 0, 0, Graph.line(0), names)
        run = tuple(overridden(each, settings.overrides) for each in workloads.values())
        setup = HuntSetup.of_trial(settings, waiting, alone, run)
        works = tuple(
            TrialWorkload(name, each.group, each.warmup, each.time, setup.run_hash(each))
            for name, each in zip(workloads, run, strict=True)
        )
        changed = typed(next(iter(workloads.values())), settings.overrides)
        request = TrialRequest(
            kind, settings.builder, settings.variant, settings.host, settings.metric, changed, tuple(subjects), works,
            rounds, runs, reverts, series, pairing_of(settings, subjects, setup, rounds, kind), branch,
        )  # fmt: skip
        if repository is None and settings.repository:
            repository = open_repository(Path(settings.repository))
        configs = tuple(load_config(setup.builder, each.config) if each.config else ServerConfig() for each in subjects)
        both = both_tag_and_branch(settings, (each.name for each in subjects if each.commit))
        warned = (*setup.warnings, *both, *unused(subjects, configs))
        setup = replace(setup, measured=trained or setup.measured, warnings=warned)
        for subject in subjects:  # a mistake in a name ends it here
            replace(setup, settings=replace(settings, variant=subject.variant or settings.variant)).training()
        return cls(request, setup, run, waiting, repository, configs)

    @property
    def purpose(self) -> str:
        """Shown to other sessions that find the host busy."""
        request = self.request
        names = request.series.text if request.series else ", ".join(subject.name for subject in request.subjects)
        what = {TrialType.NOISE: "an A/A", TrialType.COMPARE: "a comparison", TrialType.PROVE: "a proof"}
        return f"{what[request.kind]} of {request.builder}, {names},"

    def with_prebuilt(self, say: Callable[[str], None]) -> "TrialSetup":
        """The setup with what binaries that are not built are. The hosts are locked; ``say`` is given what is read.

        Raises UsageError for binaries that do not exist.
        """
        setup, subjects, found = self.setup, list(self.request.subjects), dict[int, Built]()
        for number, subject in enumerate(subjects):
            path = "" if setup.builder.installed else subject.path
            if setup.builder.installed:
                site = setup.hosts[number]
                each = prebuilt.in_place(site.host, setup.builder, site.facts)
            elif path:
                say(f"reading {path}")
                each = prebuilt.take(setup.host, setup.builder, subject.name, path)
            else:
                continue
            found[number], facts = each, each.facts
            subjects[number] = replace(subject, path=path, key=facts.key, binary=facts.binary, version=each.version)
        return replace(self, request=replace(self.request, subjects=tuple(subjects)), prebuilt=found)

    def describe(self, commit: str) -> Commit:
        """One commit."""
        return describe(self.repository, commit) if self.repository else Commit(commit)


FEW = 3  # rounds, below which it would cost more to compare both ways


def pairing_of(
    settings: Settings, subjects: Sequence[TrialBuild], setup: HuntSetup, rounds: int, kind: TrialType
) -> Pairing:
    """How the builds may be compared: in turns where they are hosts, or need labs of their own, or are counted."""
    ways, asked = {(subject.variant, subject.config) for subject in subjects}, settings.policy.pairing
    if setup.builder.installed or len(ways) > 1 or setup.settings.prior.exact:
        return Pairing.TURNS
    if kind is TrialType.NOISE:
        return Pairing.TURNS if asked is Pairing.TURNS else Pairing.AUTO  # both ways
    return Pairing.TURNS if asked is Pairing.AUTO and rounds < FEW else asked


def unused(subjects: Sequence[TrialBuild], configs: Sequence[ServerConfig]) -> Iterator[Warned]:
    """A warning for each configuration with settings that the recipe decides."""
    for name, config in {each.config: config for each, config in zip(subjects, configs, strict=True)}.items():
        if config.left_out:
            verb = "is" if len(config.left_out) == 1 else "are"
            yield Warned(f"of {Path(name).name}, {', '.join(config.left_out)} {verb} left out: the recipe decides that")
