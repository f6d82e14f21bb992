"""Training of builds that are optimised with a profile: each workload is run once on an instrumented build.

A run is at most SECONDS long, without warm-up. The data is what measurements use, loaded by this build if there is none yet.
"""

import hashlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from perfbisect.core.domain.events import Warned
from perfbisect.errors import BuildFailed, DataDamaged, RunFailed
from perfbisect.host.facts import DRIVERS, ask_all
from perfbisect.host.packages import require
from perfbisect.host.protocol import Host
from perfbisect.lab import servers
from perfbisect.lab.build.pgo import TRAIN, Instrumented
from perfbisect.lab.checks import CheckRequest, Inspection
from perfbisect.lab.checks.preflight import drivers, needed, warnings
from perfbisect.lab.measure import visit
from perfbisect.lab.servers import System
from perfbisect.lab.workload import lua
from perfbisect.lab.workload.dataset import DatasetKeeper
from perfbisect.lab.workload.lua import fingerprint
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.workload import Workload, full_name
from perfbisect.wording.text import listed

SECONDS = 30.0  # of a run that is timed by sysbench, or whose command takes {time}
LIMIT = 1800.0  # seconds after which a run without a limit of its own is killed: counting slows it down


@dataclass(frozen=True, slots=True)
class Trainer:
    """Trains the builds of one builder on one host."""

    host: Host
    entry: HostEntry
    builder: Builder
    workloads: tuple[Workload, ...]

    @property
    def identity(self) -> str:
        """What is run, and how its server is configured: it belongs to the keys of builds, and is equal on all hosts."""
        served = servers.identity(self.builder)
        server = [hashlib.sha256(served.encode()).hexdigest()[:16]] if served else []
        return " ".join([*(fingerprint(self.builder, shortened(each), ()) for each in self.workloads), *server])

    @property
    def named(self) -> str:
        """The workloads, for a message."""
        return listed([full_name(each) for each in self.workloads])

    def check(self) -> None:
        """Raise EnvironmentFailure when the host lacks what the workloads need: that is no commit's fault."""
        request = CheckRequest(self.host, self.entry, builder=self.builder, workloads=self.workloads)
        require(self.host, needed(request))
        warnings(drivers(Inspection(request, ask_all(self.host, [DRIVERS]), "")))

    def train(self, build: Instrumented, reset: Callable[[], None]) -> Iterator[Warned]:
        """Load all data, call ``reset``, and run each workload once; again from the beginning where data is replaced.

        Raises BuildFailed when the build fails in one, DataDamaged for data that is damaged again and again.
        """
        system = self._system(build)
        keepers = [DatasetKeeper(self.host, each, {}) for each in self.workloads]
        while True:
            for keeper in keepers:
                try:
                    yield from keeper.load(system)
                except RunFailed as failure:
                    raise failed(build, keeper.workload, failure) from failure
            reset()  # loading is not what is to be fast
            if (yield from self._run_all(build, system, keepers)):
                return

    def _run_all(
        self, build: Instrumented, system: System, keepers: Sequence[DatasetKeeper]
    ) -> Generator[Warned, None, bool]:
        """Run each workload; false where data has to be loaded anew, as for a measurement."""
        for keeper in keepers:
            data = keeper.keys[build.commit]
            try:
                self._run(system, shortened(keeper.workload), data)
            except DataDamaged as damaged:
                yield keeper.damaged(data, damaged)
                return False
            except RunFailed as failure:
                if not keeper.refuse(system, data, failure):
                    raise failed(build, keeper.workload, failure) from failure
                return False
        return True

    def _run(self, system: System, workload: Workload, data: str) -> None:
        placed = lua.place(self.host, workload)
        for _ in visit.run_alone(visit.RunContext(self.host, self.entry, workload, placed), system, 0, data):
            pass

    def _system(self, build: Instrumented) -> System:
        own = {"commit": build.commit, "prefix": str(build.prefix), "version": build.version}
        values = {**servers.placeholders(self.host, self.entry, self.builder), **own}
        return System(build.commit, build.key, build.prefix, build.builder, values)


def shortened(workload: Workload) -> Workload:
    """The workload as it trains a build."""
    return msgspec.structs.replace(
        workload, warmup=0.0, time=min(workload.time, SECONDS), timeout=workload.timeout or LIMIT
    )


def failed(build: Instrumented, workload: Workload, failure: RunFailed) -> BuildFailed:
    """The error for a build that fails in a workload."""
    sentence = f"{build.commit[:10]} fails in its training with {full_name(workload)}: {failure}"
    return BuildFailed(sentence, stage=TRAIN, log=failure.log)
