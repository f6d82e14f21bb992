"""The settings of a session, with which it begins and resumes after an interruption, and the request of a trial.

Settings include the content of a patch for the commits, so that a hunt can be resumed after the file of the patch was
changed or removed.

Settings contain the policy (the user's requests to the search), and prior knowledge from hosts.toml and earlier hunts.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

# Smallest change of interest of an exact count. Counts repeat to 0.001 %, and layouts do not change them; but many
# commits move a few instructions, and to name each of them would not explain a slower database.
COUNTED = 0.002
MAX_PROBABILITY = 0.995  # highest probability of a culprit that is stated or required: no model is better


class Direction(StrEnum):
    """The direction of the change of the metric from good to bad that is hunted."""

    DROP = "drop"
    RISE = "rise"
    ANY = "any"


PAIRS_FIRST = 4  # paired runs of both ends before the pairing is chosen
GAIN = 0.5  # ratio of s.d. of paired runs to s.d. of two interleaved runs, below which paired runs are better


class Pairing(StrEnum):
    """The pairing, which says how builds are compared."""

    AUTO = "auto"
    PAIRED = "paired"  # the two builds run at the same time
    INTERLEAVED = "interleaved"  # the builds run one after the other


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of one hunt. Sizes and probabilities are fractions, not percentages; a budget of 0 means no limit."""

    confidence: float = 0.95  # probability from which on a culprit is named
    direction: Direction = Direction.DROP
    min_effect: float = 0.02  # smallest change of interest between the ends
    min_counted: float = 0.0  # the smallest change of an exact count; 0: ``min_effect``
    auto_effect: bool = False  # whether a change below ``min_effect`` is hunted if the noise of the ends allows it
    max_builds: int = 0
    max_runs: int = 0
    max_minutes: float = 0.0
    all_steps: bool = False  # whether to hunt every change of at least ``min_effect``, not only the largest
    slow_after: float = 0.0  # a run is stopped after this multiple of the time of a run of the good end; 0: never
    layouts: bool = False  # whether builds can be linked again in randomized layouts
    incremental: bool = False  # whether builds of the search may be made in the tree of the last build
    pairing: Pairing = Pairing.INTERLEAVED
    chosen: bool = False  # the ends showed that this pairing is better; further readings may show the opposite
    # Whether the user chose ``min_effect``: then a rise is a share of the smaller value, otherwise of the larger value.
    typed: bool = False

    def is_hunted(self, ratio: float) -> bool:
        """Whether a change by the factor ``ratio`` has the direction for which the hunt searches."""
        return self.direction is Direction.ANY or (ratio < 1) is (self.direction is Direction.DROP)

    def for_counts(self) -> "Policy":
        """The rules for a hunt that compares exact counts."""
        return replace(self, min_effect=self.min_counted or self.min_effect)

    def unlimited(self) -> "Policy":
        """The rules without budgets, for a hunt that searches only for the largest change."""
        return replace(self, all_steps=False, max_builds=0, max_runs=0, max_minutes=0.0)


WITH_RUNS = (0.0, 0.0)  # the cost of counts if perf counts instructions during each timed run


@dataclass(frozen=True, slots=True)
class PriorKnowledge:
    """Knowledge before a hunt.

    Every field except the host classes is optional, because a hunt can learn the missing knowledge.
    """

    build_cost: float = 10.0  # cost of one build in runs, until this hunt has builds
    noise: float | None = None  # s.d. of one run, as a fraction, on the first host or on a host of its class
    # class of each host; hosts of one class show the same change; empty: all are of one class
    host_classes: tuple[str, ...] = ()
    exact: bool = False  # whether the metric is a count that repeats, by the method of these hosts
    # cost of an exact count beside timed runs: (seconds, further time in runs); WITH_RUNS; None: nothing is counted
    count_cost: tuple[float, float] | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """The host classes; a single class without a name if no class is given."""
        return tuple(dict.fromkeys(self.host_classes)) or ("",)

    def class_of(self, host: int) -> int:
        """The index in ``classes`` of the class of a host."""
        return self.classes.index(self.host_classes[host]) if self.host_classes else 0


NOTHING_KNOWN = PriorKnowledge()


