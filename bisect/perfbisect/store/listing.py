"""One row for each session, read without slow imports, so that `bisect history` starts fast."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import TYPE_CHECKING, Any, get_origin

from perfbisect.errors import EnvironmentFailure, PerfBisectError
from perfbisect.process import is_running
from perfbisect.store.connection import intact
from perfbisect.store.schema import LAST_MOMENT

if TYPE_CHECKING:
    from perfbisect.core.domain.facts import DropHunt
    from perfbisect.store.history import History

FITNESS_CHECK = "fitness check"  # the name of the settings of an A/A that shows how fit its host is
ACCEPTED_CHECK = "accepted fitness check"  # and of one whose level the user has accepted as usual
KINDS = ("hunt", "compare", "noise", "prove")
DAMAGED = "damaged"  # the state of what stands for a row that cannot be read
STATES = {
    "Found": "found",
    "Several": "several",
    "Unsettled": "unsettled",
    "NotReproduced": "not reproduced",
    "CodePlacement": "code placement",
    "Inconclusive": "inconclusive",
}


FIELDS = (  # of the JSON of a trial, and of a hunt, in order
    "id kind started builder variant workloads host metric builds state runs failure origin series branch",
    (
        "id started builder variant workload host metric good bad commits candidates merges state culprit probability ratio builds runs"
        " failure origin name subject suspect suspicion"
    ),
)


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """One session of the history: a hunt, or a comparison, a proof or an A/A, which are trials."""

    id: int | str  # as it is written in commands: 12, c3
    kind: str  # hunt, compare, noise, prove
    started: float  # seconds since the epoch
    builder: str
    variant: str
    workloads: tuple[str, ...]  # one of a hunt
    host: str
    metric: str
    state: str  # running, interrupted, failed, done (a trial), or by the verdict of a hunt, see STATES
    builds: int  # made by it
    runs: int
    failure: str = ""  # why it has failed
    origin: str = ""  # whose it is, if it was imported
    name: str = ""  # if it was given one
    # of a hunt
    good: str = ""
    bad: str = ""
    commits: int = 0  # in the range
    candidates: int = 0  # without the good end
    merges: int = 0
    culprit: str | None = None  # full hash of the first commit that the verdict names
    probability: float | None = None
    ratio: float | None = None  # of the metric, after the culprit to before it; without a culprit, of bad to good
    subject: str = ""  # of the culprit
    suspect: str = ""  # if it runs: full hash of the candidate that is more probable than any other, if there is one
    suspicion: float | None = None  # the probability of the suspect
    # of a trial
    compared: tuple[str, ...] = ()  # names of its builds, the baseline first
    series: str = ""  # the range of releases as written, if it compares all of them
    branch: str = ""  # as written, if it is a night of a watched branch; the tip is the last build

    @property
    def number(self) -> int:
        """Its number among all sessions of its history."""
        return self.id if isinstance(self.id, int) else int(self.id[1:])

    @property
    def span(self) -> str:
        """The range of a hunt, behind its name; of a trial the names of the builds, or their range, or branch and tip."""
        if self.kind == "hunt":
            return f"{self.name}: {self.good}..{self.bad}" if self.name else f"{self.good}..{self.bad}"
        night = (self.branch, "at", *self.compared[-1:])
        return " ".join(night) if self.branch else self.series or " ".join(self.compared)

    def as_object(self) -> dict[str, Any]:
        """The fields of its kind, for JSON: a hunt has one workload, and ``builds`` of a trial are their names."""
        hunt = self.kind == "hunt"
        named = {"workload": " ".join(self.workloads)} if hunt else {"builds": self.compared}
        return {name: named[name] if name in named else getattr(self, name) for name in FIELDS[hunt].split()}

    def for_drop(self, work: int, first: int, last: int) -> "DropHunt":
        """This hunt as that for a drop of a comparison, with the commit that its verdict names."""
        from perfbisect.core.domain.facts import DropHunt

        named = (self.culprit or "", self.subject) if self.state in NAMED else ()
        return DropHunt(work, first, last, self.number, self.state, *named)

    @property
    def title(self) -> str:
        """The name of a hunt, or what it hunts; of a trial what it measures."""
        hunted = self.name or " ".join((self.builder, *self.workloads, self.span))
        return hunted if self.kind == "hunt" else self.span


NAME = "coalesce(iif(json_valid(sessions.settings), json_extract(sessions.settings, '$.name'), NULL), '')"
SESSIONS = f"""
SELECT sessions.id, sessions.kind, sessions.started, builder, variant, workload, host, metric, build_count, run_count, origin, {NAME},
  ended, process, failure, CAST(request AS BLOB), iif(verdicts.kind = 'Several' AND verdicts.reason IS NOT NULL, 'Unsettled', verdicts.kind),
  good, bad, commits, candidates - 1, merges, suspects.commit_hash, suspects.probability, coalesce(suspects.ratio, verdicts.ratio), subject
