"""The labs of a session: one for each host, with the builds and data that earlier sessions have left there."""

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial

from perfbisect.core.domain.events import BuildFinished, HuntStarted, LabEvent, RunFinished, Warned
from perfbisect.core.domain.facts import RunFacts
from perfbisect.errors import Cancelled
from perfbisect.host.jobs import kill_all
from perfbisect.host.lock import HostLock
from perfbisect.host.protocol import ConnectionEvent, ConnectionState, Host, StoppableHost
from perfbisect.hunt.build_hosts import BuildHost, HostLocks
from perfbisect.hunt.loop import Workers
from perfbisect.hunt.metric_check import MetricLab
from perfbisect.hunt.search_problem import SavedLog
from perfbisect.hunt.setup import HuntSetup, PreparedHost
from perfbisect.hunt.workers import BuildMember, InlineWorkers, Listener, Member, ThreadWorkers
from perfbisect.lab.build.candidates import BuildsMade, Candidates
from perfbisect.lab.build.links import LayoutSeeds
from perfbisect.lab.build_site import BuildLab, BuildSite
from perfbisect.lab.guarded_lab import GuardedLab, Lab
from perfbisect.lab.host_lab import Earlier
from perfbisect.lab.measure.visit import SlowRuns, StudyMaker

STAND_IN = 60.0  # seconds for which the only build host is waited for before the hosts that measure build themselves


