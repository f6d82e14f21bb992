"""What happens during a hunt or a trial, one frozen record each. A session yields them, views show them, the store keeps them.

In a trial, ``candidate`` is the number of a build in its request, and ``workload`` that of a workload there.
``host`` is the name of the host where something happens.
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
from perfbisect.core.domain.settings import SEARCH, Flags, TrialRequest


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit as it is shown."""

    sha: str
    date: str = ""  # ISO 8601, committer's day: 2021-10-13; empty, as the texts, where only the hash is known
    author: str = ""
    subject: str = ""

    @property
    def short(self) -> str:
        """The abbreviated hash used everywhere in output."""
        return self.sha[:10]

    @property
    def title(self) -> str:
        """The subject in at most 72 characters, as some projects write the whole message into one line."""
        return self.subject if len(self.subject) <= 72 else f"{self.subject[:71].rstrip()}…"


def titles(parts: Sequence[DiffPart], most: int = 3) -> str:
    """Parts of a diff in a few words."""
    return ", ".join(
        [*(part.title for part in parts[:most]), *([f"{len(parts) - most} more"] if len(parts) > most else [])]
    )


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """An attempt at a session begins: the first, or one that resumes it. The range of a hunt is known."""

    session: int  # id in the history
    host: HostFacts
    resumed: bool
    # of a hunt:
    builder: str = ""
    workload: str = ""
    good: str = ""  # as the user wrote it
    bad: str = ""
    commits: int = 0  # in good..bad
    candidates: tuple[str, ...] = ()  # commit hash of each node, oldest first; [0] is good, [-1] is bad
    merges: int = 0
    metric: str = "qps"  # what is compared
    host_classes: tuple[str, ...] = ()  # of each host, if there are several
    branch_points: int = 0  # so many of ``candidates`` after the first are where branches older than good began
    of_merge_base: bool = False  # good is no ancestor of bad: the range is from their merge base to good
    # Of a search in the diff of a commit: what each candidate after the first has that the one before it has not; and, once
    # parts are to be proven, the states with these alone and without them; each with how many others it has or lacks, too, to build.
    parts: tuple[tuple[DiffPart, ...], ...] = ()
    proofs: tuple[tuple[str, int], ...] = ()
    # of any session:
    further: tuple[HostFacts, ...] = ()  # the other hosts, if there are several
    build_hosts: tuple[str, ...] = ()  # the names of those that build ahead
    # Of a trial, as it is measured from here on; later events say what its builds are.
    request: TrialRequest = SEARCH

    @property
    def choices(self) -> int:
        """How many commits can be the culprit."""
        return len(self.candidates) - 1 - self.branch_points

    @property
    def hosts(self) -> tuple[HostFacts, ...]:
        """All hosts."""
        return (self.host, *self.further)

    def named(self, commit: Commit, candidate: int) -> Commit:
        """The commit of a candidate; in the search in a diff its subject is the part that it adds."""
        added = self.parts[candidate - 1] if 0 < candidate <= len(self.parts) else ()
        return replace(commit, date="", author="", subject=titles(added)) if added else commit


@dataclass(frozen=True, slots=True)
class MetricChosen:
    """`--metric auto` has chosen what is compared from here on."""

    metric: str
    why: str  # a sentence
    usual: str = "qps"  # what was compared before: the metric of the workload


@dataclass(frozen=True, slots=True)
class Remedied:
    """From here on everything is built with further options: what was measured counts only where the binary stays the same."""

    flags: Flags  # with those of the user
    why: str  # a sentence without its end

    @property
    def sentence(self) -> str:
        """What was done."""
        return f"{self.why}: everything was built with that."


@dataclass(frozen=True, slots=True)
class PairingChosen:
    """How builds are compared from here on: in rounds of two at the same time, or in turns."""

    together: bool
    why: str  # a sentence
    by_cpu: bool = False  # rounds are compared by CPU time in place of time
    host: str = ""
    alone: Interval | None = None  # bad against good in turns, and in rounds, where both ways were measured
    beside: Interval | None = None

    def compared(self, metric: str) -> str:
        """What is compared in rounds, where ``metric`` is in turns."""
        return "cpu/o" if self.by_cpu else metric


@dataclass(frozen=True, slots=True)
class Warned:
    """Something the user should know, and what to do about it."""

    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """How many builds and runs a hunt will probably take, once the ends are measured."""

    text: str  # a sentence


@dataclass(frozen=True, slots=True)
class Decided:
    """The search has decided, from everything that was observed so far."""

    decision: Decision
    fleet: Fleet = ALL_FREE  # as it was at that moment


