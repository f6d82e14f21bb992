"""The facts about builds, runs, profiles, failures and hosts that measurements produce and the history stores.

The value of a counter that the machine does not support is ``None``.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from perfbisect.core.domain.settings import Flags

# Phases of a build: "compile" includes links; "relink" repeats links, to keep them for randomized layouts; "record"
# hashes and moves the installed files; "other" is everything else, such as waiting for the host.
PHASES = ("checkout", "patch", "configure", "compile", "install", "train", "relink", "record", "other")


@dataclass(frozen=True, slots=True)
class BuildFacts:
    """The duration, the properties and the files of one build."""

    commit: str  # full hash; the given name for prebuilt binaries
    key: str  # hash of filtered tree, recipe, variant and toolchain; of the contents for prebuilt binaries
    binary: str  # hash of the loadable sections of the recipe's artifacts
    seconds: float
    cache_hits: int
    cache_misses: int
    reused: bool  # an earlier build with this key existed, on the host or among the shared builds
    log: str  # path of the build log on the host
    system: str = ""  # the build system; "" if the recipe has commands
    # Name of a patch → whether the patch was applied, because a patch may not apply to all commits.
    patches: Mapping[str, bool] = field(default_factory=dict)
    linker: str = ""  # linker that can link the build again in other layouts; "" if not requested or impossible
    fixed: str = ""  # why the build cannot be linked again, if randomized layouts were requested
    remote_hits: int = 0  # number of cache_hits from the remote store of the compiler cache
    partial: str = ""  # why the rest of the tree does not build, if only the programs that are started were built
    # Program → its file in the build, if the file was searched for by its name; further files of that name follow.
    programs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    flags: tuple[tuple[str, str], ...] = ()  # options of the user, such as --cflags, with their values
    shared: bool = False  # reused from the shared builds; ``seconds`` is the time to fetch it
    phases: Mapping[str, float] = field(default_factory=dict)  # phase of PHASES → seconds; empty for a reused build
    incremental: bool = False  # whether the build is an incremental build, not a clean build

    @property
    def for_another(self) -> bool:
        """Whether another hunt of the same session made the build, so that the time of that hunt contains the seconds
        of the build."""
        return self.reused and self.seconds > 0 and not self.shared

    @property
    def ccache_hit_rate(self) -> float | None:
        """The share of the compilations of this build whose result came from ccache; None if nothing was compiled."""
        return ccache_hit_rate([self])


def ccache_hit_rate(builds: Iterable[BuildFacts]) -> float | None:
    """The share of the compilations of several builds whose result came from ccache; None if nothing was compiled."""
    return _rate((build.cache_hits, build.cache_hits + build.cache_misses) for build in builds)


def remote_share_of_hits(builds: Iterable[BuildFacts]) -> float | None:
    """Of the compilations whose result came from ccache, the share whose result came from ccache's remote store; None
    if no result came from ccache."""
    return _rate((build.remote_hits, build.cache_hits) for build in builds)


def seconds_by_phase(builds: Sequence[BuildFacts]) -> dict[str, float]:
    """The seconds of each phase of a build (such as configuration), summed over ``builds``; empty if the phases of all
    builds are unknown."""
    totals = {phase: sum(build.phases.get(phase, 0.0) for build in builds) for phase in PHASES}
    return {phase: seconds for phase, seconds in totals.items() if seconds}


def _rate(counts: Iterable[tuple[int, int]]) -> float | None:
    parts, wholes = map(sum, zip((0, 0), *counts, strict=True))
    return parts / wholes if wholes else None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One timed execution of a workload."""

    commit: str  # like ``BuildFacts.commit``
    build_key: str
    visit: str  # identifies one start of the server (or of the process of an embedded library)
    host: str
    started: float  # seconds since the epoch, at the start of the measured window
    seconds: float  # length of the measured window
    operations: int
    latency: Mapping[str, float | None]  # milliseconds: "min", "avg", "p95", "p99", "max"
    samples: tuple[float, ...]  # operations per second in each report interval
    counters: Mapping[str, float | None]  # perf stat, totals of the window: "instructions", "task-clock" (ms), …
    system: Mapping[str, float | None]  # means over the window: "us", "sy", "cs" (vmstat), "r/s", "rkB/s", "wkB/s" …
    log: str = ""  # path of the job's folder on the host
    dataset: str = ""  # key of the loaded data, of which each visit gets a copy
    reported: float | None = None  # a rate or a cost from the output of a command, in ``unit``
    unit: str = ""  # "" if unknown
    # Further result of the output → its number, for workloads that share the run.
    results: Mapping[str, float] = field(default_factory=dict)
    for_another: bool = False  # whether the hunt of another result ordered the run and is charged with its cost
    # Of a run that was stopped: its time as a multiple of the seconds of the good end's runs. ``seconds`` is that time,
    # and ``operations`` is the number of operations of a run of the good end. So QPS is at most, and latency is at
    # least, the value that follows from both.
    slower_than: float = 0.0
    # The method by which instructions were counted exactly ("valgrind-3.19.0", "perf-user"); "" for a timed run. A
    # counted run is two executions, one with twice the operations of the other; counters and operations are their
    # differences. Its seconds are the sum of both executions. These seconds do not show the speed of the host, so a
    # counted run has no QPS and no latency.
    counted: str = ""
    events: int = 0  # operations of the shorter execution of a counted run; 0: a single execution was counted
    layout: int = 0  # 0: the usual layout; n: a randomized layout, linked by seed n
    round: str = ""  # identifies a pair of paired runs; the run of the candidate of interest is logged first
    # perf event → share of the time in which perf counted the event, if below 1; perf then extrapolates the counter
    running: Mapping[str, float] = field(default_factory=dict)

    @property
    def qps(self) -> float:
        """The number of operations per second, over the whole measured time of the run."""
        return self.operations / self.seconds

    @property
    def layout_and_pairing(self) -> tuple[bool, bool]:
        """A pair: whether the layout is randomized, and whether the run is paired. Only runs for which both are equal
        can be compared.

        If a build has runs of several kinds, the runs whose pair is the greatest give the best evidence.
        """
        return bool(self.layout), bool(self.round)

    @property
    def cores_used(self) -> float:
        """The mean number of cores that the measured processes used; 0 if unknown."""
        return (self.counters.get("task-clock") or 0.0) / 1000 / self.seconds


