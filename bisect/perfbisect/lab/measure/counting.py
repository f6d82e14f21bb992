"""Instructions, counted so that the count repeats: by perf in user space, or by valgrind where a host has no counters.

A counted run is two executions, one with twice the operations of the other; what the longer one executes beyond the
shorter is the count, so that no start-up is in it. Nothing else may differ from one execution to the next: each has a
fresh copy of the data, one thread, the same seeds, no warm-up by the clock, no random addresses, and the random numbers
of ``fixed_random.c``. Counts then repeat to parts per million, on a busy machine, too.

How long is a length? A new hunt finds it with its first build (``next_length``); all builds on a host have the same one.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import msgspec

from perfbisect.core.domain.facts import ProfileFacts, RunFacts
from perfbisect.core.explain.profiles import COUNTED, counts_of
from perfbisect.errors import NotCounted, UsageError
from perfbisect.host.packages import how_to_install
from perfbisect.host.protocol import Host
from perfbisect.lab import upload
from perfbisect.lab.measure import perf
from perfbisect.lab.servers import HostCommand, carry_out
from perfbisect.lab.workload import lines_of
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.placeholders import placeholders_in
from perfbisect.recipes.workload import EVENTS, Option, Workload

PERF = "perf-user"
ENOUGH = 250e6  # instructions between the two lengths: about a second under valgrind
ENOUGH_BY_FUNCTION = ENOUGH / 8  # callgrind takes longer, and a change that was found needs less
SLOWER = 40.0  # times that a program takes more CPU time while its instructions are counted by valgrind
USUALLY = 12.0  # times that a run takes longer while it is counted by valgrind: 5 to 20, where ``SLOWER`` is the most
COUNTED_OPERATIONS = 4.0  # at the least; and of those that make a usual count, so many times as many
TOUCHED = 12.0
SPEED = 2e9  # instructions a second, about
STEP = 16  # from one length that was too short to the next
OPERATIONS = f"Let {{{EVENTS}}} be the number of its operations"
LONGEST = STEP**7  # length, from which on a command does not seem to use it

_FIXED_RANDOM = Path(__file__).with_name("fixed_random.c")
_LIBRARY = "fixed_random.so"
_COMPILE = f"""\
cd -- "$1" && {{ [ -e {_LIBRARY} ] || {{ cc -O1 -shared -fPIC -o {_LIBRARY}.$$ {_FIXED_RANDOM.name} -ldl && mv {_LIBRARY}.$$ {_LIBRARY}; }}; }}
"""
_METHODS = r"""perf stat -x , -e instructions:u -- true 2>&1; printf '\f'; valgrind --version 2>/dev/null"""
# $1 is what the files are named by, one for each process; what they count is added up when they are read.
_SUMMARIES = """\
counters=$1; shift
"$@"
status=$?
grep -h '^summary:' -- "$counters".* >"$counters"
exit "$status"
"""
_TOOLS = {  # of valgrind: by whether instructions are counted by function
    False: ("cachegrind", "--cache-sim=no"),
    True: ("callgrind", "--dump-instr=yes", "--dump-line=no", "--compress-strings=no", "--compress-pos=no"),
}
NAME = "functions"  # of the job that adds them up
LIMIT = 600.0  # seconds that it may take
LINES = 20_000  # of an object's addresses, and of functions and calls, those with the highest counts
_FRAME, _READ, _INLINED, _ADD_UP = (
    Path(__file__).with_name(f"{name}.awk").read_text() for name in ("frame", "callgrind", "inlined", "add_up_counts")
)
_FUNCTIONS = rf"""
cd -- "$1" && read=$2 inlined=$3 add_up=$4 && awk "$read" counters.* >functions || exit
awk -F '\t' '$1 == "own" {{ print $3 }}' functions | sort -u | while IFS= read -r OBJECT; do
    [ -f "$OBJECT" ] || continue
    export OBJECT
    awk -F '\t' '$1 == "own" && $3 == ENVIRON["OBJECT"] {{ print $2, $4 }}' functions | sort -rn | head -n {LINES} |
        cut -d ' ' -f 2 | addr2line -a -f -i -C -e "$OBJECT" 2>/dev/null | awk "$inlined"
