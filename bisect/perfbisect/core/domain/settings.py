"""The settings with which a session begins, and with which it is resumed after an interruption; and the request of a
trial (its builds, workloads and rounds).

Settings include the contents of the files of --patch, so that a hunt can be resumed after such a file was changed or
removed.

Settings contain the policy (limits and thresholds that the user has chosen for the search), and prior knowledge from
hosts.toml and earlier hunts.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

# The smallest change of interest of an exact count. Counts repeat to 0.001 %, and layouts do not change them. But many
# commits change the count by a few instructions, and such commits do not explain a slower database.
COUNTED = 0.002
MAX_PROBABILITY = 0.995  # highest probability of a culprit that is stated or required: no model is better


class ChangeDirection(StrEnum):
    """The direction of the change from good to bad for which a hunt searches."""

    DROP = "drop"
    RISE = "rise"
    ANY = "any"


PAIRS_FIRST = 4  # paired runs of both ends before the pairing is chosen
GAIN = 0.5  # paired runs are better if their s.d. is less than this share of the s.d. of two interleaved runs


class Pairing(StrEnum):
    """The way in which the runs of two builds are made for a comparison."""

    AUTO = "auto"
    PAIRED = "paired"  # the two builds run at the same time
    INTERLEAVED = "interleaved"  # the builds run one after the other


@dataclass(frozen=True, slots=True)
class Policy:
    """The limits and thresholds of a hunt. Sizes and probabilities are fractions, not percentages; a limit of 0 means
    no limit."""

    confidence: float = 0.95  # a culprit is named if its probability is at least this
    direction: ChangeDirection = ChangeDirection.DROP
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
    chosen: bool = False  # whether runs of the ends showed that ``pairing`` is better; later runs may show the opposite
    # Whether the user chose ``min_effect``. Then ``min_effect`` of a rise is a share of the smaller value, otherwise a
    # share of the larger value.
    typed: bool = False

    def is_hunted(self, ratio: float) -> bool:
        """Whether a change by the factor ``ratio`` has the direction for which the hunt searches."""
        return self.direction is ChangeDirection.ANY or (ratio < 1) is (self.direction is ChangeDirection.DROP)

    def for_exact_count(self) -> "Policy":
        """The policy for a hunt whose metric is an exact count."""
        return replace(self, min_effect=self.min_counted or self.min_effect)

    def unlimited(self) -> "Policy":
        """The policy without limits of builds, runs and time, for a search of only the largest change."""
        return replace(self, all_steps=False, max_builds=0, max_runs=0, max_minutes=0.0)


WITH_RUNS = (0.0, 0.0)  # the cost of counts if perf counts instructions during each timed run


@dataclass(frozen=True, slots=True)
class PriorKnowledge:
    """The knowledge about hosts and costs that a hunt has at its begin.

    All fields except the host classes may be unknown, because the hunt can measure these values itself.
    """

    build_cost: float = 10.0  # cost of one build in runs, until this hunt has builds
    noise: float | None = None  # s.d. of one run, as a fraction, on the first host or on a host of its class
    # The host class of each host; empty if all hosts are of one class.
    host_classes: tuple[str, ...] = ()
    exact: bool = False  # whether the metric is a count that repeats, by the method of these hosts
    # Cost of an exact count in addition to timed runs: seconds, and a multiple of the time of a run, which are added.
    # WITH_RUNS: perf counts during timed runs. None: nothing is counted.
    count_cost: tuple[float, float] | None = None

    @property
    def host_class_names(self) -> tuple[str, ...]:
        """The names of the different host classes; [""] if hosts.toml defines no class."""
        return tuple(dict.fromkeys(self.host_classes)) or ("",)

    def class_of(self, host: int) -> int:
        """The index in ``host_class_names`` of the host class of a host."""
        return self.host_class_names.index(self.host_classes[host]) if self.host_classes else 0


NOTHING_KNOWN = PriorKnowledge()


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch in the format of `git diff`, which is applied to trees before they are built."""

    name: str  # the name of the patch in messages and reports
    content: bytes  # base64 in storage
    version: str = ""  # condition on the version of the tree, as in [[when]] of a recipe; "" for all trees
    file: str = ""  # absolute path; "" for a patch of a recipe

    @property
    def identity(self) -> tuple[str, str]:
        """The versions to which the patch applies, and a hash of its content; both determine the effect of the patch on
        builds."""
        return self.version, hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True, slots=True)