def most_cores_used(runs: Iterable[RunFacts]) -> float:
    """The largest number of cores that one of the runs used. Paired runs are ignored, because paired runs may use only
    some of the cores."""
    return max((run.cores_used for run in runs if not run.round), default=0.0)


def pair_runs(runs: Iterable[RunFacts]) -> Iterator[tuple[RunFacts, RunFacts]]:
    """The paired runs, as pairs, in the sequence in which the log has them; pairs of which one run is missing are left
    out."""
    begun: dict[str, RunFacts] = {}
    for run in runs:
        if run.round and (first := begun.pop(run.round, None)):
            yield first, run
        elif run.round:
            begun[run.round] = run


@dataclass(frozen=True, slots=True)
class ProfileFacts:
    """A profile of one run of a build: folded stacks with their costs, summed over the measured time of the run."""

    commit: str  # as in BuildFacts
    build_key: str
    host: str
    operations: int  # number of operations in the window; a cost divided by this number is a cost per operation
    seconds: float  # length of the window
    unit: str  # unit of costs: "us" (CPU time, or time off CPU), "cycles" or "instructions"
    # "program;outermost;…;innermost" → self cost of that stack: samples × period. ``core/explain/profiles.py`` describes
    # frames.
    stacks: Mapping[str, float]
    samples: int  # 0: every instruction was counted, and frames below the first are functions inlined into it
    lost: int = 0  # samples that the kernel dropped
    event: str = ""  # the event that was sampled: "cycles:u", "cpu-clock:u"
    chains: str = ""  # method of the call chains: "fp", "dwarf"; "" without call chains
    off_cpu: bool = False  # whether costs are times in which threads waited
    note: str = ""  # a caveat for readers, such as missing callers
    calls: Mapping[str, float] = field(default_factory=dict)  # "caller;callee" → number of calls, if it was counted
    reported: float | None = None  # like ``RunFacts.reported``
    alone: float = 0.0  # share of the cost without callers


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """The query plan by which one build executes one statement of the workload."""

    commit: str  # as in BuildFacts
    build_key: str
    host: str
    statement: str  # the statement as the workload sends it, with values instead of parameters
    plan: str  # as the server prints it, without estimates that differ between two servers of one build


@dataclass(frozen=True, slots=True)
class ChangeFacts:
    """The functions and files that a commit changes.

    The name of a function includes its scope, as in "Page::insert". Macros are treated as functions.
    """

    commit: str  # full hash, like ``parent``
    parent: str
    functions: tuple[str, ...]  # functions whose bodies differ, or that only one of the two commits has
    callers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # function → functions whose bodies name it
    files: int = 0  # source files that differ
    # Whether functions are the names that git prints beside hunks; git finds the beginning of a function, not its end.
    approximate: bool = False
    note: str = ""  # why some functions are missing or approximate: a sentence
    paths: tuple[str, ...] = ()  # files of any kind that differ, source files first
    # Changed lines outside of functions: (path, old line, new line); empty if more than a few lines have changed.
    lines: tuple[tuple[str, str, str], ...] = ()


LEFT_OUT = "left out"  # the stage of a commit that was not tried because of --skip
BUILDING = ("checkout", "configure", "compile", "install", "train")  # stages of a failure that mean that a build failed


MOST_OPTIONS = 2000  # characters of options in a command


