"""Is the speed of the processors stable?"""

from collections.abc import Iterator

from perfbisect.host.conditions import HYPERVISOR, NODES, STEAL, THREADS, THROTTLED, TURBO_SWITCH
from perfbisect.host.facts import SETTINGS
from perfbisect.lab.checks.finding import Finding, Inspection, Level

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
