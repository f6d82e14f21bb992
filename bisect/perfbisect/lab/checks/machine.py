"""Is a machine fit to measure on: its processors, what else uses it, its clock, its counters, its memory and disk?

A metric that cannot be counted is refused.
"""

import time
from collections.abc import Iterator, Sequence

from perfbisect.core.domain.metrics import INSTRUCTIONS, find_metric
from perfbisect.errors import EnvironmentFailure
from perfbisect.host import jobs, lock
from perfbisect.host.facts import (
    CLOCK_SOURCE,
    CORES,
    HYPERVISOR,
    LOAD,
    NODES,
    PORTS,
    SETTINGS,
    STEAL,
    SWAP,
    SYNCHRONISED,
    THREADS,
    THROTTLED,
    TIME,
    TURBO_SWITCH,
    ask,
    disk,
    free,
    reflinks,
)
from perfbisect.host.packages import how_to_install, missing
from perfbisect.lab.checks.finding import CheckRequest, Finding, Inspection, Level
from perfbisect.lab.measure import counting, perf, sampling
from perfbisect.lab.server.service import FIRST_PORT

STOLEN = 0.01  # share of the time that other machines took, from which on measurements suffer


def clock_speed(inspection: Inspection) -> Iterator[Finding]:
    """Governor, turbo and heat."""
    governor = inspection.answers.get(SETTINGS["governor"])
    if governor in (None, "performance"):
        state = "is performance" if governor else "is unknown: the host does not let its clock be set"
        yield Finding(Level.OK, "governor", f"the CPU governor {state}")
    else:
        yield Finding(
            Level.WARNING,
            "governor",
            f"the CPU governor of host {inspection.name} is {governor}: its clock follows the load",
            "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
        )
    if inspection.answers.get(SETTINGS["turbo"]) == "on":
        switch = inspection.answers.get(TURBO_SWITCH) or "/sys/devices/system/cpu/intel_pstate/no_turbo"
        yield Finding(
            Level.WARNING,
            "turbo",
            f"turbo is on on host {inspection.name}: its clock depends on heat and on the other cores",
            f"echo {1 if switch.endswith('no_turbo') else 0} | sudo tee {switch}",
        )
    if throttled := inspection.answers.get(THROTTLED):
        yield Finding(
            Level.NOTE,
            "heat",
            f"the cores of host {inspection.name} were slowed down by heat {throttled:,} times since it was started",
            "Fix its cooling, or lower its clock: sudo cpupower frequency-set --max FREQUENCY",
        )


def sharing(inspection: Inspection) -> Iterator[Finding]:
    """What the cores share with each other and with other machines."""
    threads = inspection.answers.get(THREADS) or 1
    entry = inspection.request.entry
    if threads > 1:
        yield Finding(
            Level.NOTE,
            "smt",
            f"{threads} hardware threads share a core on host {inspection.name}: each is slower while the other works",
            "echo off | sudo tee /sys/devices/system/cpu/smt/control",
        )
    nodes = inspection.answers.get(NODES) or 1
    if nodes > 1 and not (entry.server_cpus or entry.client_cpus):
        yield Finding(
            Level.NOTE,
            "numa",
            f"host {inspection.name} has {nodes} NUMA nodes, and nothing is pinned: speed depends on where a process begins",
            "Give server_cpus and client_cpus in hosts.toml the processors of one node; `lscpu` lists them.",
        )
    if hypervisor := inspection.answers.get(HYPERVISOR):
        yield Finding(
            Level.NOTE,
            "virtual",
            f"host {inspection.name} is a virtual machine ({hypervisor}): neighbours share its caches and its memory",
            "Prefer a physical machine for small changes.",
        )
    if (stolen := inspection.answers.get(STEAL) or 0.0) > STOLEN:
        yield Finding(
            Level.WARNING,
            "steal",
            f"{100 * stolen:.0f} % of the busy time of host {inspection.name} went to other virtual machines since it was started",
            "Ask for dedicated processors, or measure longer: `bisect noise` shows how long.",
        )


def layout(inspection: Inspection) -> Iterator[Finding]:
    """What changes the layout of memory from one run to the next."""
    if inspection.answers.get(SETTINGS["aslr"]) == "on":
        yield Finding(
            Level.NOTE,
            "aslr",
            f"addresses are random for each process on host {inspection.name}: its effect averages out over visits",
            "sudo sysctl kernel.randomize_va_space=0",
        )
    if inspection.answers.get(SETTINGS["huge pages"]) == "always":
        yield Finding(
            Level.NOTE,
            "huge pages",
            f"transparent huge pages are given to every process on host {inspection.name}, while any are free",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        )