@dataclass(frozen=True, slots=True)
class KnownError:
    """A known build error that occurs if the compiler is newer than the source code, and the remedy for the error."""

    name: str  # name of the class of errors
    flags: Flags = field(default_factory=Flags)  # options that remedy the error
    other: str = ""  # another remedy, if options do not remedy the error
    by_itself: bool = False  # whether the options may be tried without being asked for

    @property
    def remedy(self) -> str:
        """The remedy as text: compiler options in the form in which the user types them, or another remedy."""
        return self.other or shlex.join(self.flags.arguments)

    def combined(self, other: "KnownError") -> "KnownError":
        """If both errors have the same name, this error with the options that remedy both errors; otherwise this error,
        unchanged. If this error already has too many options for a command, no options are added.
        """
        if other.name != self.name or len(self.remedy) > MOST_OPTIONS:
            return self
        return replace(self, flags=self.flags.with_missing(other.flags))


@dataclass(frozen=True, slots=True)
class SkipFacts:
    """Facts about a candidate that could not be built or measured: the stage that failed, and the reason."""

    commit: str
    stage: str  # "checkout", "configure", "compile", "install", "train", "start", "prepare", "run", or LEFT_OUT
    reason: str  # one sentence
    log: str
    seconds: float
    known: KnownError | None = None
    for_another: bool = False  # whether another workload's hunt tried the build and is charged with the seconds
    errors: tuple[str, ...] = ()  # the lines that report an error, if a build has several errors

    @property
    def is_build_failure(self) -> bool:
        """Whether the build of the candidate failed; false if the build succeeded and a workload failed."""
        return self.stage in BUILDING


@dataclass(frozen=True, slots=True)
class DiffPart:
    """A part of a diff that `bisect narrow` tests, with the data that reports show."""

    path: str
    first: int = 0  # line of the newer file, from 1; 0: unknown
    last: int = 0  # less than ``first`` if lines are only removed
    scope: str = ""  # text that git prints beside a hunk, or the line with a function's name
    hunks: int = 0  # number of hunks of a whole file; 0 for other parts

    @property
    def title(self) -> str:
        """A short text that names the part: its file, its lines and its function."""
        lines = f":{self.first}" if self.first else ""
        lines += f"-{self.last}" if self.last > self.first else ""
        named = re.search(r"(?<![\w:~$])(?!(?:if|for|while|switch|return)\b)([\w:~$]+)\s*\(", self.scope)
        context = "" if "(" in self.scope else self.scope[:40].strip(" {")  # no function, for example a struct
        suffix = f" in {named[1]}()" if named else f" in {context}" if context else ""
        return f"{self.path}{lines}{f' ({self.hunks} hunks)' if self.hunks else ''}{suffix}"


@dataclass(frozen=True, slots=True)
class HostFacts:
    """A fingerprint of a machine: its hardware, system and settings. Runs can be compared only if their machines have
    equal fingerprints."""

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
    """The speed of a host and the noise of runs on it, measured by an A/A test (a comparison of a build with
    itself)."""

    level: float  # natural logarithm of the metric, higher is better
    noise: float | None  # s.d. of the ratio of paired runs, or of a run; None if too few runs show it
    in_pairs: bool  # whether ``noise`` is of paired runs; noise of different kinds is not compared
    identity: tuple[str, ...]  # identity of build, workload and metric


LONGEST = 60  # characters of a value in a sentence


def host_differences(before: HostFacts, after: HostFacts) -> tuple[str, ...]:
    """A phrase for each difference between the facts ``before`` and ``after``, such as "its kernel was 6.1.0-18 and is
    6.1.0-22".

    A fact that is unknown before or after is not a difference.
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
        f"its {fact} was {_cut(was)} and is {_cut(now)}" for fact, was, now in facts if was != now and was and now
    )


def _cut(text: str) -> str:
    """The text, shortened to at most LONGEST characters."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1].rstrip()}…"


@dataclass(frozen=True, slots=True)
class TrialRun:
    """One run of a trial. ``work`` is the index of the run's workload in the request of the trial, and ``subject`` is
    the index of its build."""

    round: int  # two attempts share no round, because the host may have changed between them
    work: int
    subject: int
    at: float  # when the run ended, in seconds since the epoch
    cost: float  # seconds since the previous run, or since the visit was ordered
    facts: RunFacts


@dataclass(frozen=True, slots=True)
class TrialSkip:
    """A build that failed in a workload, and is not tried again in this workload."""

    work: int
    subject: int
    at: float
    facts: SkipFacts


@dataclass(frozen=True, slots=True)
class DropHunt:
    """The hunt for a drop that a comparison found between two builds. ``work`` is the index of the workload in the
    request of the comparison; ``first`` and ``last`` are the indexes of the two builds.
    """

    work: int
    first: int  # the build before the drop
    last: int
    hunt: int  # the number of the hunt in the history
    state: str  # as in `bisect history`: running, interrupted, found, not reproduced …
    culprit: str = ""  # full hash of the commit that the verdict names
    subject: str = ""  # subject of the culprit
