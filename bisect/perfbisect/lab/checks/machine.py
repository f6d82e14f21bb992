"""Checks whether a machine is fit to measure on: its processors, load, clock, counters, memory and disk.

The check refuses a metric that the host cannot count. The check also runs a loop, both interleaved and paired, to
measure how much less noise paired runs have.
"""

import math
import time
from collections.abc import Iterator, Sequence

from perfbisect.core.domain.metrics import INSTRUCTIONS, find_metric
from perfbisect.core.stats.noise import sd_of_pair_differences
from perfbisect.errors import EnvironmentFailure
from perfbisect.host import jobs, lock
from perfbisect.host.facts import (
    CLOCK_SOURCE,
    CORES,
    HYPERVISOR,
    LISTENING_PORTS,
    LOAD,
    NODES,
    SETTINGS,
    STEAL_SHARE,
    SWAP_TOTAL_AND_USED_MIB,
    SYNCHRONISED,
    THREADS,
    THROTTLED,
    TIME,
    TURBO_SWITCH,
    Fact,
    file_system_fact,
    free_bytes_fact,
    read_fact,
    reflink_fact,
)
from perfbisect.host.packages import how_to_install, missing_programs
from perfbisect.lab.checks import CheckRequest, Finding, Severity, note, ok, refused, warning
from perfbisect.lab.measure import counting, perf, profiles
from perfbisect.lab.measure.rounds import ALLOWED, with_cores_for_both_builds
from perfbisect.lab.servers import FIRST_PORT
from perfbisect.wording.trials import paired_noise_sentences

STOLEN = 0.01  # measurements suffer if other virtual machines take at least this share of the time


def clock_speed_findings(request: CheckRequest) -> Iterator[Finding]:
    """Findings about the governor, the turbo mode and the temperature of the processors."""
    governor = request.answers.get(SETTINGS["governor"])
    if governor == "performance":
        yield ok("governor", "the CPU governor is performance")
    elif governor:
        text = f"the CPU governor of host {request.host_name} is {governor}: the clock rate depends on the load"
        switch = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
        yield warning("governor", text, f"echo performance | sudo tee {switch}")
    if request.answers.get(SETTINGS["turbo"]) == "on":
        switch = request.answers.get(TURBO_SWITCH) or "/sys/devices/system/cpu/intel_pstate/no_turbo"
        effect = "the clock rate depends on heat and on the load of other cores"
        text = f"turbo is enabled on host {request.host_name}: {effect}"
        yield warning("turbo", text, f"echo {1 if switch.endswith('no_turbo') else 0} | sudo tee {switch}")
    if throttled := request.answers.get(THROTTLED):
        text = f"heat has slowed down the cores of host {request.host_name} {throttled:,} times since its start"
        advice = "Improve the cooling, or lower the clock rate: sudo cpupower frequency-set --max FREQUENCY"
        yield note("heat", text, advice)


def core_sharing_findings(request: CheckRequest) -> Iterator[Finding]:
    """Findings about cores that share resources with each other (SMT, NUMA) or with other virtual machines."""
    entry, host = request.entry, f"host {request.host_name}"
    if (threads := request.answers.get(THREADS) or 1) > 1:
        text = f"{threads} hardware threads share a core on {host}: a thread is slower while another thread works"
        advice = "To use one thread of each core: echo off | sudo tee /sys/devices/system/cpu/smt/control"
        yield note("smt", text, advice)
    nodes = request.answers.get(NODES) or 1
    if nodes > 1 and not (entry.server_cpus or entry.client_cpus):
        text = (
            f"{host} has {nodes} NUMA nodes, but processes are not pinned: the speed depends on the node of a process"
        )
        advice = "Set server_cpus and client_cpus in hosts.toml to the processors of one node, which `lscpu` lists."
        yield note("numa", text, advice)
    if hypervisor := request.answers.get(HYPERVISOR):
        text = f"{host} is a virtual machine ({hypervisor}): other virtual machines share its caches and memory"
        yield note("virtual", text, "To find small changes, use a physical machine.")
    if (stolen := request.answers.get(STEAL_SHARE) or 0.0) > STOLEN:
        by = f"other virtual machines have taken {100 * stolen:.0f} % of the CPU time that the host needed (steal time)"
        text = f"since the boot of {host}, {by}"
        yield warning(
            "steal",
            text,
            "Use dedicated processors, or longer runs (--time). `bisect noise` shows the best duration of a run.",
        )


