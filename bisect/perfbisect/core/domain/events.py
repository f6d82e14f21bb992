"""The events of a hunt or a trial. A session yields events, views show them, and the store keeps them.

In an event of a trial, ``candidate`` is the number of a build in the request of the trial, and ``workload`` the number
of a workload. ``host`` is the name of the host on which the event happens.
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
    def short(self) -> str:
        """The abbreviated hash for all output."""
        return self.sha[:10]

    @property
    def title(self) -> str:
        """The subject, cut to 72 characters, because some projects write a whole message into one line."""
        return self.subject if len(self.subject) <= 72 else f"{self.subject[:71].rstrip()}…"


def part_titles(parts: Sequence[DiffPart], limit: int = 3) -> str:
    """The titles of at most ``limit`` parts of a diff, and how many parts are not listed."""
    return ", ".join(
        [*(part.title for part in parts[:limit]), *([f"{len(parts) - limit} more"] if len(parts) > limit else [])]
    )


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """A session begins, or an interrupted session is resumed. The range of a hunt is known when this event occurs."""

    session: int  # id in the history
    host: HostFacts
    resumed: bool
    # Of a hunt:
    builder: str = ""
    workload: str = ""
    good: str = ""  # as the user wrote it
    bad: str = ""
    commits: int = 0  # in good..bad
    candidates: tuple[str, ...] = ()  # commit hash of each node, oldest first; [0] is good, [-1] is bad
    merges: int = 0
    metric: str = "qps"  # the metric that is compared
    host_classes: tuple[str, ...] = ()  # class of each host, if there are several
    branch_points: int = 0  # number of branch points, which are the first of ``candidates`` after good
    of_merge_base: bool = False  # good is no ancestor of bad: this range is from their merge base to good
    # Of a search in the diff of a commit: the parts that each candidate adds to the previous candidate. For the proof
    # of parts: the states with these parts alone, and without these parts, each with the number of other parts that the
    # state has or lacks so that it builds.
    parts: tuple[tuple[DiffPart, ...], ...] = ()
    proofs: tuple[tuple[str, int], ...] = ()
    # Of any session:
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

    def with_part_titles(self, commit: Commit, candidate: int) -> Commit:
        """The commit of a candidate; if a diff is searched, the subject is the part that the candidate adds."""
        added = self.parts[candidate - 1] if 0 < candidate <= len(self.parts) else ()
        return replace(commit, date="", author="", subject=part_titles(added)) if added else commit


@dataclass(frozen=True, slots=True)
class MetricChosen:
    """`--metric auto` has chosen the metric that is compared after this event."""

    metric: str
    why: str  # a sentence
    usual: str = "qps"  # metric that was compared before: the workload's


@dataclass(frozen=True, slots=True)
class Remedied:
    """After this event, commits are built with further options; earlier runs count only for unchanged binaries."""

    flags: Flags  # further options, and the user's
    why: str  # a sentence without its end

    @property
    def sentence(self) -> str:
        """A sentence that names the added options."""
        return f"{self.why}: everything was built with that."


@dataclass(frozen=True, slots=True)
class PairingChosen:
    """After this event, builds are compared by paired runs or by interleaved runs."""

    together: bool  # True: paired runs
    why: str  # a sentence
    by_cpu: bool = False  # paired runs are compared by CPU time instead of time
    host: str = ""
    alone: Interval | None = None  # bad against good by interleaved runs, if paired and interleaved runs were made
    beside: Interval | None = None  # bad against good by paired runs

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
    """A decision of the search, which uses all observations so far."""

    decision: Decision
    fleet: Fleet = ALL_FREE  # at that moment


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
    """A build that was made ahead was cancelled, because it is no longer needed."""

    candidate: int
    commit: Commit
    seconds: float  # spent until then
    host: str = ""


@dataclass(frozen=True, slots=True)
class CandidateSkipped:
    """A candidate cannot be measured: if ``facts.of_build`` is true, in any workload; otherwise, only in this
    workload.
    """

    candidate: int
    facts: SkipFacts
    host: str = ""
    workload: int = 0
    round: int = 0


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A timed run begins: the run ``number`` of the ``of`` runs in the present measurement."""

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
    """One report interval of a running benchmark run."""

    candidate: int
    second: float
    qps: float
    host: str = ""


@dataclass(frozen=True, slots=True)
class ExecutionStarted:
    """An execution of a command whose instructions are counted begins; an execution may take minutes."""

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
    # number of the round of a trial; two attempts share no round, because the machine may have changed in between
    round: int = 0


@dataclass(frozen=True, slots=True)
class Uncounted:
    """The instructions of a build cannot be counted, for the reason in ``facts``; its timed runs are not affected."""

    candidate: int
    facts: SkipFacts
    host: str = ""


@dataclass(frozen=True, slots=True)
class Counted:
    """A run of the explanation, in which one group of counters was counted. The search ignores runs in which counters
    were counted for the explanation.

    Runs of culprit and parent are interleaved. The n-th runs of both with the same group are compared.
    """

    candidate: int
    facts: RunFacts
    group: str  # name of the group: "core", "cache", "top-down", …
    host: str = ""


@dataclass(frozen=True, slots=True)
class Profiled:
    """A run of the explanation was profiled; runs of culprit and parent are interleaved. The search ignores the
    profile.
    """

    candidate: int
    facts: ProfileFacts
    host: str = ""


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan by which the system executes a statement of the workload, in one build. The search ignores the plan."""

    candidate: int
    facts: PlanFacts
    host: str = ""


@dataclass(frozen=True, slots=True)
class ChangedFunctions:
    """The functions and files that the culprit changes, from the repository. The search ignores this event."""

    candidate: int
    facts: ChangeFacts


@dataclass(frozen=True, slots=True)
class Unexplained:
    """A part of the explanation ("counters", "plans" …) cannot be measured; the reason is a sentence."""

    part: str
    reason: str
    host: str = ""


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """A session has ended: a hunt with its verdict, or a trial. The event occurs before and after an explanation,
    with the same verdict.
    """

    verdict: Verdict | None = None  # None: all rounds of a trial are done
    reason_follows: bool = False
    fitness: FitnessFacts | None = None  # of an A/A
    # Suspects of the verdict that were never built; no other event has their date and subject.
    suspects: tuple[Commit, ...] = ()


LIVE_ONLY = (BuildProgress, Foreseen, RunStarted, RunProgress, ExecutionStarted)
"""Events for live views only; they are not stored."""
LabEvent = (
    BuildStarted | BuildProgress | BuildFinished | BuildCancelled | CandidateSkipped | RunStarted | RunProgress
    | ExecutionStarted | RunFinished | Uncounted | Warned | Counted | Profiled | Planned | Unexplained | PairingChosen
)  # fmt: skip
ExplanationEvent = Counted | Profiled | Planned | ChangedFunctions | Unexplained  # for the reason, after the verdict
Event = SessionStarted | MetricChosen | Remedied | Foreseen | Decided | LabEvent | ChangedFunctions | SessionEnded
