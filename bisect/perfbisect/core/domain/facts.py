"""The full facts of one build and one run, as the lab reports and the store keeps them.

A counter that the machine does not support is ``None``: never 0, never 1.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from perfbisect.core.domain.settings import Flags

# Of a build: links are a part of "compile"; "relink" repeats them, to be kept for layouts; "record" hashes and moves what is
# installed; "other" is all else, as the waiting for the host.
PHASES = ("checkout", "patch", "configure", "compile", "install", "train", "relink", "record", "other")


@dataclass(frozen=True, slots=True)
class BuildFacts:
    """The costs and the result of one build."""

    commit: str  # full hash; the given name of prebuilt binaries
    key: str  # hash of filtered tree, recipe, variant and toolchain; of the contents of prebuilt binaries
    binary: str  # hash of the loadable sections of the recipe's artifacts
    seconds: float
    cache_hits: int
    cache_misses: int
    reused: bool  # an earlier build with the same key existed, here or among the shared ones
    log: str  # path of the build log on the host
    system: str = ""  # the build system; "" where the recipe has commands of its own
    patches: Mapping[str, bool] = field(default_factory=dict)  # name → whether it was applied: not all fit all commits
    linker: str = ""  # that links it again in other layouts; "" where that was not wanted, or cannot be
    fixed: str = ""  # why it cannot be linked again, where that was wanted
    remote_hits: int = 0  # those of cache_hits that were answered by the remote store of the compiler cache
    partial: str = ""  # why the rest of the tree does not build, where only what is started was built
    # Program → its file in the build, where it was looked for by its name; others of that name follow.
    programs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    flags: tuple[tuple[str, str], ...] = ()  # of the user: --cflags and the like, with their values
    shared: bool = False  # reused: it came from the shared builds, which took ``seconds``
    phases: Mapping[str, float] = field(default_factory=dict)  # of PHASES → seconds; empty if it is reused
    incremental: bool = False  # made in the tree of another build; else in an empty folder

    @property
    def for_another(self) -> bool:
        """Whether it was made in the same session for the hunt of another workload: kept builds take no time."""
        return self.reused and self.seconds > 0 and not self.shared

    @property
    def hit_rate(self) -> float | None:
        """Share of compilations that ccache answered; None when nothing was compiled."""
        return hit_rate([self])


def hit_rate(builds: Iterable[BuildFacts]) -> float | None:
    """Share of the compilations of several builds that ccache answered; None when nothing was compiled."""
    return _rate((build.cache_hits, build.cache_hits + build.cache_misses) for build in builds)


def remote_rate(builds: Iterable[BuildFacts]) -> float | None:
    """Share of what ccache answered that came from its remote store; None where it answered nothing."""
    return _rate((build.remote_hits, build.cache_hits) for build in builds)


def phases_of(builds: Sequence[BuildFacts]) -> dict[str, float]:
    """The seconds of each phase, of several builds together; empty where none of them knows any."""
    totals = {phase: sum(build.phases.get(phase, 0.0) for build in builds) for phase in PHASES}
    return {phase: seconds for phase, seconds in totals.items() if seconds}


def _rate(counts: Iterable[tuple[int, int]]) -> float | None:
    parts, wholes = map(sum, zip((0, 0), *counts, strict=True))
    return parts / wholes if wholes else None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One timed execution of a workload."""

    commit: str  # as in BuildFacts
    build_key: str
    visit: str  # identifies one start of the server (or of the process of an embedded library)
    host: str
    started: float  # seconds since the epoch, when the measured window opened
    seconds: float  # length of the measured window
    operations: int
    latency: Mapping[str, float | None]  # milliseconds: "min", "avg", "p95", "p99", "max"
    samples: tuple[float, ...]  # operations per second in each report interval
    counters: Mapping[str, float | None]  # perf stat, totals of the window: "instructions", "task-clock" (ms), …
    system: Mapping[str, float | None]  # means over the window: "us", "sy", "cs" (vmstat), "r/s", "rkB/s", "wkB/s" …
    log: str = ""  # path of the job's folder on the host
    dataset: str = ""  # key of the loaded data, of which each visit gets a copy
    reported: float | None = None  # a rate or a cost from the output of a command, in its own unit
    unit: str = ""  # that unit, if it is known
    results: Mapping[str, float] = field(default_factory=dict)  # further such numbers, of workloads that share the run
    for_another: bool = False  # it was ordered for the hunt of another result, which has spent the time
    # Of a run that was stopped: how many times the seconds of the good end's runs it had taken by then. ``seconds`` is
    # that time, ``operations`` are those of a run of the good end: so QPS is at most, latency at least what they make.
    slower_than: float = 0.0
    # How its instructions were counted exactly ("valgrind-3.19.0", "perf-user"); "" for a usual run. Such a run is two,
    # one with twice the operations of the other, and its counters and operations are their differences. Its seconds are
    # those of both: they say nothing of the speed of the host, so it has no QPS and no latency.
    counted: str = ""
    events: int = 0  # of a counted run: the length of the shorter; 0: it was counted once, from its start to its end
    layout: int = 0  # 0: the build as it is linked; n: linked again, its functions in another order by seed n
    round: str = ""  # identifies what ran at the same time: two runs, that of the candidate of interest is logged first
    # perf event → share of the time in which it was counted, where that is below 1: its counter is extrapolated
    running: Mapping[str, float] = field(default_factory=dict)

    @property
    def qps(self) -> float:
        """Operations per second over the whole window."""
        return self.operations / self.seconds

    @property
    def way(self) -> tuple[bool, bool]:
        """Whether it was made in a randomized layout, and whether in a round; runs made in different ways cannot be compared.

        Ways are in order: the later tells more.
        """
        return bool(self.layout), bool(self.round)

    @property
    def cores_used(self) -> float:
        """How many cores what is counted has used on average; 0 where that is unknown."""
        return (self.counters.get("task-clock") or 0.0) / 1000 / self.seconds


