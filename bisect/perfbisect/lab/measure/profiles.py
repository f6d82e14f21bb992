"""Measures profiles by ``perf record``: in which functions a build spends CPU time, and in which it waits.

perf samples during the same part of a run in which a timed run is measured: from the workload's first operation after
the warm-up to its last operation. perf samples the same processes whose events it counts in a timed run.

Waits are sampled in a separate run, because sampling waits makes context switches slower. Waits are sampled only if
threads often wait, if there is time for the run, and if perf may sample the kernel. A wait begins when a thread leaves
its processor, where perf takes the sample, and ends when the thread runs again.

perf finds callers by unwinding a copy of the stack (``dwarf``), because usual builds, even stripped builds, have the
tables for unwinding. Frame pointers (``fp``) do not show the caller of a leaf function (a function that calls no
function), because GCC makes no stack frame for a leaf function, even with ``-fno-omit-frame-pointer``. So frame
pointers are used only if perf cannot unwind, or if more than a tenth of the cost has no caller even with the largest
copy of the stack that perf can make.

A short command is repeated while perf records; the costs are divided by the number of repetitions. JIT-compiled
functions have names if the program writes a perf map or a jitdump.
"""

import math
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from statistics import fmean, harmonic_mean

from perfbisect.core.domain.events import LabEvent, Profiled, Unexplained
from perfbisect.core.domain.facts import ProfileFacts, RunFacts
from perfbisect.core.explain.calls import MIN_SAMPLES
from perfbisect.core.explain.profiles import COUNTED, NEGLIGIBLE_SHARE, RARE, FoldedStacks, folded_stacks
from perfbisect.errors import EnvironmentFailure, NoPerfSamples
from perfbisect.host import jobs
from perfbisect.host.facts import CORES, read_fact
from perfbisect.host.protocol import Host
from perfbisect.lab.measure import perf
from perfbisect.lab.measure.studies import LONGEST, shortened_context
from perfbisect.lab.measure.visit import RunContext, Study, Turn, begin_visit, timed_run
from perfbisect.lab.servers import HostCommand, Installation, run_to_end
from perfbisect.lab.workload import command, lines_of
from perfbisect.wording.text import advised

NAME = "profile"  # name of the job that folds stacks, and of the profile's file in the visit's folder
EVENTS = ("cycles", "cpu-clock")  # without counters perf itself replaces the first by the second
SAMPLED_INSTRUCTIONS = ("instructions",)  # to sample the event that timed runs count
WAITS = "context-switches"
CHAINS = ("dwarf", "fp")
STACK, LARGEST_STACK = 16384, 65528  # bytes of stack that are copied for each sample; the second is perf's limit
ALONE = 0.1  # if a larger share of the cost has no callers, another way to find callers is tried
LIMIT = 600.0  # most seconds for folding the samples of a profile
LARGEST = "1G"  # largest file (perf's ``--max-size``); 10,000 samples, or 5,000 waits with all switches, need far less
WHOLE = 2000  # number of the costliest chains of a run that a host prints in full; fewer chains are kept in the end
PRINTED = 6 << 20  # most bytes of these chains: a host keeps an output of this size as a whole (host/protocol.py)

# A program that keeps a processor busy for some hundredths of a second, in a function that other functions call.
_TRIAL = r"""
file=$1 event=$2 chains=$3
mkdir -p "${file%/*}" && perf record -q -N -B -e "$event" -F 999 --call-graph "$chains" -o "$file" -- \
    sh -c 'f() { i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; }; f' || { rm -f "$file"; exit 1; }
perf evlist -i "$file" 2>/dev/null
perf script --no-inline -i "$file" -F comm,period,ip 2>/dev/null |
    awk '/^\t/ { frames++; next } NF { samples++ } END { printf "frames %d\nsamples %d\n", frames, samples }'
rm -f "$file"
"""

