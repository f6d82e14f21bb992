"""perf stat around a run, counting exactly the measured window. Pure, but for ``probe``.

perf starts with its counters disabled. The workload's first operation after the warm-up enables them through the
control FIFO and its end disables them again; see workloads/perfbisect.lua.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from perfbisect.core.domain.metrics import METRICS
from perfbisect.errors import EnvironmentFailure
from perfbisect.host.packages import how_to_install, missing
from perfbisect.host.protocol import Host

SOFTWARE = ("task-clock", "context-switches", "cpu-migrations", "page-faults", "minor-faults", "major-faults")
HARDWARE = dict.fromkeys(event for metric in METRICS.values() for event in metric.events if event not in SOFTWARE)
EVENTS = (*HARDWARE, *SOFTWARE)

ALL = 0.995  # perf prints shares in whole percent, and the parts of two kinds of cores are rounded
Counters = Mapping[str, float | None]  # totals; task-clock in milliseconds

# The first two when a process ends before its threads are listed (stat, record), the third when one of these ends after that.
_GONE = re.compile(
    r"Problems finding threads of monitor|Couldn't create thread/CPU maps: No such process|.*sys_perf_event_open\(\) syscall returned with 3\b"
)
_COUNT = re.compile(r"[0-9]{1,30}(\.[0-9]{1,30})?")
# psignal of perf, which ends with 0 when a signal ended its command; only of those that may come from outside
_KILLED = re.compile(r"(sh|sysbench): (Hangup|Interrupt|Killed|Terminated)")
# "cpu_core/instructions/" on a CPU with two kinds of cores, "instructions:u" where the kernel may not be counted
_EVENT = re.compile(r"(?:\w+/([\w.-]+)/\w*|([\w.-]+?)(?::\w+)?)")


def wrap(
    argv: Sequence[str],
    folder: PurePosixPath,
    pids: Iterable[int] = (),
    *,
    whole: bool = False,
    events: Sequence[str] = EVENTS,
) -> list[str]:
    """``argv`` under perf: counts ``pids`` if any are given, otherwise the command itself.

    ``folder`` contains the FIFOs ``control`` and ``ack``, which enable and disable the counters; ``whole`` counts from
    start to end instead. The result is written to ``counters`` there.
    """
    attached = ["-p", ",".join(map(str, pids))] if (pids := tuple(pids)) else []
    controlled = [] if whole else ["--delay=-1", "--control", f"fifo:{folder / 'control'},{folder / 'ack'}"]
    return [
        "perf", "stat", "-x", ",", "-o", str(folder / "counters"), "-e", ",".join(events), *controlled, *attached, "--", *argv,
    ]  # fmt: skip


def parse(text: str) -> dict[str, float | None]:
    """The counters in what ``perf stat -x ,`` wrote; None where an event is not supported or was not counted.

    perf has already extrapolated to the whole time what it counted for a part of it. On a CPU with two kinds of cores it
    does so for each kind, as if all had run there: what was really counted are these numbers weighted by the time on
    each kind.
    """
    return {event: _value(found) for event, found in _counted(text).items()}


def shares(text: str) -> dict[str, float]:
    """The share of the time in which each event was counted, where that is below 1: its counter is extrapolated.

    An event that was never counted has none. The times on two kinds of cores make up one.
    """
    found = {event: min(1.0, sum(part.share for part in parts)) for event, parts in _counted(text).items() if parts}
    return {event: share for event, share in found.items() if share < ALL}


@dataclass(frozen=True, slots=True)
class _Part:
    """A count on one kind of cores."""

    value: float
    nanoseconds: float  # in which it was counted
    share: float  # of the time for which it is extrapolated


def _counted(text: str) -> dict[str, list[_Part]]:
    """Each event with what was counted of it: nothing, or a part for each kind of cores."""
    counted: dict[str, list[_Part]] = {}
    for line in text.splitlines():
        fields = line.split(",")
        match = _EVENT.fullmatch(fields[2]) if len(fields) >= 5 and not line.startswith("#") else None
        if match:
            parts = counted.setdefault(match[1] or match[2], [])
            numbers = [_number(fields[place]) for place in (0, 3, 4)]
            if None not in numbers:
                value, nanoseconds, percent = (number or 0.0 for number in numbers)
                parts.append(_Part(value, nanoseconds, percent / 100))
    return counted


def _value(parts: Sequence[_Part]) -> float | None:
    whole = sum(part.nanoseconds for part in parts)
    if len(parts) > 1 and whole:
        return sum(part.value * part.nanoseconds for part in parts) / whole
    return parts[0].value if parts else None


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