def busiest(runs: Iterable[RunFacts]) -> float:
    """The most cores that one of these runs has used, rounds left out: in these no more are to be had."""
    return max((run.cores_used for run in runs if not run.round), default=0.0)


def pairs_of(runs: Iterable[RunFacts]) -> Iterator[tuple[RunFacts, RunFacts]]:
    """The runs that ran at the same time, two by two, as they are in a log; without what was cut short."""
    begun: dict[str, RunFacts] = {}
    for run in runs:
        if run.round and (one := begun.pop(run.round, None)):
            yield one, run
        elif run.round:
            begun[run.round] = run


@dataclass(frozen=True, slots=True)
class ProfileFacts:
    """Where one run of a build spent its time: folded stacks with their costs, totals of the measured window."""

    commit: str  # as in BuildFacts
    build_key: str
    host: str
    operations: int  # in the window; a cost divided by it is one per operation
    seconds: float  # length of the window
    unit: str  # of costs: "us" (CPU time, or time off CPU), "cycles" or "instructions"
    # "program;outermost;…;innermost" → self cost of that stack: samples × period. Frames: ``core/explain/profiles.py``
    stacks: Mapping[str, float]
    samples: int  # 0: every instruction was counted, and frames below the first are functions that are inlined into it
    lost: int = 0  # samples that the kernel has dropped
    event: str = ""  # that was sampled: "cycles:u", "cpu-clock:u"
    chains: str = ""  # where the callers are from: "fp", "dwarf"; "" without callers
    off_cpu: bool = False  # costs are the time in which threads waited
    note: str = ""  # what the reader must know: callers that are missing, …
    calls: Mapping[str, float] = field(default_factory=dict)  # "caller;callee" → how often, where that was counted
    reported: float | None = None  # as in RunFacts
    alone: float = 0.0  # share of the cost whose callers were not found


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """How one build executes one statement of the workload."""

    commit: str  # as in BuildFacts
    build_key: str
    host: str
    statement: str  # as the workload sends it, values in place of its parameters
    plan: str  # as the server prints it, without estimates that differ between two servers of one build


@dataclass(frozen=True, slots=True)
class ChangeFacts:
    """What of the source code a commit changes, by functions. Names have their scope: "Page::insert"; macros are functions."""

    commit: str  # full hashes
    parent: str
    functions: tuple[str, ...]  # whose bodies differ, or that one of the two lacks
    callers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # function → those whose bodies name it
    files: int = 0  # source files that differ
    # Functions are those that git names beside hunks: it knows where they begin, not where they end.
    approximate: bool = False
    note: str = ""  # why some are missing, or are approximate: a sentence
    paths: tuple[str, ...] = ()  # files of any kind that differ, source files first
    # Lines outside of functions, and what takes their place: path, before, since; none where more than a few differ.
    lines: tuple[tuple[str, str, str], ...] = ()


LEFT_OUT = "left out"  # in place of a stage: nothing was tried, because of --skip
BUILDING = ("checkout", "configure", "compile", "install", "train")  # stages of a failure that belong to a build