FROM sessions
LEFT JOIN verdicts ON verdicts.session_id = sessions.id AND ended IS NOT NULL AND sessions.kind = 'hunt'
LEFT JOIN sittings ON sittings.id = (SELECT max(id) FROM sittings WHERE session_id = sessions.id)
LEFT JOIN suspects ON suspects.session_id = verdicts.session_id AND suspects.rank = 0
LEFT JOIN commits ON commits.commit_hash = suspects.commit_hash
"""

# Of good beside the merge base, which comes before the range, a decision says nothing about candidates.
LATEST = """
SELECT CAST(candidates AS BLOB), CAST(decided.body AS BLOB) FROM ranges JOIN events AS decided USING (session_id)
WHERE session_id = ? AND kind = 'Decided' AND NOT coalesce((
  SELECT iif(json_valid(body), json_extract(body, '$.of_merge_base'), 0) FROM events
  WHERE session_id = decided.session_id AND kind = 'HuntStarted' AND id < decided.id ORDER BY id DESC LIMIT 1
), 0) ORDER BY id DESC LIMIT 1
"""

DROPS = """
SELECT json_extract(drop_between, '$[0]'), json_extract(drop_between, '$[1]'), json_extract(drop_between, '$[2]'), max(id)
FROM sessions WHERE about = ? AND kind = 'hunt' AND json_valid(drop_between) GROUP BY 1, 3, 2
"""

NAMED = ("found", "several", "unsettled")  # states of hunts whose verdict names a commit
OF_HUNT = (
    "good", "bad", "commits", "candidates", "merges", "culprit", "probability", "ratio", "subject", "suspect", "suspicion",
)  # fmt: skip


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


def damaged(number: int, kind: object, why: str, origin: str = "") -> SessionSummary:
    """What stands for a session whose row cannot be read."""
    known: tuple[int | str, str] = (number, "hunt") if kind == "hunt" else (f"?{number}", "compare")
    return SessionSummary(known[0], known[1], 0.0, "", "", (), "", "", DAMAGED, 0, 0, why, origin)


def read_sessions(history: "History", where: str = "true", *values: object) -> Iterator[SessionSummary]:
    """The sessions for which a condition of SQL holds, by their numbers; what cannot be shown hides no other."""
    for row in history.select(f"{SESSIONS} WHERE {where} ORDER BY sessions.id", values):
        try:
            session = summary(history, row)
            for each in fields(session):
                check_value(each.name, getattr(session, each.name), each.type)
        except PerfBisectError:
            raise
        except Exception as failure:  # noqa: BLE001  # no list of errors is complete: any value can stand in a damaged row
            session = damaged(row[0], row[1], f"its row cannot be read ({type(failure).__name__}: {failure})")
        yield session


def summary(history: "History", row: Sequence[Any]) -> SessionSummary:
    """A session from a row of ``SESSIONS``; a trial without the names of builds and workloads if its request is damaged.

    A hunt without an end has the first change that is proven so far; the suspects of an inconclusive one are not named.
    """
    number, kind, started, builder, variant, workload, *measured, origin, name = row[:12]
    ended, process, failure, request, verdict = row[12:17]
    if kind not in KINDS:
        raise ValueError(f"its kind is {kind!r}")
    state = STATES[verdict] if verdict is not None else unfinished(process, failure)
    workloads: tuple[str, ...] = (workload,)
    more: dict[str, Any] = {}
    if kind == "hunt":
        named, subject, suspect = row[22:25], row[25], ()
        if ended is None:
            found, leader = so_far(history, number)
            named, suspect = found or named, leader if state == "running" else ()
            [(subject,)] = history.select("SELECT subject FROM commits WHERE commit_hash = ?", named[:1]) or [("",)]
        elif state == STATES["Inconclusive"]:
            named, subject = (None, None, named[2]), ""
        more = dict(zip(OF_HUNT, (*row[17:22], *named, subject or "", *suspect), strict=False))
    else:
        state = "done" if ended is not None and failure is None else state
        with suppress(ValueError, TypeError, LookupError):
            asked = json.loads(request)
            workloads, compared = (tuple(str(each["name"]) for each in asked[part]) for part in ("works", "subjects"))
            series = str(asked["series"]["text"]) if asked["series"] else ""
            more = {"compared": compared, "series": series, "branch": str(asked.get("branch", ""))}
    host, metric, builds, runs = measured
    return SessionSummary(
        number if kind == "hunt" else called(kind, number), kind, started, builder, variant, workloads, host, metric, state, builds,
        runs, failure or "", history.whose(origin, process), name, **more,
    )  # fmt: skip


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


def reason_is_open(history: "History", hunt: int) -> bool:
    """Whether the reason of a hunt's verdict was to be measured, and that was cut short."""
    follows = "SELECT iif(json_valid(body), json_extract(body, '$.reason_follows'), 0) FROM events WHERE session_id = ?"
    return history.select(f"{follows} AND kind = 'HuntEnded' ORDER BY id DESC LIMIT 1", [hunt]) == [(1,)]


def called(kind: str, session: int) -> str:
    """What a session is called: hunt 12, c3."""
    return f"hunt {session}" if kind == "hunt" else f"{kind[:1]}{session}"


def unfinished(process: str | None, failure: str | None) -> str:
    """The state of a hunt or trial without an end: running, interrupted or failed."""
    if failure is not None:
        return "failed"
    return "running" if process is not None and is_running(process) else "interrupted"
