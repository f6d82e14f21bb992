"""Makes the profiles for profile-guided builds: runs each training workload once on an instrumented build.

A training run takes at most SECONDS and has no warm-up. Training runs use the same datasets as measurements. If a
dataset does not exist yet, the instrumented build loads the dataset.
"""

import hashlib
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import msgspec

from perfbisect.core.domain.events import Warned
from perfbisect.errors import BuildFailed, DatasetDamaged, EnvironmentFailure, RunFailed
from perfbisect.host.facts import DRIVERS, read_facts
from perfbisect.host.packages import require_programs
from perfbisect.host.protocol import Host
from perfbisect.lab import servers
from perfbisect.lab.building.log_parser import TRAIN
from perfbisect.lab.building.plan import MERGED, InstrumentedBuild
from perfbisect.lab.checks import CheckRequest
from perfbisect.lab.checks.preflight import driver_findings, needed_programs, warnings_or_refusal
from perfbisect.lab.measure import visit
from perfbisect.lab.servers import Installation
from perfbisect.lab.workload import lua
from perfbisect.lab.workload.dataset import DatasetKeeper
from perfbisect.lab.workload.lua import fingerprint
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.workload import Workload, qualified_name
from perfbisect.wording.text import listed

SECONDS = 30.0  # seconds of a training run that sysbench times, or whose command takes {time}
LIMIT = 1800.0  # seconds after which a run without its own limit is killed: an instrumented build is slow

_UNREADABLE = "no profile can be merged"  # the message of clang's program if no file could be read
_EMPTY = 'rm -rf -- "$1" && mkdir -p -- "$1"'
# $1 is the folder, $2 the compiler, $3 its name. Prints one file with counts, nothing if there is none. A process that was
# killed while it wrote leaves a file that cannot be read: such files are left out.
_FINISH = f"""\
cd -- "$1" || exit
if [ "$3" = clang ] && [ -n "$(find . -name '*.profraw' -size +0 | head -n 1)" ]; then
    merge=$("$2" -print-prog-name=llvm-profdata) && "$merge" merge --failure-mode=all --output={MERGED} -- *.profraw || exit
fi
find . -type f '(' -name '*.gcda' -o -name {MERGED} ')' -size +0 | head -n 1
"""


@dataclass(frozen=True, slots=True)
class Trainer:
    """Makes profiles for the builds of one builder on one host."""

    host: Host
    entry: HostEntry
    builder: Builder
    workloads: tuple[Workload, ...]

    @property
    def training_key(self) -> str:
        """A text that identifies the training: all inputs of the training runs, and the configuration of the server.
        The text is a part of the keys of builds, and is equal on all hosts.
        """
        served = servers.server_identity(self.builder)
        server = [hashlib.sha256(served.encode()).hexdigest()[:16]] if served else []
        return " ".join(
            [*(fingerprint(self.builder, shortened_for_training(workload), ()) for workload in self.workloads), *server]
        )

    @property
    def workload_names(self) -> str:
        """The names of the workloads, for a message."""
        return listed([qualified_name(workload) for workload in self.workloads])

    def check_workload_programs(self) -> None:
        """Raise EnvironmentFailure if the host lacks a program that the workloads need. Without this check, a training
        run would raise BuildFailed, which blames the commit."""
        request = CheckRequest(self.host, self.entry, builder=self.builder, workloads=self.workloads)
        require_programs(self.host, needed_programs(request))
        warnings_or_refusal(driver_findings(replace(request, answers=read_facts(self.host, [DRIVERS]))))

    def train(self, build: InstrumentedBuild) -> Generator[Warned, None, bool]:
        """Load all datasets, remove the profile counts that loading produced, and run each workload once. If a dataset
        has to be loaded again, all steps are repeated. Returns false if the runs produced no profile. Raises
        BuildFailed if the build fails in a workload, DatasetDamaged if a dataset is damaged again, and
        EnvironmentFailure if profile counts cannot be merged.
        """
        system = self._system(build)
        keepers = [DatasetKeeper(self.host, workload, {}) for workload in self.workloads]
        while True:
            for keeper in keepers:
                try:
                    yield from keeper.ensure_loaded(system)
                except RunFailed as failure:
                    raise training_failure(build, keeper.workload, failure) from failure
            # The counts of loading are removed, because loading need not be fast.
            self.host.run(["sh", "-c", _EMPTY, "empty", str(build.profile_folder)], timeout=600)
            if (yield from self._run_unless_data_stale(build, system, keepers)):
                return prepare_profile(self.host, build)

    def _run_unless_data_stale(
        self, build: InstrumentedBuild, system: Installation, keepers: Sequence[DatasetKeeper]
    ) -> Generator[Warned, None, bool]:
        """Run each workload once; returns false if the data has to be loaded again."""
        for keeper in keepers:
            data = keeper.keys[build.commit]
            placed = lua.place_scripts(self.host, keeper.workload)
            context = visit.RunContext(self.host, self.entry, shortened_for_training(keeper.workload), placed)
            try:
                with visit.begin_visit(context, system, 0, data) as opened:
                    deque(visit.timed_run(opened), maxlen=0)
            except DatasetDamaged as damaged:
                yield keeper.remove_damaged(data, damaged)
                return False
            except RunFailed as failure:
                if not keeper.mark_dataset_refused(system, data, failure):
                    raise training_failure(build, keeper.workload, failure) from failure
                return False
        return True

    def _system(self, build: InstrumentedBuild) -> Installation:
        of_build = {"commit": build.commit, "prefix": str(build.prefix), "version": build.version}
        values = {**servers.host_placeholders(self.host, self.entry, self.builder), **of_build}
        return Installation(build.commit, build.key, build.prefix, build.builder, values)


def shortened_for_training(workload: Workload) -> Workload:
    """A copy of the workload with the duration of a training run."""
    time, timeout = min(workload.time, SECONDS), workload.timeout or LIMIT
    return msgspec.structs.replace(workload, warmup=0.0, time=time, timeout=timeout)


def training_failure(build: InstrumentedBuild, workload: Workload, failure: RunFailed) -> BuildFailed:
    """The error to raise if the instrumented build fails while a training workload runs."""
    sentence = f"{build.commit[:10]} fails during the training with {qualified_name(workload)}: {failure}"
    return BuildFailed(sentence, stage=TRAIN, log=failure.log)


def prepare_profile(host: Host, build: InstrumentedBuild) -> bool:
    """Convert the profile counts that the training runs wrote into the format that the compiler reads; returns false if
    there are no readable counts. Raises EnvironmentFailure if llvm-profdata, with which clang's profiles are merged, is
    missing, has another version than clang, or cannot write.
    """
    argv = ["sh", "-c", _FINISH, "finish", str(build.profile_folder), build.cc, build.compiler]
    done = host.run(argv, check=False, timeout=600)
    if done.ok:
        return bool(done.stdout)
    if _UNREADABLE in done.stderr and "version" not in done.stderr:
        return False
    text = f"the profile cannot be merged on host {host.name}: {done.stderr.strip()[:300]}"
    raise EnvironmentFailure(text, "clang needs llvm-profdata of its own version: apt-get install llvm")
