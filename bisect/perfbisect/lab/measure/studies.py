"""Runs that examine a build without timing: counted runs, groups of counters, and query plans. See ``visit.Study``.

An exactly counted run executes the workload twice, with two numbers of operations, and uses the difference of the
counts; the numbers of operations are determined with the first build. To explain a change, instructions are counted
function by function. See ``counting``.

A group is a set of events that a processor can count at the same time, so that no count is extrapolated. Processors
have four to eight counters, of which a watchdog may take one and a hypervisor some. If perf has to count more events
than the processor has counters, perf counts each event for only a part of the time. Therefore a group has four events,
and each run counts the events of one group.

``plans.lua`` of the workload's driver asks the server for query plans: this script runs the workload's own script for a
few operations, and then asks the server for the plans of the statements that these operations sent. A run of
``plans.lua`` is not timed.
"""

import math
import re
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import PurePosixPath

import msgspec

from perfbisect.core.domain.events import (
    Counted,
    ExecutionStarted,
    LabEvent,
    Planned,
    Profiled,
    RunFinished,
    RunProgress,
    Unexplained,
)
from perfbisect.core.domain.facts import PlanFacts, RunFacts
from perfbisect.core.explain.evidence import AMD, ARM, EXACT_GROUP, INTEL
from perfbisect.errors import RunFailed, UsageError
from perfbisect.host.packages import how_to_install
from perfbisect.host.protocol import Host
from perfbisect.lab import upload
from perfbisect.lab.measure import counting, perf
from perfbisect.lab.measure.visit import RunContext, Study, Turn, Visit, begin_visit, timed_run
from perfbisect.lab.servers import HostCommand, Installation, driver_options, run_to_end
from perfbisect.lab.workload import lines_of, lua, sysbench
from perfbisect.recipes.workload import Workload

SHORTEST, LONGEST = 1.0, 10.0  # shortest and longest seconds of a study's run


def shortened_context(context: RunContext, seconds: float) -> RunContext:
    """The context with shorter runs: of ``seconds``, but at least one second, and at most ``LONGEST`` or the usual time
    of a run, whichever is shorter. Seconds are rounded down, because sysbench counts whole seconds. If the workload is
    a command, the context is unchanged.
    """
    workload = context.workload
    if workload.command:
        return context
    time = float(math.floor(min(workload.time, LONGEST, max(SHORTEST, seconds))))
    return replace(context, workload=msgspec.structs.replace(workload, time=time, warmup=min(workload.warmup, time)))


Execution = Generator[ExecutionStarted | RunProgress, None, RunFacts]


@dataclass
class CountingStudy(Study):
    """Counts runs with the counter ``context.counter``."""

    events: int = 0  # the length of runs in operations; 0 until it is known
    # For each execution of the latest run, the counts by function; empty if runs are not counted by function.
    functions: list[str] = field(default_factory=list)

    def run_turn(self, system: Installation, dataset: str, turn: Turn) -> Generator[LabEvent]:
        """Make one counted run of a build on the dataset with the key ``dataset``. Raises the errors of
        ``TimingStudy.run_turn``, and UsageError if no number of operations is suitable for counting.
        """
        yield turn.start_event(self.context)
        facts = yield from self._run(system, dataset, turn.candidate)
        turn.runs_left -= 1
        self.succeeded()
        yield RunFinished(turn.candidate, facts)

    def _run(self, system: Installation, dataset: str, candidate: int) -> Execution:
        execute = partial(self._execute, system, dataset, candidate)
        if not counting.can_set_length(self.context.workload):
            facts = yield from execute(0, 1, 1)
            return replace(facts, counters={"instructions": counting.instruction_count(facts)})
        lengths: dict[int, float] = {}
        enough = self.context.counter.min_instruction_difference if self.context.counter else counting.ENOUGH
        while not self.events and (events := counting.next_length(lengths, enough)):
            facts = yield from execute(events, len(lengths) + 1, 0)
            lengths[events] = counting.instruction_count(facts)
        self.events = self.events or counting.chosen_length(lengths, enough)
        short = yield from execute(self.events, 1, 2)
        long = yield from execute(2 * self.events, 2, 2)
        try:
            return counting.count_difference(short, long)
        except UsageError as trouble:
            if lengths:
                raise
            # An earlier build could be counted with this length, so this commit cannot be counted.
            raise RunFailed(str(trouble), stage="run", log=str(self.context.host.root / "jobs")) from trouble

    def _execute(
        self, system: Installation, dataset: str, candidate: int, events: int, number: int, total: int
    ) -> Execution:
        """Execute the workload once, on a new copy of the data, with ``events`` operations; if ``events`` is 0, the
        command itself determines how many. ``total`` is the number of executions of the counted run, or 0 while the
        number of operations is being determined.
        """
        yield ExecutionStarted(candidate, number, total, events)
        # Under a counter, a program is many times slower, and may print its time in another unit. Only the number of
        # operations is read.
        workload = msgspec.structs.replace(self.context.workload, rate="", cost="", latencies={})
        context = replace(self.context, workload=counting.with_operations(workload, events) if events else workload)
        with begin_visit(context, system, candidate, dataset) as opened:
            facts = yield from timed_run(opened)
            if total and context.counter and context.counter.by_function:
                counted = counting.read_function_counts(context.host, opened.folder)
                self.functions = [*self.functions[: number - 1], counted]
        operations = events if events and workload.command and not workload.operations else facts.operations
        return replace(facts, events=events, operations=operations, latency={}, samples=(), reported=None)