ADD_UP, SHORTEN = (Path(__file__).with_name(f"{name}.awk").read_text() for name in ("add_up", "shorten"))
# perf looks for maps of generated code only in /tmp. `perf inject` makes a jitdump a part of the recording.
_FOLD = rf"""
file=$1 shorten=$2 add_up=$3 waits=$4; shift 4
maps=
for map in "${{TMPDIR:-/tmp}}"/perf-*.map "${{file%/*}}"/tmp/perf-*.map; do
    copy=/tmp/${{map##*/}}
    [ ! -f "$map" ] || [ -e "$copy" ] || {{ cp -- "$map" "$copy" && maps="$maps $copy"; }}
done
trap 'rm -f -- $maps "$file.jit"' EXIT
if grep -qa '/jit-[0-9]*\.dump' "$file" && perf inject --jit -i "$file" -o "$file.jit" >/dev/null 2>&1; then file=$file.jit; fi
{{ perf script --no-inline --show-lost-events "$@" -i "$file"; printf '\n\f%s\n' "$?"; }} |
    awk -v waits="$waits" "$add_up" | sort -k 1,1nr | awk -v most={WHOLE} -v size={PRINTED} -v rare='{RARE}' "$shorten"
"""
# perf must know a server's processes and threads that start before the window: it follows them by the event "dummy" while that is
# enabled. So perf starts with all events enabled, and the sampled events are disabled first.
_QUIET = """\
exec 3<>"$1" 4<>"$2"; shift 2
while [ "$1" != -- ]; do printf 'disable %s\\n' "$1" >&3; read -r answer <&4; shift; done
shift; exec 3>&- 4>&-
exec "$@"
"""
# Runs a command, and repeats it until the given seconds have passed, as long as it succeeds. Only the time and the
# output of the first run count. The outputs of up to 20 repetitions are kept, because they have the reported numbers.
_REPEAT = """\
clock=$1 seconds=$2 times=$3; shift 3
read -r up rest </proc/uptime; end=$((${up%.*} + seconds))
"$@"; status=$?
cp -- "$clock" "$times" || exit
n=1
while [ "$status" = 0 ] && read -r up rest </proc/uptime && [ "${up%.*}" -lt "$end" ]; do
    "$@" >"$times.out" 2>&1 && read -r began failed rest <"$clock" && [ "$failed" = 0 ] || break
    [ "$n" -gt 20 ] || tail -c 65536 "$times.out" >"$times.$n"
    n=$((n + 1))
done
mv -- "$times" "$clock"; echo "$n" >"$times"
exit "$status"
"""
TIMES = "times"  # file with the number of repetitions; the output of repetition N is in the file times.N
_OUTPUTS = """for file in "$1".[0-9]*; do [ ! -e "$file" ] || { cat "$file"; printf '\\f'; }; done"""
_LISTED = re.compile(r"^(?:\w+/)?(cycles|cpu-clock|instructions)(?:/|:|$)(\w*)$", re.MULTILINE)
_COUNTED = re.compile(r"^(frames|samples) ([0-9]+)$", re.MULTILINE)

NO_KERNEL = "Time in the kernel is missing, because perf may not sample the kernel (kernel.perf_event_paranoid)."
NO_LEAF_CALLERS = (
    "Callers of functions that call no function are missing if the compiler makes no stack frame for them."
)


