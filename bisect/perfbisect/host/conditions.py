"""Sources of variation that are not part of a host's fingerprint: each is a command and a pure parser."""

import re

from perfbisect.host.facts import LSCPU, Fact, lscpu_field, read_line
from perfbisect.host.packages import read_system
from perfbisect.host.protocol import Host

_CPUS = "/sys/devices/system/cpu"


def read_swap(swaps: str) -> tuple[int, int] | None:
    """MiB of swap and MiB of it in use, from /proc/swaps."""
    sizes = re.findall(r"^\S+\s+\w+\s+(\d+)\s+(\d+)\s+-?\d+\s*$", swaps, re.MULTILINE)
    if not swaps.startswith("Filename"):
        return None
    return sum(int(size) for size, _ in sizes) // 1024, sum(int(used) for _, used in sizes) // 1024


def read_nodes(lscpu: str) -> int | None:
    """Number of NUMA nodes."""
    return _number("NUMA node(s)", lscpu)


def read_hypervisor(lscpu: str) -> str | None:
    """The hypervisor of a virtual machine; None for a physical one."""
    return lscpu_field("Hypervisor vendor", lscpu)


def read_threads(lscpu: str) -> int | None:
    """Hardware threads that share a core."""
    return _number("Thread(s) per core", lscpu)


def _number(name: str, lscpu: str) -> int | None:
    value = lscpu_field(name, lscpu)
    return int(value) if value and value.isdecimal() else None


def read_steal(stat: str) -> float | None:
    """Share of the processors' busy time since boot that the hypervisor gave to other machines, from /proc/stat."""
    found = re.search(r"^cpu +((?:\d+ ?)+)", stat)
    ticks = [int(word) for word in found[1].split()] if found else []
    if len(ticks) < 8:
        return None
    busy = sum(ticks[:3]) + sum(ticks[5:8])  # all but idle and waiting for a disk
    return ticks[7] / busy if busy else 0.0


def read_sum(text: str) -> int | None:
    """The sum of the numbers, one a line; None where there are none."""
    numbers = [int(line) for line in text.split() if line.isdecimal()]
    return sum(numbers) if numbers else None


def read_synchronised(text: str) -> bool | None:
    """Whether the clock follows a time server, from ``NTPSynchronized=yes``."""
    return {"NTPSynchronized=yes": True, "NTPSynchronized=no": False}.get(text.strip())


def read_seconds(text: str) -> float | None:
    """A number of seconds, such as date prints."""
    try:
        return float(text)
    except ValueError:
        return None


def read_ports(tables: str) -> frozenset[int] | None:
    """The TCP ports that are listened on, from /proc/net/tcp and tcp6."""
    rows = (line.split() for line in tables.splitlines())
    # Fourth comes the state, and 0A is LISTEN.
    return frozenset(
        int(row[1].rpartition(":")[2], 16) for row in rows if len(row) > 3 and ":" in row[1] and row[3] == "0A"
    )


def read_drivers(text: str) -> frozenset[str] | None:
    """The databases that sysbench was compiled for, from its help."""
    block = re.search(r"^Compiled-in database drivers:\n((?:  \w+ - .*\n)*)", text, re.MULTILINE)
    return frozenset(re.findall(r"^  (\w+) - ", block[1], re.MULTILINE)) if block else None


DEB_SRC = Fact(("sh", "-c", "grep -rhsE '^(deb-src |Types:.*deb-src)' /etc/apt | head -n 1"), read_line)
SYSTEM = Fact(("cat", "/etc/os-release"), read_system)
SWAP = Fact(("cat", "/proc/swaps"), read_swap)
NODES = Fact(LSCPU, read_nodes)
HYPERVISOR = Fact(LSCPU, read_hypervisor)
THREADS = Fact(LSCPU, read_threads)
STEAL = Fact(("cat", "/proc/stat"), read_steal)
THROTTLED = Fact(("sh", "-c", f"cat {_CPUS}/cpu*/thermal_throttle/core_throttle_count"), read_sum)
TURBO_SWITCH = Fact(("sh", "-c", f"ls {_CPUS}/intel_pstate/no_turbo {_CPUS}/cpufreq/boost | head -n 1"), read_line)
CLOCK_SOURCE = Fact(("cat", "/sys/devices/system/clocksource/clocksource0/current_clocksource"), read_line)
SYNCHRONISED = Fact(("timedatectl", "show", "--property=NTPSynchronized"), read_synchronised)
TIME = Fact(("date", "+%s.%N"), read_seconds)
PORTS = Fact(("sh", "-c", "cat /proc/net/tcp /proc/net/tcp6"), read_ports)
DRIVERS = Fact(("sysbench", "--help"), read_drivers)


def reflinks(host: Host) -> Fact[str]:
    """Whether a file below the root folder can be copied without copying its blocks: "yes" or "no"."""
    script = 'd=$(mktemp -d "$1/reflink.XXXXXX") || exit 1; trap \'rm -rf "$d"\' EXIT; echo x >"$d/a"; \
cp --reflink=always "$d/a" "$d/b" 2>/dev/null && echo yes || echo no'
    return Fact(("sh", "-c", script, "reflink", str(host.root)), read_line)