LATE = 4.0  # an execution may take this multiple of its expected time: busy waiting may never end under valgrind


@dataclass
class FunctionCountStudy(Study):
    """Counts the instructions of each function in one run with valgrind; valgrind also counts the total of
    instructions, unless perf counts the total.
    """

    events: int = 0  # the length of runs in operations, from an earlier session; 0 until it is known
    seconds: float = LONGEST  # expected seconds of a run; an execution is ended after ``LATE`` times as long
    by_perf: bool = False  # whether perf counts instructions, too
    runner: CountingStudy | None = None  # kept for all turns, so that the runs of both builds have the same length

    def run_turn(self, system: Installation, dataset: str, turn: Turn) -> Generator[LabEvent]:
        """Make one counted run; yields the events ``Counted`` and ``Profiled``. Raises the errors of
        ``CountingStudy.run_turn``.
        """
        if self.runner is None:
            host = self.context.host
            methods = counting.counting_methods(host)
            if not (by := next((name for name in methods if name != counting.PERF), "")):
                turn.runs_left -= 1
                why = f"only valgrind counts instructions by function. {how_to_install(['valgrind'])}"
                yield Unexplained("instructions", why, host.name)
                return
            self.by_perf = counting.PERF in methods
            counter = counting.make_counter(host, by, by_function=True)
            workload = msgspec.structs.replace(self.context.workload, timeout=LATE * self.seconds)
            context = replace(self.context, perf=False, counter=counter, workload=workload)
            self.runner = CountingStudy(context, self.succeeded, self.events)
        for event in self.runner.run_turn(system, dataset, turn):
            if not isinstance(event, RunFinished):
                yield event
            else:
                yield from () if self.by_perf else [Counted(event.candidate, event.facts, EXACT_GROUP)]
                yield Profiled(event.candidate, counting.function_profile(event.facts, *self.runner.functions))


CORE = ("cycles", "instructions")  # counters of each group, so that every run measures the most important ratios


@dataclass(frozen=True, slots=True)
class CounterGroup:
    """Events that are counted together. Software events need no processor counter, and are counted in every run."""

    name: str
    events: tuple[str, ...]
    processor: str = ""  # kind of cores, if the processor has two kinds: "cpu_core"
    bound: bool = False  # whether the kernel counts all events of the group or none; the first event is the leader

    @property
    def perf_argument(self) -> str:
        """The events in the syntax of perf's option -e."""
        named = [f"{self.processor}/{event}/" if self.processor else event for event in self.events]
        return f"{{{','.join(named)}}}" if self.bound else ",".join(named)


SOFTWARE = CounterGroup("software", ())
PLAIN = (
    CounterGroup("core", (*CORE, "branches", "branch-misses")),
    CounterGroup("caches", (*CORE, "L1-dcache-load-misses", "cache-misses")),
    CounterGroup("memory", (*CORE, "dTLB-load-misses", "LLC-load-misses")),
    CounterGroup("code", (*CORE, "L1-icache-load-misses", "iTLB-load-misses")),
)
SLOTS = (
    CounterGroup("top-down", ("slots", *INTEL), bound=True),
    CounterGroup("top-down", ("slots", *INTEL), "cpu_core", bound=True),  # without work on cores of the other kind
    CounterGroup("top-down", AMD),
    CounterGroup("top-down", ARM),
)
STALLS = CounterGroup("stalls", (*CORE, "stalled-cycles-frontend", "stalled-cycles-backend"))

_COUNT_TESTS = """for events do perf stat -x , -e "$events" -- true 2>&1; printf '\\f'; done"""


def available_groups(host: Host) -> tuple[CounterGroup, ...]:
    """The groups of events that perf can count on the host; only the group SOFTWARE if perf can count no group."""
    groups = (*PLAIN, *SLOTS, STALLS)
    tried = host.run(["sh", "-c", _COUNT_TESTS, "tests", *(group.perf_argument for group in groups)], check=False)
    results = map(perf.parse_counters, tried.stdout.removesuffix("\f").split("\f"))
    return choose_countable_groups(dict(zip(groups, results, strict=False)))


def choose_countable_groups(counts: dict[CounterGroup, dict[str, float | None]]) -> tuple[CounterGroup, ...]:
    """The groups of events that this host can count: groups in which perf, in a test, counted an event besides CORE. Of
    several groups about stalls, only the best group is used.
    """
    counted = {group: {event for event, count in test.items() if count is not None} for group, test in counts.items()}
    plain = [group for group in PLAIN if counted.get(group, set()) - {*CORE}]
    slots = [group for group in SLOTS if len(counted.get(group, ())) == len(group.events)]
    stalls = [STALLS] if counted.get(STALLS, set()) - {*CORE} else []
    return (*plain, *(slots or stalls)[:1]) or (SOFTWARE,)