class Flags:
    """The user's options for the compilers and the linker of every build, which come after all other options. The texts
    are quoted for a shell."""

    cflags: str = ""
    cxxflags: str = ""
    ldflags: str = ""

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """The options of `bisect run` that result in these flags, with the values of the options."""
        values = {"--cflags": self.cflags, "--cxxflags": self.cxxflags, "--ldflags": self.ldflags}
        return tuple((name, value) for name, value in values.items() if value)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The options as arguments of a command line."""
        return tuple(word for option in self.options for word in option)

    def with_missing(self, more: "Flags") -> "Flags":
        """These flags, followed by those flags of ``more`` that are not among these flags."""
        pairs = ((self.cflags, more.cflags), (self.cxxflags, more.cxxflags), (self.ldflags, more.ldflags))
        return Flags(*(old if f" {new} " in f" {old} " else f"{old} {new}".strip() for old, new in pairs))


AUTO = "auto"  # in place of a metric: the workload's metric, or exact counts if that metric does not tell builds apart
USUAL_HOST, USUAL_VARIANT = "local", "o2nofp"  # defaults; a recipe may have another default variant
TIMING = ("time", "warmup", "threads")  # names of overrides; all other overrides are args of the workload


@dataclass(frozen=True, slots=True)
class QuickCommand:
    """The command of `--run`, which is used instead of a workload's recipe, and the options that describe how its
    program is built and what its output means."""

    run: str
    build: tuple[str, ...] | None = None  # commands of --build; None if a builder makes the builds
    rate: str = ""  # where the output has a rate (higher is better): a pattern, or a path in JSON
    cost: str = ""  # where the output has a cost (lower is better): a pattern, or a path in JSON
    operations: str = ""  # where the output has the number of operations: a pattern, or a path in JSON
    then: tuple[str, ...] = ()  # commands that run after the build by a builder or by the tree's build system
    unit: str = ""  # unit of the rate or the cost; "" if the pattern has it
    name: str = ""  # the name of the workload in the history
    only: str = ""  # if the output has several results: the name of the hunted result, or a pattern of names


@dataclass(frozen=True, slots=True)
class PrintedResult:
    """One of the results that a command prints in a format that perfbisect knows."""

    format: str  # name of rows in ``recipes/outputs.toml``
    result: str  # the name of the result
    unit: str
    metric: str  # rate: higher is better; cost: lower is better


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of `bisect run`. Arguments that the user omits get their default values before the hunt begins."""

    good: str  # as written
    bad: str
    repository: str  # absolute path of the local repository
    builder: str
    workload: str
    host: str  # the first host
    variant: str = ""
    good_commit: str = ""  # full hash
    bad_commit: str = ""
    metric: str = "qps"
    first_parent: bool = False
    # Settings and arguments of the workload that options override; names are in TIMING, or are arguments.
    overrides: dict[str, str | int | float | bool] = field(default_factory=dict)
    suspects: dict[str, float] = field(default_factory=dict)  # path → prior weight of the commits that touch it
    policy: Policy = field(default_factory=Policy)
    prior: PriorKnowledge = NOTHING_KNOWN
    builders_path: str = ""  # --builders
    workloads_path: str = ""  # --workloads
    hosts_path: str = ""  # --hosts
    further_hosts: tuple[str, ...] = ()
    quick: QuickCommand | None = None  # the command of --run; None if recipes are used
    run_hash: str = ""  # hash of everything that determines a run, when the hunt began
    build_hash: str = ""  # hash of everything in the recipe that determines builds
    retry_failed: bool = False  # whether to build commits again that failed in earlier hunts
    # The build system of the range: "auto" if each commit has its own, "" if the recipe or --build has commands.
    system: str = ""
    configure: tuple[str, ...] = ()  # options of its configure step, after those of the recipe
    programs: tuple[str, ...] = ()  # of --program: files of the build; each replaces the program with its file name
    flags: Flags = Flags()
    remedies: bool = True  # whether to try remedies of known errors of builds
    # Argument of --skip as written (REV or A..B) → the argument with full hashes.
    skips: dict[str, str] = field(default_factory=dict)
    patches: tuple[Patch, ...] = ()  # the patches that --patch names
    # Whether --metric is auto: ``metric`` is the workload's metric first, and later exact counts if only counts differ.
    choose_metric: bool = False
    # Whether perfbisect must find the result in the output of the command, because no option says where the result is;
    # and the result that was found.
    recognise: bool = False
    output: PrintedResult | None = None
    # In a comparison or a batch of hunts: the results that each run measures together, if the output has several.
    outputs: tuple[PrintedResult, ...] = ()
    # Words added to the command, so that it measures only these results; None if the effect of such words is unknown.
    filter: tuple[str, ...] | None = None
    counts: bool = True  # whether to count instructions in addition to timed runs, if possible
    # With --run and --build: the first commit of the git history, which identifies the repository in all clones.
    root: str = ""
    explain: bool = False  # whether to measure a culprit and its parent for the reason, after the verdict
    name: str = ""  # the name that the user gave the session
    narrows: int = 0  # number of the hunt whose culprit's diff is searched: good and bad are its parent and the culprit
    noticed: bool = False  # of a hunt that `bisect nightly` began: whether its culprit was announced
    usual_variant: str = field(default="", compare=False)  # the default variant of the recipe
    linkable: bool = field(default=True, compare=False)  # False if randomized layouts are impossible

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts on which the hunt measures, in the order of their numbers."""
        return (self.host, *self.further_hosts)


class TrialType(StrEnum):
    """The type of a trial."""

    NOISE = "noise"  # of one build; the n-th further build is this build, in the randomized layout of seed n
    COMPARE = "compare"
    PROVE = "prove"  # of three builds: good, bad, and bad without the culprit

    @property
    def trial_noun(self) -> str:
        """The noun that messages use for the trial, such as "comparison"."""
        return {"noise": "A/A test", "compare": "comparison", "prove": "proof"}[self]


@dataclass(frozen=True, slots=True)
class TrialBuild:
    """One build of a trial."""

    name: str  # as written: a revision with its variant and configuration, or the given name of prebuilt binaries
    commit: str = ""  # full hash; empty for prebuilt binaries
    path: str = ""  # of prebuilt binaries: a folder on the host, or a tarball
    key: str = ""  # key of the build; empty if there is no build
    binary: str = ""  # hash of the parts of the build that are measured
    version: str = ""  # the version that prebuilt binaries print
    trouble: str = ""  # why there is no build
    variant: str = ""  # empty if it is the variant of the trial
    # configuration of its server, in addition to the recipe's: a name of the recipe's configs, or the path of a file
    config: str = ""
    config_hash: str = ""  # hash of the content of ``config``
    seconds: float = field(default=0.0, compare=False)  # seconds of the build; 0 if the build existed, or is prebuilt


@dataclass(frozen=True, slots=True)
class TrialWorkload:
    """One workload of a trial."""

    name: str
    group: str
    warmup: float  # seconds
    time: float
    run_hash: str = ""  # hash of the workload and its files

    def for_outputs(self, settings: Settings) -> tuple["TrialWorkload", ...]:
        """If several results of a command are measured, a workload for each result; otherwise empty."""
        return tuple(replace(self, name=output.result) for output in settings.outputs if not settings.output)


@dataclass(frozen=True, slots=True)
class RevertedCommits:
    """The commits that are reverted in the third build of a proof (bad without the culprit)."""

    hunt: int  # the hunt that named the commits
    commits: tuple[str, ...]  # full hashes, newest first


@dataclass(frozen=True, slots=True)
class ReleaseSeries:
    """The range of releases that a comparison measures as a series, in the order of versions."""

    text: str  # the range as written: 8.0.20..8.0.40
    left_out: tuple[tuple[str, str], ...]  # releases of the range that are not measured, with the reason
    options: tuple[str, ...]  # options with which `bisect run` uses the same system and host


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """The settings of a trial. ``subjects`` are the measured builds; the first build is the baseline."""

    kind: TrialType
    builder: str
    variant: str
    host: str
    metric: str
    overrides: Mapping[str, str | int | float | bool]  # settings and arguments of workloads that options override
    subjects: tuple[TrialBuild, ...]
    works: tuple[TrialWorkload, ...]
    rounds: int
    runs: int  # in each visit
    reverts: RevertedCommits | None = None  # the commits that a proof reverts
    series: ReleaseSeries | None = None  # of a comparison of the releases of a range
    pairing: Pairing = Pairing.INTERLEAVED
    branch: str = ""  # of a night of `bisect nightly`: the branch as written; the last subject is the branch's tip
    shared: bool = False  # whether the workloads are results of one command, which each run measures together

    @property
    def is_release_line(self) -> bool:
        """Whether the builds are successive releases: a range of releases, or more than two releases in different
        folders."""
        return self.series is not None or 2 < len(self.subjects) == len({build.path for build in self.subjects} - {""})


NO_TRIAL = TrialRequest(TrialType.NOISE, "", "", "", "", {}, (), (), 0, 0)  # of a hunt: no rounds are requested
