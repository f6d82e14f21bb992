"""Rounds of paired runs: two builds are measured at the same time on the same cores, so that a disturbance affects both.

Each build has a path, a copy of the data, a server, and a client of its own. Both runs begin at the same moment; the
run that ends first keeps its share of the cores busy until the other has ended. A round does not count, and is
repeated, if the two shares of the cores were not equal, or if the two runs did not overlap. If two builds cannot be
paired, they are interleaved.
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
from perfbisect.lab.measure.visit import RunContext, StartedRun, Turn, Visit, begin_visit
from perfbisect.lab.servers import Installation
from perfbisect.lab.workload.dataset import remove_visit
from perfbisect.recipes.inventory import HostEntry
from perfbisect.wording.quantities import percent

Side = tuple[Installation, str]  # a build, and the key of its data

MARKERS = ("ended", "gone", "shell")  # of the last round
SIDES = ("one", "two")  # folders of the two visits: paths of one length, so that nothing moves
UNEVEN = 1.5  # ratio of the two shares of the cores from which on a round does not count
CONTENDED = 0.8  # cores that the two must use together before one can take the other's share
OVERLAP = 0.8  # share of the shorter run that must overlap the other run
BEGUN = 60  # seconds in which both must be ready to begin
TRIES = 3  # at a round, before builds are interleaved
SPARE = 0.05  # share of the memory that must stay free with both

# Waits until both have begun; ends the wait of both at once. It may be run again if a connection was lost.
_GO = '[ -e "$1/gone" ] || { exec 3>"$1/go" 4>"$2/go"; : >"$1/gone"; exec 3>&- 4>&-; }'
ALLOWED = Fact(("cat", "/proc/self/status"), lambda text: _field(text, "Cpus_allowed_list"))
MEMORY = Fact(("cat", "/proc/meminfo"), lambda text: (_kib(text, "MemAvailable"), _kib(text, "MemTotal")))


def _field(text: str, name: str) -> str | None:
    return next((line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith(f"{name}:")), None)


def _kib(text: str, name: str) -> int:
    return int((_field(text, name) or "0 kB").split()[0])


class PairingImpossible(Exception):
    """Raised if two builds cannot be paired on this host; the message says why."""


def shared_cores(entry: HostEntry, allowed: str, threads: int, *, server: bool) -> HostEntry:
    """The host with the cores that both builds of a round share. The round has as many cores as one build has threads,
    so that both builds use all of the cores.

    If each of the two builds had one core, the builds would be compared on different cores. Servers and clients run on
    separate cores if there is more than one core.
    """
    cores = sorted(cpu_numbers(allowed))
    if not server:
        of_clients = sorted(cpu_numbers(entry.client_cpus or entry.server_cpus or allowed))
        return msgspec.structs.replace(entry, client_cpus=_listed(of_clients[-threads:]))
    of_servers = sorted(cpu_numbers(entry.server_cpus or allowed))
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
    """Measures two builds at the same time; ``at`` is the side that is being handled, so that an error can be assigned
    to a build.
    """

    context: RunContext
    succeeded: Callable[[], None]
    at: int = 0
    failed: int = 0  # rounds in a row that did not count
    begun: int = field(default=0, init=False)

    def visit(self, sides: Sequence[Side], turns: Sequence[Turn]) -> Generator[LabEvent]:
        """One visit of both builds: for servers all remaining rounds, otherwise one round.

        Raises PairingImpossible, and the errors of ``TimingStudy.visit``.
        """
        host = self.context.host
        remove_visit(host)  # the data of an interleaved visit: there is room for two copies at most
        with ExitStack() as stack:
            visits: list[Visit] = []
            free_at_first, _ = read_fact(host, MEMORY) or (0, 0)
            for self.at, (system, key) in enumerate(sides):
                if self.at and system.builder.server:
                    check_room_for_second_server(host, free_at_first)
                try:
                    opened = begin_visit(self.context, system, turns[self.at].candidate, key, side=SIDES[self.at])
                    visits.append(stack.enter_context(opened))
                    stack.push(self._stopping(self.at))
                except (JobLost, DatasetDamaged, ConnectionLost, HostUnreachable):
                    raise
                except EnvironmentFailure as trouble:  # if interleaved runs fail, too, that ends the hunt
                    raise PairingImpossible(f"two servers cannot run at the same time: {trouble}") from trouble
            for _ in range(turns[0].runs_left if sides[0][0].builder.server else 1):
                yield turns[0].started(self.context)
                if facts_of_both := (yield from self._round(visits)):
                    self.failed = 0
                    self.succeeded()
                    for turn, facts in zip(turns, facts_of_both, strict=True):
                        turn.runs_left -= 1
                        yield RunFinished(turn.candidate, facts)
                    yield from self.context.warnings()

    def _stopping(self, side: int) -> Callable[..., None]:
        """A callback that sets ``at`` to the side whose server is being stopped, except after a failure, whose side is
        already known.
        """

        def note(kind: type[BaseException] | None, *_: object) -> None:
            if kind is None:
                self.at = side

        return note

    def _round(self, visits: Sequence[Visit]) -> Generator[RunProgress | Warned, None, list[RunFacts]]:
        """The runs of one round; [] if the round is invalid."""
        host, running = self.context.host, dict[int, StartedRun]()
        self.begun += 1
        order = (0, 1) if self.begun % 2 else (1, 0)  # alternate, so that the first to start has no advantage
        folders = [visit.folder for visit in visits]
        host.run(["rm", "-f", "--", *(str(folder / name) for folder in folders for name in MARKERS)])
        try:
            for self.at in order:
                running[self.at] = StartedRun(visits[self.at], folders[1 - self.at])
            begun = ["timeout", str(BEGUN), "sh", "-c", _GO, "go", *(str(folders[side]) for side in order)]
            if not host.run(begun, timeout=2 * BEGUN, check=False).ok:
                for self.at in (0, 1):
                    if jobs.status(host, running[self.at].job) is not None:  # collect says why
                        running[self.at].collect()
                raise PairingImpossible("two runs did not begin at the same time")
            for self.at in (0, 1):
                yield from running[self.at].wait()
            # If a run was ended at its limit, the other run, which waits for it, was ended for that reason as well.
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


def why_round_invalid(first: RunFacts, two: RunFacts) -> str:
    """The reason why a round is invalid; "" if the round is valid."""
    beside = min(run.started + run.seconds for run in (first, two)) - max(first.started, two.started)
    if beside < OVERLAP * min(first.seconds, two.seconds):
        return "the two runs did not overlap long enough"
    shares = [run.cores_used for run in (first, two)]
    if sum(shares) > CONTENDED and min(shares) > 0 and max(shares) / min(shares) > UNEVEN:
        return f"one build got {percent(shares[0])} of the time of a core, the other build {percent(shares[1])}"
    return ""


def check_room_for_second_server(host: Host, free_at_first: int) -> None:
    """Raise PairingImpossible if a second server would find less memory than the first server has taken."""
    now, total = read_fact(host, MEMORY) or (0, 0)
    needed = max(free_at_first - now, 0) + SPARE * total
    if total and now < needed:
        gib = [math.ceil(kib / 1024**2 * 10) / 10 for kib in (needed, now)]
        sizes = f"the second server needs {gib[0]:g} GiB, but {gib[1]:g} GiB are free"
        raise PairingImpossible(f"the memory is too small for two servers: {sizes}")
