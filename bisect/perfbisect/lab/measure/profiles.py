"""Profiles: where a build spends the CPU time of an operation, sampled by ``perf record``. See ``Study``.

The measured window is that of a timed run: the workload's first operation after its warm-up lets perf sample, and its
last one ends it. What is sampled are the processes that a timed run counts.

Callers are found by unwinding a copy of the stack (``dwarf``): every usual build has the tables for it, a stripped one
too. Chains of frame pointers lack the caller of a function that calls nothing, for which GCC makes no frame even with
``-fno-omit-frame-pointer``. So they are used only where perf can neither unwind nor read the processor's own record of
calls (``lbr``).
"""

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath

from perfbisect.core.domain.events import LabEvent, Profiled, RunStarted, Unexplained
from perfbisect.core.domain.facts import ProfileFacts, RunFacts
from perfbisect.core.explain.folding import FEW, Folded, fold
from perfbisect.errors import EnvironmentFailure, RunFailed
from perfbisect.host import jobs
from perfbisect.host.facts import CORES, ask
from perfbisect.host.protocol import Host
from perfbisect.lab.measure import perf, visit
from perfbisect.lab.measure.counter_groups import LONGEST, shortened
from perfbisect.lab.measure.runner import Turn
from perfbisect.lab.measure.slow_runs import SlowRuns
from perfbisect.lab.measure.visit import RunContext
from perfbisect.lab.server.installation import System
from perfbisect.lab.workload.result import lines_of

PART = "profiles"
NAME = "profile"  # of the job that folds, and of the file below the visit's folder
EVENTS = ("cycles", "cpu-clock")  # perf itself takes the second for the first where there are no counters
CHAINS = ("dwarf", "lbr", "fp")
STACK = 16384  # bytes of stack that are copied for each sample: few chains of servers are longer
SAMPLES = 10_000  # of a run, about: 160 MB with their stacks
OFTENEST, RAREST = 499, 1  # samples of a second of CPU time
LIMIT = 600.0  # seconds in which samples must be folded
LONG = 60.0  # seconds that a command may take whose length is unknown

# A program that keeps a processor busy for some hundredths of a second, and calls.
_TRIAL = r"""
file=$1 event=$2 chains=$3
mkdir -p "${file%/*}" && perf record -q -N -B -e "$event" -F 999 --call-graph "$chains" -o "$file" -- \
    sh -c 'f() { i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; }; f' || { rm -f "$file"; exit 1; }
perf evlist -i "$file" 2>/dev/null
perf script --no-inline -i "$file" -F comm,period,ip 2>/dev/null |
    awk '/^\t/ { frames++; next } NF { samples++ } END { printf "frames %d\nsamples %d\n", frames, samples }'
rm -f "$file"
"""

# Adds up equal chains, one on a line: see ``core/explain/folding.py``. Lines of frames begin with a tab.
ADD_UP = r"""
function add() { if (head != "") { cost[head chain] += period; number[head chain]++ }; head = chain = "" }
/^\f/ { status = substr($0, 2); next }
/^\t/ { sub(/^[ \t]+[0-9a-f]+ +/, ""); gsub(/\t/, " "); chain = chain "\t" $0; next }
/PERF_RECORD_LOST lost [0-9]+$/ { lost += $NF; next }
NF == 0 { add(); next }
match($0, /[0-9]+:? *$/) { add(); period = substr($0, RSTART) + 0; head = substr($0, 1, RSTART - 1); gsub(/\t/, " ", head) }
END { add(); for (each in cost) printf "%.0f\t%d\t%s\n", cost[each], number[each], each; printf "lost\t%d\n", lost; exit status }
"""
_FOLD = r"""
{ perf script --no-inline --show-lost-events -F comm,period,ip,sym,dso -i "$1"; printf '\n\f%s\n' "$?"; } | awk "$2"
"""
# A server's processes and threads that start before the window must be known: perf follows them by the event "dummy" as
# long as it is enabled. So it starts with all events enabled, and those that are sampled are disabled first.
_QUIET = """\
exec 3<>"$1" 4<>"$2"; shift 2
while [ "$1" != -- ]; do printf 'disable %s\\n' "$1" >&3; read -r answer <&4; shift; done
shift; exec 3>&- 4>&-
exec "$@"
"""
_LISTED = re.compile(r"^(?:\w+/)?(cycles|cpu-clock)(?:/|:|$)(\w*)$", re.MULTILINE)
_COUNTED = re.compile(r"^(frames|samples) ([0-9]+)$", re.MULTILINE)

