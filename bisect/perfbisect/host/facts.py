"""Reads facts about a host: hardware, settings and other properties. Each fact is a command, and a pure function (a
parser) that parses the output of the command.

A parser returns None if the output does not contain the fact.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Generic, TypeVar

from perfbisect.core.domain.facts import HostFacts
from perfbisect.errors import EnvironmentFailure
from perfbisect.host.packages import system_family
from perfbisect.host.protocol import Host

FULL = 32 << 20  # bytes of free space, below which a disk counts as full

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Fact(Generic[T_co]):
    """A property of a host: the command ``argv`` that shows the property, and the function ``read`` that parses the
    command's stdout. ``read`` returns None if the stdout does not contain the property."""

    argv: tuple[str, ...]
    read: Callable[[str], T_co | None]


def fact_from_command(*argv: str) -> Callable[[Callable[[str], T | None]], Fact[T]]:
    """A decorator that turns a function into a Fact; the function parses the stdout of the command ``argv``."""
    return lambda read: Fact(argv, read)


def read_fact(host: Host, fact: Fact[T]) -> T | None:
    """The value of a fact; None if the host cannot tell it, because a program or a file is missing, or because the
    output does not contain the value."""
    try:
        answer = host.run(fact.argv, check=False)
    except EnvironmentFailure:
        return None
    return fact.read(answer.stdout) if answer.ok else None


@dataclass(frozen=True, slots=True)
class FactAnswers:
    """The outputs of the commands of many facts."""

    outputs: Mapping[tuple[str, ...], str]  # argv → stdout; without commands that failed

    def get(self, fact: Fact[T]) -> T | None:
        """The value of a fact; None if the output does not contain the value."""
        output = self.outputs.get(fact.argv)
        return None if output is None else fact.read(output)


# Prints for each command its status and its output, separated by form feeds.
_ALL = """\
for command do said=$(sh -c "$command" 2>/dev/null </dev/null); printf '%s\\f%s\\f' "$?" "$said"; done"""


def read_facts(host: Host, facts: Iterable[Fact[object]]) -> FactAnswers:
    """The outputs of the commands of many facts. A single script runs all commands, to save round trips to the host."""
    commands = list(dict.fromkeys(fact.argv for fact in facts))
    parts = host.script(_ALL, *map(shlex.join, commands), timeout=120).stdout.split("\f")
    return FactAnswers(
        {argv: output for argv, status, output in zip(commands, parts[::2], parts[1::2], strict=False) if status == "0"}
    )


def cpu_numbers(cpus: str) -> frozenset[int]:
    """The numbers of the CPUs in a list for taskset, such as ``0-3,8``, or ``0-14:2`` for every second CPU."""
    numbers: set[int] = set()
    for part in cpus.split(","):
        ends, _, stride = part.partition(":")
        first, _, last = ends.partition("-")
        numbers.update(range(int(first), int(last or first) + 1, int(stride or 1)))
    return frozenset(numbers)


def first_line(text: str) -> str | None:
    """The first line of ``text``; None if it is empty."""
    return text.strip().partition("\n")[0].strip() or None