@dataclass(frozen=True, slots=True)
class Sampling:
    """The settings with which perf samples on a host."""

    event: str  # event for perf, such as "cycles" or "cpu-clock:u"
    chains: str  # one of ``CHAINS``
    names: tuple[str, ...] = ()  # perf's names of the event, if there is one for each kind of cores
    stack_bytes: int = STACK  # bytes of stack that are copied

    @property
    def off_cpu(self) -> bool:
        """Whether perf samples waits instead of CPU time."""
        return self.event == WAITS

    @property
    def samples_kernel(self) -> bool:
        """Whether the kernel is sampled, too."""
        return not self.event.endswith(":u")

    @property
    def unit(self) -> str:
        """The unit of costs."""
        name = self.event.partition(":")[0]
        return name if name in ("cycles", COUNTED) else "us"

    @property
    def call_graph(self) -> str:
        """How perf finds callers."""
        return f"dwarf,{self.stack_bytes}" if self.chains == "dwarf" else self.chains

    @property
    def samples_per_run(self) -> int:
        """The approximate number of samples to take in a run; the more bytes of stack a sample copies, the fewer
        samples."""
        return SAMPLES * STACK // self.stack_bytes if self.chains == "dwarf" else SAMPLES

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes that the user sees with each profile that is sampled with these settings."""
        return (*([] if self.samples_kernel else [NO_KERNEL]), *([NO_LEAF_CALLERS] if self.chains == "fp" else []))


def find_sampling(host: Host, events: Sequence[str] = EVENTS) -> Sampling:
    """The first settings with which perf takes samples on a host, found by trials. Raises EnvironmentFailure if perf
    takes no samples with any settings."""
    printed = ""
    for event in events:
        for chains in CHAINS:
            words = [str(jobs.temp_files_folder(host) / "trial"), event, Sampling(event, chains).call_graph]
            tried = host.run(["sh", "-c", _TRIAL, "sampled", *words], check=False)
            printed = printed or tried.stderr
            if tried.ok and (way := sampling_of_trial(tried.stdout, chains)):
                return way
    if "paranoid" in printed:
        raise EnvironmentFailure(perf.refusal_sentence(host.name, printed), perf.ALLOW)
    raise EnvironmentFailure(f"perf takes no samples on host {host.name}: {command.last_output_line(printed)}")


def samplings_with_more_callers(host: Host, sampled: Sampling) -> Iterator[Sampling]:
    """Settings that may find more callers than ``sampled``: a larger copy of the stack, frame pointers, or LBR."""
    if sampled.chains == "dwarf" and not sampled.off_cpu:
        yield replace(sampled, stack_bytes=LARGEST_STACK)
        yield replace(sampled, chains="fp")
        trial = str(jobs.temp_files_folder(host) / "trial")
        tried = host.run(["sh", "-c", _TRIAL, "sampled", trial, sampled.event, "lbr"], check=False)
        if tried.ok and sampling_of_trial(tried.stdout, "lbr"):
            yield replace(sampled, chains="lbr")


def sampling_of_trial(printed: str, chains: str) -> Sampling | None:
    """The settings that worked in a trial of perf, read from its output ``printed``; None if perf took no samples, as
    on virtual machines that can only count an event, or found no callers although ``chains`` is not "fp"."""
    event, counts = _LISTED.search(printed), dict(_COUNTED.findall(printed))
    names = tuple(match[0] for match in _LISTED.finditer(printed) if "/" in match[0])
    samples, frames = (int(counts.get(name, 0)) for name in ("samples", "frames"))
    if not event or not samples or (chains != "fp" and frames < 2 * samples):
        return None
    return Sampling(event[1] + (":u" if "u" in event[2] else ""), chains, names)


def perf_record_command(
    argv: Sequence[str],
    folder: PurePosixPath,
    pids: Iterable[int] = (),
    *,
    from_start: bool = False,
    sampled: Sampling,
    rate: int,
    seconds: int = 0,
) -> list[str]:
    """The command that runs ``argv`` under ``perf record``; perf writes the samples to the file ``NAME`` in ``folder``.

    ``rate`` is the number of samples per second of CPU time; if waits are sampled, perf samples every ``rate``-th wait.
    perf neither reads build ids nor fills its cache (-N, -B), because this takes time and the cache belongs to the
    user. perf stops when the file has the size ``LARGEST``, because the number of waits has no bound. If
    ``from_start``, perf samples from the start of ``argv``, which is repeated for ``seconds``. perf uses the monotonic
    clock, like jitdumps.
    """
    attached = ["-p", ",".join(map(str, pids))] if (pids := tuple(pids)) else []
    fifos = [str(folder / "control"), str(folder / "ack")]
    followed = ["-e", "dummy:u"] if sampled.off_cpu or (attached and not from_start) else []
    often = ["-c", str(rate), "--switch-events"] if sampled.off_cpu else ["-F", str(rate), "-k", "mono"]
    controlled = [] if from_start else ["--control", f"fifo:{','.join(fifos)}", *([] if attached else ["--delay=-1"])]
    names = sampled.names or [sampled.event]
    if from_start and seconds:
        argv = ["sh", "-c", _REPEAT, "repeat", str(folder / command.CLOCK), str(seconds), str(folder / TIMES), *argv]
    quiet = ["sh", "-c", _QUIET, "quiet", *fifos, *names, "--"] if attached and not from_start else []
    return [
        "perf", "record", "-N", "-B", *followed, "-e", sampled.event, *often, f"--max-size={LARGEST}", "--call-graph", sampled.call_graph,
        "-o", str(folder / NAME), *controlled, *attached, "--", *quiet, *argv,
    ]  # fmt: skip


def read_folded_stacks(host: Host, folder: PurePosixPath, sampled: Sampling, rate: int) -> FoldedStacks:
    """The stacks of a sampled run, read from perf's file in ``folder``, which is then removed. ``sampled`` and
    ``rate``: see ``perf_record_command``. Raises NoPerfSamples if there are no samples, and RunFailed if samples cannot
    be read or are too many."""
    file = folder / NAME
    per_unit = 1000 / rate if sampled.off_cpu else 1000 if sampled.unit == "us" else 1
    of_waits = ["--show-switch-events", "--ns", "-F", "comm,tid,time,ip,sym,dso"]
    fields = of_waits if sampled.off_cpu else ["-F", "comm,period,ip,sym,dso"]
    try:
        argv = ["sh", "-c", _FOLD, "fold", str(file), SHORTEN, ADD_UP, "1" if sampled.off_cpu else "", *fields]
        printed = run_to_end(host, HostCommand(argv, "perf script", "run", LIMIT, folder, merged=False, name=NAME))
    finally:
        host.run(["rm", "-f", "--", str(file)])
    folded = folded_stacks(lines_of(printed), per_unit)
    if not folded.samples:
        raise NoPerfSamples("perf took no samples", stage="run", log=str(host.root / "jobs"))
    return folded


PART = "profiles"
# If a shell becomes a command (exec), perf 6.1 keeps the shell's libraries. If both have a library, perf takes the
# lower address, and finds no callers if this is the shell's. So LOW places libraries of commands below libraries of
# shells.
LOW = ("setarch", "-L")
SAMPLES = 10_000  # approximate number of samples of a run: 160 MB with their stacks
OFTENEST, RAREST = 499, 1  # most and fewest samples per second of CPU time
OF_SHORT = 4999  # in place of OFTENEST if processes end before their first sample: each process counts anew
WAITS_SAMPLED = 5_000  # approximate number of waits that are sampled in a run
USUAL_SWITCHES = 5_000  # context switches of threads per second, if they are not known from earlier runs
REPEATED = 5.0  # a short command is repeated for at least this number of seconds
LONG = 60.0  # seconds that a command of unknown length may take

WAITS_FOR_ALL = "This includes waits of threads for clients and for work."


@dataclass
class ProfileStudy(Study):
    """In each turn (a run of one build), samples CPU time if ``switches`` is None, otherwise waits. A run that samples
    waits gives no profile if perf has no permission to sample the kernel, or if no thread has waited."""

    seconds: float = LONGEST  # most seconds of measuring in a turn
    switches: float | None = None  # if waits are sampled: context switches per second, 0 if unknown; None: CPU work
    events: Sequence[str] = EVENTS  # of samples of CPU work; perf uses the first event that it can count
    sampled: Sampling | None = None  # None until it is known
    last: tuple[int, int] | None = None  # samples per second of CPU time, and number of samples, of the last run
    oftenest: int = OFTENEST  # most samples per second of CPU time
    tried: bool = False  # whether other ways to find callers were tried
    low: Sequence[str] | None = None  # the prefix of commands; None until it is known

    def run_turn(self, system: Installation, dataset: str, turn: Turn) -> Generator[LabEvent]:
        """Profile a run. If too much of the cost has no callers, try other settings, and keep the best profile."""
        turn.runs_left -= 1
        context = shortened_context(self.context, self.seconds)
        try:
            if not (self.sampled or context.perf):
                perf.counters_of_test_run(context.host)
            sampled = self.sampled = self.sampled or find_sampling(context.host, self.events)
        except EnvironmentFailure as failure:
            if self.switches is None and self.events is EVENTS:  # else the profile of CPU work has reported it
                yield Unexplained(PART, advised(str(failure), failure.advice), context.host.name)
            return
        if self.switches is not None:
            if not sampled.samples_kernel:
                return
            sampled = Sampling(WAITS, sampled.chains, stack_bytes=sampled.stack_bytes)
        best = yield from self.make_profiled_run(context, system, dataset, turn, sampled)
        if self.oftenest == OFTENEST and not sampled.off_cpu and (best is None or best.samples < MIN_SAMPLES):
            self.oftenest = OF_SHORT
            best = yield from self.make_profiled_run(context, system, dataset, turn, sampled)
        further = samplings_with_more_callers(context.host, sampled) if best and not self.tried else ()
        while best and best.alone > ALONE and (way := next(iter(further), None)):
            self.tried = True
            resampled = yield from self.make_profiled_run(context, system, dataset, turn, way)
            if resampled and resampled.alone < best.alone:
                best, self.sampled = resampled, way
        if best:
            self.succeeded()
            yield Profiled(turn.candidate, best)

    def make_profiled_run(
        self, context: RunContext, system: Installation, dataset: str, turn: Turn, sampled: Sampling
    ) -> Generator[LabEvent, None, ProfileFacts | None]:
        """Make a run under `perf record` with the settings ``sampled``. Returns the profile; None if no thread has
        waited, or if the run was too short for a sample."""
        seconds = 0
        if sampled.off_cpu:
            rate = wait_sampling_interval((self.switches or USUAL_SWITCHES) * context.workload.time)
        else:
            enough = min(LONGEST, max(REPEATED, self.seconds))
            seconds = math.floor(enough) if context.workload.command and context.longest_run_seconds < enough else 0
            first = partial(first_sampling_rate, context, read_fact(context.host, CORES) or 1, seconds)
            following = self.last and next_rate(*self.last, sampled.samples_per_run, self.oftenest)
            rate = round(following or first(sampled.samples_per_run))
        if context.workload.command and self.low is None:
            self.low = LOW if context.host.run([*LOW, "true"], check=False).ok else ()
        wrap = partial(perf_record_command, sampled=sampled, rate=rate, seconds=seconds)
        bench = replace(context, perf=True, add_perf=wrap, argv_prefix=self.low or ())
        try:
            with begin_visit(context, system, turn.candidate, dataset) as opened:
                yield replace(turn.start_event(context), number=turn.first)
                facts = yield from timed_run(replace(opened, bench=bench))
                times = (
                    context.host.run(["cat", str(opened.folder / TIMES)], check=False).stdout.strip() if seconds else ""
                )
                facts = with_mean_reported_value(context, facts, opened.folder)
                folded = read_folded_stacks(context.host, opened.folder, sampled, rate)
        except NoPerfSamples:
            self.last = rate, 0
            if sampled.off_cpu or self.oftenest == OFTENEST:
                return None
            raise
        if not sampled.off_cpu:
            self.last = rate, folded.samples
        return profile_facts(facts, folded, sampled, int(times) if times.isdecimal() else 1)


def with_mean_reported_value(context: RunContext, facts: RunFacts, folder: PurePosixPath) -> RunFacts:
    """The facts of a run, with the mean of the rates (or the harmonic mean of the costs) that its repetitions print."""
    if not facts.reported:
        return facts
    printed = context.host.run(["sh", "-c", _OUTPUTS, "outputs", str(folder / TIMES)], check=False).stdout
    workload, reported_by = context.workload, [facts.reported]
    for text in printed.split("\f")[:-1]:
        with suppress(ValueError):
            reported_by.append(command.reported_value(workload, text) or facts.reported)
    is_rate = workload.output.metric == "rate" if workload.output else bool(workload.rate)
    return replace(facts, reported=fmean(reported_by) if is_rate else harmonic_mean(reported_by))


def wait_sampling_interval(switches: float) -> int:
    """The number n such that sampling every n-th of ``switches`` waits gives about ``WAITS_SAMPLED`` samples. n is not
    divisible by 2, 3, 5 or 7: if an operation waits at k places in turn, and n and k have a common divisor, some places
    are never sampled."""
    number = max(1, round(switches / WAITS_SAMPLED))
    while number > 1 and math.gcd(number, 2 * 3 * 5 * 7) > 1:
        number += 1
    return number


def first_sampling_rate(context: RunContext, cores: int, min_seconds: float = 0.0, wanted: int = SAMPLES) -> float:
    """The sampling rate for the first sampled run. A repeated command runs for at least ``min_seconds``."""
    of_command, workload = bool(context.workload.command), context.workload
    seconds = max(min_seconds, context.longest_run_seconds or LONG) if of_command else workload.time
    # Busy cores: the threads of the server or the library, and as many helper threads.
    busy = cores if of_command else min(cores, 2 * workload.threads)
    return min(OFTENEST, max(RAREST, wanted / (seconds * busy)))


def next_rate(rate: float, samples: int, wanted: int = SAMPLES, highest: int = OFTENEST) -> float:
    """The rate, at most ``highest``, that should give ``wanted`` samples, if ``rate`` has given ``samples``."""
    return min(highest, max(RAREST, rate * wanted / max(1, samples)))


def profile_facts(facts: RunFacts, folded: FoldedStacks, sampled: Sampling, repeats: int = 1) -> ProfileFacts:
    """The profile of one of ``repeats`` repetitions. Lost samples are assumed to be distributed like the others."""
    all_samples = folded.samples + folded.lost
    notes = [
        *sampled.notes,
        WAITS_FOR_ALL if sampled.off_cpu else "",
        f"{100 * folded.lost / all_samples:.0f} % of the samples were lost."
        if folded.lost > NEGLIGIBLE_SHARE * all_samples
        else "",
    ]
    stacks = {stack: cost * all_samples / folded.samples / repeats for stack, cost in folded.stacks.items()}
    return ProfileFacts(
        facts.commit, facts.build_key, facts.host, facts.operations, facts.seconds, sampled.unit, stacks,
        samples=folded.samples, lost=folded.lost, event=sampled.event, chains=sampled.chains, off_cpu=sampled.off_cpu,
        note=" ".join(filter(None, notes)), reported=facts.reported, alone=folded.alone,
    )  # fmt: skip
