"""Is the speed of the processors steady?"""

from collections.abc import Iterator

from perfbisect.host.conditions import HYPERVISOR, NODES, STEAL, THREADS, THROTTLED, TURBO_SWITCH
from perfbisect.host.facts import SETTINGS
from perfbisect.lab.checks.finding import Finding, Level, Look

STOLEN = 0.01  # share of the time that a neighbour took, from which on measurements suffer


def clock_speed(look: Look) -> Iterator[Finding]:
    """Governor, turbo and heat."""
    governor = look.answers.get(SETTINGS["governor"])
    if governor in (None, "performance"):
        said = "is performance" if governor else "is not told: the host does not let its clock be set"
        yield Finding(Level.OK, "governor", f"the CPU governor {said}")
    else:
        yield Finding(
            Level.WARNING,
            "governor",
            f"the CPU governor of host {look.name} is {governor}: its clock follows the load",
            "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
        )
    if look.answers.get(SETTINGS["turbo"]) == "on":
        switch = look.answers.get(TURBO_SWITCH) or "/sys/devices/system/cpu/intel_pstate/no_turbo"
        yield Finding(
            Level.WARNING,
            "turbo",
            f"turbo is on on host {look.name}: its clock depends on heat and on the other cores",
            f"echo {1 if switch.endswith('no_turbo') else 0} | sudo tee {switch}",
        )
    if throttled := look.answers.get(THROTTLED):
        yield Finding(
            Level.NOTE,
            "heat",
            f"the cores of host {look.name} were slowed down by heat {throttled:,} times since it was started",
            "Mend its cooling, or lower its clock: sudo cpupower frequency-set --max FREQUENCY",
        )


def sharing(look: Look) -> Iterator[Finding]:
    """What the cores share with each other and with other machines."""
    threads = look.answers.get(THREADS) or 1
    entry = look.task.entry
    if threads > 1:
        yield Finding(
            Level.NOTE,
            "smt",
            f"{threads} hardware threads share a core on host {look.name}: each is slower while the other works",
            "echo off | sudo tee /sys/devices/system/cpu/smt/control",
        )
    nodes = look.answers.get(NODES) or 1
    if nodes > 1 and not (entry.server_cpus or entry.client_cpus):
        yield Finding(
            Level.NOTE,
            "numa",
            f"host {look.name} has {nodes} NUMA nodes, and nothing is pinned: speed depends on where a process begins",
            "Give server_cpus and client_cpus in hosts.toml the processors of one node; `lscpu` lists them.",
        )
    if hypervisor := look.answers.get(HYPERVISOR):
        yield Finding(
            Level.NOTE,
            "virtual",
            f"host {look.name} is a virtual machine ({hypervisor}): neighbours share its caches and its memory",
            "Prefer a physical machine for small changes.",
        )
    if (stolen := look.answers.get(STEAL) or 0.0) > STOLEN:
        yield Finding(
            Level.WARNING,
            "steal",
            f"{100 * stolen:.0f} % of the busy time of host {look.name} went to other virtual machines since it was started",
            "Ask for dedicated processors, or measure longer: bisect noise tells how long.",
        )


def layout(look: Look) -> Iterator[Finding]:
    """What moves memory about from one run to the next."""
    if look.answers.get(SETTINGS["aslr"]) == "on":
        yield Finding(
            Level.NOTE,
            "aslr",
            f"addresses are drawn anew for each process on host {look.name}: its effect averages out over visits",
            "sudo sysctl kernel.randomize_va_space=0",
        )
    if look.answers.get(SETTINGS["huge pages"]) == "always":
        yield Finding(
            Level.NOTE,
            "huge pages",
            f"transparent huge pages are given to everybody on host {look.name}, as long as there are some",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        )
