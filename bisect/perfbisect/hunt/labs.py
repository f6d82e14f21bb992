"""Makes the labs of a session: a lab builds and measures candidates on one host. A lab uses builds and datasets that
earlier attempts have made."""

import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from perfbisect.core.domain.events import (
    BuildFinished,
    CandidateSkipped,
    Commit,
    LabEvent,
    RunFinished,
    RunStarted,
    SessionStarted,
    Uncounted,
    Warned,
)
from perfbisect.core.domain.facts import BUILDING, SkipFacts, most_cores_used
from perfbisect.core.domain.metrics import INSTRUCTIONS
from perfbisect.core.domain.orders import Measure
from perfbisect.errors import Cancelled, InstructionsNotCounted, NoMetricValues, RangeEndFailed, RunFailed, UsageError
from perfbisect.host.jobs import kill_all
from perfbisect.host.lock import HostLock
from perfbisect.host.protocol import Host, StoppableHost
from perfbisect.hunt.driver import combined_lab
from perfbisect.hunt.loop import Workers
from perfbisect.hunt.search_problem import SavedLog
from perfbisect.hunt.session_hosts import BuildHost, HostLocks, PreparedHost
from perfbisect.hunt.setup import SessionSetup
from perfbisect.hunt.workers import BuildWorker, Listener, MeasuringWorker, ThreadWorkers
from perfbisect.lab import Lab
from perfbisect.lab.building.candidates import BuildRegistry, Candidates
from perfbisect.lab.building.links import LayoutSeeds
from perfbisect.lab.builds import BuildSite
from perfbisect.lab.host_lab import EarlierAttempts
from perfbisect.lab.host_watch import HostWatch
from perfbisect.lab.measure.visit import SlowRuns, StudyMaker

BUILD_HOST_PATIENCE = 60.0  # seconds without the only build host, after which hosts make their own builds


