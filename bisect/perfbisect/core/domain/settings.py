"""The settings of a session, enough to begin it and to resume it after an interruption; and what a trial measures.

That includes a patch for the commits that are built, by value: a hunt goes on when its file has changed or is gone.

A part of them is the policy, what the user requests of the search, and what hosts.toml and earlier hunts tell beforehand.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

# Smallest change of interest of an exact count. Counts repeat to 0.001 %, and another layout does not change them; but many
# commits move a few instructions, and to name each of them would tell nobody why a database is slower.
COUNTED = 0.002
CAP = 0.995  # no model is better than this: no higher probability of a culprit is ever stated or required


class Direction(StrEnum):
    """The direction of the change of the metric from good to bad that is hunted."""

    DROP = "drop"
    RISE = "rise"
    ANY = "any"


PAIRS_FIRST = 4  # of both ends at the same time, before the way is chosen
GAIN = 0.5  # s.d. of the difference of a round, as a share of that of two runs in turns, below which rounds are better


class Pairing(StrEnum):
    """How builds are compared."""

    AUTO = "auto"
    TOGETHER = "together"  # in rounds of two, which run at the same time on the same cores
    TURNS = "turns"


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of one hunt. Fractions, not percentages; 0 for a budget means no limit."""

    confidence: float = 0.95  # name a culprit from this probability on
    direction: Direction = Direction.DROP
    min_effect: float = 0.02  # smallest change of interest between the ends
    min_counted: float = 0.0  # the same of an exact count; 0: as ``min_effect``
    auto_effect: bool = False  # a smaller one than ``min_effect``, if the noise of the ends allows it
    max_builds: int = 0
    max_runs: int = 0
    max_minutes: float = 0.0
    all_steps: bool = False  # hunt every change of at least ``min_effect``, not only the largest
    slow_after: float = 0.0  # a run is stopped after so many times what a run of the good end takes; 0: never
    layouts: bool = False  # whether builds can be linked again, with their functions in another order
    incremental: bool = False  # whether builds of the search may be made in the tree of the last build
    pairing: Pairing = Pairing.TURNS
    chosen: bool = False  # the ends showed that this pairing is the better one; further readings may show another

    def hunts(self, ratio: float) -> bool:
        """Whether a change by the factor ``ratio`` has the direction that is hunted."""
        return self.direction is Direction.ANY or (ratio < 1) is (self.direction is Direction.DROP)

    def of_counts(self) -> "Policy":
        """The same rules for a hunt by an exact count."""
        return replace(self, min_effect=self.min_counted or self.min_effect)

    def unlimited(self) -> "Policy":
        """The same rules for a hunt for the largest change alone, without budgets."""
        return replace(self, all_steps=False, max_builds=0, max_runs=0, max_minutes=0.0)


WITH_RUNS = (0.0, 0.0)  # what a count costs where perf counts instructions during each timed run


@dataclass(frozen=True, slots=True)
class PriorKnowledge:
    """All of it is optional: the hunt learns what is missing, except host classes."""

    build_cost: float = 10.0  # of one build, in runs, until this hunt has builds of its own
    noise: float | None = None  # s.d. of one run, as a fraction, on the first host or on one of its class
    # class of each host; hosts of one class show the same change. Empty: all are of one class
    host_classes: tuple[str, ...] = ()
    exact: bool = False  # the metric is a count that repeats, by the method that these hosts have
    # of an exact count beside timed runs: seconds, and times as long as a run besides; WITH_RUNS; None: nothing is counted
    count_cost: tuple[float, float] | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """The host classes; one without a name where they are not given."""
        return tuple(dict.fromkeys(self.host_classes)) or ("",)

    def class_of(self, host: int) -> int:
        """The place of a host's class among ``classes``."""
        return self.classes.index(self.host_classes[host]) if self.host_classes else 0


NOTHING_KNOWN = PriorKnowledge()


@dataclass(frozen=True, slots=True)
class Patch:
    """Changes in the form that `git diff` prints."""

    name: str  # in messages and reports
    content: bytes  # base64 where it is stored
    version: str = ""  # of the trees that it is for, as in [[when]]; "" for all
    file: str = ""  # absolute path; "" for a recipe's own

    @property
    def identity(self) -> tuple[str, str]:
        """What it does to builds: its versions, and a hash of its content."""
        return self.version, hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True, slots=True)