@dataclass(frozen=True, slots=True)
class Patch:
    """Changes in the form that `git diff` prints."""

    name: str  # in messages and reports
    content: bytes  # base64 in storage
    version: str = ""  # versions of the trees that the patch is for, as in [[when]]; "" for all
    file: str = ""  # absolute path; "" for a patch of a recipe

    @property
    def identity(self) -> tuple[str, str]:
        """The versions and a hash of the content of the patch, which determine its effect on builds."""
        return self.version, hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True, slots=True)
class Flags:
    """Options for the compilers and the linker of any build, placed after all other options, quoted for a shell."""

    cflags: str = ""
    cxxflags: str = ""
    ldflags: str = ""

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """The options of `bisect run` that give these flags, with their values."""
        values = {"--cflags": self.cflags, "--cxxflags": self.cxxflags, "--ldflags": self.ldflags}
        return tuple((name, value) for name, value in values.items() if value)

    @property
    def words(self) -> tuple[str, ...]:
        """The options as arguments of a command line."""
        return tuple(word for option in self.options for word in option)

    def plus(self, more: "Flags") -> "Flags":
        """These options, followed by the options of ``more`` that are not yet among them."""
        pairs = ((self.cflags, more.cflags), (self.cxxflags, more.cxxflags), (self.ldflags, more.ldflags))
        return Flags(*(old if f" {new} " in f" {old} " else f"{old} {new}".strip() for old, new in pairs))


AUTO = "auto"  # in place of a metric: the workload's metric, or exact counts if that metric does not tell builds apart
USUAL_HOST, USUAL_VARIANT = "local", "o2nofp"  # defaults; a recipe may have another default variant
TIMING = ("time", "warmup", "threads")  # names of overrides; all other overrides are args of the workload


@dataclass(frozen=True, slots=True)
class QuickCommand:
    """A command that replaces recipes, as the user typed it."""

    run: str
    build: tuple[str, ...] | None = None  # commands; None: a builder builds
    rate: str = ""  # place of a rate in the output (higher is better): a pattern, or a path in JSON
    cost: str = ""  # place of a cost (lower is better)
    operations: str = ""  # place of the number of operations
    then: tuple[str, ...] = ()  # commands that build more, after a builder or the build system of the tree
    unit: str = ""  # unit of the rate or the cost; "" if the pattern has it
    name: str = ""  # the name of the workload in the history
    only: str = ""  # the hunted result of an output in a known format: the name of the result, or a pattern of names


@dataclass(frozen=True, slots=True)
class Output:
    """A result in the output of a command; the format of the output was recognised."""

    format: str  # name of rows in ``recipes/outputs.toml``
    result: str  # the name of the result
    unit: str
    metric: str  # rate: higher is better; cost: lower is better


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of `bisect run`; missing arguments are filled in before the hunt begins."""

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
    # of the workload: TIMING and args
    overrides: dict[str, str | int | float | bool] = field(default_factory=dict)
    suspects: dict[str, float] = field(default_factory=dict)  # path → prior weight of the commits that touch it
    policy: Policy = field(default_factory=Policy)
    prior: PriorKnowledge = NOTHING_KNOWN
    builders_path: str = ""  # --builders
    workloads_path: str = ""  # --workloads
    hosts_path: str = ""  # --hosts
    further_hosts: tuple[str, ...] = ()
    quick: QuickCommand | None = None  # if a builder is not given, its name is made up
    run_hash: str = ""  # hash of everything that determines a run, when the hunt began
    build_hash: str = ""  # hash of everything in the recipe that determines builds
    retry_failed: bool = False  # whether to build commits again that failed in earlier hunts
    # The build system of the range: "auto" if each commit has its own, "" if the recipe or --build has commands.
    system: str = ""
    configure: tuple[str, ...] = ()  # options of its configure step, after those of the recipe
    programs: tuple[str, ...] = ()  # of --program: files of the build, each for the program of its name
    flags: Flags = Flags()
    remedies: bool = True  # whether to try remedies of known errors of builds
    # --skip: REV or A..B as written → the same with full hashes
    skips: dict[str, str] = field(default_factory=dict)
    patches: tuple[Patch, ...] = ()  # of --patch
    # --metric auto: ``metric`` is the workload's metric, or exact counts once only counts have told builds apart
    choose_metric: bool = False
    # Whether the output of the command is to be recognised, because no other option says what is measured; and the
    # recognised result.
    recognise: bool = False
    output: Output | None = None
    # Results of the output that the same runs measure, if there are several, in a comparison or in a batch of hunts.
    outputs: tuple[Output, ...] = ()
    # Words after the command by which it measures only these results; None if the effect of such words is unknown.
    filter: tuple[str, ...] | None = None
    counts: bool = True  # whether to count instructions beside timed runs, if possible
    # Of --run and --build: the first commit of the history, equal in all clones
    root: str = ""
    explain: bool = False  # whether to measure a culprit and its parent for the reason, after the verdict
    name: str = ""  # a name for people
    narrows: int = 0  # number of the hunt whose culprit's diff is searched: good and bad are its parent and the culprit
    noticed: bool = False  # of a hunt of a watched branch: whether its culprit was announced
    usual_variant: str = field(default="", compare=False)  # the default variant of the recipe
    linkable: bool = field(default=True, compare=False)  # False: randomized layouts are impossible, wanted or not

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts on which the hunt measures, in the order of their numbers."""
        return (self.host, *self.further_hosts)