BUSY = 0.5  # load average for each core above which measurements suffer
ASTRAY = 2.0  # seconds between its clock and the controller's from which on times in reports mislead
QUICK = frozenset({"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "stp", "tod", "timebase"})
SERVER_PORTS = range(FIRST_PORT, FIRST_PORT + 10)  # where servers of hunts listen


def load(inspection: Inspection) -> Iterator[Finding]:
    """Do other programs run there?"""
    average, cores = inspection.answers.get(LOAD), inspection.answers.get(CORES)
    if average is None or not cores:
        return
    if average > BUSY * cores:
        yield Finding(
            Level.WARNING,
            "load",
            f"host {inspection.name} is busy: its load average is {average:.1f} on {cores} cores",
            "Find what runs there with `top`, and stop it.",
        )
    else:
        yield Finding(Level.OK, "load", f"the load average is {average:.1f} on {cores} cores")


def others(inspection: Inspection) -> Iterator[Finding]:
    """The owner of the host's lock, and what an earlier hunt may have left running."""
    host = inspection.request.host
    if owner := lock.holder(host):
        yield Finding(
            Level.WARNING,
            "lock",
            f"host {inspection.name} is busy: {owner} is measuring there",
            "Wait for it with --wait, or stop it.",
        )
        return
    if lock.is_apart(host):
        yield Finding(
            Level.NOTE,
            "lock",
            f"host {inspection.name} is a container: sessions elsewhere on its machine do not see its lock, nor it theirs",
            f"Mount one folder of the machine at {lock.FOLDERS[0]} in all containers in which something is measured.",
        )
    else:
        yield Finding(Level.OK, "lock", "no other hunt is measuring there")
    if left := (*jobs.running(host), *jobs.orphaned(host)):
        yield Finding(
            Level.NOTE,
            "jobs",
            f"an earlier hunt left {len(left)} of its jobs running on host {inspection.name}: {left[0].id}"
            + (", …" if len(left) > 1 else ""),
            "The next hunt there ends them.",
        )
    if taken := sorted((inspection.answers.get(PORTS) or frozenset()) & frozenset(SERVER_PORTS)):
        yield Finding(
            Level.NOTE,
            "ports",
            f"something listens on port {taken[0]} of host {inspection.name}, where servers of hunts do: one may be left over",
            f"sudo ss -ltnp 'sport = :{taken[0]}' names it; hunts take the next free port.",
        )


def clock(inspection: Inspection) -> Iterator[Finding]:
    """Is reading the clock fast, and is it right?"""
    source = inspection.answers.get(CLOCK_SOURCE)
    if source and source not in QUICK:
        yield Finding(
            Level.WARNING,
            "clock",
            f"host {inspection.name} reads the time from {source}, which is slow: every operation that is timed pays for it",
            "Its kernel log contains the reason why not from tsc: sudo dmesg | grep -i clocksource",
        )
    before = time.time()
    there = ask(inspection.request.host, TIME)
    after = time.time()
    if there is not None and not before - ASTRAY < there < after + ASTRAY:
        away = there - (before + after) / 2
        yield Finding(
            Level.WARNING,
            "clock",
            f"the clock of host {inspection.name} is {abs(away):.0f} s {'ahead of' if away > 0 else 'behind'} that of this machine",
            "sudo timedatectl set-ntp true",
        )
    elif inspection.answers.get(SYNCHRONISED) is False:
        text = f"the clock of host {inspection.name} follows no time server, and may be set in the middle of a hunt"
        yield Finding(Level.NOTE, "clock", text, "sudo timedatectl set-ntp true")


def counters(inspection: Inspection) -> Iterator[Finding]:
    """What perf, valgrind and vmstat count on the host."""
    host, metric = inspection.request.host, find_metric(inspection.request.metric)
    exactly, obstacle = counting.method(host), _obstacle(inspection.request)
    is_exact = metric.name == INSTRUCTIONS and bool(exactly) and not obstacle
    try:
        found = perf.probe(host)
    except EnvironmentFailure as failure:
        if is_exact or not metric.events:
            yield Finding(Level.WARNING, "perf", f"{failure}: the verdict will not explain the change", failure.advice)
        else:
            yield Finding(Level.REFUSED, "perf", f"{failure}, so {metric.name} cannot be measured", failure.advice)
    else:
        counted = [event for event in perf.EVENTS if found.get(event) is not None]
        lacking = [event for event in metric.events if event not in counted]
        if lacking and not is_exact:
            yield _cannot_count(inspection, lacking, obstacle)
        elif "instructions" not in counted and not (exactly and inspection.request.workloads and not obstacle):
            yield Finding(
                Level.WARNING,
                "perf",
                f"host {inspection.name} has no hardware counters: the verdict cannot distinguish more instructions from slower memory",
                "Use a physical machine, or a virtual one with a virtual PMU.",
            )
        yield Finding(Level.OK, "perf", f"counts {', '.join(counted)}")
        if inspection.request.notes:
            yield _samples(inspection)
    if exactly:
        by = "perf" if exactly == counting.PERF else exactly.replace("-", " ")
        yield Finding(
            Level.OK, "counts", f"{INSTRUCTIONS} is counted exactly by {by}, for embedded libraries and commands"
        )
    if missing(host, ["vmstat"]):
        advice = how_to_install(["vmstat"], inspection.system)
        yield Finding(Level.WARNING, "vmstat", f"vmstat is not installed on host {inspection.name}", advice)


def _samples(inspection: Inspection) -> Finding:
    """Whether the functions that a change makes slower can be shown."""
    try:
        found = sampling.available(inspection.request.host)
    except EnvironmentFailure as failure:
        return Finding(Level.NOTE, "profiles", f"{failure}: the verdict will not name functions", failure.advice)
    chains = {"dwarf": "unwinding stacks", "lbr": "the processor's record of calls", "fp": "frame pointers"}[
        found.chains
    ]
    return Finding(Level.OK, "profiles", f"functions are sampled by {found.event}, and their callers found by {chains}")


def _obstacle(request: CheckRequest) -> str:
    """Why the instructions of a workload cannot be counted exactly, as far as workloads are known."""
    if request.builder is None:
        return ""
    found = (counting.obstacle(request.builder, workload) for workload in request.workloads or ())
    return next(filter(None, found), "")


def _cannot_count(inspection: Inspection, lacking: Sequence[str], obstacle: str) -> Finding:
    """The refusal of a metric whose events the host does not count."""
    text = (
        f"host {inspection.name} does not count {', '.join(lacking)}, so {inspection.request.metric} cannot be measured"
    )
    advice = "Virtual machines often have no hardware counters: hunt another metric, or on another host."
    if inspection.request.metric == INSTRUCTIONS and obstacle:
        text = f"{text}; nor can valgrind count it here: {obstacle}"
        advice = "Hunt another metric, or on a host with hardware counters; or with --threads 1, if there is no server."
    elif inspection.request.metric == INSTRUCTIONS:
        install = how_to_install(["valgrind"], inspection.system)
        advice = f"valgrind counts them without hardware counters. {install}"
    return Finding(Level.REFUSED, "perf", text, advice)


def device(inspection: Inspection) -> Iterator[Finding]:
    """Can iostat watch the configured device? A metric of the device is refused without it."""
    host, metric = inspection.request.host, find_metric(inspection.request.metric)
    name = inspection.request.entry.device.removeprefix("/dev/")
    if not name:
        trouble = f"no device is chosen for host {inspection.name}" if metric.from_device else ""
        advice = 'Name the block device of its data in hosts.toml: device = "nvme0n1".'
    elif missing(host, ["iostat"]):
        trouble, advice = (
            f"iostat is not installed on host {inspection.name}",
            how_to_install(["iostat"], inspection.system),
        )
    elif not host.run(["test", "-b", f"/dev/{name}"], check=False).ok:
        trouble = f"host {inspection.name} has no block device {name}"
        advice = "Correct `device` in hosts.toml; `lsblk` lists them."
    else:
        return
    if metric.from_device:
        yield Finding(Level.REFUSED, "device", f"{trouble}, so {metric.name} cannot be measured", advice)
    elif trouble:
        yield Finding(Level.WARNING, "device", f"{trouble}: reads and writes are not counted", advice)


GIB = 1 << 30
TOO_LITTLE = GIB // 4  # no build fits
LITTLE = 5 * GIB


def space(inspection: Inspection) -> Iterator[Finding]:
    """Free space, and the file system."""
    host = inspection.request.host
    left = inspection.answers.get(free(host.root))
    if left is not None:
        level = Level.REFUSED if left < TOO_LITTLE else Level.WARNING if left < LITTLE else Level.OK
        only = "only " if left < LITTLE else ""
        yield Finding(
            level,
            "disk",
            f"{only}{left / GIB:.1f} GiB are free below {host.root} on host {inspection.name}",
            f"Free some with `bisect gc {inspection.name}`, or set another root in hosts.toml." if only else "",
        )
    if inspection.answers.get(reflinks(host)) == "no":
        system = (inspection.answers.get(disk(host)) or "this file system").partition(",")[0]
        yield Finding(
            Level.NOTE,
            "disk",
            f"{system} on host {inspection.name} cannot share blocks between copies: each visit copies the whole dataset",
            "A root on XFS or Btrfs makes that instant.",
        )


def swap(inspection: Inspection) -> Iterator[Finding]:
    """Is memory swapped to disk?"""
    size, used = inspection.answers.get(SWAP) or (0, 0)
    if used:
        text = f"host {inspection.name} has {used:,} MiB in swap: memory is short, or was"
        yield Finding(Level.WARNING, "swap", text, "sudo swapoff -a")
    elif size:
        text = f"host {inspection.name} may swap: {size:,} MiB, none of it in use"
        yield Finding(Level.NOTE, "swap", text, "sudo swapoff -a")
