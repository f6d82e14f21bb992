"""Makes rounds of paired runs: two builds are measured at the same time on the same cores, so that a disturbance of the
host affects both builds.

The two builds have different paths, copies of the data, servers and clients. The two runs of a pair begin at the same
moment. After the end of its run, the build that finishes first keeps its cores busy until the run of the other build
has ended. A round of paired runs is discarded, and repeated, if the two builds had unequal shares of the cores, or if
the two runs did not overlap. If two builds cannot be paired, their runs are interleaved.
"""

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import msgspec

from perfbisect.core.domain.events import LabEvent, RunFinished, RunProgress, Warned
from perfbisect.core.domain.facts import RunFacts
from perfbisect.errors import ConnectionLost, DatasetDamaged, EnvironmentFailure, HostUnreachable, JobLost
from perfbisect.host import jobs
from perfbisect.host.facts import Fact, cpu_numbers, read_fact
from perfbisect.host.protocol import Host
from perfbisect.lab.measure.visit import RunContext, RunInProgress, Turn, Visit, begin_visit
from perfbisect.lab.servers import Installation
from perfbisect.lab.workload.dataset import remove_visit
from perfbisect.recipes.inventory import HostEntry
from perfbisect.wording.quantities import percent

Side = tuple[Installation, str]  # a build, and the key of its data

MARKERS = ("ended", "gone", "shell")  # files of a round, which the next round removes
SIDES = ("one", "two")  # folders of the two visits: equally long, because the length of a path can affect speed
UNEVEN = 1.5  # a round is invalid if one run gets more than this multiple of the other run's CPU time
CONTENDED = 0.8  # UNEVEN applies only if both runs together use more than this number of cores
OVERLAP = 0.8  # share of the shorter run that must overlap the other run
BEGUN = 60  # seconds in which both runs must be ready to begin
TRIES = 3  # successive invalid rounds after which the builds run one after the other instead
SPARE = 0.05  # share of the host's memory that must stay free during two paired runs

# Waits until both runs are ready (they read the FIFOs "go"), and then lets both begin by closing the FIFOs. After a
# lost connection, the command may run again.
_GO = '[ -e "$1/gone" ] || { exec 3>"$1/go" 4>"$2/go"; : >"$1/gone"; exec 3>&- 4>&-; }'
ALLOWED = Fact(("cat", "/proc/self/status"), lambda text: _field(text, "Cpus_allowed_list"))
MEMORY = Fact(("cat", "/proc/meminfo"), lambda text: (_kib(text, "MemAvailable"), _kib(text, "MemTotal")))


def _field(text: str, name: str) -> str | None:
    return next((line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith(f"{name}:")), None)


def _kib(text: str, name: str) -> int:
    return int((_field(text, name) or "0 kB").split()[0])


class PairingImpossible(Exception):
    """Raised if two builds cannot be paired on this host; the message says why."""


