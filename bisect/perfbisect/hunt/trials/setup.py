"""Set up what is measured in rounds: a comparison, an A/A, a proof, a series of releases, or a night of a branch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfbisect.core.domain.events import Warned
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
from perfbisect.hunt.setup import SessionSetup, both_tag_and_branch
from perfbisect.lab.building import prebuilt
from perfbisect.lab.building.plan import Built
from perfbisect.recipes.requested import ServerConfig, load_config, overridden, typed
from perfbisect.recipes.workload import Workload
from perfbisect.repository.git import Repository
from perfbisect.repository.range import CommitRange


@dataclass(frozen=True, slots=True)
class Rounds:
    """What is measured in rounds: builds, and how often each."""

    kind: TrialType
    subjects: Sequence[TrialBuild]
    workloads: Mapping[str, Workload]  # of the suites, by name
    rounds: int
    runs: int  # in each visit
    reverts: Reverts | None = None
    series: Series | None = None
    branch: str = ""
    repository: Repository | None = None  # by default that of the settings
    # For which builds are optimised, where a variant trains with what is measured; by default the workloads
    trained: tuple[Workload, ...] = ()

    def set_up(self, settings: Settings, waiting: WaitCallback | None) -> SessionSetup:
        """Check the host, as before a hunt."""
        subjects, workloads = self.subjects, self.workloads
        names = tuple(subject.commit or subject.name for subject in subjects)
        alone = CommitRange(names[0], names[-1], names[0], 0, 0, Graph.line(0), names)
        run = tuple(overridden(each, settings.overrides) for each in workloads.values())
        setup = SessionSetup.of_trial(settings, waiting, alone, run)
        works = tuple(
            TrialWorkload(name, each.group, each.warmup, each.time, setup.run_hash(each))
            for name, each in zip(workloads, run, strict=True)
        )
        changed, pairing = typed(next(iter(workloads.values())), settings.overrides), pairing_of(self, setup)
        request = TrialRequest(
            self.kind, settings.builder, settings.variant, settings.host, settings.metric, changed, tuple(subjects),
            works, self.rounds, self.runs, self.reverts, self.series, pairing, self.branch,
        )  # fmt: skip
        configs = tuple(load_config(setup.builder, each.config) if each.config else ServerConfig() for each in subjects)
        both = both_tag_and_branch(settings, (each.name for each in subjects if each.commit))
        warned = (*setup.warnings, *both, *unused(subjects, configs))
        setup = replace(
            setup, measured=self.trained or setup.measured, warnings=warned, request=request, works=run, configs=configs,
            repository=self.repository,
        )  # fmt: skip
        for subject in subjects:  # a mistake in a name ends it here
            replace(setup, settings=replace(settings, variant=subject.variant or settings.variant)).training()
        return setup


def with_prebuilt(setup: SessionSetup, say: Callable[[str], None]) -> SessionSetup:
    """The setup with what binaries that are not built are. The hosts are locked; ``say`` is given what is read.

    Raises UsageError for binaries that do not exist.
    """
    subjects, found = list(setup.request.subjects), dict[int, Built]()
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
    return replace(setup, request=replace(setup.request, subjects=tuple(subjects)), prebuilt=found)


FEW = 3  # rounds, below which it would cost more to compare both ways


def pairing_of(trial: Rounds, setup: SessionSetup) -> Pairing:
    """How the builds may be compared: in turns where they are hosts, or need labs of their own, or are counted."""
    ways, asked = {(subject.variant, subject.config) for subject in trial.subjects}, setup.settings.policy.pairing
    if setup.builder.installed or len(ways) > 1 or setup.settings.prior.exact:
        return Pairing.TURNS
    if trial.kind is TrialType.NOISE:
        return Pairing.TURNS if asked is Pairing.TURNS else Pairing.AUTO  # both ways
    return Pairing.TURNS if asked is Pairing.AUTO and trial.rounds < FEW else asked


def unused(subjects: Sequence[TrialBuild], configs: Sequence[ServerConfig]) -> Iterator[Warned]:
    """A warning for each configuration with settings that the recipe decides."""
    for name, config in {each.config: config for each, config in zip(subjects, configs, strict=True)}.items():
        if config.left_out:
            verb = "is" if len(config.left_out) == 1 else "are"
            yield Warned(f"of {Path(name).name}, {', '.join(config.left_out)} {verb} left out: the recipe decides that")