class TrialType(StrEnum):
    """The type of a trial."""

    NOISE = "noise"  # of one build; builds after it are its layouts: the n-th is linked by seed n
    COMPARE = "compare"
    PROVE = "prove"  # of three builds: good, bad, and bad without the culprit

    @property
    def noun(self) -> str:
        """The noun for the trial in messages."""
        return {"noise": "A/A", "compare": "comparison", "prove": "proof"}[self]


@dataclass(frozen=True, slots=True)
class TrialBuild:
    """One build of a trial."""

    name: str  # as written: a revision with its variant and configuration, or the given name of prebuilt binaries
    commit: str = ""  # full hash; empty for prebuilt binaries
    path: str = ""  # of prebuilt binaries: a folder on the host, or a tarball
    key: str = ""  # of the build; empty without one
    binary: str = ""  # hash of the parts of the build that are measured
    version: str = ""  # as prebuilt binaries report it
    trouble: str = ""  # why there is no build
    variant: str = ""  # empty for the variant of the trial
    # configuration of its server, in addition to the recipe's: a name of the recipe's configs, or the path of a file
    config: str = ""
    config_hash: str = ""  # hash of the content of ``config``
    seconds: float = field(default=0.0, compare=False)  # time to build; 0 if it existed, or is prebuilt


@dataclass(frozen=True, slots=True)
class TrialWorkload:
    """One workload of a trial."""

    name: str
    group: str
    warmup: float  # seconds
    time: float
    run_hash: str = ""  # hash of the workload and its files

    def for_outputs(self, settings: Settings) -> tuple["TrialWorkload", ...]:
        """The workloads for the results of one command; empty if only a single result is measured."""
        return tuple(replace(self, name=output.result) for output in settings.outputs if not settings.output)


@dataclass(frozen=True, slots=True)
class RevertedCommits:
    """The commits that are reverted in the third build of a proof."""

    hunt: int  # the hunt that named the commits
    commits: tuple[str, ...]  # full hashes, newest first


@dataclass(frozen=True, slots=True)
class ReleaseSeries:
    """The range of releases that a comparison measures as a series, in the order of versions."""

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
    reverts: RevertedCommits | None = None  # of a proof
    series: ReleaseSeries | None = None  # of a comparison of the releases of a range
    pairing: Pairing = Pairing.INTERLEAVED
    branch: str = ""  # of a night of `bisect nightly`: the branch as written; the last subject is the branch's tip
    shared: bool = False  # whether the workloads are results of one command, and each run shows all of them

    @property
    def is_release_line(self) -> bool:
        """Whether the builds are a range of releases, or several installed releases in different folders."""
        return self.series is not None or 2 < len(self.subjects) == len({build.path for build in self.subjects} - {""})


NO_TRIAL = TrialRequest(TrialType.NOISE, "", "", "", "", {}, (), (), 0, 0)  # of a hunt: no rounds are requested