@dataclass(frozen=True, slots=True)
class BuildStarted:
    """A build begins, or an earlier one is found."""

    candidate: int
    commit: Commit
    host: str = ""
    reused: bool = False  # nothing is built: an earlier build is there


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """Steps done and all steps, from the output of the build tool; ``total`` is 0 if unknown."""

    candidate: int
    done: int
    total: int
    stage: str
    host: str = ""


@dataclass(frozen=True, slots=True)
class BuildFinished:
    """A build exists; ``same_as`` is an earlier candidate with the same binary."""

    candidate: int
    facts: BuildFacts
    same_as: int | None
    host: str = ""


@dataclass(frozen=True, slots=True)
class BuildCancelled:
    """A build that was made ahead was ended before it was finished, as it had become useless."""

    candidate: int
    commit: Commit
    seconds: float  # that it had taken
    host: str = ""


@dataclass(frozen=True, slots=True)
class CandidateSkipped:
    """A candidate cannot be measured: in no workload where ``facts.of_build``, else in this one."""

    candidate: int
    facts: SkipFacts
    host: str = ""
    workload: int = 0
    round: int = 0


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A timed run begins: run ``number`` of ``of`` in the present measurement."""

    candidate: int
    number: int
    of: int
    purpose: Purpose
    seconds: float  # planned length, warm-up included
    host: str = ""
    workload: int = 0
    round: int = 0


@dataclass(frozen=True, slots=True)
class RunProgress:
    """One report interval of a run in progress."""

    candidate: int
    second: float
    qps: float
    host: str = ""


@dataclass(frozen=True, slots=True)
class ExecutionStarted:
    """One of the executions begins that make up a counted run: each may take minutes."""

    candidate: int
    number: int
    of: int  # 0: the length of counted runs is looked for, and how many that takes is not known
    operations: int  # its length; 0: as long as the command is
    host: str = ""


@dataclass(frozen=True, slots=True)
class RunFinished:
    """A timed run and everything counted during it."""

    candidate: int
    facts: RunFacts
    host: str = ""
    workload: int = 0
    round: int = 0  # of a trial; never shared by two attempts, as the machine may have changed between them


@dataclass(frozen=True, slots=True)
class Uncounted:
    """The instructions of a build cannot be counted beside its timed runs; ``facts`` say why. Its time is measured all the same."""

    candidate: int
    facts: SkipFacts
    host: str = ""


@dataclass(frozen=True, slots=True)
class Counted:
    """A run of the explanation, in which one group of counters was counted. It is no observation of the search.

    Culprit and parent take turns: the n-th run of a group of the one is to be compared with the n-th of the other.
    """

    candidate: int
    facts: RunFacts
    group: str  # name of the group: "core", "cache", "top-down", …
    host: str = ""


@dataclass(frozen=True, slots=True)
class Profiled:
    """A profile of one run of the explanation; in turns as ``Counted``. It is no observation of the search."""

    candidate: int
    facts: ProfileFacts
    host: str = ""


@dataclass(frozen=True, slots=True)
class Planned:
    """How a build executes a statement of the workload. It is no observation of the search."""

    candidate: int
    facts: PlanFacts
    host: str = ""


@dataclass(frozen=True, slots=True)
class ChangedFunctions:
    """What of the source code the culprit changes, as the repository has it. It is no observation of the search."""

    candidate: int
    facts: ChangeFacts


@dataclass(frozen=True, slots=True)
class Unexplained:
    """A part of the explanation ("counters", "instructions", "plans", "functions" …) that cannot be measured, and why: one sentence."""

    part: str
    reason: str
    host: str = ""


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The verdict of a hunt; where its reason is to be measured, that follows, and then the same again. Or the end of a trial."""

    verdict: Verdict | None = None  # None: all rounds of a trial were made
    reason_follows: bool = False
    fitness: FitnessFacts | None = None  # of an A/A
    # Those of the verdict that were never built, of which nothing else says date and subject
    suspects: tuple[Commit, ...] = ()


PASSING = (BuildProgress, Foreseen, RunStarted, RunProgress, ExecutionStarted)
"""Events for live views only; they are not stored."""
LabEvent = (
    BuildStarted | BuildProgress | BuildFinished | BuildCancelled | CandidateSkipped | RunStarted | RunProgress
    | ExecutionStarted | RunFinished | Uncounted | Warned | Counted | Profiled | Planned | Unexplained | PairingChosen
)  # fmt: skip
Studied = Counted | Profiled | Planned | ChangedFunctions | Unexplained  # for the reason, after the verdict
Event = SessionStarted | MetricChosen | Remedied | Foreseen | Decided | LabEvent | ChangedFunctions | SessionEnded