class HuntLabs:
    """Makes the labs of one session; ``before`` has the first events of earlier ones."""

    def __init__(
        self, setup: HuntSetup, log: SavedLog, before: Sequence[HuntStarted], held: Mapping[str, HostLock]
    ) -> None:
        self._setup, self._log, self._held = setup, log, held
        self._builds: dict[str, dict[str, str]] = defaultdict(dict)  # host → commit → key of its build
        self._data: dict[str, dict[str, str]] = defaultdict(dict)  # host → commit → key of its data
        self._events: dict[str, int] = defaultdict(int)  # host → length of its counted runs
        for _, event in log.entries:
            host = event.host or setup.settings.host
            if isinstance(event, BuildFinished):
                self._builds[host][event.facts.commit] = event.facts.key
            elif isinstance(event, RunFinished):
                self._data[host][event.facts.commit] = event.facts.dataset
                self._events[host] = event.facts.events or self._events[host]  # a timed run has none
        self._first = {facts.name: facts for event in reversed(before) for facts in event.hosts}
        self._locks = HostLocks([each.host.name for each in setup.ahead], setup.shared)
        self._made_on = {  # commit → the host that built it last
            event.facts.commit: event.host or setup.settings.host
            for _, event in log.entries
            if isinstance(event, BuildFinished)
        }

    def workers(self, commits: tuple[str, ...], study: StudyMaker | None = None) -> Workers[LabEvent]:
        """The hosts of the hunt, for measurements of these commits; with ``study`` they do that in place of timed runs."""
        sites, ahead = self._setup.hosts, self._setup.ahead
        candidates = self._setup.candidates(commits)
        workers: InlineWorkers | ThreadWorkers
        if ahead:
            made = self.builds_made(commits)
            if stood_in := len(ahead) == 1 and all(site.can_build for site in sites):
                ahead[0].host.give_up_after(STAND_IN)
            workers = ThreadWorkers(
                *(self._member(site, candidates, study, made) for site in sites),
                build_members=[self._build_member(each, candidates, made, stood_in) for each in ahead],
                builds_between=all(site.entry.builds for site in sites),
            )
        elif len(sites) == 1:
            workers = InlineWorkers(sites[0].host.name, self._lab(sites[0], candidates, study))
        else:
            workers = ThreadWorkers(*(self._member(site, candidates, study) for site in sites))
        workers.limit = self._log.began, self._setup.settings.policy.max_minutes
        return workers

    def builds_made(self, commits: tuple[str, ...]) -> BuildsMade:
        """What several labs have built of these commits, as earlier sessions left it."""
        keys = {commit: key for builds in self._builds.values() for commit, key in builds.items()}
        return BuildsMade(self._setup.candidates(commits), keys, self._made_on)

    def lab(self, commits: tuple[str, ...], made: BuildsMade) -> Lab:
        """The lab of the only host of the hunt, which shares its builds of these commits with the labs of other hunts."""
        return self._lab(self._setup.hosts[0], self._setup.candidates(commits), None, made)

    def _member(
        self, site: PreparedHost, candidates: Candidates, study: StudyMaker | None, made: BuildsMade | None = None
    ) -> Member:
        stop = threading.Event()
        build_hosts = tuple(replace(each, host=StoppableHost(each.host, stop)) for each in site.build_hosts)
        stoppable = replace(site, host=StoppableHost(site.host, stop), build_hosts=build_hosts)
        lab = self._lab(stoppable, candidates, study, made)
        heard = (site.host,) if made else hosts_of(site)  # the threads of hosts that build ahead hear these
        return Member(site.host.name, lab, stop, partial(connection_events, heard), partial(kill_all, site.host))

    def _build_member(self, each: BuildHost, candidates: Candidates, made: BuildsMade, stood_in: bool) -> BuildMember:
        stop, setup, name = threading.Event(), self._setup, each.host.name
        place = self._locks.place(StoppableHost(each.host, stop), each.entry)
        layouts = setup.settings.policy.layouts
        variant, training = setup.settings.variant, setup.training()
        site = BuildSite(
            place, setup.builder, variant, candidates, made, layouts=layouts, named=True, training=training
        )
        return BuildMember(
            name,
            BuildLab(site, self._held[name], stood_in),
            stop,
            lambda candidate: candidates.describe(candidates.commits[candidate]),
            partial(connection_events, (each.host,)),
        )

    def _lab(
        self, site: PreparedHost, candidates: Candidates, study: StudyMaker | None, made: BuildsMade | None = None
    ) -> Lab:
        name = site.host.name
        first = self._first.get(name, site.facts)
        events = self._events[name]
        slow = SlowRuns(self._setup.settings.policy.slow_after, candidates.commits[0])
        first_host = self._setup.settings.host
        runs = [
            event.facts
            for _, event in self._log.entries
            if isinstance(event, RunFinished) and (event.host or first_host) == name
        ]
        slow.take(runs)
        longest = max((run.seconds for run in runs), default=0.0)
        earlier = Earlier(self._builds[name], self._data[name], events, longest, first.memory_mib, first.cores)
        lab = self._setup.lab(
            candidates, earlier, site, self._setup.workload, self._locks, slow, self._seeds(name, runs), study, made
        )
        return MetricLab(GuardedLab(lab, site.host, self._held[name], site.facts), self._setup.settings.metric)

    def _seeds(self, name: str, runs: Sequence[RunFacts]) -> LayoutSeeds | None:
        """The seeds of fresh layouts on a host, after these runs there: no two hosts of the hunt share one."""
        settings = self._setup.settings
        if not settings.policy.layouts:
            return None
        seeds = LayoutSeeds(settings.hosts.index(name) + 1, len(settings.hosts))
        for run in runs:
            seeds.take(run)
        return seeds


def hosts_of(site: PreparedHost) -> tuple[Host, ...]:
    """A host that measures, and those that build for it."""
    return (site.host, *(each.host for each in site.build_hosts))


@contextmanager
def connection_events(hosts: Sequence[Host], listener: Listener) -> Iterator[None]:
    """Forward connection events (retrying, restored) of hosts to ``listener`` as warnings."""

    def forward(event: ConnectionEvent) -> None:
        if event.state is not ConnectionState.LOST:  # that is raised as an error
            with suppress(Cancelled):
                listener(Warned(event.text))

    with ExitStack() as subscriptions:
        for host in hosts:
            subscriptions.callback(host.subscribe(forward))
        yield
