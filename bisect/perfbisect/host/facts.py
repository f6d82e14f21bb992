"""Hardware and settings of a host, and what else varies there: each fact is a command and a pure parser of its output."""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Generic, TypeVar

from perfbisect.core.domain.facts import HostFacts
from perfbisect.errors import EnvironmentFailure
from perfbisect.host.packages import read_system
from perfbisect.host.protocol import Host

FULL = 32 << 20  # bytes

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Fact(Generic[T_co]):
    """``read`` gets the stdout of ``argv``; it returns None where that contains no answer."""

    argv: tuple[str, ...]
    read: Callable[[str], T_co | None]


def ask(host: Host, fact: Fact[T]) -> T | None:
    """The fact, or None where the host has no answer: a missing program or file, or output without it."""
    try:
        answer = host.run(fact.argv, env={"LC_ALL": "C"}, check=False)
    except EnvironmentFailure:
        return None
    return fact.read(answer.stdout) if answer.ok else None


@dataclass(frozen=True, slots=True)
class Answers:
    """The outputs of the commands of many facts."""

    outputs: Mapping[tuple[str, ...], str]  # argv → stdout; without commands that failed

    def get(self, fact: Fact[T]) -> T | None:
        """The fact, or None where the host has no answer."""
        output = self.outputs.get(fact.argv)
        return None if output is None else fact.read(output)


def ask_all(host: Host, facts: Iterable[Fact[object]]) -> Answers:
    """Many facts in one command, for a single round trip."""
    commands = list(dict.fromkeys(fact.argv for fact in facts))
    script = host.run(["sh", "-c", _ALL, "facts", *map(shlex.join, commands)], env={"LC_ALL": "C"}, timeout=120)
    parts = script.stdout.split("\f")
    return Answers(
        {argv: output for argv, status, output in zip(commands, parts[::2], parts[1::2], strict=False) if status == "0"}
    )


def fingerprint(host: Host) -> HostFacts:
    """Everything that decides whether two measurements on a host can be compared."""
    return read_fingerprint(host, ask_all(host, fingerprint_facts(host)))


def fingerprint_facts(host: Host) -> tuple[Fact[object], ...]:
    """The facts of a fingerprint."""
    return (CPU, CORES, MEMORY_MIB, KERNEL, COMPILER, disk(host), *TOOLS.values(), *SETTINGS.values())


def read_fingerprint(host: Host, answers: Answers) -> HostFacts:
    """The fingerprint from the answers to its facts."""
    tools = {tool: answers.get(fact) for tool, fact in TOOLS.items()}
    settings = {setting: answers.get(fact) for setting, fact in {**SETTINGS, "disk": disk(host)}.items()}
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


def free_bytes(host: Host, path: PurePosixPath | None = None) -> int | None:
    """Bytes available to the user on the file system of ``path`` (the root folder when not given)."""
    return ask(host, free(path or host.root))


def is_full(host: Host) -> bool:
    """Whether the disk of the root folder is so full that a failure there is not a commit's fault."""
    free = free_bytes(host)
    return free is not None and free < FULL


def read_cpu(lscpu: str) -> str | None:
    """The model of the processor."""
    return lscpu_field("Model name", lscpu)


def read_processor(lscpu: str) -> str | None:
    """The model of the processor with its numbers: in virtual machines, several have the same name."""
    numbers = [f"{field.lower()} {value}" for field in ("CPU family", "Model") if (value := lscpu_field(field, lscpu))]
    name = read_cpu(lscpu)
    return f"{name} ({', '.join(numbers)})" if name and numbers else name


def read_cores(lscpu: str) -> int | None:
    """Number of logical processors that are on line."""
    online = read_online(lscpu)
    return len(online) if online else None


def read_online(lscpu: str) -> frozenset[int] | None:
    """The numbers of the logical processors that are on line."""
    listed = lscpu_field("On-line CPU(s) list", lscpu)
    return cpu_numbers(listed) if listed else None


def cpu_numbers(cpus: str) -> frozenset[int]:
    """The CPUs of a list as taskset takes it: ``0-3,8`` or, every second one, ``0-14:2``."""
    numbers: set[int] = set()
    for part in cpus.split(","):
        ends, _, stride = part.partition(":")
        first, _, last = ends.partition("-")
        numbers.update(range(int(first), int(last or first) + 1, int(stride or 1)))
    return frozenset(numbers)


