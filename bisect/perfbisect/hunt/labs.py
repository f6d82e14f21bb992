"""The labs of a session: one for each host, with the builds and data that earlier attempts have left there."""

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
from perfbisect.core.domain.facts import BUILDING, SkipFacts, busiest
from perfbisect.core.domain.metrics import INSTRUCTIONS
from perfbisect.core.domain.orders import Measure
from perfbisect.errors import Cancelled, EndFailed, NotCounted, NothingToCompare, RunFailed, UsageError
from perfbisect.host.jobs import kill_all
from perfbisect.host.lock import HostLock
from perfbisect.host.protocol import Host, StoppableHost
from perfbisect.hunt.driver import lab_of_several
from perfbisect.hunt.loop import Workers
from perfbisect.hunt.search_problem import SavedLog
from perfbisect.hunt.session_hosts import BuildHost, HostLocks, PreparedHost
from perfbisect.hunt.setup import SessionSetup
from perfbisect.hunt.workers import BuildWorker, Listener, MeasuringWorker, ThreadWorkers
from perfbisect.lab import Lab
from perfbisect.lab.building.candidates import BuildsMade, Candidates
from perfbisect.lab.building.links import LayoutSeeds
from perfbisect.lab.builds import BuildSite
from perfbisect.lab.host_lab import Earlier
from perfbisect.lab.host_watch import HostWatch
from perfbisect.lab.measure.visit import SlowRuns, StudyMaker

STAND_IN = 60.0  # seconds for which the only build host is waited for before the hosts that measure build themselves