@dataclass(frozen=True, slots=True)
class LabMaker:
    """Makes the labs of a trial, or of one hunt of a session. A lab is an object that builds and measures on one
    host."""

    setup: SessionSetup
    log: SavedLog
    earlier_starts: Sequence[SessionStarted]  # the first events of earlier attempts
    held: Mapping[str, HostLock]
    locks: HostLocks  # the locks by which all labs of the session share the hosts

    def workers(self, commits: tuple[str, ...], study: StudyMaker | None = None) -> Workers[LabEvent]:
        """One worker for each host of the hunt. The workers measure ``commits`` by timed runs, or carry out a ``study``
        (such as profiles) in place of timed runs."""
        return workers_of({0: self}, commits, study)

    def _finished_builds(self, host: str = "") -> list[BuildFinished]:
        """The builds in the hunt's log that were made on ``host``; if ``host`` is "", the builds of all hosts."""
        finished = [event for _, event in self.log.entries if isinstance(event, BuildFinished)]
        return [event for event in finished if host in ("", event.host or self.setup.settings.host)]

    def builds_of_earlier_attempts(self, candidates: Candidates, host: str = "") -> BuildRegistry:
        """The builds of candidates that earlier attempts at the hunt have made on ``host``; if ``host`` is "", the
        builds of all hosts."""
        finished, first = self._finished_builds(host), self.setup.settings.host
        made_on = {} if host else {event.facts.commit: event.host or first for event in finished}
        return BuildRegistry(candidates, {event.facts.commit: event.facts.key for event in finished}, made_on)

    def build_worker(
        self, build_host: BuildHost, candidates: Candidates, builds: BuildRegistry, is_replaceable: bool
    ) -> BuildWorker:
        """A worker that makes builds on a build host. If ``is_replaceable``, the hosts that measure make the builds
        while the build host cannot be reached.
        """
        stop, setup, settings = threading.Event(), self.setup, self.setup.settings
        lab_host = self.locks.lab_host(StoppableHost(build_host.host, stop), build_host.entry)
        site = BuildSite(
            lab_host, setup.builder, settings.variant, candidates, builds,
            layouts=settings.policy.layouts, names_host=True, training=setup.training(), stood_in=is_replaceable,
        )  # fmt: skip
        subscribe = partial(connection_events, (build_host.host,))

        def describe(candidate: int) -> Commit:
            return candidates.describe(candidates.commits[candidate])

        return BuildWorker(build_host.host.name, site.build_ahead, stop, describe, subscribe)

    def layout_seeds(self, host: int) -> LayoutSeeds | None:
        """The random seeds of randomized layouts on the host number ``host``; None if the hunt uses no randomized
        layouts."""
        settings = self.setup.settings
        return LayoutSeeds(host + 1, len(settings.hosts)) if settings.policy.layouts else None

    def lab(
        self,
        host: int,
        stop: threading.Event,
        candidates: Candidates,
        study: StudyMaker | None,
        builds: BuildRegistry | None,
        seeds: LayoutSeeds | None,
    ) -> Lab:
        """The lab (the part that builds and measures) of a hunt on the host number ``host``. Setting ``stop`` cancels
        the work of the lab. ``seeds`` are the random seeds of randomized layouts.
        """
        site, settings = stoppable(self.setup.hosts[host], stop), self.setup.settings
        name = site.host.name
        earlier_facts = (facts for event in self.earlier_starts for facts in event.hosts)
        first = next((facts for facts in earlier_facts if facts.name == name), site.facts)
        slow = SlowRuns(settings.policy.slow_after, candidates.commits[0])
        finished = [event for _, event in self.log.entries if isinstance(event, RunFinished)]
        runs = [event.facts for event in finished if (event.host or settings.host) == name]
        slow.add_runs_of_good(runs)
        longest = max((run.seconds for run in runs if not run.counted or site.count_method), default=0.0)
        length = next((run.events for run in reversed(runs) if run.events), 0)  # only counted runs have a fixed length
        keys = {event.facts.commit: event.facts.key for event in self._finished_builds(name)}
        loaded = {run.commit: run.dataset for run in runs}
        earlier = EarlierAttempts(keys, loaded, length, longest, most_cores_used(runs), first.memory_mib, first.cores)
        for run in runs:
            if seeds:
                seeds.note_used_seed(run)
        watch = HostWatch(site.host, self.held[name], site.facts)
        timed = replace(
            self.setup.lab(candidates, earlier, site, self.setup.workload, self.locks),
            slow=slow, seeds=seeds, study=study, made=builds, watch=watch,
            metric=settings.metric,
        )  # fmt: skip
        if not site.beside_method or study:
            return timed.measure
        counted = replace(timed, counted=site.beside_method, slow=SlowRuns(), metric=INSTRUCTIONS)
        return timed_or_counted(timed.measure, counted.measure, candidates)

    def lab_of_trial(self, stop: threading.Event) -> Lab:
        """The lab of a trial; setting ``stop`` cancels its work. A trial measures on one host, except a trial that
        compares hosts.

        Internally, builds with the same variant (set of compiler settings) and the same server configuration are
        measured by the same lab.
        """
        setup, trial = self.setup, self.log.state
        subjects, groups = trial.request.subjects, defaultdict[tuple[str, str], list[int]](list)
        for number, subject in enumerate(subjects):
            groups[subject.variant, subject.config_hash].append(number)
        labs: dict[tuple[int, int], Lab] = {}  # (number of a workload, number of a build) → lab
        sites = [stoppable(site, stop) for site in setup.hosts]
        watches = [HostWatch(site.host, self.held[site.host.name], site.facts) for site in sites]
        for (variant, _), numbers in groups.items():
            of_variant = replace(setup, settings=replace(setup.settings, variant=variant or setup.settings.variant))
            candidates = setup.candidates(setup.span.candidates)
            keys = {subjects[number].commit: subjects[number].key for number in numbers if subjects[number].key}
            for host_number, site in enumerate(sites):
                builds = BuildRegistry(candidates, keys)
                for work, workload in enumerate(setup.works):
                    runs = [run.facts for run in trial.runs if run.work == work and run.subject in numbers]
                    loaded = {run.commit: run.dataset for run in runs}
                    events = runs[-1].events if runs else 0
                    earlier = EarlierAttempts(datasets=loaded, events=events, busiest=most_cores_used(runs))
                    # A proof measures builds of its hunt, which may have been made for randomized layouts.
                    seeds = LayoutSeeds() if setup.settings.policy.layouts else None
                    lab = of_variant.lab(candidates, earlier, site, workload, self.locks)
                    config, watch = setup.configs[numbers[0]], watches[host_number]
                    lab = replace(lab, seeds=seeds, made=builds, config=config, watch=watch)
                    on_host = [number for number in numbers if not setup.builder.installed or number == host_number]
                    labs |= {(work, number): lab.measure for number in on_host}

        def measure(order: Measure) -> Generator[LabEvent]:
            """Carry out a work order for one visit (one start of the server), and add the workload and the round to the
            events of its runs."""
            for event in labs[order.workload, order.plan[0].candidate](order):
                if isinstance(event, RunStarted | RunFinished | CandidateSkipped):
                    event = replace(event, workload=order.workload, round=order.round)
                yield event

        return measure


