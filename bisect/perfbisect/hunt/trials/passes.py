"""The plan of a trial: its builds are made, then measured in rounds; and what a sitting of it enters before and after.

In each round every build is visited once for every workload. An order is one visit: it says the workload and the round, and
so do the events of its runs.
"""

from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace

from perfbisect.core.domain.events import (
    CandidateSkipped,
    LabEvent,
    PairingChosen,
    RunFinished,
    RunStarted,
    TrialEnded,
    TrialStarted,
)
from perfbisect.core.domain.facts import busiest
from perfbisect.core.domain.orders import Measure, Purpose, Share, Verdict
from perfbisect.core.domain.settings import Pairing, TrialType
from perfbisect.core.domain.trials import next_round, order, pairs_to_try, rounds_to_do, visits
from perfbisect.core.inference.observations import observations
from perfbisect.core.search.pairing import ways_of
from perfbisect.core.stats.fitness import fitness_facts
from perfbisect.errors import EnvironmentFailure
from perfbisect.host.lock import HostLock
from perfbisect.hunt.build_hosts import HostLocks
from perfbisect.hunt.course import changes_since
from perfbisect.hunt.search_problem import SavedLog, SearchProblem, TimedEvent
from perfbisect.hunt.setup import PreparedHost
from perfbisect.hunt.trials.setup import TrialSetup
from perfbisect.hunt.workers import InlineWorkers
from perfbisect.lab.building.candidates import BuildsMade, Candidates
from perfbisect.lab.building.links import LayoutSeeds
from perfbisect.lab.guarded_lab import HostWatch, Lab
from perfbisect.lab.host_lab import Earlier
from perfbisect.wording.trials import pairing_chosen

BOTH = 2  # rounds in turns, before builds are measured at the same time
Way = tuple[str, str]  # the variant of a build and the hash of its configuration


@dataclass
class TrialCourse:
    """One sitting of a trial."""

    log: SavedLog
    setup: TrialSetup
    resumed: bool
    problem: SearchProblem | None = None  # nothing is searched

    def opening(self) -> Generator[TimedEvent, None, bool]:
        """The first events of the sitting."""
        setup, entries = self.setup.setup, self.log.history.events(self.log.hunt)
        before = [entry.event for entry in entries if isinstance(entry.event, TrialStarted)]
        further = tuple(each.facts for each in setup.hosts[1:])
        builders = tuple(each.host.name for each in setup.hosts[0].build_hosts)
        started = TrialStarted(self.log.hunt, self.setup.request, setup.facts, self.resumed, further, builders)
        yield self.log.append(started)
        for warning in (*setup.warnings, *changes_since(before, setup)):
            yield self.log.append(warning)
        return True

    def closing(self, _verdict: Verdict | None = None) -> Generator[TimedEvent]:
        """The end of a trial."""
        yield self.log.append(TrialEnded(fitness_facts(self.log.state)))

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
        for work in range(len(request.works)):
            for subject in order(range(len(request.subjects)), number, shuffled=request.series is not None):
                if (work, subject) in visits(trial) and (subject or not trial.together):
                    beside = (Share(0, request.runs),) if trial.together else ()
                    plan = (Share(subject, request.runs), *beside)
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


def lab_of_visits(labs: Mapping[tuple[int, int], Lab]) -> Lab:
    """What measures the builds of a trial; ``labs`` has the lab for each workload and build."""

    def measure(order: Measure) -> Generator[LabEvent]:
        """Carry out an order for one visit; its runs say which it is."""
        for event in labs[order.workload, order.plan[0].candidate](order):
            if isinstance(event, RunStarted | RunFinished | CandidateSkipped):
                event = replace(event, workload=order.workload, round=order.round)
            yield event

    return measure


def workers_of(course: TrialCourse, held: Mapping[str, HostLock]) -> InlineWorkers:
    """One host that carries out all visits; or hosts that are compared, one after another."""
    setup = course.setup.setup
    locks = HostLocks(held, shared=setup.shared)
    at = [labs_at(course, site, locks, HostWatch(site.host, held[site.host.name], site.facts)) for site in setup.hosts]
    labs = {visit: at[visit[1]][visit] for visit in at[0]} if setup.builder.installed else at[0]  # each build is a host
    return InlineWorkers(setup.host.name, lab_of_visits(labs), *(site.host for site in setup.hosts))


def labs_at(course: TrialCourse, site: PreparedHost, locks: HostLocks, watch: HostWatch) -> dict[tuple[int, int], Lab]:
    """The labs at one host, by workload and build; those of a variant share their builds."""
    plan, trial = course.setup, course.log.state
    setup, subjects = plan.setup, trial.request.subjects
    ways: dict[Way, list[int]] = defaultdict(list)
    for number, subject in enumerate(subjects):
        ways[subject.variant, subject.config_hash].append(number)
    labs: dict[tuple[int, int], Lab] = {}
    for (variant, _), numbers in ways.items():
        of_variant = replace(setup, settings=replace(setup.settings, variant=variant or setup.settings.variant))
        candidates = candidates_of(plan)
        known = {subjects[number].commit: subjects[number].key for number in numbers if subjects[number].key}
        made = BuildsMade(candidates, known)
        for work, workload in enumerate(plan.workloads):
            runs = [run.facts for run in trial.runs if run.work == work and run.subject in numbers]
            loaded = {run.commit: run.dataset for run in runs}
            earlier = Earlier(datasets=loaded, events=runs[-1].events if runs else 0, busiest=busiest(runs))
            # A proof measures builds of its hunt, which may have been made to be linked again.
            seeds = LayoutSeeds() if setup.settings.policy.layouts else None
            lab = of_variant.lab(candidates, earlier, site, workload, locks)
            lab = replace(lab, seeds=seeds, made=made, config=plan.configs[numbers[0]], watch=watch)
            labs |= {(work, number): lab.measure for number in numbers}
    return labs


def candidates_of(plan: TrialSetup) -> Candidates:
    """The builds of a trial as the candidates of a lab."""
    return replace(
        plan.setup.candidates(plan.setup.span.candidates),
        repository=plan.repository,
        describe=plan.describe,
        prebuilt=plan.prebuilt,
        remedies=False,
        is_range=False,
    )
