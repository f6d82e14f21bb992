"""What is measured in rounds, without a search: a comparison, an A/A, a proof, a series of releases, a night of a branch.

Its design is set up like a hunt. Its plan has the missing builds made, and then gives the orders of the rounds: in each,
every build is visited once for every workload. An order is one visit: it says the workload and the round, and so do the
events of its runs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfbisect.core.domain.events import PairingChosen, RunFinished, Warned
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Measure, Purpose, Share
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
from perfbisect.core.domain.trials import next_round, order, pairs_to_try, rounds_to_do, visits
from perfbisect.core.inference.observations import observations
from perfbisect.core.search.pairing import ways_of
from perfbisect.errors import EnvironmentFailure
from perfbisect.host.lock import WaitCallback
from perfbisect.hunt.search_problem import SavedLog
from perfbisect.hunt.setup import SessionSetup, both_tag_and_branch
from perfbisect.lab.building import prebuilt
from perfbisect.lab.building.plan import InstalledBuild
from perfbisect.recipes.requested import ServerConfig, as_measured, load_config, typed_overrides
from perfbisect.recipes.workload import Workload
from perfbisect.repository.git import Repository
from perfbisect.repository.range import CommitRange
from perfbisect.wording.trials import pairing_chosen

BOTH = 2  # rounds in turns, before builds are measured at the same time


@dataclass(frozen=True, slots=True)
class RoundsPlan:
    """Gives the orders of a trial; ``setup`` is that of this attempt."""

    log: SavedLog
    setup: SessionSetup

    def orders(self) -> Iterator[Measure | PairingChosen]:
        """The builds that are missing, then the visits of the rounds that are still to be made.

        Without any visit ends a night whose tip cannot be built: no other attempt would help. Raises EnvironmentFailure when
        the baseline cannot be built, or nothing to compare it with (in a series of releases: fewer than two of them); and at
        the end where nothing could be measured.
        """
        trial, request = self.log.state, self.setup.request
        for number in range(len(request.subjects)):
            if number not in self.setup.prebuilt and not trial.request.subjects[number].trouble:
                yield Measure((Share(number, 0),), Purpose.ENDS)
        if request.branch and trial.request.subjects[-1].trouble:
            return
        self._check_builds()
        yield from self._both_ways()
        changed = True
        while changed:
            changed, way = False, trial.together
            for number in rounds_to_do(trial):
                yield from self._pass(number)
                if changed := trial.together is not way:
                    break
        if request.kind is TrialType.NOISE and (more := pairs_to_try(trial)):
            yield Measure((Share(0, more), Share(0, more)), Purpose.ENDS, round=next_round(trial), together=True)
        for skip in trial.skips:
            if not trial.runs or (request.kind is TrialType.NOISE and not skip.subject):
                nothing = "" if trial.runs else "Nothing was measured: "
                fails = f"{request.subjects[skip.subject].name} fails in {request.works[skip.work].name}"
                raise EnvironmentFailure(f"{nothing}{fails}: {skip.facts.reason}", f"See {skip.facts.log}.")

    def _pass(self, number: int) -> Iterator[Measure]:
        """The visits of one round."""
        trial, request = self.log.state, self.setup.request
        for work in range(1 if request.shared else len(request.works)):
            for subject in order(range(len(request.subjects)), number, shuffled=request.in_line):
                if (work, subject) in visits(trial) and (subject or not trial.together):
                    plan = (Share(subject, request.runs), *((Share(0, request.runs),) if trial.together else ()))
                    yield Measure(plan, Purpose.ENDS, workload=work, round=number, together=trial.together)

    def _both_ways(self) -> Iterator[Measure | PairingChosen]:
        """The first two builds in turns and at the same time, until it is known which way is better."""
        trial, request = self.log.state, self.setup.request
        commits = [subject.commit or subject.name for subject in request.subjects[:2]]
        if request.pairing is not Pairing.AUTO or trial.pairing or len(set(commits)) < 2:
            return
        if not {(0, 0), (0, 1)} <= {*visits(trial)}:  # one of them has failed
            return
        began = next_round(trial)
        for number in range(began, began + BOTH - len({run.round for run in trial.runs})):
            yield from self._pass(number)
        while (left := pairs_to_try(trial)) and not trial.skips:
            yield Measure((Share(1, 1), Share(0, 1)), Purpose.ENDS, round=next_round(trial), together=True)
            if left == pairs_to_try(trial):
                return
        first = [run for run in trial.runs if not run.work and run.subject < 2]
        entries = [(run.at, RunFinished(run.subject, run.facts)) for run in first]
        seen = observations(entries, {name: node for node, name in enumerate(commits)}, request.metric, self.log.began)
        if not trial.pairing and (ways := ways_of(seen)):
            yield pairing_chosen(ways, *(subject.name for subject in request.subjects[:2]))

    def _check_builds(self) -> None:
        request = self.log.state.request
        failed = [subject for subject in request.subjects if subject.trouble]
        few = len(request.subjects) - len(failed) < min(2, len(request.subjects))
        if few or (request.subjects[0].trouble and not request.series):
            first = failed[0]
            raise EnvironmentFailure(f"Nothing can be measured, because {first.name} cannot be built: {first.trouble}")


@dataclass(frozen=True, slots=True)
class TrialDesign:
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
        run = tuple(as_measured(each, settings) for each in workloads.values())
        setup = SessionSetup.of_trial(settings, waiting, alone, run)
        works = tuple(
            TrialWorkload(name, each.group, each.warmup, each.time, setup.run_hash(each))
            for name, each in zip(workloads, run, strict=True)
        )
        results = works[0].showing(settings)
        changed, pairing = typed_overrides(next(iter(workloads.values())), settings.overrides), pairing_of(self, setup)
        request = TrialRequest(
            self.kind, settings.builder, settings.variant, settings.host, settings.metric, changed, tuple(subjects),
            results or works, self.rounds, self.runs, self.reverts, self.series, pairing, self.branch, bool(results),
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
    subjects, found = list(setup.request.subjects), dict[int, InstalledBuild]()
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
    request, warnings = replace(setup.request, subjects=tuple(subjects)), (*setup.warnings, *borrowed(found.values()))
    return replace(setup, request=request, prebuilt=found, warnings=warnings)


def borrowed(systems: Iterable[InstalledBuild]) -> Iterator[Warned]:
    """A warning for each client of the host that is used, with the systems that have none which runs."""
    lacking = dict[str, list[str]]()
    for each in systems:
        for path in each.borrowed:
            lacking.setdefault(path, []).append(each.facts.commit)
    for path, names in lacking.items():
        yield Warned(f"the host's {path} is used with {', '.join(names)}: none there, or none that finds its libraries")


FEW = 3  # rounds, below which it would cost more to compare both ways


def pairing_of(trial: TrialDesign, setup: SessionSetup) -> Pairing:
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
