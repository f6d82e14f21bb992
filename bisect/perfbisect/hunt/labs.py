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
from perfbisect.host.fair_lock import FairLock
from perfbisect.host.lock import Lease
from perfbisect.host.protocol import ConnectionEvent, ConnectionState
from perfbisect.host.stoppable import StoppableHost
from perfbisect.hunt.loop import Workers
from perfbisect.hunt.metric_check import MetricLab
from perfbisect.hunt.search_problem import SavedLog
from perfbisect.hunt.setup import HuntSetup, PreparedHost
from perfbisect.hunt.workers import InlineWorkers, Listener, Member, ThreadWorkers
from perfbisect.lab.build.layout_seeds import LayoutSeeds
from perfbisect.lab.guarded_lab import GuardedLab
from perfbisect.lab.host_lab import Earlier
from perfbisect.lab.measure.slow_runs import SlowRuns
from perfbisect.lab.measure.study import StudyMaker
from perfbisect.lab.protocol import Lab


class HuntLabs:
    """Makes the labs of one session; ``before`` has the first events of earlier ones."""

    def __init__(
        self, setup: HuntSetup, log: SavedLog, before: Sequence[HuntStarted], held: Mapping[str, Lease]
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
        self._locks: dict[str, FairLock] = defaultdict(FairLock)  # by host, which may build for several

    def workers(self, commits: tuple[str, ...], study: StudyMaker | None = None) -> Workers[LabEvent]:
        """The hosts of the hunt, for measurements of these commits; with ``study`` they do that in place of timed runs."""
        sites = self._setup.hosts
        if len(sites) == 1:
            return InlineWorkers(sites[0].host.name, self._lab(sites[0], commits, study))
        return ThreadWorkers(*(self._member(site, commits, study) for site in sites))

    def _member(self, site: PreparedHost, commits: tuple[str, ...], study: StudyMaker | None) -> Member:
        stop = threading.Event()
        build_host = StoppableHost(site.build_host, stop) if site.build_host else None
        lab = self._lab(replace(site, host=StoppableHost(site.host, stop), build_host=build_host), commits, study)
        return Member(site.host.name, lab, stop, partial(connection_events, site))

    def _lab(self, site: PreparedHost, commits: tuple[str, ...], study: StudyMaker | None) -> Lab:
        name = site.host.name
        first = self._first.get(name, site.facts)
        events = self._events[name]
        slow = SlowRuns(self._setup.settings.policy.slow_after, commits[0])
        first_host = self._setup.settings.host
        runs = [
            event.facts
            for _, event in self._log.entries
            if isinstance(event, RunFinished) and (event.host or first_host) == name
        ]
        slow.take(runs)
        longest = max((run.seconds for run in runs), default=0.0)
        earlier = Earlier(self._builds[name], self._data[name], events, longest, first.memory_mib, first.cores)
        candidates, workload = self._setup.candidates(commits), self._setup.workload
        lab = self._setup.lab(candidates, earlier, site, workload, self._locks, slow, self._seeds(name, runs), study)
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


@contextmanager
def connection_events(site: PreparedHost, listener: Listener) -> Iterator[None]:
    """Forward connection events (retrying, restored) of a host to ``listener`` as warnings."""

    def forward(event: ConnectionEvent) -> None:
        if event.state is not ConnectionState.LOST:  # that is raised as an error
            with suppress(Cancelled):
                listener(Warned(event.text))

    with ExitStack() as subscriptions:
        for host in (site.host, site.build_host):
            if host:
                subscriptions.callback(host.subscribe(forward))
        yield