@dataclass(frozen=True, slots=True)
class SessionLabs:
    """Makes the labs of a trial, or of one hunt in a session."""

    setup: SessionSetup
    log: SavedLog
    before: Sequence[SessionStarted]  # the first events of earlier sessions
    held: Mapping[str, HostLock]
    locks: HostLocks  # by which all labs of the session share its hosts

    def workers(self, commits: tuple[str, ...], study: StudyMaker | None = None) -> Workers[LabEvent]:
        """The hosts of the hunt, for measurements of these commits; with ``study`` they do that in place of timed runs."""
        return workers_of({0: self}, commits, study)

    def _built(self, host: str = "") -> list[BuildFinished]:
        """The builds of the log that were made on a host, by default on any."""
        found = [event for _, event in self.log.entries if isinstance(event, BuildFinished)]
        return [event for event in found if host in ("", event.host or self.setup.settings.host)]

    def builds_made(self, candidates: Candidates, host: str = "") -> BuildsMade:
        """What labs have built of these commits on one host or, by default, anywhere, as earlier sessions left it."""
        built, first = self._built(host), self.setup.settings.host
        places = {} if host else {event.facts.commit: event.host or first for event in built}
        return BuildsMade(candidates, {event.facts.commit: event.facts.key for event in built}, places)

    def build_member(self, each: BuildHost, candidates: Candidates, made: BuildsMade, stood_in: bool) -> BuildWorker:
        """A host that builds ahead."""
        stop, setup, settings = threading.Event(), self.setup, self.setup.settings
        site = BuildSite(
            self.locks.place(StoppableHost(each.host, stop), each.entry), setup.builder, settings.variant, candidates, made,
            layouts=settings.policy.layouts, named=True, training=setup.training(), stood_in=stood_in,
        )  # fmt: skip
        heard = partial(connection_events, (each.host,))

        def describe(candidate: int) -> Commit:
            return candidates.describe(candidates.commits[candidate])

        return BuildWorker(each.host.name, site.build_ahead, stop, describe, heard)

    def seeds(self, number: int) -> LayoutSeeds | None:
        """Those of randomized layouts at the host of that number."""
        settings = self.setup.settings
        return LayoutSeeds(number + 1, len(settings.hosts)) if settings.policy.layouts else None

    def lab(
        self,
        number: int,
        stop: threading.Event,
        candidates: Candidates,
        study: StudyMaker | None,
        made: BuildsMade | None,
        seeds: LayoutSeeds | None,
    ) -> Lab:
        """The lab of the hunt at the host of that number, which ``stop`` cancels; ``seeds`` are those of its randomized layouts."""
        site, settings = stoppable(self.setup.hosts[number], stop), self.setup.settings
        name = site.host.name
        first = next((facts for event in self.before for facts in event.hosts if facts.name == name), site.facts)
        slow = SlowRuns(settings.policy.slow_after, candidates.commits[0])
        runs = [
            event.facts
            for _, event in self.log.entries
            if isinstance(event, RunFinished) and (event.host or settings.host) == name
        ]
        slow.take(runs)
        longest = max((run.seconds for run in runs if not run.counted or site.counts), default=0.0)
        length = next((run.events for run in reversed(runs) if run.events), 0)  # a timed run has none
        keys = {event.facts.commit: event.facts.key for event in self._built(name)}
        loaded = {run.commit: run.dataset for run in runs}
        earlier = Earlier(keys, loaded, length, longest, busiest(runs), first.memory_mib, first.cores)
        for run in runs:
            if seeds:
                seeds.take(run)
        watch = HostWatch(site.host, self.held[name], site.facts)
        timed = replace(
            self.setup.lab(candidates, earlier, site, self.setup.workload, self.locks),
            slow=slow, seeds=seeds, study=study, made=made, watch=watch,
            metric=settings.metric,
        )  # fmt: skip
        if not site.beside or study:
            return timed.measure
        counted = replace(timed, counted=site.beside, slow=SlowRuns(), metric=INSTRUCTIONS)
        return timed_or_counted(timed.measure, counted.measure, candidates)

    def lab_of_visits(self, stop: threading.Event) -> Lab:
        """What measures the builds of a trial: on one host, or each on the host that it is. Those of a variant share their builds."""
        setup, trial = self.setup, self.log.state
        subjects, ways = trial.request.subjects, defaultdict[tuple[str, str], list[int]](list)
        for number, subject in enumerate(subjects):
            ways[subject.variant, subject.config_hash].append(number)
        labs: dict[tuple[int, int], Lab] = {}  # by workload and build
        sites = [stoppable(site, stop) for site in setup.hosts]
        watches = [HostWatch(site.host, self.held[site.host.name], site.facts) for site in sites]
        for (variant, _), numbers in ways.items():
            of_variant = replace(setup, settings=replace(setup.settings, variant=variant or setup.settings.variant))
            candidates = setup.candidates(setup.span.candidates)
            known = {subjects[number].commit: subjects[number].key for number in numbers if subjects[number].key}
            for place, site in enumerate(sites):
                made = BuildsMade(candidates, known)
                for work, workload in enumerate(setup.works):
                    runs = [run.facts for run in trial.runs if run.work == work and run.subject in numbers]
                    loaded = {run.commit: run.dataset for run in runs}
                    earlier = Earlier(datasets=loaded, events=runs[-1].events if runs else 0, busiest=busiest(runs))
                    # A proof measures builds of its hunt, which may have been made to be linked again.
                    seeds = LayoutSeeds() if setup.settings.policy.layouts else None
                    lab = of_variant.lab(candidates, earlier, site, workload, self.locks)
                    lab = replace(lab, seeds=seeds, made=made, config=setup.configs[numbers[0]], watch=watches[place])
                    here = [number for number in numbers if not setup.builder.installed or number == place]
                    labs |= {(work, number): lab.measure for number in here}

        def measure(order: Measure) -> Generator[LabEvent]:
            """Carry out an order for one visit; its runs say which it is."""
            for event in labs[order.workload, order.plan[0].candidate](order):
                if isinstance(event, RunStarted | RunFinished | CandidateSkipped):
                    event = replace(event, workload=order.workload, round=order.round)
                yield event

        return measure