def workers_of(
    hunts: Mapping[int, LabMaker],
    commits: tuple[str, ...],
    study: StudyMaker | None = None,
    *,
    together: bool = False,
) -> Workers[LabEvent]:
    """Workers for the hosts of a session. Each worker uses the lab of a trial, or, if several hunts share builds, the
    labs of these hunts.

    ``commits`` are the hashes of the candidates. If a ``study`` is given (such as profiles that show the reason of a
    change), the workers carry out the study in place of timed runs. ``together`` is true if the session has several
    hunts, even if ``hunts`` has only a single hunt because the other hunts have ended.
    """
    first = next(iter(hunts.values()))
    sites, is_trial = first.setup.hosts, bool(first.setup.request.works)
    common_build_hosts = () if is_trial else first.setup.common_build_hosts
    candidates = first.setup.candidates(commits)
    common_builds = first.builds_of_earlier_attempts(candidates) if common_build_hosts else None

    def lab(host: int, stop: threading.Event) -> Lab:
        builds = common_builds
        if (len(hunts) > 1 or sites[host].beside_method) and builds is None:
            builds = first.builds_of_earlier_attempts(candidates, sites[host].host.name)
        seeds = [hunt.layout_seeds(host) for hunt in hunts.values()]
        if first.setup.settings.outputs:  # hunts that share runs also share layouts
            seeds = seeds[:1] * len(seeds)
        seeded_hunts = zip(hunts.items(), seeds, strict=True)
        labs = {work: hunt.lab(host, stop, candidates, study, builds, seed) for (work, hunt), seed in seeded_hunts}
        return combined_lab(labs) if together else labs[0]

    def worker(lab: Callable[[threading.Event], Lab], *measured_on: PreparedHost) -> MeasuringWorker:
        stop_event = threading.Event()
        # Common build hosts are not in this list: they have their own workers, which handle these events and jobs.
        hosts = [
            host
            for site in measured_on
            for host in (site.host, *(() if common_build_hosts else (builder.host for builder in site.build_hosts)))
        ]

        def kill_jobs() -> None:
            for host in hosts:
                kill_all(host)

        return MeasuringWorker(hosts[0].name, lab(stop_event), stop_event, partial(connection_events, hosts), kill_jobs)

    if is_trial:  # a trial has one worker: its visits follow each other, also on several hosts
        return ThreadWorkers(worker(first.lab_of_trial, *sites))
    measuring = [worker(partial(lab, number), site) for number, site in enumerate(sites)]
    building: list[BuildWorker] = []
    if common_builds:
        is_replaceable = len(common_build_hosts) == 1 and all(site.can_build for site in sites)
        if is_replaceable and (connection := common_build_hosts[0].host.connection):
            connection.patience = BUILD_HOST_PATIENCE
        building = [first.build_worker(host, candidates, common_builds, is_replaceable) for host in common_build_hosts]
    builds_between = bool(common_build_hosts) and all(site.entry.builds_itself for site in sites)
    workers = ThreadWorkers(*measuring, build_workers=building, builds_between=builds_between)
    workers.limit = first.log.began, first.setup.settings.policy.max_minutes
    return workers


def timed_or_counted(timed: Lab, counted: Lab, candidates: Candidates) -> Lab:
    """A lab that passes work orders for timed runs to the lab ``timed``, and work orders for exact counts to the lab
    ``counted``.

    If the instructions of a build cannot be counted, the lab yields events that say so, and the build can still be
    measured by timed runs.
    """

    def measure(order: Measure) -> Generator[LabEvent]:
        """Carry out a work order with ``timed`` or ``counted``."""
        if not order.counted:
            yield from timed(order)
            return
        missing = {share.candidate for share in order.plan}
        try:
            for event in counted(order):
                if isinstance(event, CandidateSkipped) and not event.facts.is_build_failure:
                    yield from uncounted_events(event.candidate, event.facts)
                else:
                    yield event
                missing.discard(event.candidate if isinstance(event, RunFinished | CandidateSkipped) else -1)
        except (RangeEndFailed, InstructionsNotCounted, NoMetricValues, UsageError) as error:
            cause = error.__cause__
            if isinstance(error, RangeEndFailed) and not (isinstance(cause, RunFailed) and cause.stage not in BUILDING):
                raise
            for candidate in sorted(missing):
                facts = SkipFacts(candidates.commits[candidate], "count", str(cause or error), "", 0.0)
                yield from uncounted_events(candidate, facts)

    return measure


def uncounted_events(candidate: int, facts: SkipFacts) -> Iterator[LabEvent]:
    """The events that tell the user and the search that the instructions of a build cannot be counted."""
    text = f"the instructions of {facts.commit[:10]} cannot be counted: {facts.reason}"
    yield Warned(text, "Its time is measured in any case. With --no-counts, the hunt counts no instructions.")
    yield Uncounted(candidate, facts)


def stoppable(site: PreparedHost, stop: threading.Event) -> PreparedHost:
    """The same host and build hosts, but setting ``stop`` cancels the commands that run on them."""
    build_hosts = tuple(replace(builder, host=StoppableHost(builder.host, stop)) for builder in site.build_hosts)
    return replace(site, host=StoppableHost(site.host, stop), build_hosts=build_hosts)


@contextmanager
def connection_events(hosts: Sequence[Host], listener: Listener) -> Iterator[None]:
    """Within the ``with`` block, call ``listener`` with a warning if the connection to a host is lost or restored."""

    def forward(text: str) -> None:
        with suppress(Cancelled):
            listener(Warned(text))

    with ExitStack() as subscriptions:
        for host in hosts:
            subscriptions.callback(host.subscribe(forward))
        yield
