"""perf stat around a run, counting exactly the measured window. Pure, but for ``probe``.

perf starts with its counters disabled. The workload's first operation after the warm-up enables them through the
control FIFO and its end disables them again; see workloads/perfbisect.lua.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from perfbisect.core.domain.metrics import METRICS
from perfbisect.errors import EnvironmentFailure
from perfbisect.host.packages import how_to_install
from perfbisect.host.programs import missing
from perfbisect.host.protocol import Host

SOFTWARE = ("task-clock", "context-switches", "cpu-migrations", "page-faults", "minor-faults", "major-faults")
HARDWARE = dict.fromkeys(event for metric in METRICS.values() for event in metric.events if event not in SOFTWARE)
EVENTS = (*HARDWARE, *SOFTWARE)

Counters = Mapping[str, float | None]  # totals; task-clock in milliseconds

# The first when a process ends before its threads are listed, the second when one of these threads ends after that.
_GONE = re.compile(r"Problems finding threads of monitor|.*sys_perf_event_open\(\) syscall returned with 3\b")
_COUNT = re.compile(r"[0-9]{1,30}(\.[0-9]{1,30})?")
# psignal of perf, which ends with 0 when a signal ended its command; only of those that may come from outside
_KILLED = re.compile(r"(sh|sysbench): (Hangup|Interrupt|Killed|Terminated)")
# "cpu_core/instructions/" on a CPU with two kinds of cores, "instructions:u" where the kernel may not be counted
_EVENT = re.compile(r"(?:\w+/)?([\w-]+)/?(?::\w+)?")


def wrap(argv: Sequence[str], folder: PurePosixPath, pids: Iterable[int] = (), *, whole: bool = False) -> list[str]:
    """``argv`` under perf: counts ``pids`` if any are given, otherwise the command itself.

    ``folder`` contains the FIFOs ``control`` and ``ack``, which enable and disable the counters; ``whole`` counts from
    start to end instead. The result is written to ``counters`` there.
    """
    attached = ["-p", ",".join(map(str, pids))] if (pids := tuple(pids)) else []
    controlled = [] if whole else ["--delay=-1", "--control", f"fifo:{folder / 'control'},{folder / 'ack'}"]
    return [
        "perf", "stat", "-x", ",", "-o", str(folder / "counters"), "-e", ",".join(EVENTS), *controlled, *attached, "--", *argv,
    ]  # fmt: skip


def parse(text: str) -> dict[str, float | None]:
    """The counters in what ``perf stat -x ,`` wrote; None where an event is not supported or was not counted.

    perf has already extrapolated what it counted for a part of the time. Counts of one event on two kinds of cores are
    added.
    """
    counters: dict[str, float | None] = {}
    for line in text.splitlines():
        fields = line.split(",")
        match = _EVENT.fullmatch(fields[2]) if len(fields) >= 5 and not line.startswith("#") else None
        if match:
            value = _number(fields[0])
            before = counters.get(match[1])
            counters[match[1]] = before if value is None else value + (before or 0.0)
    return counters


def missed(output: Iterable[str]) -> bool:
    """Whether perf ended at once, because a process or thread to count had ended."""
    return any(_GONE.match(line) for line in output)


def killed(errors: Iterable[str]) -> bool:
    """Whether perf reports that a signal ended the command that it started: its own status is 0 then."""
    return any(_KILLED.fullmatch(line) for line in errors)


def _number(text: str) -> float | None:
    return float(text) if _COUNT.fullmatch(text) else None  # <not supported>, <not counted>


def probe(host: Host) -> Counters:
    """What perf can count on the host, from a trial of all events. Raises EnvironmentFailure when it cannot count."""
    if missing(host, ["perf"]):
        raise EnvironmentFailure(f"perf is not installed on host {host.name}", how_to_install(["perf"]))
    trial = host.run(["perf", "stat", "-x", ",", "-e", ",".join(EVENTS), "--", "true"], check=False)
    counters = parse(trial.stderr)
    if counters.get("task-clock") is None:
        raise EnvironmentFailure(refusal(host.name, trial.stderr), "Allow it with: sysctl kernel.perf_event_paranoid=1")
    return counters


def counts(host: Host) -> bool:
    """Whether perf can count there."""
    try:
        return bool(probe(host))
    except EnvironmentFailure:
        return False


def refusal(host: str, output: str) -> str:
    """The sentence for a perf that counts nothing."""
    if "paranoid" in output or "ermission" in output:
        return f"perf is not permitted on host {host}"
    lines = output.strip().splitlines()
    return f"perf does not work on host {host}: {lines[0] if lines else 'it printed nothing'}"
