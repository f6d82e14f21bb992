"""Training of builds that are optimised with a profile: each workload is run once on an instrumented build.

A run is at most SECONDS long, without warm-up. The data is what measurements use, loaded by this build if there is none yet.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from perfbisect.core.domain.events import Warned
from perfbisect.errors import BuildFailed, RunFailed
from perfbisect.host.facts import CORES, MEMORY_MIB, ask
from perfbisect.host.programs import require
from perfbisect.host.protocol import Host
from perfbisect.lab.build.pgo import TRAIN, Instrumented
from perfbisect.lab.measure import visit
from perfbisect.lab.measure.slow_runs import SlowRuns
from perfbisect.lab.server import config
from perfbisect.lab.server.installation import System
from perfbisect.lab.upload import recipe
from perfbisect.lab.workload import lua
from perfbisect.lab.workload.dataset_keeper import DatasetKeeper
from perfbisect.lab.workload.fingerprint import fingerprint
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.find import full_name
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.placeholders import Values
from perfbisect.recipes.workload import Workload
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
        """What is run, which belongs to the keys of builds; equal on all hosts."""
        return " ".join(fingerprint(self.builder, shortened(each), ()) for each in self.workloads)

    @property
    def named(self) -> str:
        """The workloads, for a message."""
        return listed([full_name(each) for each in self.workloads])

    def train(self, build: Instrumented, reset: Callable[[], None]) -> Iterator[Warned]:
        """Load all data, call ``reset``, and run each workload once.

        Raises BuildFailed when the build fails in one, EnvironmentFailure when the host lacks what they need.
        """
        require(self.host, [need for each in self.workloads for need in (*each.needs, *programs(each))])
        system = self._system(build)
        keepers = {number: DatasetKeeper(self.host, each, {}) for number, each in enumerate(self.workloads)}
        for number, keeper in keepers.items():
            try:
                yield from keeper.load(system)
            except RunFailed as failure:
                raise failed(build, self.workloads[number], failure) from failure
        reset()  # loading is not what is to be fast
        for number, workload in enumerate(self.workloads):
            try:
                self._run(system, shortened(workload), keepers[number].keys[build.commit])
            except RunFailed as failure:
                raise failed(build, workload, failure) from failure

    def _run(self, system: System, workload: Workload, data: str) -> None:
        placed = lua.place(self.host, workload)
        context = visit.RunContext(self.host, self.entry, workload, placed, perf=False, vmstat=False, iostat=False)
        with visit.begin(context, system, 0, data, SlowRuns()) as opened:
            for _ in visit.run(opened):
                pass

    def _system(self, build: Instrumented) -> System:
        host, entry = self.host, self.entry
        cores = ask(host, CORES) or 1
        values: Values = {
            "recipe": str(recipe.place(host, self.builder)),
            "jobs": entry.jobs or cores,
            **config.sizes(entry, ask(host, MEMORY_MIB) or 0, cores),
            "commit": build.commit,
            "prefix": str(build.prefix),
            "version": build.version,
        }
        return System(build.commit, build.key, build.prefix, build.builder, values)


def shortened(workload: Workload) -> Workload:
    """The workload as it trains a build."""
    return msgspec.structs.replace(
        workload, warmup=0.0, time=min(workload.time, SECONDS), timeout=workload.timeout or LIMIT
    )


def programs(workload: Workload) -> list[str]:
    """What runs it."""
    return [] if workload.command else ["sysbench"]


def failed(build: Instrumented, workload: Workload, failure: RunFailed) -> BuildFailed:
    """The error for a build that fails in a workload."""
    sentence = f"{build.commit[:10]} fails in its training with {full_name(workload)}: {failure}"
    return BuildFailed(sentence, stage=TRAIN, log=failure.log)