MOST_OPTIONS = 2000  # characters


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of an error that a tree has because its compiler is younger."""

    name: str  # of its class
    flags: Flags = field(default_factory=Flags)  # that mend it
    other: str = ""  # what does, where these do not
    by_itself: bool = False  # whether the flags may be tried without being asked for

    @property
    def option(self) -> str:
        """What mends it, as it is typed."""
        return self.other or shlex.join(self.flags.words)

    def also(self, other: "Known") -> "Known":
        """What mends both, if that is of the same class and not too much for a command."""
        if other.name != self.name or len(self.option) > MOST_OPTIONS:
            return self
        return replace(self, flags=self.flags.plus(other.flags))


@dataclass(frozen=True, slots=True)
class SkipFacts:
    """Why a candidate could not be measured."""

    commit: str
    stage: str  # "checkout", "configure", "compile", "install", "train", "start", "prepare", "run", or LEFT_OUT
    reason: str  # one sentence
    log: str
    seconds: float
    known: Known | None = None
    for_another: bool = False  # its build was tried for the hunt of another workload, which has spent the seconds

    @property
    def of_build(self) -> bool:
        """Whether it cannot be built, for any workload; else it fails in one."""
        return self.stage in BUILDING


@dataclass(frozen=True, slots=True)
class DiffPart:
    """A part of a diff, as people read it."""

    path: str
    first: int = 0  # line of the newer file, from 1; 0: no lines show it
    last: int = 0  # before the first where lines are only removed, after that of the last
    scope: str = ""  # what git prints beside a hunk, or the line with a function's name
    hunks: int = 0  # of a whole file: so many, and nothing else

    @property
    def title(self) -> str:
        """The same in a few words."""
        lines = f":{self.first}" if self.first else ""
        lines += f"-{self.last}" if self.last > self.first else ""
        named = re.search(r"(?<![\w:~$])(?!(?:if|for|while|switch|return)\b)([\w:~$]+)\s*\(", self.scope)
        other = "" if "(" in self.scope else self.scope[:40].strip(" {")  # such as a struct
        more = f" in {named[1]}()" if named else f" in {other}" if other else ""
        return f"{self.path}{lines}{f' ({self.hunks} hunks)' if self.hunks else ''}{more}"


@dataclass(frozen=True, slots=True)
class HostFacts:
    """A fingerprint of a machine: only runs with equal ones are comparable."""

    name: str
    cpu: str
    cores: int
    memory_mib: int
    kernel: str
    compiler: str
    tools: Mapping[str, str] = field(default_factory=dict)  # tool → version
    settings: Mapping[str, str] = field(default_factory=dict)  # governor, turbo, SMT, ASLR …


@dataclass(frozen=True, slots=True)
class FitnessFacts:
    """What an A/A has shown of its host."""

    level: float  # natural logarithm of the metric, higher is better
    noise: float | None  # s.d. of a pair of runs at the same time, or of a run; None where too few show it
    in_pairs: bool  # which of the two: they are not compared with each other
    identity: tuple[str, ...]  # of what was measured: build, workload, metric


LONGEST = 60  # characters of a value in a sentence


def host_differences(before: HostFacts, after: HostFacts) -> tuple[str, ...]:
    """A phrase for each difference: "its kernel was 6.1.0-18 and is 6.1.0-22".

    A fact that is missing on either side is no difference.
    """
    facts = [
        ("processor", before.cpu, after.cpu),
        ("number of cores", str(before.cores), str(after.cores)),
        ("memory", f"{before.memory_mib:,} MiB", f"{after.memory_mib:,} MiB"),
        ("kernel", before.kernel, after.kernel),
        ("compiler", before.compiler, after.compiler),
    ]
    for was, now in ((before.tools, after.tools), (before.settings, after.settings)):
        facts += [(name, was[name], now.get(name, "")) for name in sorted(was)]
    return tuple(
        f"its {what} was {_short(was)} and is {_short(now)}" for what, was, now in facts if was != now and was and now
    )


def _short(text: str) -> str:
    """A value, cut to the length for a sentence."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1].rstrip()}…"


@dataclass(frozen=True, slots=True)
class TrialRun:
    """One run of a trial. Numbers are positions in its request."""

    round: int  # never shared by two attempts, as the machine may have changed between them
    work: int
    subject: int
    at: float  # when it ended, in seconds since the epoch
    cost: float  # seconds since the run before, or since its visit was ordered
    facts: RunFacts


@dataclass(frozen=True, slots=True)
class TrialSkip:
    """A build that failed in a workload; it is not tried there again."""

    work: int
    subject: int
    at: float
    facts: SkipFacts


@dataclass(frozen=True, slots=True)
class DropHunt:
    """The hunt for a drop of a comparison, in its present state. Numbers are positions in the request of the comparison."""

    work: int
    first: int  # the build before the drop
    last: int
    hunt: int  # its number in the history
    state: str  # as `bisect history` lists it: running, interrupted, found, not reproduced …
    culprit: str = ""  # full hash of the commit that the verdict names
    subject: str = ""  # of that
