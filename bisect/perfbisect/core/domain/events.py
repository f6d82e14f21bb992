"""What happens during a hunt, one frozen record each. A hunt yields them; views draw them; the store keeps them.

What a host does says which: ``host`` is its name, empty in what was written before hunts had several.
"""

from dataclasses import dataclass

from perfbisect.core.domain.facts import BuildFacts, HostFacts, RunFacts, SkipFacts
from perfbisect.core.domain.fleet import ALL_FREE, Fleet
from perfbisect.core.domain.orders import Decision, Purpose, Verdict


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit as people know it."""

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
        """The subject in at most 72 signs: some projects write the whole message into one line."""
        return self.subject if len(self.subject) <= 72 else f"{self.subject[:71].rstrip()}…"


@dataclass(frozen=True, slots=True)
class HuntStarted:
    """The range is known and the first action is about to be ordered (also after a resume)."""

    hunt: int  # id in the history
    builder: str
    workload: str
    host: HostFacts
    good: str  # as the user wrote it
    bad: str
    commits: int  # in good..bad
    candidates: tuple[str, ...]  # commit hash of each node, oldest first; [0] is good, [-1] is bad
    merges: int
    resumed: bool
    metric: str = "qps"  # what is compared
    further: tuple[HostFacts, ...] = ()  # the other hosts, where there are several
    host_classes: tuple[str, ...] = ()  # of each host then
    branch_points: int = 0  # so many of ``candidates`` after the first are where branches older than good began

    @property
    def choices(self) -> int:
        """How many commits can be the culprit."""
        return len(self.candidates) - 1 - self.branch_points

    @property
    def hosts(self) -> tuple[HostFacts, ...]:
        """All hosts."""
        return (self.host, *self.further)


@dataclass(frozen=True, slots=True)
class Warned:
    """Something the user should know; ``advice`` says what to do about it."""

    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Decided:
    """The search has decided, from everything that was observed so far."""

    decision: Decision
    fleet: Fleet = ALL_FREE  # as it was at that moment


@dataclass(frozen=True, slots=True)
class BuildStarted:
    """A build begins; ``commit`` carries what the views show of it."""

    candidate: int
    commit: Commit
    host: str = ""


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """Steps done of steps known, read from the build tool's own output; total 0 when unknown."""

    candidate: int
    done: int
    total: int
    stage: str
    host: str = ""


@dataclass(frozen=True, slots=True)
class BuildFinished:
    """A build is there; ``same_as`` names an earlier candidate with the same binary."""

    candidate: int
    facts: BuildFacts
    same_as: int | None
    host: str = ""


@dataclass(frozen=True, slots=True)
class CandidateSkipped:
    """A candidate cannot be measured."""

    candidate: int
    facts: SkipFacts
    host: str = ""


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A timed run is about to begin: run ``number`` of ``of`` in the present measurement."""

    candidate: int
    number: int
    of: int
    purpose: Purpose
    seconds: float  # planned length, warm-up included
    host: str = ""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """One report interval of a run in progress."""

    candidate: int
    second: float
    qps: float
    host: str = ""


@dataclass(frozen=True, slots=True)
class RunFinished:
    """A timed run and everything counted during it."""

    candidate: int
    facts: RunFacts
    host: str = ""


@dataclass(frozen=True, slots=True)
class HuntEnded:
    """The verdict."""

    verdict: Verdict


LabEvent = (
    BuildStarted | BuildProgress | BuildFinished | CandidateSkipped | RunStarted | RunProgress | RunFinished | Warned
)
Event = HuntStarted | Decided | LabEvent | HuntEnded
