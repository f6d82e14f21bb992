"""The plan of a trial: a session that measures builds in rounds, without a search. Trials are comparisons, A/A tests,
proofs, series of releases, and nightly runs on a branch.

The plan yields work orders (descriptions of the next measurement): first for the missing builds, then for the rounds. A
round has one visit of each build for each workload, and a work order for each visit. The work order, and the events of
its runs, contain the number of the workload and the number of the round.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfbisect.core.domain.events import PairingChosen, RunFinished, Warned
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Measure, PlannedRuns, Purpose
from perfbisect.core.domain.settings import (
    Pairing,
    ReleaseSeries,
    RevertedCommits,
    Settings,
    TrialBuild,
    TrialRequest,
    TrialType,
    TrialWorkload,
)
from perfbisect.core.domain.trials import (
    next_round,
    pairs_to_try,
    remaining_rounds,
    visiting_order,
    visits_of_each_round,
)
from perfbisect.core.inference.observations import read_observations
from perfbisect.core.search.pairing import compare_pairings
from perfbisect.errors import EnvironmentFailure
from perfbisect.host.lock import WaitCallback
from perfbisect.hunt.search_problem import SavedLog
from perfbisect.hunt.setup import SessionSetup, ambiguous_name_warnings
from perfbisect.lab.building import prebuilt
from perfbisect.lab.building.plan import InstalledBuild
from perfbisect.recipes.requested import ServerConfig, converted_overrides, load_config, with_settings
from perfbisect.recipes.workload import Workload
from perfbisect.repository.git import Repository
from perfbisect.repository.range import CommitRange
from perfbisect.wording.trials import pairing_chosen

BOTH = 2  # number of interleaved rounds of the first two builds that are made before their paired runs


@dataclass(frozen=True, slots=True)
class RoundsPlan:
    """The plan of a trial, which chooses each next measurement; ``setup`` is the setup of the present attempt."""

    log: SavedLog
    setup: SessionSetup

    def orders(self) -> Iterator[Measure | PairingChosen]:
        """The work orders for the missing builds, then the work orders for the visits of the remaining rounds.

        If the tip of a branch cannot be built, a nightly run ends without a visit, because another attempt would fail,
        too. Raises EnvironmentFailure if the baseline or all other builds cannot be built; for a series of releases, if
        fewer than two releases can be built. Raises EnvironmentFailure at the end if no build could be measured.
        """
        trial, request = self.log.state, self.setup.request
        for number in range(len(request.subjects)):
            if number not in self.setup.prebuilt and not trial.request.subjects[number].trouble:
                yield Measure((PlannedRuns(number, 0),), Purpose.ENDS)
        if request.branch and trial.request.subjects[-1].trouble:
            return
        self._check_builds()
        yield from self._pairing_test()
        changed = True
        while changed:
            changed, way = False, trial.is_paired
            for number in remaining_rounds(trial):
                yield from self._round_orders(number)
                if changed := trial.is_paired is not way:
                    break
        if request.kind is TrialType.NOISE and (pairs := pairs_to_try(trial)):
            plan = (PlannedRuns(0, pairs), PlannedRuns(0, pairs))
            yield Measure(plan, Purpose.ENDS, round=next_round(trial), together=True)
        for skip in trial.skips:
            if not trial.runs or (request.kind is TrialType.NOISE and not skip.subject):
                nothing = "" if trial.runs else "Nothing was measured: "
                fails = f"{request.subjects[skip.subject].name} fails in workload {request.works[skip.work].name}"
                raise EnvironmentFailure(f"{nothing}{fails}: {skip.facts.reason}", f"See {skip.facts.log}.")

    def _round_orders(self, number: int) -> Iterator[Measure]:
        """The work orders for the visits of one round."""
        trial, request = self.log.state, self.setup.request
        for work in range(1 if request.shared else len(request.works)):
            for subject in visiting_order(range(len(request.subjects)), number, shuffled=request.is_release_line):
                if (work, subject) in visits_of_each_round(trial) and (subject or not trial.is_paired):
                    builds = (subject, 0) if trial.is_paired else (subject,)
                    plan = tuple(PlannedRuns(build, request.runs) for build in builds)
                    yield Measure(plan, Purpose.ENDS, workload=work, round=number, together=trial.is_paired)

    def _pairing_test(self) -> Iterator[Measure | PairingChosen]:
        """The work orders for interleaved and paired runs of the first two builds, until it is known which kind of runs
        is better; then the choice of this kind.
        """
        trial, request = self.log.state, self.setup.request
        commits = [subject.commit or subject.name for subject in request.subjects[:2]]
        if request.pairing is not Pairing.AUTO or trial.pairing or len(set(commits)) < 2:
            return
        if not {(0, 0), (0, 1)} <= {*visits_of_each_round(trial)}:  # one of the builds has failed
            return
        began = next_round(trial)
        for number in range(began, began + BOTH - len({run.round for run in trial.runs})):
            yield from self._round_orders(number)
        while (due := pairs_to_try(trial)) and not trial.skips:
            yield Measure((PlannedRuns(1, 1), PlannedRuns(0, 1)), Purpose.ENDS, round=next_round(trial), together=True)
            if due == pairs_to_try(trial):
                return
        first = [run for run in trial.runs if not run.work and run.subject < 2]
        entries = [(run.at, RunFinished(run.subject, run.facts)) for run in first]
        nodes = {name: node for node, name in enumerate(commits)}
        readings = read_observations(entries, nodes, request.metric, self.log.began)
        if not trial.pairing and (comparison := compare_pairings(readings)):
            yield pairing_chosen(comparison, *(subject.name for subject in request.subjects[:2]))

    def _check_builds(self) -> None:
        request = self.log.state.request
        failed = [subject for subject in request.subjects if subject.trouble]
        too_few = len(request.subjects) - len(failed) < min(2, len(request.subjects))
        if too_few or (request.subjects[0].trouble and not request.series):
            first = failed[0]
            raise EnvironmentFailure(f"Nothing can be measured, because {first.name} cannot be built: {first.trouble}")


@dataclass(frozen=True, slots=True)
class TrialDesign:
    """What a trial measures: its builds and workloads, and the number of rounds and runs."""

    kind: TrialType
    subjects: Sequence[TrialBuild]
    workloads: Mapping[str, Workload]  # name → workload of a suite
    rounds: int
    runs: int  # number of runs in each visit
    reverts: RevertedCommits | None = None
    series: ReleaseSeries | None = None
    branch: str = ""
    repository: Repository | None = None  # None: the repository of the settings
    # Workloads with which a variant trains the builds (profile-guided optimization); empty: ``workloads``
    trained: tuple[Workload, ...] = ()

    def set_up(self, settings: Settings, waiting: WaitCallback | None) -> SessionSetup:
        """The setup of the trial. The host is checked like the host of a hunt."""
        subjects, workloads = self.subjects, self.workloads
        names = tuple(subject.commit or subject.name for subject in subjects)
        alone = CommitRange(names[0], names[-1], names[0], 0, 0, Graph.straight_history(0), names)
        run = tuple(with_settings(workload, settings) for workload in workloads.values())
        setup = SessionSetup.of_trial(settings, waiting, alone, run)
        works = tuple(
            TrialWorkload(name, workload.group, workload.warmup, workload.time, setup.run_hash(workload))
            for name, workload in zip(workloads, run, strict=True)
        )
        results = works[0].for_outputs(settings)
        changed = converted_overrides(next(iter(workloads.values())), settings.overrides)
        pairing = pairing_of(self, setup)
        request = TrialRequest(
            self.kind, settings.builder, settings.variant, settings.host, settings.metric, changed, tuple(subjects),
            results or works, self.rounds, self.runs, self.reverts, self.series, pairing, self.branch, bool(results),
        )  # fmt: skip
        configs = tuple(
            load_config(setup.builder, build.config) if build.config else ServerConfig() for build in subjects
        )
        ambiguous = ambiguous_name_warnings(settings, (build.name for build in subjects if build.commit))
        warned = (*setup.warnings, *ambiguous, *unused_settings(subjects, configs))
        setup = replace(
            setup, measured=self.trained or setup.measured, warnings=warned, request=request, works=run, configs=configs,
            repository=self.repository,
        )  # fmt: skip
        for subject in subjects:  # raises an error for a mistaken variant before anything is built
            replace(setup, settings=replace(settings, variant=subject.variant or settings.variant)).training()
        return setup


def with_prebuilt_facts(setup: SessionSetup, say: Callable[[str], None]) -> SessionSetup:
    """The setup, to which facts about prebuilt and installed builds are added: key, hash of the binary, version. The
    caller must have locked the hosts.

    ``say`` is called with a line of text for each path that is read. Raises UsageError if a prebuilt binary does not
    exist.
    """
    subjects, builds = list(setup.request.subjects), dict[int, InstalledBuild]()
    for number, subject in enumerate(subjects):
        path = "" if setup.builder.installed else subject.path
        if setup.builder.installed:
            site = setup.hosts[number]
            build = prebuilt.build_of_host_programs(site.host, setup.builder, site.facts)
        elif path:
            say(f"reading the build {path}")
            build = prebuilt.install_prebuilt(setup.first_host, setup.builder, subject.name, path)
        else:
            continue
        builds[number], facts = build, build.facts
        subjects[number] = replace(subject, path=path, key=facts.key, binary=facts.binary, version=build.version)
    request = replace(setup.request, subjects=tuple(subjects))
    warnings = (*setup.warnings, *borrowed_clients(builds.values()))
    return replace(setup, request=request, prebuilt=builds, warnings=warnings)


def borrowed_clients(systems: Iterable[InstalledBuild]) -> Iterator[Warned]:
    """A warning for each client program of the host's installation that is used because some builds have no working
    client program of their own."""
    lacking = dict[str, list[str]]()
    for system in systems:
        for path in system.borrowed:
            lacking.setdefault(path, []).append(system.facts.commit)
    for path, names in lacking.items():
        yield Warned(f"the host's {path} is used with {', '.join(names)}: none there, or none that finds its libraries")


WORTH_BOTH = 3  # with fewer rounds, a choice between interleaved and paired runs costs more time than it saves


def pairing_of(trial: TrialDesign, setup: SessionSetup) -> Pairing:
    """The kind of a trial's runs: interleaved, paired, or AUTO (a comparison chooses one of the two kinds; `noise`
    makes runs of both kinds). Only interleaved runs are possible if the builds are on different hosts, if the builds
    have different variants or configurations, or if the metric is counted exactly.
    """
    kinds = {(subject.variant, subject.config) for subject in trial.subjects}
    requested = setup.settings.policy.pairing
    if setup.builder.installed or len(kinds) > 1 or setup.settings.prior.exact:
        return Pairing.INTERLEAVED
    if trial.kind is TrialType.NOISE:
        return Pairing.INTERLEAVED if requested is Pairing.INTERLEAVED else Pairing.AUTO  # AUTO: both kinds of runs
    return Pairing.INTERLEAVED if requested is Pairing.AUTO and trial.rounds < WORTH_BOTH else requested


def unused_settings(subjects: Sequence[TrialBuild], configs: Sequence[ServerConfig]) -> Iterator[Warned]:
    """A warning for each configuration file with settings that are not used, because the recipe sets them."""
    for name, config in {build.config: config for build, config in zip(subjects, configs, strict=True)}.items():
        if config.left_out:
            verb = "is" if len(config.left_out) == 1 else "are"
            yield Warned(f"of {Path(name).name}, {', '.join(config.left_out)} {verb} left out: the recipe decides that")