def _integer(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _parser_of_first_group(pattern: str, convert: Callable[[str], T]) -> Callable[[str], T | None]:
    """A parser that searches for ``pattern``, and returns the first group of the match, converted by ``convert``."""

    def read(text: str) -> T | None:
        match = re.search(pattern, text, re.MULTILINE)
        return convert(match[1]) if match else None

    return read


def _lookup_parser(**value_by_output: T) -> Callable[[str], T | None]:
    """A parser that returns the value of ``value_by_output`` for the output; None if the output is not a key."""
    return lambda text: value_by_output.get(text.strip())


def _lscpu_fact(field: str, convert: Callable[[str], T | None]) -> Fact[T]:
    """A fact that is the value of a field in the output of ``lscpu -J``. Most versions of lscpu print a flat list of
    fields; some versions print a nested list."""

    def read(text: str) -> T | None:
        try:
            pending = json.loads(text)["lscpu"]
        except ValueError:
            return None
        for entry in pending:  # the list grows in the loop
            if entry["field"] == f"{field}:":
                return convert(entry["data"]) if entry["data"] else None
            pending += entry.get("children", ())
        return None

    return Fact(("lscpu", "-J"), read)


def _shell_argv(script: str, *arguments: str) -> tuple[str, ...]:
    return ("sh", "-c", script, *arguments)


_CPUS = "/sys/devices/system/cpu"
_TURBO = f"""\
if [ -r {_CPUS}/intel_pstate/no_turbo ]; then echo "no_turbo $(cat {_CPUS}/intel_pstate/no_turbo)"
else echo "boost $(cat {_CPUS}/cpufreq/boost)"; fi"""
_REFLINKS = """\
d=$(mktemp -d "$1/reflink.XXXXXX") || exit 1; trap 'rm -rf "$d"' EXIT; echo x >"$d/a"
cp --reflink=always "$d/a" "$d/b" 2>/dev/null && echo yes || echo no"""


@fact_from_command(*_shell_argv(f"grep -H . {_CPUS}/vulnerabilities/*"))
def MITIGATIONS(listing: str) -> str | None:
    """The kernel's mitigations of vulnerabilities that affect the processor."""
    rows = (line.rpartition("/")[2].partition(":") for line in listing.splitlines())
    states = [(name, state.strip()) for name, _, state in rows if state.strip()]
    affected = [f"{name} {state}" for name, state in states if state != "Not affected"]
    return ("; ".join(affected) or "none needed") if states else None


@fact_from_command("cat", "/proc/swaps")
def SWAP_TOTAL_AND_USED_MIB(swaps: str) -> tuple[int, int] | None:
    """A pair: the MiB of all swap space, and the MiB of swap space in use."""
    if not swaps.startswith("Filename"):
        return None
    sizes = re.findall(r"^\S+\s+\w+\s+(\d+)\s+(\d+)\s+-?\d+\s*$", swaps, re.MULTILINE)
    return sum(int(size) for size, _ in sizes) // 1024, sum(int(used) for _, used in sizes) // 1024


@fact_from_command("cat", "/proc/stat")
def STEAL_SHARE(stat: str) -> float | None:
    """The share of the processors' busy time since boot that the hypervisor gave to other virtual machines."""
    match = re.search(r"^cpu +((?:\d+ ?)+)", stat)
    ticks = [int(word) for word in match[1].split()] if match else []
    if len(ticks) < 8:
        return None
    busy = sum(ticks[:3]) + sum(ticks[5:8])  # all except idle and waiting for a disk
    return ticks[7] / busy if busy else 0.0


@fact_from_command(*_shell_argv("cat /proc/net/tcp /proc/net/tcp6"))
def LISTENING_PORTS(tables: str) -> frozenset[int] | None:
    """The numbers of the TCP ports on which any program of the host listens."""
    rows = (line.split() for line in tables.splitlines())
    # The fourth column is the state; 0A is LISTEN.
    return frozenset(
        int(row[1].rpartition(":")[2], 16) for row in rows if len(row) > 3 and ":" in row[1] and row[3] == "0A"
    )


@fact_from_command("lscpu", "-J")
def PROCESSOR_MODEL(lscpu: str) -> str | None:
    """The name of the processor, with its family and model numbers. The numbers are necessary because in virtual
    machines different processors can have the same name."""
    name, family, model = CPU.read(lscpu), _FAMILY.read(lscpu), _MODEL.read(lscpu)
    numbers = ", ".join(filter(None, (family and f"cpu family {family}", model and f"model {model}")))
    return f"{name} ({numbers})" if name and numbers else name


CPU = _lscpu_fact("Model name", str)
_FAMILY, _MODEL = _lscpu_fact("CPU family", str), _lscpu_fact("Model", str)
ONLINE = _lscpu_fact("On-line CPU(s) list", cpu_numbers)  # numbers of logical processors
CORES = _lscpu_fact("On-line CPU(s) list", lambda cpus: len(cpu_numbers(cpus)))
NODES = _lscpu_fact("NUMA node(s)", _integer)
THREADS = _lscpu_fact("Thread(s) per core", _integer)  # hardware threads that share a core
HYPERVISOR = _lscpu_fact("Hypervisor vendor", str)  # None for a physical machine
MEMORY_MIB = Fact(
    ("cat", "/proc/meminfo"), _parser_of_first_group(r"^MemTotal:\s+(\d+) kB", lambda kib: int(kib) // 1024)
)
LOAD = Fact(("cat", "/proc/loadavg"), _parser_of_first_group(r"^\s*([\d.]+)", float))  # load average over one minute
KERNEL = Fact(("uname", "-r"), first_line)
BOOT = Fact(("cat", "/proc/sys/kernel/random/boot_id"), first_line)
COMPILER = Fact(("gcc", "--version"), first_line)
_VERSION = _parser_of_first_group(r"(\d+(?:\.\d+)+[\w.+~-]*)", str)
TOOLS = {tool: Fact((tool, "--version"), _VERSION) for tool in ("git", "ccache", "sysbench", "perf", "taskset")}
SETTINGS = {
    "governor": Fact(
        _shell_argv(f"cat {_CPUS}/cpu[0-9]*/cpufreq/scaling_governor"),
        lambda text: "/".join(dict.fromkeys(text.split())) or None,
    ),
    # ``no_turbo`` of Intel's driver is the opposite of ``boost`` of other drivers.
    "turbo": Fact(
        _shell_argv(_TURBO),
        _lookup_parser(**{"no_turbo 0": "on", "no_turbo 1": "off", "boost 1": "on", "boost 0": "off"}),
    ),
    "smt": Fact(("cat", f"{_CPUS}/smt/control"), _lookup_parser(on="on", off="off", forceoff="forceoff")),
    "aslr": Fact(("cat", "/proc/sys/kernel/randomize_va_space"), _lookup_parser(**{"0": "off", "1": "on", "2": "on"})),
    "huge pages": Fact(
        ("cat", "/sys/kernel/mm/transparent_hugepage/enabled"), _parser_of_first_group(r"\[([^]]+)\]", str)
    ),
    "microcode": Fact(
        ("grep", "-m1", "^microcode", "/proc/cpuinfo"), _parser_of_first_group(r"^microcode\s*:\s*(\S+)", str)
    ),
    "mitigations": MITIGATIONS,
}
DEB_SRC = Fact(_shell_argv("grep -rhsE '^(deb-src |Types:.*deb-src)' /etc/apt | head -n 1"), first_line)
SYSTEM = Fact(("cat", "/etc/os-release"), system_family)
THROTTLED = Fact(
    _shell_argv(f"cat {_CPUS}/cpu*/thermal_throttle/core_throttle_count"),
    lambda counts: sum(map(int, counts.split())) if counts.strip() else None,
)
TURBO_SWITCH = Fact(_shell_argv(f"ls {_CPUS}/intel_pstate/no_turbo {_CPUS}/cpufreq/boost | head -n 1"), first_line)
CLOCK_SOURCE = Fact(("cat", "/sys/devices/system/clocksource/clocksource0/current_clocksource"), first_line)
SYNCHRONISED = Fact(  # whether a time server synchronises the clock
    ("timedatectl", "show", "--property=NTPSynchronized"),
    _lookup_parser(**{"NTPSynchronized=yes": True, "NTPSynchronized=no": False}),
)
TIME = Fact(("date", "+%s.%N"), _parser_of_first_group(r"^(\d+(?:\.\d*)?)$", float))  # seconds since the epoch
DRIVERS = Fact(  # the databases for which sysbench was compiled
    ("sysbench", "--help"),
    _parser_of_first_group(
        r"^Compiled-in database drivers:\n((?:  \w+ - .*\n)*)",
        lambda block: frozenset(re.findall(r"^  (\w+) - ", block, re.MULTILINE)),
    ),
)


def free_bytes_fact(path: PurePosixPath) -> Fact[int]:
    """The number of bytes that are available to the user on the file system of ``path``."""
    return Fact(("df", "-B1", "--output=avail", "--", str(path)), _parser_of_first_group(r"^\s*(\d+)\s*$", int))


def file_system_fact(host: Host) -> Fact[str]:
    """The type and the size of the file system of the root folder, such as ``ext4, 252 GiB``."""

    def read(df: str) -> str | None:
        words = df.split()[2:]  # the words after the header
        return f"{words[0]}, {int(words[1]) >> 30} GiB" if len(words) == 2 and words[1].isdecimal() else None

    return Fact(("df", "-B1", "--output=fstype,size", "--", str(host.root)), read)


def reflink_fact(host: Host) -> Fact[str]:
    """ "yes" if the file system of the root folder can copy a file without copying its blocks (reflink), otherwise
    "no"."""
    return Fact(_shell_argv(_REFLINKS, "reflink", str(host.root)), first_line)


def free_bytes(host: Host) -> int | None:
    """The number of bytes that are available to the user on the file system of the root folder; None if unknown."""
    return read_fact(host, free_bytes_fact(host.root))


def is_disk_nearly_full(host: Host) -> bool:
    """Whether the disk of the root folder is nearly full; a failure is then probably caused by the full disk, not by
    the commit."""
    available = free_bytes(host)
    return available is not None and available < FULL


def fingerprint_facts(host: Host) -> tuple[Fact[object], ...]:
    """The facts of a fingerprint."""
    return (CPU, CORES, MEMORY_MIB, KERNEL, COMPILER, file_system_fact(host), *TOOLS.values(), *SETTINGS.values())


def read_fingerprint(host: Host, answers: FactAnswers) -> HostFacts:
    """The fingerprint of a host (its hardware, system and settings), from the values of ``fingerprint_facts``.
    Measurements can be compared only if their hosts have equal fingerprints."""
    tools = {tool: answers.get(fact) for tool, fact in TOOLS.items()}
    settings = {setting: answers.get(fact) for setting, fact in {**SETTINGS, "disk": file_system_fact(host)}.items()}
    return HostFacts(
        name=host.name,
        cpu=answers.get(CPU) or "unknown",
        cores=answers.get(CORES) or 0,
        memory_mib=answers.get(MEMORY_MIB) or 0,
        kernel=answers.get(KERNEL) or "unknown",
        compiler=answers.get(COMPILER) or "",
        tools={tool: version for tool, version in tools.items() if version},
        settings={setting: value for setting, value in ({"node": host.node} | settings).items() if value},
    )