def workers_of(
    hunts: Mapping[int, SessionLabs],
    commits: tuple[str, ...],
    study: StudyMaker | None = None,
    *,
    together: bool = False,
) -> Workers[LabEvent]:
    """The hosts of a session, for measurements of these commits in the labs of its hunts, which share all builds; or of a trial.

    With ``study`` they do that in place of timed runs. ``together``: the hunts are of several that were begun together.
    """
    first = next(iter(hunts.values()))
    sites, rounds = first.setup.hosts, bool(first.setup.request.works)
    ahead = () if rounds else first.setup.ahead
    candidates = first.setup.candidates(commits)
    everywhere = first.builds_made(candidates) if ahead else None

    def lab(number: int, stop: threading.Event) -> Lab:
        made = everywhere
        if (len(hunts) > 1 or sites[number].beside) and made is None:
            made = first.builds_made(candidates, sites[number].host.name)
        seeds = [each.seeds(number) for each in hunts.values()]
        if first.setup.settings.outputs:  # hunts with common runs have common layouts
            seeds = seeds[:1] * len(seeds)
        members = zip(hunts.items(), seeds, strict=True)
        labs = {work: each.lab(number, stop, candidates, study, made, seed) for (work, each), seed in members}
        return lab_of_several(labs) if together else labs[0]

    def member(lab: Callable[[threading.Event], Lab], *measured_on: PreparedHost) -> MeasuringWorker:
        stop = threading.Event()
        # The threads of hosts that build ahead hear these.
        used = [
            host
            for site in measured_on
            for host in (site.host, *(() if ahead else (each.host for each in site.build_hosts)))
        ]

        def kill_jobs() -> None:
            for host in used:
                kill_all(host)

        return MeasuringWorker(used[0].name, lab(stop), stop, partial(connection_events, used), kill_jobs)

    if rounds:  # one visit after another, even where hosts are compared
        return ThreadWorkers(member(first.lab_of_visits, *sites))
    members = [member(partial(lab, number), site) for number, site in enumerate(sites)]
    builders: list[BuildWorker] = []
    if everywhere:
        stood_in = len(ahead) == 1 and all(site.can_build for site in sites)
        if stood_in and (connection := ahead[0].host.connection):
            connection.patience = STAND_IN
        builders = [first.build_member(each, candidates, everywhere, stood_in) for each in ahead]
    between = bool(ahead) and all(site.entry.builds for site in sites)
    workers = ThreadWorkers(*members, build_members=builders, builds_between=between)
    workers.limit = first.log.began, first.setup.settings.policy.max_minutes
    return workers


def timed_or_counted(timed: Lab, counted: Lab, candidates: Candidates) -> Lab:
    """What times the builds of an order, or counts their instructions; where these cannot be counted, time is left."""

    def measure(order: Measure) -> Generator[LabEvent]:
        """Carry out an order of either sort."""
        if not order.counted:
            yield from timed(order)
            return
        wanted = {share.candidate for share in order.plan}
        try:
            for event in counted(order):
                if isinstance(event, CandidateSkipped) and not event.facts.of_build:
                    yield from uncounted(event.candidate, event.facts)
                else:
                    yield event
                wanted.discard(event.candidate if isinstance(event, RunFinished | CandidateSkipped) else -1)
        except (EndFailed, NotCounted, NothingToCompare, UsageError) as trouble:
            cause = trouble.__cause__
            if isinstance(trouble, EndFailed) and not (isinstance(cause, RunFailed) and cause.stage not in BUILDING):
                raise
            for each in sorted(wanted):
                facts = SkipFacts(candidates.commits[each], "count", str(cause or trouble), "", 0.0)
                yield from uncounted(each, facts)

    return measure


def uncounted(candidate: int, facts: SkipFacts) -> Iterator[LabEvent]:
    """That a build cannot be counted, for the search and for people."""
    text = f"the instructions of {facts.commit[:10]} cannot be counted: {facts.reason}"
    yield Warned(text, "Its time is measured all the same; --no-counts counts none.")
    yield Uncounted(candidate, facts)


def stoppable(site: PreparedHost, stop: threading.Event) -> PreparedHost:
    """The host, and those that build for it, as ``stop`` cancels what is done there."""
    build_hosts = tuple(replace(each, host=StoppableHost(each.host, stop)) for each in site.build_hosts)
    return replace(site, host=StoppableHost(site.host, stop), build_hosts=build_hosts)


@contextmanager
def connection_events(hosts: Sequence[Host], listener: Listener) -> Iterator[None]:
    """Forward connection events (retrying, restored) of hosts to ``listener`` as warnings."""

    def forward(text: str) -> None:
        with suppress(Cancelled):
            listener(Warned(text))

    with ExitStack() as subscriptions:
        for host in hosts:
            subscriptions.callback(host.subscribe(forward))
        yield