class Flags:
    """Options for the compilers of any build, after all others; quoted for a shell."""

    cflags: str = ""
    cxxflags: str = ""
    ldflags: str = ""

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """The options of `bisect run` that say so, with their values."""
        values = {"--cflags": self.cflags, "--cxxflags": self.cxxflags, "--ldflags": self.ldflags}
        return tuple((name, value) for name, value in values.items() if value)

    @property
    def words(self) -> tuple[str, ...]:
        """The same as words of a command line."""
        return tuple(word for option in self.options for word in option)

    def plus(self, more: "Flags") -> "Flags":
        """These and more, what is there already only once."""
        pairs = ((self.cflags, more.cflags), (self.cxxflags, more.cxxflags), (self.ldflags, more.ldflags))
        return Flags(*(old if f" {new} " in f" {old} " else f"{old} {new}".strip() for old, new in pairs))


AUTO = "auto"  # in place of a metric: that of the workload or, where that tells nothing apart, exact counts
USUAL_HOST, USUAL_VARIANT = "local", "o2nofp"  # where none is asked for; a recipe may have a variant of its own choice
TIMING = ("time", "warmup", "threads")  # names of overrides; the others are args of the workload


@dataclass(frozen=True, slots=True)
class Quick:
    """A command in place of recipes, as on the command line."""

    run: str
    build: tuple[str, ...] | None = None  # commands; None: a builder builds
    rate: str = ""  # where its output has a rate (higher is better): a pattern, or a path in JSON
    cost: str = ""  # the same of a cost (lower is better)
    operations: str = ""  # the same of the number of operations
    then: tuple[str, ...] = ()  # commands that build more, after a builder or the tree's build system
    unit: str = ""  # of the rate or the cost; "" where the pattern says it
    name: str = ""  # by which the history knows it
    only: str = ""  # of an output in a known format the result that is hunted: its name, or a pattern of that


@dataclass(frozen=True, slots=True)
class Output:
    """What is read of a command's output, whose format was recognised."""

    format: str  # the name of rows in ``recipes/outputs.toml``
    result: str  # the name of the result
    unit: str
    metric: str  # rate: higher is better; cost: lower is better


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of `bisect run`; those that were left empty are filled in before the hunt begins."""

    good: str  # as written
    bad: str
    repository: str  # absolute path of the local repository
    builder: str
    workload: str
    host: str  # the first
    variant: str = ""
    good_commit: str = ""  # full hash
    bad_commit: str = ""
    metric: str = "qps"
    first_parent: bool = False
    # of the workload: its TIMING and its args
    overrides: dict[str, str | int | float | bool] = field(default_factory=dict)
    suspects: dict[str, float] = field(default_factory=dict)  # path → prior weight of the commits that touch it
    policy: Policy = field(default_factory=Policy)
    prior: PriorKnowledge = NOTHING_KNOWN
    builders_path: str = ""  # --builders
    workloads_path: str = ""  # --workloads
    hosts_path: str = ""  # --hosts
    further_hosts: tuple[str, ...] = ()
    quick: Quick | None = None  # with it, a name is made up for the builder if none is given
    run_hash: str = ""  # of all that determines a run, when the hunt began
    build_hash: str = ""  # of all that the recipe says of builds
    retry_failed: bool = False  # try builds again that failed in earlier hunts
    # The build system of the range: "auto" where each commit has its own, "" where the recipe or --build has commands.
    system: str = ""
    configure: tuple[str, ...] = ()  # options of its configure step, after those of the recipe
    programs: tuple[str, ...] = ()  # of --program: files of the build, each for the program of its name
    flags: Flags = Flags()
    remedies: bool = True  # try what mends a known error of a build
    # What --skip leaves out: REV or A..B as written → the same with full hashes
    skips: dict[str, str] = field(default_factory=dict)
    patches: tuple[Patch, ...] = ()  # of --patch
    # --metric auto: ``metric`` is that of the workload until it tells nothing apart, and counts do
    choose_metric: bool = False
    # Whether the output of the command, for which nothing else says what is measured, is to be recognised; and as what it was.
    recognise: bool = False
    output: Output | None = None
    # Results of the output that are measured by the same runs, where they are several: of a comparison, or of hunts together.
    outputs: tuple[Output, ...] = ()
    # Words behind the command by which it measures only these; None as long as it is not known whether it obeys them.
    filter: tuple[str, ...] | None = None
    counts: bool = True  # count instructions beside timed runs, where that can be done
    # Of --run and --build: the first commit of the history, the same in all its clones
    root: str = ""
    explain: bool = False  # measure a culprit and its parent for the reason, after the verdict
    name: str = ""  # for people
    narrows: int = 0  # the hunt in the diff of whose culprit is searched: good and bad are its parent and the culprit
    noticed: bool = False  # of a hunt of a watched branch: its culprit was announced
    usual_variant: str = field(default="", compare=False)  # that of the recipe, where none is asked for
    linkable: bool = field(default=True, compare=False)  # False: there can be no randomized layouts, wanted or not

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts that the hunt measures on, in the order of their numbers."""
        return (self.host, *self.further_hosts)


