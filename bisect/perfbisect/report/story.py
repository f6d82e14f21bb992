"""What a report of one hunt contains: plain values, ready for text, Markdown and JSON."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from perfbisect.core.domain.events import Commit, PairingChosen
from perfbisect.core.domain.facts import HostFacts
from perfbisect.core.domain.orders import Effect, Interval
from perfbisect.core.domain.settings import Settings
from perfbisect.core.explain.evidence import Cause, Explanation, PlanRow
from perfbisect.core.inference.hunt_state import Classification
from perfbisect.store.listing import Listed

# Of a parent and a commit: the diff, and how many files it leaves out; None where it cannot be read.
DiffOf = Callable[[str, str], tuple[str, int] | None]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A commit that was built, measured or skipped."""

    commit: Commit
    node: int | None  # in the range, 0 being the good end; None for a commit outside of it
    ratio: Interval | None  # of the metric to that of the good end; None where unknown, and for the good end itself
    builds: int
    build_seconds: float  # failed builds included
    hit_rate: float | None  # share of compilations that ccache answered
    reused: bool  # its build still existed from another hunt
    runs: int  # made as the hunt's are: counted exactly, or timed
    state: Classification
    same_as: Commit | None  # an earlier build with the same binary
    skipped: str  # stage and reason; empty if it was not
    left_out: bool = False  # by --skip: nothing was tried
    further: int = 0  # runs made in the other way
    stopped: str = ""  # by how much its stopped runs were too slow, at least; empty if none was stopped
    patches: Mapping[str, bool] = field(default_factory=dict)  # of its latest build: name → whether it was applied
    shared: bool = False  # reused: its build came from the shared ones


@dataclass(frozen=True, slots=True)
class Counted:
    """One metric of the culprit and of its parents; None where the host cannot count it."""

    metric: str
    parent: float | None
    culprit: float | None
    ratio: float | None


@dataclass(frozen=True, slots=True)
class Case:
    """One change that the verdict names, with its proof and its reason."""

    commit: Commit
    parents: tuple[Commit, ...]  # those it was proven against
    probability: float
    ratio: Interval  # after against before
    effects: tuple[Effect, ...]  # the same on each host class, if there are several
    cause: Cause
    why: str  # a sentence or two
    counters: tuple[Counted, ...]
    explanation: Explanation  # against the first parent
    plans: tuple[PlanRow, ...] = ()  # statements that the commit makes execute in another way
    pairs: tuple[tuple[float, float], ...] = ()  # the metric of a parent and of the commit in each round of both
    pairs_metric: str = ""
    link: str = ""  # its page at a forge
    issue: tuple[str, ...] = ()  # ready for a mail or an issue: what, how much, how sure, why, how to reproduce


@dataclass(frozen=True, slots=True)
class Suspect:
    """A commit that may be the culprit."""

    commit: Commit
    probability: float


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """A subrange, the commits of ``bad`` that ``good`` lacks, whose search did not end."""

    good: Commit
    bad: Commit
    ratio: Interval | None  # of bad to good; None where they were not both measured
    reason: str
    suspects: tuple[Suspect, ...]  # most probable first, presuming one change


@dataclass(frozen=True, slots=True)
class Costs:
    """What a hunt has cost."""

    builds: int  # without those used again
    build_seconds: float  # those of the shared builds included
    hit_rate: float | None
    runs: int
    run_seconds: float  # warm-up and starts included
    seconds: float  # of all sessions
    ahead: "BuiltAhead | None" = None
    shared: int = 0  # builds that came from the shared ones
    remote_rate: float | None = None  # share of what ccache answered that came from its remote store


@dataclass(frozen=True, slots=True)
class BuiltAhead:
    """What hosts have built while others measured."""

    builds: Mapping[str, int]  # how many by each build host, those used again included
    unused: int  # builds of which nothing was measured
    unused_seconds: float
    ended: int  # builds that were ended as they had become useless
    ended_seconds: float
    in_flight: Mapping[str, Commit]  # what each build host builds now


@dataclass(frozen=True, slots=True)
class Story:
    """One hunt."""

    hunt: Listed
    settings: Settings
    hosts: tuple[HostFacts, ...]  # as they were when its latest session began
    effects: tuple[Effect, ...]  # of the whole range on each host class, if there are several; cases have their own
    verdict: tuple[str, ...]  # sentences; empty while there is none
    found: tuple[str, ...]  # the changes that are proven until there is a verdict, in sentences
    cases: tuple[Case, ...]
    suspects: tuple[Suspect, ...]  # of an inconclusive or unfinished hunt; most probable first
    unsettled: tuple[LeftOpen, ...]  # of a hunt for every change; oldest first
    effect: Interval | None  # of bad to good
    candidates: tuple[Candidate, ...]  # oldest first
    warnings: Mapping[str, str]  # text → advice
    costs: Costs
    again: str  # the command that repeats this hunt
    go_on: str  # the command that resumes it
    prove: str  # the command that tests its verdict
    why_metric: str = ""  # a sentence, where `--metric auto` has chosen it
    pairing: PairingChosen | None = None  # where it was chosen how builds are compared
    together: str = ""  # with which hunts it shares its builds, in words
    proofs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # p5 → what it shows, a sentence each


def as_object(story: Story) -> dict[str, Any]:
    """The story as `--json` prints it; patches have a hash."""
    fields: dict[str, Any] = msgspec.to_builtins(story)
    fields["settings"]["patches"] = [
        {"name": patch.name, "file": patch.file, "sha256": patch.identity[1]} for patch in story.settings.patches
    ]
    return fields
