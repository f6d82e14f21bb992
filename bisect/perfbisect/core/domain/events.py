"""The events of a hunt or a trial. A session yields events, views show the events, and the store keeps the events.

In an event of a trial, the field ``candidate`` is the index of a build in the request of the trial, and ``workload`` is
the index of a workload. The field ``host`` is the name of the host on which the event happens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfbisect.core.domain.facts import (
    BuildFacts,
    ChangeFacts,
    DiffPart,
    FitnessFacts,
    HostFacts,
    PlanFacts,
    ProfileFacts,
    RunFacts,
    SkipFacts,
)
from perfbisect.core.domain.orders import ALL_FREE, Decision, Fleet, Interval, Purpose, Verdict
from perfbisect.core.domain.settings import NO_TRIAL, Flags, TrialRequest


@dataclass(frozen=True, slots=True)
class Commit:
    """The data of a commit that views and reports show."""

    sha: str
    date: str = ""  # ISO 8601, the committer's day: 2021-10-13; empty, like the texts, if only the hash is known
    author: str = ""
    subject: str = ""

    @property
    def short_sha(self) -> str:
        """The abbreviated hash, as all output shows it."""
        return self.sha[:10]

    @property
    def short_subject(self) -> str:
        """The subject, cut to 72 characters, because some projects write a whole message into one line."""
        return self.subject if len(self.subject) <= 72 else f"{self.subject[:71].rstrip()}…"


def part_titles(parts: Sequence[DiffPart], limit: int = 3) -> str:
    """The titles of the first ``limit`` parts of a diff, and the number of further parts."""
    further = [f"{len(parts) - limit} more"] if len(parts) > limit else []
    return ", ".join([*(part.title for part in parts[:limit]), *further])


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """A session begins, or an interrupted session is resumed."""

    session: int  # id of the session in the history
    host: HostFacts
    resumed: bool
    # Fields of a hunt:
    builder: str = ""
    workload: str = ""
    good: str = ""  # good, as the user wrote the revision
    bad: str = ""
    commits: int = 0  # number of commits in good..bad
    candidates: tuple[str, ...] = ()  # commit hash of each node, oldest first; [0] is good, [-1] is bad
    merges: int = 0
    metric: str = "qps"  # the metric that is compared
    host_classes: tuple[str, ...] = ()  # class of each host, if there are several
    branch_points: int = 0  # number of branch points, which are the first of ``candidates`` after good
    of_merge_base: bool = False  # good is no ancestor of bad: this range is from their merge base to good
    # Of `bisect narrow`: the parts that each candidate adds to the previous candidate.
    parts: tuple[tuple[DiffPart, ...], ...] = ()
    # Of a proof of parts: (commit with only these parts, number of further parts that it needs to build), and (commit
    # without these parts, number of further parts that are left out so that it builds).
    proofs: tuple[tuple[str, int], ...] = ()
    # Fields of any session:
    further: tuple[HostFacts, ...] = ()  # all hosts except the first
    build_hosts: tuple[str, ...] = ()  # names of the hosts that build ahead
    # The request of a trial; later events have the facts of its builds.
    request: TrialRequest = NO_TRIAL

    @property
    def possible_culprits(self) -> int:
        """The number of commits that can be the culprit."""
        return len(self.candidates) - 1 - self.branch_points

    @property
    def hosts(self) -> tuple[HostFacts, ...]:
        """All hosts."""
        return (self.host, *self.further)

    def with_part_title(self, commit: Commit, candidate: int) -> Commit:
        """``commit``; if the hunt searches the parts of a diff, a copy of ``commit`` whose subject lists the parts that
        the candidate adds."""
        added = self.parts[candidate - 1] if 0 < candidate <= len(self.parts) else ()
        return replace(commit, date="", author="", subject=part_titles(added)) if added else commit


@dataclass(frozen=True, slots=True)
class MetricChosen:
    """`--metric auto` has chosen the metric that is compared after this event."""

    metric: str
    why: str  # the reason, as a sentence
    usual: str = "qps"  # the metric that was compared before this event: the default of the workload


@dataclass(frozen=True, slots=True)
class Remedied:
    """After this event, commits are built with additional compiler options, because a commit does not build without
    these options. Earlier runs of a commit are used further only if the options do not change the commit's binary."""

    flags: Flags  # the additional options, and the options of the user
    why: str  # the reason, as a sentence without its end

    @property
    def reason_sentence(self) -> str:
        """A sentence that states why perfbisect adds compiler options to the builds of all commits."""
        return f"{self.why}: everything was built with that."