def memory_layout_findings(request: CheckRequest) -> Iterator[Finding]:
    """Findings about settings that change the memory layout from one run to the next."""
    if request.answers.get(SETTINGS["aslr"]) == "on":
        text = f"host {request.host_name} randomizes addresses for each process; the effect averages out over visits"
        yield note("aslr", text, "To turn the randomization off: sudo sysctl kernel.randomize_va_space=0")
    if request.answers.get(SETTINGS["huge pages"]) == "always":
        text = f"host {request.host_name} gives transparent huge pages to every process, as long as huge pages are free"
        yield note("huge pages", text, "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled")


BUSY = 0.5  # measurements suffer if the load average per core is larger
ASTRAY = 2.0  # seconds between the host's clock and the controller's, from which on times in reports mislead
QUICK = frozenset({"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "stp", "tod", "timebase"})
SERVER_PORTS = frozenset(range(FIRST_PORT, FIRST_PORT + 10))  # ports on which servers of hunts listen


def load_findings(request: CheckRequest) -> Iterator[Finding]:
    """Findings about other programs that run on the host."""
    average, cores = request.answers.get(LOAD), request.answers.get(CORES)
    if average is None or not cores:
        return
    sentence = f"load average is {average:.1f} on {cores} cores"
    if average > BUSY * cores:
        effect = "runs vary more, so more runs are needed, and small changes may not be found"
        advice = "Find the other programs with `top`, and stop them."
        yield warning("load", f"host {request.host_name} is busy: the {sentence}; {effect}", advice)
    else:
        yield ok("load", f"the {sentence}")


def lock_and_leftover_findings(request: CheckRequest) -> Iterator[Finding]:
    """Findings about the process that holds the host's lock, and about files that an earlier hunt has left."""
    host = request.host
    if owner := lock.lock_owner(host):
        text = f"host {request.host_name} is busy: {owner} measures there"
        advice = "Stop this session, or wait for its end; `bisect run --wait` also waits for its end."
        yield warning("lock", text, advice)
        return
    if lock.has_private_lock_folder(host):
        text = "is a container: sessions in other containers of the machine do not see its lock"
        where = f"at {lock.FOLDERS[0]} in all containers in which sessions measure."
        yield note("lock", f"host {request.host_name} {text}", f"Mount one folder of the machine {where}")
    else:
        yield ok("lock", "no other session measures on the host")
    if remaining := (*jobs.running_jobs(host), *jobs.leaderless_jobs(host)):
        ids = remaining[0].id + (", …" if len(remaining) > 1 else "")
        text = f"{len(remaining)} jobs of an earlier session still run on host {request.host_name}: {ids}"
        yield note("jobs", text, "The next session on the host ends them.")
    if ports := sorted((request.answers.get(LISTENING_PORTS) or frozenset()) & SERVER_PORTS):
        text = f"a program listens on port {ports[0]} of host {request.host_name}"
        advice = f"sudo ss -ltnp 'sport = :{ports[0]}' shows the program. Hunts use the next free port."
        yield note("ports", f"{text}, a port of servers of hunts; a server of an earlier hunt may still run", advice)


def system_clock_findings(request: CheckRequest) -> Iterator[Finding]:
    """Findings about the clock: whether reading it is fast, and whether it is right."""
    source = request.answers.get(CLOCK_SOURCE)
    if source and source not in QUICK:
        effect = "which is slow: each timed operation takes longer"
        text = f"host {request.host_name} reads the time from {source}, {effect}"
        why = "The kernel log has the reason for not using tsc: sudo dmesg | grep -i clocksource"
        yield warning("clock", text, why)
    asked, clock_there, answered = time.time(), read_fact(request.host, TIME), time.time()
    if clock_there is not None and not asked - ASTRAY < clock_there < answered + ASTRAY:
        away = clock_there - (asked + answered) / 2
        by = f"{abs(away):.0f} s {'ahead of' if away > 0 else 'behind'} the clock of this machine"
        yield warning("clock", f"the clock of host {request.host_name} is {by}", "sudo timedatectl set-ntp true")
    elif request.answers.get(SYNCHRONISED) is False:
        state = "not synchronised with a time server, and may be set during a hunt"
        text = f"the clock of host {request.host_name} is {state}"
        yield note("clock", text, "sudo timedatectl set-ntp true")


def counter_findings(request: CheckRequest) -> Iterator[Finding]:
    """Findings about the events and statistics that perf, valgrind and vmstat can measure on the host."""
    host, metric, workloads = request.host, find_metric(request.metric), request.workloads or ()
    exactly, obstacle = counting.counting_method(host), ""
    if builder := request.builder:
        obstacle = next(filter(None, (counting.counting_obstacle(builder, workload) for workload in workloads)), "")
    is_exact = metric.name == INSTRUCTIONS and bool(exactly) and not obstacle
    try:
        probed = perf.counters_of_test_run(host)
    except EnvironmentFailure as failure:
        if is_exact or not metric.events:
            yield warning("perf", f"{failure}: the verdict will not explain the change", failure.advice)
        else:
            yield refused("perf", f"{failure}, so {metric.name} cannot be measured", failure.advice)
    else:
        counted = [event for event in perf.EVENTS if probed.get(event) is not None]
        lacking = [event for event in metric.events if event not in counted]
        if lacking and not is_exact:
            yield _uncountable_metric_finding(request, lacking, obstacle)
        elif "instructions" not in counted and not (exactly and workloads and not obstacle):
            effect = "reports cannot distinguish more instructions from slower memory"
            advice = "Use a physical machine, or a virtual machine with a virtual PMU."
            yield warning("perf", f"host {request.host_name} has no hardware counters: {effect}", advice)
        yield ok("perf", f"counts {', '.join(counted)}")
        if request.notes:
            yield _sampling_finding(request)
    if exactly:
        by = "perf" if exactly == counting.PERF else exactly.replace("-", " ")
        text = f"instructions per operation can be counted exactly by {by}, for embedded libraries and commands"
        yield ok("counts", text)
    if missing_programs(host, ["vmstat"]):
        yield warning(
            "vmstat", f"vmstat is not installed on host {request.host_name}", how_to_install(["vmstat"], request.system)
        )


CALLERS = {"dwarf": "unwinding stacks", "fp": "frame pointers"}


def _sampling_finding(request: CheckRequest) -> Finding:
    """A finding that says whether profiles on this host can show which functions a change makes slower."""
    try:
        sampling = profiles.find_sampling(request.host)
    except EnvironmentFailure as failure:
        return note("profiles", f"{failure}: the verdict will not name functions", failure.advice)
    callers = CALLERS[sampling.chains]
    return ok("profiles", f"functions are sampled by {sampling.event}, and their callers are found by {callers}")


def _uncountable_metric_finding(request: CheckRequest, lacking: Sequence[str], obstacle: str) -> Finding:
    """The error for a metric whose events cannot be counted on the host."""
    metric = request.metric
    text = f"host {request.host_name} does not count {', '.join(lacking)}, so {metric} cannot be measured"
    advice = "Virtual machines often have no hardware counters. Choose another --metric, or another --host."
    if metric == INSTRUCTIONS and obstacle:
        text = f"{text}, and valgrind cannot count it, either: {obstacle}"
        advice = "Choose another --metric, or a host with hardware counters; or, without a server, --threads 1."
    elif metric == INSTRUCTIONS:
        install = how_to_install(["valgrind"], request.system)
        advice = f"Without hardware counters, valgrind can count instructions. {install}"
    return refused("perf", text, advice)


def iostat_findings(request: CheckRequest) -> Iterator[Finding]:
    """Whether iostat can watch the configured device. If not, a metric that iostat measures is refused."""
    host, metric = request.host, find_metric(request.metric)
    name = request.entry.device.removeprefix("/dev/")
    if not name:
        trouble = f"host {request.host_name} has no `device` in hosts.toml" if metric.from_device else ""
        advice = 'Set the block device of the data in hosts.toml: device = "nvme0n1".'
    elif missing_programs(host, ["iostat"]):
        trouble = f"iostat is not installed on host {request.host_name}"
        advice = how_to_install(["iostat"], request.system)
    elif not host.run(["test", "-b", f"/dev/{name}"], check=False).ok:
        trouble = f"host {request.host_name} has no block device {name}"
        advice = "Correct `device` in hosts.toml. `lsblk` lists block devices."
    else:
        return
    if metric.from_device:
        yield refused("device", f"{trouble}, so {metric.name} cannot be measured", advice)
    elif trouble:
        yield warning("device", f"{trouble}: reads and writes are not counted", advice)


GIB = 1 << 30
TOO_LITTLE = GIB // 4  # bytes of free disk space with which no build is possible
LITTLE = 5 * GIB


def space_findings(request: CheckRequest) -> Iterator[Finding]:
    """Findings about the free disk space and the file system."""
    host = request.host
    free = request.answers.get(free_bytes_fact(host.root))
    if free is not None:
        level = Severity.REFUSED if free < TOO_LITTLE else Severity.WARNING if free < LITTLE else Severity.OK
        only = "only " if free < LITTLE else ""
        name = request.host_name
        advice = f"Free space with `bisect gc {name}`, or set another `root` in hosts.toml." if only else ""
        text = f"{only}{free / GIB:.1f} GiB are free below {host.root} on host {name}"
        yield Finding(level, "disk", text, advice)
    if request.answers.get(reflink_fact(host)) == "no":
        system = (request.answers.get(file_system_fact(host)) or "this file system").partition(",")[0]
        text = "cannot share blocks between copies: each visit copies the whole dataset"
        hint = "Copies take no time if `root` in hosts.toml names a folder on XFS or Btrfs."
        yield note("disk", f"{system} on host {request.host_name} {text}", hint)


def swap_findings(request: CheckRequest) -> Iterator[Finding]:
    """Findings about memory that is swapped to disk."""
    size, used = request.answers.get(SWAP_TOTAL_AND_USED_MIB) or (0, 0)
    if used:
        text = f"host {request.host_name} has {used:,} MiB in swap: memory is or was too small"
        yield warning("swap", text, "sudo swapoff -a")
    elif size:
        yield note("swap", f"host {request.host_name} has {size:,} MiB of swap, which is not in use", "sudo swapoff -a")


PAIRS = 8  # number of pairs of loops, of paired and of interleaved loops each
PAIRS_SECONDS = 12  # after this time no further pair begins, so that the script ends before its time limit
# $1: the core of two paired loops. $2: the cores of two loops that run one after the other. The script prints for each
# loop its name, its microseconds, and its microseconds of CPU time. A loop takes 0.08 s of CPU time. A paired loop then
# keeps the core busy for a while, like a paired run that waits for its partner. The CPU time is in schedstat; reading
# stat before updates schedstat.
_PAIRS = f"""\
loop='function cpu(line, words) {{
  getline line <"/proc/self/stat"; close("/proc/self/stat")
  getline line <"/proc/self/schedstat"; close("/proc/self/schedstat")
  split(line, words, " "); return words[1] / 1000
}}
BEGIN {{
  began = cpu(); for (i = 0; i < n; i++) sum += i; printf "%d\\n", cpu() - began
  fflush(); for (i = 0; i < n / 4 * more; i++) sum += i
}}'
now() {{ echo $(($(date +%s%N) / 1000)); }}
one() {{
  began=$(now)
  taskset -c "$2" awk -v n="$n" -v more="$3" "$loop" </dev/null | {{
    read -r cpu && echo "$1 $(($(now) - began)) $cpu"; cat >/dev/null; }}
}}
n=10000 took=0 pairs=0 end=$(($(now) + {PAIRS_SECONDS}000000))
while [ "$took" -lt 20000 ] && [ "$(now)" -lt "$end" ]; do
  n=$((n * 2)) found=$(one first "$1" 0) took=${{found##* }}
  [ "$took" -gt 0 ] || {{ found=${{found% *}}; took=${{found#* }}; }}
done
n=$((n * 80000 / took))
while [ "$pairs" -lt {PAIRS} ] && [ "$(now)" -lt "$end" ]; do
  one alone "$2" 0; one alone "$2" 0
  one beside "$1" 1 & one beside "$1" 1; wait
  pairs=$((pairs + 1))
done"""


def pairing_noise_findings(request: CheckRequest) -> Iterator[Finding]:
    """Findings about how much paired runs reduce noise, measured with loops that run interleaved and paired. Takes some
    seconds.
    """
    host, entry = request.host, request.entry
    if lock.lock_owner(host) or missing_programs(host, ["taskset"]):  # a locked host may be measuring
        return
    cores = read_fact(host, ALLOWED) or "0"
    core = with_cores_for_both_builds(entry, cores, 1, server=False).client_cpus
    command = ("sh", "-c", _PAIRS, "pairs", core, entry.client_cpus or entry.server_cpus or cores)
    if deviations := read_fact(host, Fact(command, pairing_deviations)):
        yield ok("pairs", f"the {paired_noise_sentences('identical test loops', *deviations)}")


def pairing_deviations(text: str) -> tuple[float, float | None, float] | None:
    """The standard deviations of three ratios: of the times of paired loops, of the CPU times of paired loops, and of
    the times of interleaved loops."""
    runs = [line.split() for line in text.splitlines()]

    def varies(name: str, column: int) -> float | None:
        logs = [math.log(took) if (took := int(run[column])) > 0 else None for run in runs if run[0] == name]
        return sd_of_pair_differences(zip(logs[::2], logs[1::2], strict=False))

    beside, alone = varies("beside", 1), varies("alone", 1)
    return None if beside is None or alone is None else (beside, varies("beside", 2), alone)
