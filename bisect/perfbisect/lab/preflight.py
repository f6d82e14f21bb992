"""What is looked at before a hunt: what cannot work is refused, what may spoil the result is a warning with advice."""

from collections.abc import Iterator

from perfbisect.core.counters import METRICS
from perfbisect.core.event import Warned
from perfbisect.core.measurement import HostFacts
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.host.facts import ONLINE, ask, cpu_numbers, fingerprint, free_bytes, load_average
from perfbisect.host.programs import how_to_install, missing, require
from perfbisect.host.protocol import Host
from perfbisect.lab import perf, scripts, sysbench
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.lineage import variant_of
from perfbisect.recipes.workload import Workload

TOOLS = (
    "git", "ccache", "sysbench", "timeout", "setsid", "flock", "ps", "awk", "base64", "tar", "ld", "objcopy", "readelf",
)  # fmt: skip
GIB = 1 << 30
TOO_LITTLE = GIB // 4  # no build fits
LITTLE = 5 * GIB
BUSY = 0.5  # load average for each core above which measurements suffer

OF_THE_DEVICE = frozenset({"r/o", "rKB/o", "wKB/o"})  # metrics that iostat counts

# Metrics that need no perf: sysbench knows them, or vmstat and iostat do.
WITHOUT_PERF = frozenset({"qps", "latency", "p95", "p99", "cs/o"}) | OF_THE_DEVICE


def check(
    host: Host, entry: HostEntry, builder: Builder, variant: str, workload: Workload, metric: str
) -> tuple[Warned, ...]:
    """Warnings, most serious first. Raises EnvironmentFailure for what makes a hunt for ``metric`` meaningless.

    ``variant`` "" is the recipe's own choice. Raises UsageError for a workload that sysbench cannot run, and for
    settings in hosts.toml that do not fit the host.
    """
    sysbench.command(workload, scripts.measured(workload))
    scripts.preparing(workload)
    require(host, needed(entry, builder, variant))
    pinning(host, entry)
    facts = fingerprint(host)
    return (
        *disk(host), *counters(host, metric), *device(host, entry, metric), *company(host, facts), *settings(facts),
    )  # fmt: skip


def needed(entry: HostEntry, builder: Builder, variant: str) -> list[str]:
    """The programs without which nothing can be built or measured."""
    chosen = variant_of(builder, variant)
    commands = repr((builder.build.configure, builder.build.compile, builder.build.install, builder.build.env))
    compilers = [program for word, program in (("{cc}", chosen.cc), ("{cxx}", chosen.cxx)) if word in commands]
    as_nobody = ["setpriv"] if builder.server and builder.server.refuses_root else []
    to_pin = ["taskset"] if entry.server_cpus or entry.client_cpus else []
    return [*TOOLS, *compilers, *builder.build.needs, *as_nobody, *to_pin]


def pinning(host: Host, entry: HostEntry) -> None:
    """Raise UsageError for a list of CPUs with one in it that the host does not have: taskset would pass it over."""
    online = ask(host, ONLINE)
    for key, cpus in (("server_cpus", entry.server_cpus), ("client_cpus", entry.client_cpus)):
        if online and cpus and (absent := cpu_numbers(cpus) - online):
            raise UsageError(
                f'hosts.toml: `hosts.{host.name}.{key}` is "{cpus}", but that host has no CPU {min(absent)}',
                f"It has {len(online)}, numbered from {min(online)} to {max(online)}.",
            )


def disk(host: Host) -> Iterator[Warned]:
    """Is there room below the root folder?"""
    free = free_bytes(host)
    if free is None or free >= LITTLE:
        return
    sentence = f"only {free / GIB:.1f} GiB are free below {host.root} on host {host.name}"
    advice = "Free some space there (builds, datasets and ccache are made anew when needed), or set another root in hosts.toml."
    if free < TOO_LITTLE:
        raise EnvironmentFailure(sentence, advice)
    yield Warned(sentence, advice)


def counters(host: Host, metric: str) -> Iterator[Warned]:
    """Can perf and vmstat count, and what? A metric that cannot be counted is refused."""
    try:
        found = perf.probe(host)
    except EnvironmentFailure as failure:
        if metric not in WITHOUT_PERF:
            raise EnvironmentFailure(f"{failure}, so {metric} cannot be measured", failure.advice) from failure
        yield Warned(f"{failure}: the verdict will not say why", failure.advice)
    else:
        lacking = [event for event in events_of(metric) if found.get(event) is None]
        if lacking:
            raise EnvironmentFailure(
                f"host {host.name} does not count {', '.join(lacking)}, so {metric} cannot be measured",
                "Virtual machines often have no hardware counters: hunt another metric, or on another host.",
            )
        if found.get("instructions") is None:
            yield Warned(
                f"host {host.name} has no hardware counters: the verdict cannot tell more instructions from slower memory",
                "Use a physical machine, or a virtual one with a virtual PMU.",
            )
    if missing(host, ["vmstat"]):
        yield Warned(f"vmstat is not installed on host {host.name}", how_to_install(["vmstat"]))


def device(host: Host, entry: HostEntry, metric: str) -> Iterator[Warned]:
    """Can iostat watch the device that was chosen? A metric of the device is refused without it."""
    name = entry.device.removeprefix("/dev/")
    if not name:
        trouble = f"no device is chosen for host {host.name}" if metric in OF_THE_DEVICE else ""
        advice = 'Name the block device of its data in hosts.toml: device = "nvme0n1".'
    elif missing(host, ["iostat"]):
        trouble, advice = f"iostat is not installed on host {host.name}", how_to_install(["iostat"])
    elif not host.run(["test", "-b", f"/dev/{name}"], check=False).ok:
        trouble, advice = (
            f"host {host.name} has no block device {name}",
            "Mend `device` in hosts.toml; `lsblk` lists them.",
        )
    else:
        return
    if metric in OF_THE_DEVICE:
        raise EnvironmentFailure(f"{trouble}, so {metric} cannot be measured", advice)
    if trouble:
        yield Warned(f"{trouble}: reads and writes are not counted", advice)


def events_of(metric: str) -> tuple[str, ...]:
    """The perf events that a metric is made of."""
    if metric in WITHOUT_PERF or metric not in METRICS:
        return ()
    return {"ipc": ("instructions", "cycles"), "cpu/o": ("task-clock",)}.get(metric, (metric.removesuffix("/o"),))


def company(host: Host, facts: HostFacts) -> Iterator[Warned]:
    """Is the machine ours alone?"""
    load, cores = load_average(host), facts.cores
    if load is not None and cores and load > BUSY * cores:
        yield Warned(
            f"host {host.name} is busy: its load average is {load:.1f} on {cores} cores",
            "Find out with `top` what runs there, and stop it.",
        )


def settings(facts: HostFacts) -> Iterator[Warned]:
    """Is the clock of the processor steady?"""
    governor = facts.settings.get("governor", "performance")
    if governor != "performance":
        yield Warned(
            f"the CPU governor of host {facts.name} is {governor}: its clock follows the load",
            "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
        )
    if facts.settings.get("turbo") == "on":
        yield Warned(
            f"turbo is on on host {facts.name}: its clock depends on heat and on the other cores",
            "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo"
            " (Intel), or echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost",
        )
