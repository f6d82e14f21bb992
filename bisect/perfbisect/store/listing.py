"""One row for each hunt and trial, read without slow imports, so that `bisect history` starts fast."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar, get_origin

from perfbisect.errors import EnvironmentFailure, PerfBisectError
from perfbisect.process import is_running
from perfbisect.store.connection import intact
from perfbisect.store.schema import LAST_MOMENT

if TYPE_CHECKING:
    from perfbisect.core.domain.trials import DropHunt, Trial
    from perfbisect.store.history import History

FITNESS_CHECK = "fitness check"  # the name of the settings of an A/A that shows how fit its host is
ACCEPTED_CHECK = "accepted fitness check"  # and of one whose level the user has accepted as usual
TRIAL_KINDS = ("compare", "noise", "prove")
DAMAGED = "damaged"  # the state of what stands for a row that cannot be read
STATES = {
    "Found": "found",
    "Several": "several",
    "Unsettled": "unsettled",
    "NotReproduced": "not reproduced",
    "CodePlacement": "code placement",
    "Inconclusive": "inconclusive",
}


@dataclass(frozen=True, slots=True)
class Listed:
    """One hunt of the history."""

    id: int
    started: float  # seconds since the epoch
    builder: str
    variant: str
    workload: str
    host: str
    metric: str
    good: str
    bad: str
    commits: int  # in the range
    candidates: int  # without the good end
    merges: int
    state: str  # running, interrupted, failed, found, several, unsettled (several, and subranges left open), not reproduced, …
    culprit: str | None  # full hash of the first commit that the verdict names
    probability: float | None
    ratio: float | None  # of the metric, after the culprit to before it; without a culprit, of bad to good
    builds: int
    runs: int
    failure: str = ""  # why it has failed
    origin: str = ""  # whose it is, if it was imported
    name: str = ""  # if it was given one
    subject: str = ""  # of the culprit
    suspect: str = ""  # of one that runs: full hash of the candidate that is more probable than any other, if one is
    suspicion: float | None = None  # its probability

    @property
    def title(self) -> str:
        """Its name, or what is hunted."""
        return self.name or f"{self.builder} {self.workload} {self.good}..{self.bad}"

    @property
    def named_range(self) -> str:
        """Its range, behind its name."""
        return f"{self.name}: {self.good}..{self.bad}" if self.name else f"{self.good}..{self.bad}"

    def for_drop(self, work: int, first: int, last: int) -> "DropHunt":
        """This hunt as that for a drop of a comparison, with the commit that its verdict names."""
        from perfbisect.core.domain.trials import DropHunt

        named = (self.culprit or "", self.subject) if self.state in NAMED else ("", "")
        return DropHunt(work, first, last, self.id, self.state, *named)


@dataclass(frozen=True, slots=True)
class ListedTrial:
    """One A/A, comparison or proof of the history."""

    id: str  # n4, c3, p5
    kind: str  # noise, compare, prove
    started: float
    builder: str
    variant: str
    workloads: tuple[str, ...]
    host: str
    metric: str
    builds: tuple[str, ...]  # names, the baseline first
    state: str  # running, interrupted, failed, done
    runs: int
    failure: str = ""  # why it has failed
    origin: str = ""  # whose it is, if it was imported
    series: str = ""  # the range of releases as written, where it is a comparison of all of them
    branch: str = ""  # as written, where it is a night of a branch that is watched; its tip is the last build

    @property
    def title(self) -> str:
        """What is measured: the names of the builds, or their range, or branch and tip."""
        night = (self.branch, "at", *self.builds[-1:])
        return " ".join(night) if self.branch else self.series or " ".join(self.builds)


HUNTS = """
SELECT hunts.id, hunts.started, builder, variant, workload, host, metric, good, bad, commits, candidates - 1,
  merges, hunts.ended, iif(verdicts.kind = 'Several' AND verdicts.reason IS NOT NULL, 'Unsettled', verdicts.kind),
  sittings.process, sittings.failure,
  suspects.commit_hash, suspects.probability, coalesce(suspects.ratio, verdicts.ratio),
  build_count, run_count, coalesce(origin, ''),
  coalesce(iif(json_valid(hunts.settings), json_extract(hunts.settings, '$.name'), NULL), '')
