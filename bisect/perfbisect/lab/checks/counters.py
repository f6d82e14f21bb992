"""What perf, valgrind, vmstat and iostat can count. A metric that cannot be counted is refused."""

from collections.abc import Iterator, Sequence

from perfbisect.core.domain.metrics import INSTRUCTIONS, find_metric
from perfbisect.errors import EnvironmentFailure
from perfbisect.host.packages import how_to_install
from perfbisect.host.programs import missing
from perfbisect.lab.checks.finding import CheckRequest, Finding, Inspection, Level
from perfbisect.lab.measure import counting, perf, sampling


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