def read_memory(meminfo: str) -> int | None:
    """Memory in MiB."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", meminfo, re.MULTILINE)
    return int(found[1]) // 1024 if found else None


def read_line(text: str) -> str | None:
    """The first line."""
    return text.strip().partition("\n")[0].strip() or None


def read_version(text: str) -> str | None:
    """The first version number: ``git version 2.39.5`` → ``2.39.5``."""
    found = re.search(r"\d+(?:\.\d+)+[\w.+~-]*", text)
    return found[0] if found else None


def read_words(text: str) -> str | None:
    """Each different word once: a single word when all CPUs agree."""
    return "/".join(dict.fromkeys(text.split())) or None


def read_chosen(text: str) -> str | None:
    """The word in brackets: ``always [madvise] never`` → ``madvise``."""
    found = re.search(r"\[([^]]+)\]", text)
    return found[1] if found else None


def read_mitigations(listing: str) -> str | None:
    """The kernel's mitigations of the processor's vulnerabilities, without those that do not affect it."""
    found = (line.rpartition("/")[2].partition(":") for line in listing.splitlines())
    known = [(name, state.strip()) for name, _, state in found if state.strip()]
    affected = [f"{name} {state}" for name, state in known if state != "Not affected"]
    return ("; ".join(affected) or "none needed") if known else None


def read_microcode(text: str) -> str | None:
    """The revision of the first processor: ``microcode : 0xd0003e7`` → ``0xd0003e7``."""
    found = re.search(r"^microcode\s*:\s*(\S+)", text, re.MULTILINE)
    return found[1] if found else None


def read_disk(df: str) -> str | None:
    """File system and its size: ``ext4, 252 GiB``."""
    words = df.split()[2:]  # after the header
    return f"{words[0]}, {int(words[1]) >> 30} GiB" if len(words) == 2 and words[1].isdecimal() else None


def read_load(loadavg: str) -> float | None:
    """The average over one minute."""
    words = loadavg.split()
    return float(words[0]) if words else None


def read_free(df: str) -> int | None:
    """Bytes available."""
    words = df.split()[1:]  # after the header
    return int(words[0]) if len(words) == 1 and words[0].isdecimal() else None


def lscpu_field(name: str, lscpu: str) -> str | None:
    """A field of what ``lscpu -J`` printed: a flat list in most versions of util-linux, nested in some."""
    try:
        pending = json.loads(lscpu)["lscpu"]
    except ValueError:
        return None
    for entry in pending:  # grows as it goes
        if entry["field"] == f"{name}:":
            return entry["data"] or None
        pending += entry.get("children", ())
    return None


def _turbo(text: str) -> str | None:
    """``no_turbo 0`` of Intel's driver and ``boost 1`` of the others both mean on."""
    return {"no_turbo 0": "on", "no_turbo 1": "off", "boost 1": "on", "boost 0": "off"}.get(text.strip())


def _aslr(text: str) -> str | None:
    return {"0": "off", "1": "on", "2": "on"}.get(text.strip())


def _smt(text: str) -> str | None:
    value = text.strip()
    return value if value in ("on", "off", "forceoff") else None


# For each command its status and what it printed, form feeds between them.
_ALL = """\
for command do said=$(sh -c "$command" 2>/dev/null </dev/null); printf '%s\\f%s\\f' "$?" "$said"; done"""

_CPUS = "/sys/devices/system/cpu"
_TURBO = f"""\
if [ -r {_CPUS}/intel_pstate/no_turbo ]; then echo "no_turbo $(cat {_CPUS}/intel_pstate/no_turbo)"
else echo "boost $(cat {_CPUS}/cpufreq/boost)"; fi"""

LSCPU = ("lscpu", "-J")
CPU = Fact(LSCPU, read_cpu)
PROCESSOR = Fact(LSCPU, read_processor)
CORES = Fact(LSCPU, read_cores)
ONLINE = Fact(LSCPU, read_online)
MEMORY_MIB = Fact(("cat", "/proc/meminfo"), read_memory)
LOAD = Fact(("cat", "/proc/loadavg"), read_load)
KERNEL = Fact(("uname", "-r"), read_line)
BOOT = Fact(("cat", "/proc/sys/kernel/random/boot_id"), read_line)
COMPILER = Fact(("gcc", "--version"), read_line)
TOOLS = {tool: Fact((tool, "--version"), read_version) for tool in ("git", "ccache", "sysbench", "perf", "taskset")}
SETTINGS = {
    "governor": Fact(("sh", "-c", f"cat {_CPUS}/cpu[0-9]*/cpufreq/scaling_governor"), read_words),
    "turbo": Fact(("sh", "-c", _TURBO), _turbo),
    "smt": Fact(("cat", f"{_CPUS}/smt/control"), _smt),
    "aslr": Fact(("cat", "/proc/sys/kernel/randomize_va_space"), _aslr),
    "huge pages": Fact(("cat", "/sys/kernel/mm/transparent_hugepage/enabled"), read_chosen),
    "microcode": Fact(("grep", "-m1", "^microcode", "/proc/cpuinfo"), read_microcode),
    "mitigations": Fact(("sh", "-c", f"grep -H . {_CPUS}/vulnerabilities/*"), read_mitigations),
}


def free(path: PurePosixPath) -> Fact[int]:
    """Bytes available to the user on the file system of ``path``."""
    return Fact(("df", "-B1", "--output=avail", "--", str(path)), read_free)


def disk(host: Host) -> Fact[str]:
    """The file system of the root folder."""
    return Fact(("df", "-B1", "--output=fstype,size", "--", str(host.root)), read_disk)


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