FROM hunts
LEFT JOIN verdicts ON verdicts.session_id = hunts.id AND hunts.ended IS NOT NULL
LEFT JOIN sittings ON sittings.id = (SELECT max(id) FROM sittings WHERE session_id = hunts.id)
LEFT JOIN suspects ON suspects.session_id = verdicts.session_id AND suspects.rank = 0
"""

TRIALS = """
SELECT trials.id, name, kind, trials.started, ended, process, failure, builder, variant, host, metric, run_count, coalesce(origin, ''), workload, CAST(request AS BLOB)
FROM trials LEFT JOIN sittings ON sittings.id = (SELECT max(id) FROM sittings WHERE session_id = trials.id)
"""

LATEST = """
SELECT CAST(candidates AS BLOB), CAST(body AS BLOB) FROM ranges JOIN events USING (session_id)
WHERE session_id = ? AND kind = 'Decided' ORDER BY id DESC LIMIT 1
"""

DROPS = """
SELECT json_extract(drop_between, '$[0]'), json_extract(drop_between, '$[1]'), json_extract(drop_between, '$[2]'), max(id)
FROM sessions WHERE about = ? AND kind = 'hunt' AND json_valid(drop_between) GROUP BY 1, 3, 2
"""

NAMED = ("found", "several", "unsettled")  # states of hunts whose verdict names a commit


T = TypeVar("T", bound="Listed | ListedTrial")


def readable(
    rows: Iterable[Sequence[Any]], read: Callable[[Sequence[Any]], T], instead: Callable[[int, str], T]
) -> Iterator[T]:
    """What ``read`` makes of each row; where that cannot be shown, what stands for it, with the reason: it hides no other."""
    for row in rows:
        try:
            one = read(row)
            for each in fields(one):
                check_value(each.name, getattr(one, each.name), each.type)
        except PerfBisectError:
            raise
        except Exception as failure:  # noqa: BLE001  # no list of errors is complete: any value can stand in a damaged row
            one = instead(row[0], f"its row cannot be read ({type(failure).__name__}: {failure})")
        yield one


def check_value(name: str, value: Any, kind: Any) -> Any:
    """The value. Raises ValueError for one that no list could show: columns of SQLite hold values of any type."""
    fits = isinstance(value, tuple if get_origin(kind) is tuple else kind)
    if not fits and not (kind in (float, float | None) and isinstance(value, int)):
        raise ValueError(f"{name} is {value!r:.60}")
    most = {"started": LAST_MOMENT, "at": LAST_MOMENT, "probability": 1.0}.get(name)
    if most is not None and value is not None and not 0 <= value <= most:
        raise ValueError(f"{name} is {value}")
    if isinstance(value, str):
        value.encode()
    return value


def damaged(number: int, why: str, origin: str = "") -> Listed:
    """What stands for a hunt whose row cannot be read."""
    nothing = ("", "", "", "", "", "", "")
    return Listed(number, 0.0, *nothing, 0, 0, 0, DAMAGED, None, None, None, 0, 0, why, origin)


def damaged_trial(number: int, why: str) -> ListedTrial:
    """What stands for a trial whose row cannot be read."""
    return ListedTrial(f"?{number}", TRIAL_KINDS[0], 0.0, "", "", (), "", "", (), DAMAGED, 0, why)


def undamaged(history: "History", one: T) -> T:
    """The same. Raises EnvironmentFailure for what stands for a row that cannot be read."""
    if one.state == DAMAGED:
        with intact(history.shown, f"table sessions, row {one.id},"):
            raise ValueError(one.failure)
    return one


def read_hunts(history: "History", hunt: int | None = None) -> tuple[Listed, ...]:
    """All hunts, or one, oldest first."""
    where, values = ("", []) if hunt is None else (" WHERE hunts.id = ?", [hunt])
    rows = history.select(f"{HUNTS}{where} ORDER BY hunts.id", values)
    return tuple(readable(rows, partial(listed_hunt, history), damaged))


def listed_hunt(history: "History", row: Sequence[Any]) -> Listed:
    """A hunt from a row of ``HUNTS``; one without an end with the first change that is proven so far.

    The suspects of an inconclusive one are not named.
    """
    number, ended, verdict, process, failure = row[0], *row[12:16]
    known = STATES[verdict] if verdict is not None else unfinished(process, failure)
    named, suspect = row[16:19], ()
    if ended is None:
        found, leader = so_far(history, number)
        named, suspect = found or named, leader if known == "running" else ()
    elif known == STATES["Inconclusive"]:
        named = (None, None, named[2])
    [(subject,)] = history.select("SELECT subject FROM commits WHERE commit_hash = ?", [named[0]]) or [("",)]
    about = failure or "", history.whose(row[21], process), row[22]
    return Listed(*(*row[:12], known, *named, *row[19:21], *about, subject, *suspect))


def so_far(history: "History", hunt: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """By the latest decision of a hunt: commit, probability and ratio of the first change that is proven, and commit and
    probability of the candidate that is more probable than any other. Empty where there is none, or it is damaged.
    """
    for stored in history.select(LATEST, [hunt]):
        with suppress(EnvironmentFailure), intact(history.shown, f"hunt {hunt}, table events,"):
            candidates, decided = map(json.loads, stored)
            order = decided["order"]
            steps = [*decided.get("found", ()), *([order["step"]] if "step" in order else order.get("steps", ()))]
            found = [(candidates[one["candidate"]], one["probability"], one["ratio"]["middle"]) for one in steps[:1]]
            # A belief is run-length encoded: pairs of how many candidates, oldest first, have which probability.
            belief = decided["belief"]["culprit"] or [[0, 0.0]]
            places = [*accumulate(wide for wide, _ in belief)]
            best = max(range(len(belief)), key=lambda run: belief[run][1])
            wide, probability = belief[best]
            leads = wide == 1 and places[-1] == len(candidates)
            return found[0] if found else (), (candidates[places[best] - 1], probability) if leads else ()
    return (), ()


def read_trials(history: "History", trial: int | None = None) -> tuple[ListedTrial, ...]:
    """All trials but fitness checks, which are many and alike, or one; oldest first."""
    named = "coalesce(iif(json_valid(settings), json_extract(settings, '$.name'), ''), '')"
    others = f" WHERE {named} NOT IN (?, ?)", [FITNESS_CHECK, ACCEPTED_CHECK]
    where, values = others if trial is None else (" WHERE trials.id = ?", [trial])
    rows = history.select(f"{TRIALS}{where} ORDER BY trials.id", values)
    return tuple(readable(rows, lambda row: listed_trial(history, *row), damaged_trial))


def listed_trial(
    history: "History", _number: int, name: str, kind: str, started: float, ended: float | None, process: str | None, failure: str | None,
    builder: str, variant: str, host: str, metric: str, runs: int, origin: str, workload: str, request: bytes,
) -> ListedTrial:  # fmt: skip
    """A trial from a row of ``TRIALS``; without the names of builds and workloads where its request is damaged."""
    if kind not in TRIAL_KINDS:
        raise ValueError(f"its kind is {kind!r}")
    try:
        asked = json.loads(request)
        works, builds = (tuple(str(each["name"]) for each in asked[part]) for part in ("works", "subjects"))
        series = str(asked["series"]["text"]) if asked["series"] else ""
        branch = str(asked.get("branch", ""))
    except (ValueError, TypeError, LookupError):
        works, builds, series, branch = (workload,), (), "", ""
    known = trial_state(ended, process, failure)
    about = failure or "", history.whose(origin, process), series, branch
    return ListedTrial(name, kind, started, builder, variant, works, host, metric, builds, known, runs, *about)


def read_trial(history: "History", number: int) -> "Trial":
    """A trial with all its runs: its log, folded. Raises EnvironmentFailure for a damaged one."""
    import msgspec

    from perfbisect.core.domain.settings import TrialRequest
    from perfbisect.core.domain.trials import Trial
    from perfbisect.store.log import read_host

    names = ("kind", "started", "ended", "coalesce(origin, '')", "host_id", "CAST(request AS BLOB)")
    kind, started, ended, origin, host, stored = history.columns(number, *names)
    with intact(history.shown, f"{called(kind, number)}, table sessions, row {number}, column request,"):
        request = msgspec.json.decode(stored, type=TrialRequest)
    with intact(history.shown, f"table hosts, row {host},"):
        facts = read_host(history.connection, host)
    sitting = "SELECT process, failure FROM sittings WHERE session_id = ? ORDER BY id DESC LIMIT 1"
    [(process, failure)] = history.select(sitting, [number]) or [(None, None)]
    with intact(history.shown, f"{called(kind, number)}, table sessions or sittings,"):
        check_value("started", started, float)
        state = trial_state(ended, process, failure)
        check_value("failure", failure, str | None)
    owner, hunts = history.whose(origin, process), read_drop_hunts(history, number)
    trial = Trial(number, request, facts, started, origin=owner, hunts=hunts)
    for entry in history.events(number):
        trial.add(entry.at, entry.event)
    trial.state, trial.failure = state, failure or ""
    return trial


def read_drop_hunts(history: "History", trial: int) -> "tuple[DropHunt, ...]":
    """The hunts for the drops of a comparison in their present states, by workloads, then builds; the newest for each."""
    rows = history.select(DROPS, [trial])
    return tuple(one.for_drop(*drop) for *drop, hunt in rows for one in read_hunts(history, hunt))


def reason_is_open(history: "History", hunt: int) -> bool:
    """Whether the reason of a hunt's verdict was to be measured, and that was cut short."""
    follows = "SELECT iif(json_valid(body), json_extract(body, '$.reason_follows'), 0) FROM events WHERE session_id = ?"
    return history.select(f"{follows} AND kind = 'HuntEnded' ORDER BY id DESC LIMIT 1", [hunt]) == [(1,)]


def called(kind: str, session: int) -> str:
    """What a session is called: hunt 12, c3."""
    return f"hunt {session}" if kind == "hunt" else f"{kind[:1]}{session}"


def trial_state(ended: float | None, process: str | None, failure: str | None) -> str:
    """The state of a trial."""
    return "done" if ended is not None and failure is None else unfinished(process, failure)


def unfinished(process: str | None, failure: str | None) -> str:
    """The state of a hunt or trial without an end: running, interrupted or failed."""
    if failure is not None:
        return "failed"
    return "running" if process is not None and is_running(process) else "interrupted"