class TrialType(StrEnum):
    """The type of a trial."""

    NOISE = "noise"  # of one build; any after it are its layouts: the n-th is linked again with seed n
    COMPARE = "compare"
    PROVE = "prove"  # its builds are good, bad, and bad without the culprit

    @property
    def noun(self) -> str:
        """What a person calls it."""
        return {"noise": "A/A", "compare": "comparison", "prove": "proof"}[self]


@dataclass(frozen=True, slots=True)
class TrialBuild:
    """One build that is measured."""

    name: str  # as written: a revision with its variant and configuration, or the name given to prebuilt binaries
    commit: str = ""  # full hash; empty for prebuilt binaries
    path: str = ""  # of prebuilt binaries: a folder on the host, or a tarball
    key: str = ""  # of the build; empty without one
    binary: str = ""  # hash of what is measured of it
    version: str = ""  # as prebuilt binaries report it
    trouble: str = ""  # why there is no build
    variant: str = ""  # of its own; empty for that of the trial
    config: str = ""  # of its server, beside the recipe's: a name of the recipe's configs, or the path of a file
    config_hash: str = ""  # of what that says
    seconds: float = field(default=0.0, compare=False)  # that it took to build; 0 where it was there, or is prebuilt


@dataclass(frozen=True, slots=True)
class TrialWorkload:
    """One workload."""

    name: str
    group: str
    warmup: float  # seconds
    time: float
    run_hash: str = ""  # of the workload and its files

    def showing(self, settings: Settings) -> tuple["TrialWorkload", ...]:
        """The workloads that are results of this command; none where one is measured, perhaps as a hunt that shared its runs did."""
        return tuple(replace(self, name=each.result) for each in settings.outputs if not settings.output)


@dataclass(frozen=True, slots=True)
class Reverts:
    """What the third build of a proof lacks."""

    hunt: int  # that named the commits
    commits: tuple[str, ...]  # full hashes, newest first


@dataclass(frozen=True, slots=True)
class Series:
    """What makes a comparison a series of releases, in the order of their versions."""

    text: str  # the range as written: 8.0.20..8.0.40
    left_out: tuple[tuple[str, str], ...]  # releases of the range that are not measured, with the reason
    options: tuple[str, ...]  # of a `bisect run` of the same system on the same host


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """The settings of a trial; the first subject is the baseline."""

    kind: TrialType
    builder: str
    variant: str
    host: str
    metric: str
    overrides: Mapping[str, str | int | float | bool]  # of the workloads
    subjects: tuple[TrialBuild, ...]
    works: tuple[TrialWorkload, ...]
    rounds: int
    runs: int  # in each visit
    reverts: Reverts | None = None  # of a proof
    series: Series | None = None  # of a comparison of the releases of a range
    pairing: Pairing = Pairing.TURNS
    branch: str = ""  # of a night of `bisect nightly`, as written; the last subject is its tip
    shared: bool = False  # the workloads are results of one command, of which each run shows all

    @property
    def in_line(self) -> bool:
        """Whether the builds are a line of releases: of a range, or installed ones as they were given, one in each place."""
        return self.series is not None or 2 < len(self.subjects) == len({each.path for each in self.subjects} - {""})


SEARCH = TrialRequest(TrialType.NOISE, "", "", "", "", {}, (), (), 0, 0)  # of a hunt: no rounds are requested