@dataclass
class CounterGroups(Study):
    """Counts one group of counters in each run, and makes one run for each group."""

    groups: tuple[CounterGroup, ...] = ()
    seconds: float = LONGEST  # seconds of measurement in a turn, or more if the groups need more
    left: list[CounterGroup] = field(
        default_factory=list
    )  # groups of the turn that are not counted yet; a repeated turn continues with these

    def run_turn(self, system: Installation, dataset: str, turn: Turn) -> Generator[LabEvent]:
        """Make a run for each group of counters, which counts only this group. If the builder has a server, one visit
        (one start of the server) contains all runs; otherwise each run has its own visit.
        """
        if not self.groups:
            self.groups = available_groups(self.context.host) if self.context.perf else (SOFTWARE,)
        self.left = self.left or [*self.groups]
        context = shortened_context(self.context, self.seconds / len(self.groups))
        while self.left:
            with begin_visit(context, system, turn.candidate, dataset) as opened:
                for group in [*self.left] if system.builder.server else self.left[:1]:
                    number = len(self.groups) - len(self.left) + 1
                    yield replace(turn.start_event(context), number=number, of=len(self.groups))
                    events = (*filter(None, [group.perf_argument]), *perf.SOFTWARE)
                    bench = replace(context, add_perf=partial(perf.perf_stat_command, events=events))
                    facts = yield from timed_run(replace(opened, bench=bench))
                    self.left.remove(group)
                    self.succeeded()
                    yield Counted(turn.candidate, facts, group.name)
        turn.runs_left -= 1


NAME = "plans"  # of the job
LIMIT = 120.0  # seconds that the job may take
SECONDS = 2.0  # of operations, at most; an operation that has begun is finished
OPERATIONS = 10  # in this number of operations, a mixed workload sends each of its statements
STATEMENT, PLAN = "perfbisect statement: ", "perfbisect plan: "
ESCAPES = {"n": "\n", "r": "\r"}


def has_query_plans(workload: Workload) -> bool:
    """Whether the workload's driver can be asked for query plans."""
    return lua.plan_script(workload) is not None


class PlanStudy(Study):
    """Asks the server for the query plans of statements."""

    def run_turn(self, system: Installation, dataset: str, turn: Turn) -> Generator[LabEvent]:
        """Yields an event ``Planned`` for each statement, or no event if the workload has no statements. Raises the
        errors of ``TimingStudy.run_turn``.
        """
        if script := lua.plan_script(self.context.workload):
            folder = upload.place_files(self.context.host, "scripts", {script.name: script})
            with begin_visit(self.context, system, turn.candidate, dataset) as opened:
                plans = ask_for_plans(opened, folder / script.name)
            for statement, plan in plans.items():
                facts = PlanFacts(system.commit, system.key, self.context.host.name, statement, plan)
                yield Planned(turn.candidate, facts)
            self.succeeded()
        turn.runs_left -= 1


def ask_for_plans(opened: Visit, script: PurePosixPath) -> Mapping[str, str]:
    """Run ``script`` (``plans.lua``) on the host; returns the query plan of each statement. Raises RunFailed."""
    bench = opened.bench
    workload = shortened_for_statements(bench.workload)
    measured = lua.script_path_on_host(bench.scripts, workload, lua.timed_run_script(workload))
    argv = sysbench.run_argv(workload, script, driver_options(opened.system.builder, opened.service))
    env = lua.environment(workload, bench.scripts, opened.folder / "data", opened.system.library)
    env |= {"PERFBISECT_SCRIPT": str(measured)}
    who, complain = "plans of its statements are not available", sysbench.failure_finder(LIMIT)
    asked = HostCommand(argv, who, "run", LIMIT, opened.folder, env, complain=complain, name=NAME)
    return parse_plans(lines_of(run_to_end(bench.host, asked)))


def shortened_for_statements(workload: Workload) -> Workload:
    """The workload with few operations, one thread and a fixed random seed, so that each build executes the same
    statements.
    """
    few = {"events": OPERATIONS, "rand-seed": 1, "report-interval": 0}
    return msgspec.structs.replace(workload, threads=1, warmup=0.0, time=SECONDS, args={**workload.args, **few})


def parse_plans(lines: Iterable[str]) -> Mapping[str, str]:
    """For each statement, its query plan with one line for each step of the plan, parsed from the output of
    ``plans.lua``.
    """
    steps_of, plan = dict[str, list[str]](), list[str]()
    for line in lines:
        if line.startswith(STATEMENT):
            plan = steps_of.setdefault(unescaped_plan_text(line.removeprefix(STATEMENT)), [])
        elif line.startswith(PLAN):
            plan.append(unescaped_plan_text(line.removeprefix(PLAN)))
    return {statement: "\n".join(steps) for statement, steps in steps_of.items() if steps}


def unescaped_plan_text(text: str) -> str:
    """The original text of a text that ``plans.lua`` has escaped, so that the text fits on one line."""
    return re.sub(r"\\(.)", lambda escape: ESCAPES.get(escape[1], escape[1]), text)