def with_cores_for_both_builds(entry: HostEntry, allowed_cpus: str, threads: int, *, server: bool) -> HostEntry:
    """The entry of the host in hosts.toml, with fewer cores: the cores on which both builds of a round run. There are
    at most as many of these cores as one build has threads, so that each build uses all of these cores.

    The builds share their cores because a difference between cores would look like a difference between the builds.
    Servers and clients run on separate cores if there is more than one core.
    """
    cores = sorted(cpu_numbers(allowed_cpus))
    if not server:
        of_clients = sorted(cpu_numbers(entry.client_cpus or entry.server_cpus or allowed_cpus))
        return msgspec.structs.replace(entry, client_cpus=_listed(of_clients[-threads:]))
    of_servers = sorted(cpu_numbers(entry.server_cpus or allowed_cpus))
    if not entry.server_cpus:
        of_servers = of_servers[-max(1, min(threads, len(of_servers) // 2)) :]
    of_servers = of_servers[-threads:]
    remaining = [core for core in cores if core not in of_servers] or cores
    of_clients = sorted(cpu_numbers(entry.client_cpus)) if entry.client_cpus else remaining
    pinned = {"server_cpus": _listed(of_servers), "client_cpus": _listed(of_clients[-max(threads, 1) :])}
    return msgspec.structs.replace(entry, **pinned)


def _listed(cores: Sequence[int]) -> str:
    return ",".join(map(str, cores))


@dataclass
class PairedRounds:
    """Measures two builds at the same time. ``at`` is the index (0 or 1) of the build on which it works now, so that
    the caller knows which build caused an error.
    """

    context: RunContext
    succeeded: Callable[[], None]
    at: int = 0
    failed: int = 0  # number of successive invalid rounds
    begun: int = field(default=0, init=False)

    def visit_both(self, sides: Sequence[Side], turns: Sequence[Turn]) -> Generator[LabEvent]:
        """Make one visit of both builds: start both servers, and make runs. The visit has all remaining rounds if the
        builder has a server, otherwise one round.

        Raises PairingImpossible, and the errors of ``TimingStudy.run_turn``.
        """
        host = self.context.host
        remove_visit(host)  # removes the data of an interleaved visit, because there is room for two copies only
        with ExitStack() as stack:
            visits: list[Visit] = []
            free_at_first, _ = read_fact(host, MEMORY) or (0, 0)
            for self.at, (system, key) in enumerate(sides):
                if self.at and system.builder.server:
                    check_room_for_second_server(host, free_at_first)
                try:
                    opened = begin_visit(self.context, system, turns[self.at].candidate, key, side=SIDES[self.at])
                    visits.append(stack.enter_context(opened))
                    stack.push(self._before_stop_callback(self.at))
                except (JobLost, DatasetDamaged, ConnectionLost, HostUnreachable):
                    raise
                except EnvironmentFailure as trouble:  # interleaved runs may still succeed
                    raise PairingImpossible(f"two servers cannot run at the same time: {trouble}") from trouble
            for _ in range(turns[0].runs_left if sides[0][0].builder.server else 1):
                yield turns[0].start_event(self.context)
                if facts_of_both := (yield from self._measure_round(visits)):
                    self.failed = 0
                    self.succeeded()
                    for turn, facts in zip(turns, facts_of_both, strict=True):
                        turn.runs_left -= 1
                        yield RunFinished(turn.candidate, facts)
                    yield from self.context.report_output_format()

    def _before_stop_callback(self, side: int) -> Callable[..., None]:
        """A callback that is called before the server of the build ``side`` is stopped, and sets ``at`` to ``side``.
        After a failure, the callback does not change ``at``, which is the build that failed.
        """

        def note(kind: type[BaseException] | None, *_: object) -> None:
            if kind is None:
                self.at = side

        return note

    def _measure_round(self, visits: Sequence[Visit]) -> Generator[RunProgress | Warned, None, list[RunFacts]]:
        """The runs of one round of paired runs; [] if the round is invalid."""
        host, running = self.context.host, dict[int, RunInProgress]()
        self.begun += 1
        order = (0, 1) if self.begun % 2 else (1, 0)  # in turn, because the first start may be an advantage
        folders = [visit.folder for visit in visits]
        host.run(["rm", "-f", "--", *(str(folder / name) for folder in folders for name in MARKERS)])
        try:
            for self.at in order:
                running[self.at] = RunInProgress(visits[self.at], folders[1 - self.at])
            begun = ["timeout", str(BEGUN), "sh", "-c", _GO, "go", *(str(folders[side]) for side in order)]
            if not host.run(begun, timeout=2 * BEGUN, check=False).ok:
                for self.at in (0, 1):
                    if jobs.status(host, running[self.at].job) is not None:  # collect raises the error of this run
                        running[self.at].collect()
                raise PairingImpossible("two runs did not begin at the same time")
            for self.at in (0, 1):
                yield from running[self.at].wait()
            # If a run reached its time limit, the other run, which waited for it, was ended, too. So a run that did not
            # end by itself is collected first: its error is the reason.
            ended = [host.run(["test", "-e", str(folder / "ended")], check=False).ok for folder in folders]
            results: list[RunFacts | None] = [None, None]
            for self.at in sorted((0, 1), key=ended.__getitem__):
                results[self.at] = running[self.at].collect()
        finally:
            for started in running.values():
                jobs.kill(host, started.job, grace_seconds=1)
        both = [replace(facts, round=running[0].job.id) for facts in results if facts]
        why = why_round_invalid(*both) if len(both) == 2 else "perf could not attach to a server"
        if not why:
            return both
        self.failed += 1
        if self.failed >= TRIES:
            raise PairingImpossible(f"{TRIES} successive rounds could not be used: {why}")
        if self.failed == 1:
            yield Warned(f"a round of two builds cannot be used: {why}", "The round is repeated.")
        return []


def why_round_invalid(first: RunFacts, second: RunFacts) -> str:
    """The reason why a round of paired runs is invalid: unequal shares of the cores, or runs that did not overlap; ""
    if the round is valid."""
    beside = min(run.started + run.seconds for run in (first, second)) - max(first.started, second.started)
    if beside < OVERLAP * min(first.seconds, second.seconds):
        return "the two runs did not overlap long enough"
    shares = [run.cores_used for run in (first, second)]
    if sum(shares) > CONTENDED and min(shares) > 0 and max(shares) / min(shares) > UNEVEN:
        return f"one build got {percent(shares[0])} of the time of a core, the other build {percent(shares[1])}"
    return ""


def check_room_for_second_server(host: Host, free_at_first: int) -> None:
    """Raise PairingImpossible if the free memory for a second server is less than the memory that the first server
    uses."""
    now, total = read_fact(host, MEMORY) or (0, 0)
    needed = max(free_at_first - now, 0) + SPARE * total
    if total and now < needed:
        gib = [math.ceil(kib / 1024**2 * 10) / 10 for kib in (needed, now)]
        sizes = f"the second server needs {gib[0]:g} GiB, but {gib[1]:g} GiB are free"
        raise PairingImpossible(f"the memory is too small for two servers: {sizes}")
