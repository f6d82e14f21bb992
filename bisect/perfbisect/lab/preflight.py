"""What is looked at before a hunt: what cannot work is refused, what may spoil the result is a warning with advice."""

from collections.abc import Iterator

from perfbisect.core.counters import METRICS
from perfbisect.core.event import Warned
from perfbisect.core.measurement import HostFacts
from perfbisect.errors import EnvironmentFailure
from perfbisect.host.facts import fingerprint, free_bytes, load_average
from perfbisect.host.programs import how_to_install, missing, require
from perfbisect.host.protocol import Host
from perfbisect.lab import perf, scripts, sysbench
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.lineage import variant_of
from perfbisect.recipes.workload import Workload

TOOLS = ("git", "ccache", "sysbench", "timeout", "setsid", "ps", "awk", "base64", "objcopy", "readelf")
GIB = 1 << 30
TOO_LITTLE = GIB // 4  # no build fits
LITTLE = 5 * GIB
BUSY = 0.5  # load average for each core above which measurements suffer

# Metrics that need no perf: sysbench knows them, or vmstat and iostat do.
WITHOUT_PERF = frozenset({"qps", "latency", "p95", "p99", "cs/o", "r/o", "rKB/o", "wKB/o"})


def check(host: Host, builder: Builder, workload: Workload, metric: str) -> tuple[Warned, ...]:
    """Warnings, most serious first. Raises EnvironmentFailure for what makes a hunt for ``metric`` meaningless.

    Raises UsageError for a workload that sysbench cannot run.
    """
    sysbench.command(workload, scripts.measured(workload))
    scripts.preparing(workload)
    require(host, needed(builder))
    facts = fingerprint(host)
    return (*disk(host), *counters(host, metric), *company(host, facts), *settings(facts))


def needed(builder: Builder) -> list[str]:
    """The programs without which nothing can be built or measured."""
    variant = variant_of(builder, "")
    commands = repr((builder.build.configure, builder.build.compile, builder.build.install, builder.build.env))
    compilers = [program for word, program in (("{cc}", variant.cc), ("{cxx}", variant.cxx)) if word in commands]
    as_nobody = ["setpriv"] if builder.server and builder.server.refuses_root else []
    return [*TOOLS, *compilers, *builder.build.needs, *as_nobody]


def disk(host: Host) -> Iterator[Warned]:
    """Is there room below the root folder?"""
    free = free_bytes(host)
    if free is None or free >= LITTLE:
        return
    sentence = f"only {free / GIB:.1f} GiB are free below {host.root} on host {host.name}"
    advice = "Free some space there, let `bisect gc` remove old builds, or set another root in hosts.toml."
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