done >inlined
awk "$add_up" inlined functions | sort -k 1,1nr | head -n {LINES}
"""
_SUMMARY = re.compile(r"summary: ([0-9]{1,30})")
_VERSION = re.compile(r"valgrind-[0-9]+(\.[0-9]+)*")


@dataclass(frozen=True, slots=True)
class Counter:
    """How instructions are counted on a host."""

    method: str  # PERF, or the name and version of valgrind; part of what makes runs comparable
    prefix: tuple[str, ...] = ()  # of a command whose addresses are not random
    env: Mapping[str, str] = field(default_factory=dict)  # of a command whose random numbers are fixed
    by_function: bool = False  # by valgrind; see ``functions_on``

    @property
    def enough(self) -> float:
        """Instructions between the two lengths."""
        return ENOUGH_BY_FUNCTION if self.by_function else ENOUGH

    def randomness(self, host: str) -> tuple[str, str] | None:
        """A sentence and advice where something random still reaches the counts of that host; None where nothing does."""
        effect = "one build counts a little more or less in each run"
        if not self.prefix:
            refused = f"host {host} refuses setarch -R, so addresses stay random: {effect}"
            return refused, "In a container, allow it: docker run --security-opt seccomp=unconfined"
        unfixed = f"host {host} has no C compiler (cc), so random numbers cannot be fixed: {effect}"
        return None if self.env else (unfixed, how_to_install(["gcc"]))

    def under(self, folder: PurePosixPath) -> list[str]:
        """What a command runs under, to be counted with all its processes; the result is in ``counters`` in ``folder``."""
        result = str(folder / "counters")
        if self.method == PERF:
            return [*self.prefix, "perf", "stat", "-x", ",", "-o", result, "-e", "instructions:u", "--"]
        tool, *options = _TOOLS[self.by_function]
        options = ["-q", f"--tool={tool}", *options, "--trace-children=yes", f"--{tool}-out-file={result}.%p"]
        return [*self.prefix, "sh", "-c", _SUMMARIES, "counted", result, "valgrind", *options]

    def read(self, text: str) -> dict[str, float | None]:
        """The counters in that result."""
        if self.method == PERF:
            return perf.parse(text)
        found = [int(match[1]) for match in map(_SUMMARY.fullmatch, text.splitlines()) if match]
        return {"instructions": float(sum(found)) if found else None}


def methods(host: Host) -> list[str]:
    """How instructions can be counted on the host, the quick way first: PERF, the name and version of valgrind."""
    counters, _, version = host.run(["sh", "-c", _METHODS], check=False).stdout.rpartition("\f")
    by_perf = [PERF] if perf.parse(counters).get("instructions") else []
    return [*by_perf, *([version.strip()] if _VERSION.fullmatch(version.strip()) else [])]


def method(host: Host) -> str:
    """The quick way in which instructions can be counted on the host; "" where they cannot be."""
    return next(iter(methods(host)), "")


def counter(host: Host, by: str, *, by_function: bool = False) -> Counter:
    """The counter of that method, with what the host has to keep counts the same."""
    fixes_addresses = host.run(["sh", "-c", "setarch -R true"], check=False).ok  # a container may forbid it
    prefix = ("setarch", "-R") if fixes_addresses else ()
    place = upload.place(host, "scripts", {_FIXED_RANDOM.name: _FIXED_RANDOM})
    compiled = host.run(["sh", "-c", _COMPILE, "compile", str(place)], check=False).ok
    return Counter(by, prefix, {"LD_PRELOAD": str(place / _LIBRARY)} if compiled else {}, by_function)


def functions_on(host: Host, folder: PurePosixPath) -> str:
    """The instructions and calls of each function that were counted in the folder of a visit: see ``counts_of``.

    Functions that are inlined are told apart by debug lines, where a binary has any and the host has addr2line.
    """
    argv = ["sh", "-c", _FUNCTIONS, "functions", str(folder), _FRAME + _READ, _FRAME + _INLINED, _ADD_UP]
    return carry_out(host, HostCommand(argv, "callgrind", "run", LIMIT, folder, merged=False, name=NAME))


def by_function(facts: RunFacts, *printed: str) -> ProfileFacts:
    """The functions of a counted run, from what ``functions_on`` has printed of its executions."""
    *short, long = map(lines_of, printed)
    stacks, calls = counts_of(short[0] if short else (), long)
    return ProfileFacts(
        facts.commit, facts.build_key, facts.host, facts.operations, facts.seconds, COUNTED, stacks,
        samples=0, event=facts.counted, calls=calls,
    )  # fmt: skip


def obstacle(builder: Builder, workload: Workload) -> str:
    """Why the instructions of the workload cannot be counted exactly, for the end of a sentence; "" if they can."""
    if builder.server:
        return f"{builder.name} is a server, whose processes do other work, too"
    if workload.threads > 1:
        return f"workload {workload.name} has {workload.threads} threads, which wait for each other in their own ways"
    return ""


def counting_time(workload: Workload, runs: Sequence[RunFacts]) -> float:
    """Seconds that an exact count takes about, after these timed runs of a build; 0 where there is none.

    What an operation computes becomes slower, up to the few operations that are counted in any case. What it waits takes
    as long as ever, in as many operations as it takes to execute enough instructions. A command without a length is
    counted once, as it is.
    """
    runs = [run for run in runs if run.operations]
    if not runs:
        return 0.0
    if not has_length(workload):
        clocks = [(run.counters.get("task-clock") or 1000 * run.seconds) / 1000 for run in runs]
        return max(run.seconds for run in runs) + SLOWER * min(clocks)
    slowest = max(runs, key=lambda run: run.seconds / run.operations)
    duration = slowest.seconds / slowest.operations
    computing = min(duration, (slowest.counters.get("task-clock") or math.inf) / 1000 / slowest.operations)
    operations = max(1.0, TOUCHED * ENOUGH_BY_FUNCTION / (SPEED * computing))
    return COUNTED_OPERATIONS * SLOWER * computing + operations * (duration - computing)


def cost(method: str, workload: Workload) -> tuple[float, float]:
    """What a count costs about: seconds, and times as long as a run besides."""
    if method == PERF:
        return 1.0, 2.0
    return (3 * ENOUGH * SLOWER / SPEED, 1.0) if has_length(workload) else (1.0, USUALLY)


def has_length(workload: Workload) -> bool:
    """Whether the workload can be made to do a given number of operations."""
    return not workload.command or EVENTS in placeholders_in(workload.command)


def of_length(workload: Workload, events: int) -> Workload:
    """The workload with nothing in it that depends on the clock, as long as ``events`` operations."""
    fixed: dict[str, Option] = {EVENTS: events, "time": 0}
    if not workload.command:
        seed = workload.args.get("rand-seed") or 1
        fixed |= {"report-interval": 0, "percentile": 0, "histogram": False, "rand-seed": seed}
    return msgspec.structs.replace(workload, warmup=0.0, args=workload.args | fixed)


def next_length(lengths: Mapping[int, float], enough: float = ENOUGH) -> int:
    """The length to try after those that were counted (length → instructions), 0 once the longest tells what is ``enough``.

    Raises UsageError where they do not grow.
    """
    if not lengths:
        return 1
    longest = max(lengths)
    if lengths[longest] - lengths[min(lengths)] >= enough / STEP:
        return 0
    if longest >= LONGEST:
        text = f"The command executes as many instructions when {{{EVENTS}}} is {longest:,} as when it is 1."
        raise UsageError(text, f"{OPERATIONS}; or leave it out, to count the command as a whole.")
    return longest * STEP


def chosen_length(lengths: Mapping[int, float], enough: float = ENOUGH) -> int:
    """The shorter length of a counted run, from those that were tried."""
    longest = max(lengths)
    beyond = lengths[longest] - lengths[min(lengths)]
    return max(1, round((longest - min(lengths)) * enough / beyond))


def instructions(facts: RunFacts) -> float:
    """What one execution executed. Raises NotCounted where that is not known."""
    if (found := facts.counters.get("instructions")) is None:
        advice = "Its command may end without its own exit, or write where its counts are kept; hunt another metric."
        text = f"{facts.counted} did not count the instructions of a run of {facts.commit[:10]}"
        raise NotCounted(text, advice)
    return found


def difference(short: RunFacts, long: RunFacts) -> RunFacts:
    """The facts of a counted run, from those of its two executions. Raises UsageError when the longer did not do more."""
    operations = long.operations - short.operations
    if operations <= 0:
        did = f"{short.operations:,} operations when {{{EVENTS}}} was {short.events:,}"
        text = f"The command did {did}, and {long.operations:,} when it was {long.events:,}"
        why = f"{text}, so its instructions cannot be counted exactly."
        raise UsageError(why, f"{OPERATIONS}, and `operations` find it in its output.")
    beyond = {"instructions": instructions(long) - instructions(short)}
    of_both = replace(long, started=short.started, seconds=short.seconds + long.seconds, events=short.events)
    return replace(of_both, operations=operations, counters=beyond)
