"""Counts the instructions of a workload exactly, so that repeated counts agree: by perf in user space, or by valgrind
if perf cannot count on the host.

A counted run consists of two executions, the second with twice as many operations as the first. The count is the
instructions of the longer execution minus the instructions of the shorter execution, so the instructions of the
start-up cancel. The two executions must differ only in the number of operations. So each execution has a new copy of
the data, one thread, the same seeds, no warm-up with a fixed duration, no random addresses, and fixed random numbers
(``fixed_random.c``). Repeated counts of a build then differ by a few parts per million, even on a busy machine.

The *length* of a counted run is the number of operations of the shorter execution. A new hunt determines the length
with its first build (``next_length``); all builds on a host then have the same length.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import msgspec

from perfbisect.core.domain.facts import ProfileFacts, RunFacts
from perfbisect.core.explain.profiles import COUNTED, subtract_short_execution
from perfbisect.errors import InstructionsNotCounted, UsageError
from perfbisect.host.packages import how_to_install
from perfbisect.host.protocol import Host
from perfbisect.lab import upload
from perfbisect.lab.measure import perf
from perfbisect.lab.servers import HostCommand, run_to_end
from perfbisect.lab.workload import lines_of
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.placeholders import placeholders_in
from perfbisect.recipes.workload import EVENTS, Option, Workload

PERF = "perf-user"
ENOUGH = 250e6  # fewest instructions by which two counted runs must differ: about a second under valgrind
ENOUGH_BY_FUNCTION = ENOUGH / 8  # callgrind is slower, and a change that is already proven needs fewer instructions
SLOWER = 40.0  # times by which valgrind slows down the CPU time of a program, at most
USUALLY = 12.0  # times by which valgrind slows down a run: usually 5 to 20
COUNTED_OPERATIONS = 4.0  # operations whose computing time is in the estimated time of a count
TOUCHED = 12.0
SPEED = 2e9  # instructions per second, about
STEP = 16  # a length that was too short is multiplied by STEP
OPERATIONS = f"Use {{{EVENTS}}} in the command as its number of operations"
LONGEST = STEP**7  # if a run of this length is too short, the command seems to ignore its length

_FIXED_RANDOM = Path(__file__).with_name("fixed_random.c")
_LIBRARY = "fixed_random.so"
_COMPILE = f"""\
cd -- "$1" && {{ [ -e {_LIBRARY} ] || {{ cc -O1 -shared -fPIC -o {_LIBRARY}.$$ {_FIXED_RANDOM.name} -ldl && mv {_LIBRARY}.$$ {_LIBRARY}; }}; }}
"""
_METHODS = r"""perf stat -x , -e instructions:u -- true 2>&1; printf '\f'; valgrind --version 2>/dev/null"""
# Runs the command after $1 under valgrind, which writes a file $1.PID for each process. The file $1 then has the
# summary line of each process; perfbisect adds up the counts.
_SUMMARIES = """\
counters=$1; shift
"$@"
status=$?
grep -h '^summary:' -- "$counters".* >"$counters"
exit "$status"
"""
_TOOLS = {  # whether instructions are counted by function → valgrind's tool
    False: ("cachegrind", "--cache-sim=no"),
    True: ("callgrind", "--dump-instr=yes", "--dump-line=no", "--compress-strings=no", "--compress-pos=no"),
}
NAME = "functions"  # name of the job that adds up the counts by function
LIMIT = 600.0  # seconds that this job may take
LINES = 20_000  # addresses of an object, and printed functions and calls: only those with the highest counts
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
    """The method and the settings by which a host counts instructions."""

    method: str  # PERF, or the name and version of valgrind: runs by different methods are not compared
    prefix: tuple[str, ...] = ()  # words before a command, so that its addresses are not random
    env: Mapping[str, str] = field(default_factory=dict)  # variables of a command, which fix its random numbers
    by_function: bool = False  # by valgrind; see ``read_function_counts``

    @property
    def min_instruction_difference(self) -> float:
        """The smallest number of instructions by which the two executions of a counted run should differ."""
        return ENOUGH_BY_FUNCTION if self.by_function else ENOUGH

    def randomness_warning(self, host: str) -> tuple[str, str] | None:
        """If random addresses or random numbers change the counts on ``host``, a sentence about this and advice; None
        if repeated counts agree."""
        effect = "counts of a build differ a little between runs"
        if not self.prefix:
            refused = f"host {host} refuses setarch -R, so addresses stay random: {effect}"
            return refused, "In a container, allow setarch: docker run --security-opt seccomp=unconfined"
        unfixed = f"host {host} has no C compiler (cc), so random numbers cannot be fixed: {effect}"
        return None if self.env else (unfixed, how_to_install(["gcc"]))

    def command_prefix(self, folder: PurePosixPath) -> list[str]:
        """The words to put before a command, so that the instructions of all its processes are counted, and the result
        is written to the file ``counters`` in ``folder``."""
        result = str(folder / "counters")
        if self.method == PERF:
            return [*self.prefix, "perf", "stat", "-x", ",", "-o", result, "-e", "instructions:u", "--"]
        tool, *options = _TOOLS[self.by_function]
        options = ["-q", f"--tool={tool}", *options, "--trace-children=yes", f"--{tool}-out-file={result}.%p"]
        return [*self.prefix, "sh", "-c", _SUMMARIES, "counted", result, "valgrind", *options]

    def read_counters(self, text: str) -> dict[str, float | None]:
        """The counters in ``text``, the content of the file ``counters``."""
        if self.method == PERF:
            return perf.parse_counters(text)
        counts = [int(match[1]) for match in map(_SUMMARY.fullmatch, text.splitlines()) if match]
        return {"instructions": float(sum(counts)) if counts else None}


def counting_methods(host: Host) -> list[str]:
    """The methods by which the host can count instructions, the fastest first. A method is PERF, or the name and
    version of valgrind."""
    counters, _, version = host.run(["sh", "-c", _METHODS], check=False).stdout.rpartition("\f")
    by_perf = [PERF] if perf.parse_counters(counters).get("instructions") else []
    return [*by_perf, *([version.strip()] if _VERSION.fullmatch(version.strip()) else [])]


def counting_method(host: Host) -> str:
    """The fastest method by which the host can count instructions; "" if there is none."""
    return next(iter(counting_methods(host)), "")


def make_counter(host: Host, method: str, *, by_function: bool = False) -> Counter:
    """A counter that uses ``method``. If the host permits, commands get the same addresses and random numbers in all
    runs, so that repeated counts agree."""
    fixes_addresses = host.run(["sh", "-c", "setarch -R true"], check=False).ok  # a container may forbid setarch
    prefix = ("setarch", "-R") if fixes_addresses else ()
    folder = upload.place_files(host, "scripts", {_FIXED_RANDOM.name: _FIXED_RANDOM})
    compiled = host.run(["sh", "-c", _COMPILE, "compile", str(folder)], check=False).ok
    return Counter(method, prefix, {"LD_PRELOAD": str(folder / _LIBRARY)} if compiled else {}, by_function)


def read_function_counts(host: Host, folder: PurePosixPath) -> str:
    """The text that lists the instructions and calls of each function, from the count files that a visit (one start of
    the server or command) has left in ``folder``; ``core.explain.profiles.subtract_short_execution`` reads this text.

    Instructions of inlined functions are listed separately if the binary has debug lines and the host has addr2line.
    """
    argv = ["sh", "-c", _FUNCTIONS, "functions", str(folder), _FRAME + _READ, _FRAME + _INLINED, _ADD_UP]
    return run_to_end(host, HostCommand(argv, "callgrind", "run", LIMIT, folder, merged=False, name=NAME))


def function_profile(facts: RunFacts, *printed: str) -> ProfileFacts:
    """The instructions of each function in a counted run; ``printed`` has the text of ``read_function_counts`` for
    each execution of the run."""
    *short, long = map(lines_of, printed)
    stacks, calls = subtract_short_execution(short[0] if short else (), long)
    return ProfileFacts(
        facts.commit, facts.build_key, facts.host, facts.operations, facts.seconds, COUNTED, stacks,
        samples=0, event=facts.counted, calls=calls,
    )  # fmt: skip


def counting_obstacle(builder: Builder, workload: Workload) -> str:
    """A clause that states why the instructions of the workload cannot be counted exactly; "" if exact counts are
    possible."""
    if builder.server:
        return f"{builder.name} is a server, whose processes also do other work"
    if workload.threads > 1:
        return (
            f"workload {workload.name} has {workload.threads} threads, whose waits for each other differ between runs"
        )
    return ""


def estimated_counting_seconds(workload: Workload, timed_runs: Sequence[RunFacts]) -> float:
    """The estimated duration, in seconds, of an exact count of instructions by function; 0 without ``timed_runs``,
    which are runs of a build.

    The estimate is the sum of computing time and waiting time. Computing is slower while instructions are counted.
    Waiting is not slower; its time is the waiting time of one operation, multiplied by the number of operations in a
    counted run. A command whose number of operations cannot be set is executed once.
    """
    runs = [run for run in timed_runs if run.operations]
    if not runs:
        return 0.0
    if not can_set_length(workload):
        clocks = [(run.counters.get("task-clock") or 1000 * run.seconds) / 1000 for run in runs]
        return max(run.seconds for run in runs) + SLOWER * min(clocks)
    slowest = max(runs, key=lambda run: run.seconds / run.operations)
    duration = slowest.seconds / slowest.operations
    computing = min(duration, (slowest.counters.get("task-clock") or math.inf) / 1000 / slowest.operations)
    operations = max(1.0, TOUCHED * ENOUGH_BY_FUNCTION / (SPEED * computing))
    return COUNTED_OPERATIONS * SLOWER * computing + operations * (duration - computing)


def count_cost(method: str, workload: Workload) -> tuple[float, float]:
    """The estimated duration of an exact count, as two numbers: seconds, and a factor. The duration is the seconds plus
    the factor times the duration of a timed run."""
    if method == PERF:
        return 1.0, 2.0
    return (3 * ENOUGH * SLOWER / SPEED, 1.0) if can_set_length(workload) else (1.0, USUALLY)


def can_set_length(workload: Workload) -> bool:
    """Whether perfbisect can choose how many operations a run of the workload executes."""
    return not workload.command or EVENTS in placeholders_in(workload.command)


def with_operations(workload: Workload, events: int) -> Workload:
    """A copy of the workload that executes exactly ``events`` operations, without options that depend on time, such as
    a warm-up."""
    fixed: dict[str, Option] = {EVENTS: events, "time": 0}
    if not workload.command:
        seed = workload.args.get("rand-seed") or 1
        fixed |= {"report-interval": 0, "percentile": 0, "histogram": False, "rand-seed": seed}
    return msgspec.structs.replace(workload, warmup=0.0, args=workload.args | fixed)


def next_length(count_by_length: Mapping[int, float], min_instructions: float = ENOUGH) -> int:
    """The next length (number of operations of an execution) to try; 0 if the counts so far are enough to choose a
    length. ``count_by_length`` maps each length that was tried to the counted instructions.

    Raises UsageError if instructions do not grow with the length.
    """
    if not count_by_length:
        return 1
    longest = max(count_by_length)
    if count_by_length[longest] - count_by_length[min(count_by_length)] >= min_instructions / STEP:
        return 0
    if longest >= LONGEST:
        text = f"The command executes as many instructions with {{{EVENTS}}} = {longest:,} as with {{{EVENTS}}} = 1."
        raise UsageError(text, f"{OPERATIONS}; or omit {{{EVENTS}}}, to count the whole command.")
    return longest * STEP


def chosen_length(count_by_length: Mapping[int, float], min_instructions: float = ENOUGH) -> int:
    """The length (number of operations) for counted runs, so that the two executions of a run differ by about
    ``min_instructions``; ``count_by_length`` maps each length that was tried to the counted instructions."""
    longest = max(count_by_length)
    beyond = count_by_length[longest] - count_by_length[min(count_by_length)]
    return max(1, round((longest - min(count_by_length)) * min_instructions / beyond))


def instruction_count(facts: RunFacts) -> float:
    """The instructions of one execution. Raises InstructionsNotCounted if the run has no count of instructions."""
    if (counted := facts.counters.get("instructions")) is None:
        advice = (
            "The command may end without calling exit, or overwrite the file of the counts. Choose another --metric."
        )
        text = f"{facts.counted} did not count the instructions of a run of {facts.commit[:10]}"
        raise InstructionsNotCounted(text, advice)
    return counted


def count_difference(short: RunFacts, long: RunFacts) -> RunFacts:
    """The facts of a counted run, computed from its two executions ``short`` and ``long``. Raises UsageError if
    ``long`` did not execute more operations than ``short``."""
    operations = long.operations - short.operations
    if operations <= 0:
        did = f"{short.operations:,} operations with {{{EVENTS}}} = {short.events:,}"
        text = f"The command did {did}, and {long.operations:,} operations with {{{EVENTS}}} = {long.events:,}"
        why = f"{text}, so its instructions cannot be counted exactly."
        raise UsageError(why, f"{OPERATIONS}, and let `operations` match the number in the output.")
    beyond = {"instructions": instruction_count(long) - instruction_count(short)}
    of_both = replace(long, started=short.started, seconds=short.seconds + long.seconds, events=short.events)
    return replace(of_both, operations=operations, counters=beyond)