@dataclass(frozen=True, slots=True)
class PairingChosen:
    """After this event, builds are compared by paired runs or by interleaved runs."""

    together: bool  # True: paired runs
    why: str  # a sentence
    by_cpu: bool = False  # paired runs are compared by CPU time instead of time
    host: str = ""
    alone: Interval | None = None  # ratio of bad to good by interleaved runs, if both kinds of runs were made
    beside: Interval | None = None  # ratio of bad to good by paired runs

    def metric_of_paired_runs(self, metric: str) -> str:
        """The metric by which paired runs are compared, if interleaved runs are compared by ``metric``."""
        return "cpu/o" if self.by_cpu else metric


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning for the user, with advice."""

    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """A forecast of the number of builds and runs of a hunt, made after the ends were measured."""

    text: str  # a sentence


@dataclass(frozen=True, slots=True)
class Decided:
    """The search has made a decision from all observations so far: the next work order (the description of the next
    measurement), or the verdict."""

    decision: Decision
    fleet: Fleet = ALL_FREE  # the state of the hosts at the time of the decision


@dataclass(frozen=True, slots=True)
class BuildStarted:
    """A build begins, or a build that already exists is used."""

    candidate: int
    commit: Commit
    host: str = ""
    reused: bool = False  # nothing is built: an earlier build exists


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """The number of finished steps and the number of all steps, read from the output of the build tool; ``total`` is
    0 if unknown.
    """

    candidate: int
    done: int
    total: int
    stage: str
    host: str = ""


@dataclass(frozen=True, slots=True)
class BuildFinished:
    """A build is finished; ``same_as`` is an earlier candidate whose binary is the same."""

    candidate: int
    facts: BuildFacts
    same_as: int | None
    host: str = ""


@dataclass(frozen=True, slots=True)
class BuildCancelled:
    """A build host's build was cancelled, because the search no longer needs the build."""

    candidate: int
    commit: Commit
    seconds: float  # seconds that were spent on the build
    host: str = ""


@dataclass(frozen=True, slots=True)
class CandidateSkipped:
    """A candidate cannot be measured. If ``facts.is_build_failure`` is true, the candidate cannot be measured in any
    workload; otherwise, it cannot be measured in ``workload``.
    """

    candidate: int
    facts: SkipFacts
    host: str = ""
    workload: int = 0
    round: int = 0


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A timed run begins. The run has the number ``number`` among the ``of`` runs of the present measurement."""

    candidate: int
    number: int
    of: int
    purpose: Purpose
    seconds: float  # planned length, with warm-up
    host: str = ""
    workload: int = 0
    round: int = 0


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The QPS that a run in progress has reported last."""

    candidate: int
    second: float
    qps: float
    host: str = ""


@dataclass(frozen=True, slots=True)
class ExecutionStarted:
    """An execution of the workload begins, in which instructions are counted exactly, and which may take minutes."""

    candidate: int
    number: int
    of: int  # 0: unknown, because the length of counted runs is being determined
    operations: int  # length of the execution; 0: as long as the command takes
    host: str = ""


@dataclass(frozen=True, slots=True)
class RunFinished:
    """A timed run is finished, with all its counters."""

    candidate: int
    facts: RunFacts
    host: str = ""
    workload: int = 0
    # Number of the round of a trial. Two attempts share no round, because the host may have changed between them.
    round: int = 0


@dataclass(frozen=True, slots=True)
class Uncounted:
    """The instructions of a build cannot be counted exactly, for the reason in ``facts``; timed runs of the build are
    still possible."""

    candidate: int
    facts: SkipFacts
    host: str = ""


@dataclass(frozen=True, slots=True)
class Counted:
    """To explain the culprit, one group of counters was counted in a run of the culprit or its parent. The search does
    not use this run.

    Runs of the culprit and its parent alternate. For each group of counters, the n-th run of the culprit is compared
    with the n-th run of the parent.
    """

    candidate: int
    facts: RunFacts
    group: str  # name of the group: "core", "cache", "top-down", …
    host: str = ""


@dataclass(frozen=True, slots=True)
class Profiled:
    """To explain the culprit, a run of the culprit or its parent was profiled. Runs of the culprit and its parent
    alternate. The search does not use these runs.
    """

    candidate: int
    facts: ProfileFacts
    host: str = ""


@dataclass(frozen=True, slots=True)
class Planned:
    """The query plan with which one build (the culprit or its parent) executes a statement of the workload."""

    candidate: int
    facts: PlanFacts
    host: str = ""


@dataclass(frozen=True, slots=True)
class ChangedFunctions:
    """The functions and files that the culprit changes, according to the diff in the repository."""

    candidate: int
    facts: ChangeFacts


@dataclass(frozen=True, slots=True)
class Unexplained:
    """A part of the explanation ("counters", "plans" …) cannot be measured; ``reason`` is a sentence."""

    part: str
    reason: str
    host: str = ""


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """A session has ended: a hunt with its verdict, or a trial. If perfbisect measures after the verdict why the
    culprit is slower, this event occurs before and after these measurements, with the same verdict.
    """

    verdict: Verdict | None = None  # None: all rounds of a trial are done
    reason_follows: bool = False
    fitness: FitnessFacts | None = None  # only of an A/A test
    # Suspects of the verdict that were never built; no other event has their date and subject.
    suspects: tuple[Commit, ...] = ()


LIVE_ONLY = (BuildProgress, Foreseen, RunStarted, RunProgress, ExecutionStarted)
"""Events for live views only; they are not stored."""
LabEvent = (
    BuildStarted | BuildProgress | BuildFinished | BuildCancelled | CandidateSkipped | RunStarted | RunProgress
    | ExecutionStarted | RunFinished | Uncounted | Warned | Counted | Profiled | Planned | Unexplained | PairingChosen
)  # fmt: skip
# Events about the reason of the change, after the verdict.
ExplanationEvent = Counted | Profiled | Planned | ChangedFunctions | Unexplained
Event = SessionStarted | MetricChosen | Remedied | Foreseen | Decided | LabEvent | ChangedFunctions | SessionEnded