NO_KERNEL = "Time in the kernel is left out: perf may not sample there (kernel.perf_event_paranoid)."
NO_LEAF_CALLERS = "The caller of a function that calls nothing is missing where the compiler makes no frame for it."
SHORT_CHAINS = "The outermost callers of deep stacks are missing: the processor records the last calls only."


@dataclass(frozen=True, slots=True)
class Sampling:
    """What perf can sample on a host."""

    event: str  # as perf reads it: "cycles", "cpu-clock:u"
    chains: str  # one of ``CHAINS``
    names: tuple[str, ...] = ()  # by which perf knows it, where it is one event for each kind of cores

    @property
    def in_kernel(self) -> bool:
        """Whether the kernel is sampled, too."""
        return not self.event.endswith(":u")

    @property
    def unit(self) -> str:
        """The unit of costs."""
        return "cycles" if self.event.startswith("cycles") else "us"

    @property
    def call_graph(self) -> str:
        """How perf is told to find callers."""
        return call_graph(self.chains)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know of every profile."""
        of_chains = {"fp": NO_LEAF_CALLERS, "lbr": SHORT_CHAINS}.get(self.chains, "")
        return tuple(filter(None, ["" if self.in_kernel else NO_KERNEL, of_chains]))


def call_graph(chains: str) -> str:
    """How perf is told to find callers."""
    return f"dwarf,{STACK}" if chains == "dwarf" else chains


def available(host: Host) -> Sampling:
    """What perf can sample on a host where it can count, from trials. Raises EnvironmentFailure where it takes no samples."""
    printed = ""
    for event in EVENTS:
        for chains in CHAINS:
            words = [str(jobs.scratch(host) / "trial"), event, call_graph(chains)]
            tried = host.run(["sh", "-c", _TRIAL, "sampled", *words], check=False)
            printed = printed or tried.stderr
            if tried.ok and (found := sampling(tried.stdout, chains)):
                return found
    refused = perf.refusal(host.name, printed) if "paranoid" in printed else ""
    raise EnvironmentFailure(
        refused or f"perf takes no samples on host {host.name}: {last_line(printed)}",
        "Allow it with: sysctl kernel.perf_event_paranoid=1" if refused else "",
    )


def sampling(printed: str, chains: str) -> Sampling | None:
    """What a trial has shown; None where it took no samples, or their callers are unknown, but for frame pointers.

    A processor that counts an event may yet be unable to sample by it, as in some virtual machines.
    """
    event, counts = _LISTED.search(printed), dict(_COUNTED.findall(printed))
    names = tuple(match[0] for match in _LISTED.finditer(printed) if "/" in match[0])
    samples, frames = (int(counts.get(name, 0)) for name in ("samples", "frames"))
    if not event or not samples or (chains != CHAINS[-1] and frames < 2 * samples):
        return None
    return Sampling(event[1] + (":u" if "u" in event[2] else ""), chains, names)


def last_line(text: str) -> str:
    """The last line that is not blank."""
    return (["it printed nothing", *filter(None, map(str.strip, text.splitlines()))])[-1]


def record(
    argv: Sequence[str],
    folder: PurePosixPath,
    pids: Iterable[int] = (),
    *,
    whole: bool = False,
    sampled: Sampling,
    rate: int,
) -> list[str]:
    """``argv`` under perf, as ``perf.wrap``; the samples are written to the file ``NAME`` in ``folder``.

    No build id is read and nothing is put into perf's cache: that would take time, and is no place of ours.
    """
    attached = ["-p", ",".join(map(str, pids))] if (pids := tuple(pids)) else []
    fifos = [str(folder / "control"), str(folder / "ack")]
    events, controlled, quiet = ["-e", sampled.event], [], []
    if not whole:
        controlled = ["--control", f"fifo:{','.join(fifos)}"]
        if attached:
            events = ["-e", "dummy:u", *events]
            quiet = ["sh", "-c", _QUIET, "quiet", *fifos, *(sampled.names or [sampled.event]), "--"]
        else:
            controlled += ["--delay=-1"]
    return [
        "perf", "record", "-N", "-B", *events, "-F", str(rate), "--call-graph", sampled.call_graph,
        "-o", str(folder / NAME), *controlled, *attached, "--", *quiet, *argv,
    ]  # fmt: skip


@dataclass(slots=True)
class Profiles:
    """Samples one run in each turn."""

    context: RunContext
    succeeded: Callable[[], None]
    seconds: float = LONGEST  # of the run
    sampled: Sampling | None = None  # None until it is known
    rate: float = 0.0  # samples of a second of CPU time

    def visit(self, system: System, dataset: str, turn: Turn) -> Generator[LabEvent]:
        """One run, and the folding of its samples."""
        context = shortened(self.context, self.seconds)
        try:
            if not context.perf:
                perf.probe(context.host)
            self.sampled = self.sampled or available(context.host)
        except EnvironmentFailure as failure:
            turn.left -= 1
            yield Unexplained(PART, str(failure), context.host.name)
            return
        self.rate = self.rate or first_rate(context, ask(context.host, CORES) or 1)
        rate = max(RAREST, round(self.rate))
        bench = replace(context, perf=True, wrap=partial(record, sampled=self.sampled, rate=rate))
        with visit.begin(context, system, turn.candidate, dataset, SlowRuns()) as opened:
            yield RunStarted(turn.candidate, turn.first, turn.total, turn.purpose, context.planned)
            facts = yield from visit.run(replace(opened, bench=bench))
            folded = folded_on(context.host, opened.folder, 1000 if self.sampled.unit == "us" else 1)
        turn.left -= 1
        self.succeeded()
        self.rate = next_rate(rate, folded.samples)
        yield Profiled(turn.candidate, profile(facts, folded, self.sampled))


def first_rate(context: RunContext, cores: int) -> float:
    """How often a run is sampled of which nothing is known but its length, and how many threads may work."""
    seconds = context.workload.time
    if context.workload.command:
        seconds, busy = context.longest or LONG, cores
    else:
        busy = min(
            cores, 2 * context.workload.threads
        )  # those of the server, or of the library, and what they wait for
    return min(OFTENEST, max(RAREST, SAMPLES / (seconds * busy)))


def next_rate(rate: float, samples: int) -> float:
    """How often the next run is sampled, after one that was sampled that often."""
    return min(OFTENEST, max(RAREST, rate * SAMPLES / max(1, samples)))


def folded_on(host: Host, folder: PurePosixPath, per_unit: float) -> Folded:
    """The stacks of the run in the folder of a visit, whose samples are removed then. Raises RunFailed where there are none."""
    file = folder / NAME
    job = jobs.start(host, ["sh", "-c", _FOLD, "fold", str(file), ADD_UP], name=NAME, timeout=LIMIT, cwd=folder)
    status = jobs.end(host, job)
    host.run(["rm", "-f", "--", str(file)])
    folded = fold(lines_of(jobs.printed(host, job).text), per_unit)
    if status or not folded.samples:
        said = last_line(jobs.printed(host, job, "stderr").text)
        reason = f"perf script ended with status {status}: {said}" if status else "perf took no samples"
        raise RunFailed(reason, stage="run", log=str(job.folder / "stderr"))
    jobs.remove(host, job)
    return folded


def profile(facts: RunFacts, folded: Folded, sampled: Sampling) -> ProfileFacts:
    """The profile of a run. The samples that were lost are taken to be like the others."""
    whole = folded.samples + folded.lost
    notes = [
        *sampled.notes,
        f"The callers of {100 * folded.alone:.0f} % of the cost are unknown." if folded.alone > FEW else "",
        f"{100 * folded.lost / whole:.0f} % of the samples were lost." if folded.lost > FEW * whole else "",
    ]
    return ProfileFacts(
        commit=facts.commit,
        build_key=facts.build_key,
        host=facts.host,
        operations=facts.operations,
        seconds=facts.seconds,
        unit=sampled.unit,
        stacks={stack: cost * whole / folded.samples for stack, cost in folded.stacks.items()},
        samples=folded.samples,
        lost=folded.lost,
        event=sampled.event,
        chains=sampled.chains,
        note=" ".join(filter(None, notes)),
    )
