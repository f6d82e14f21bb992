"""Reads the summaries of sessions. This module has no slow imports, so that `bisect history` starts fast."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import TYPE_CHECKING, Any, get_origin

from perfbisect.errors import EnvironmentFailure, PerfBisectError
from perfbisect.process import is_running
from perfbisect.store.connection import damage_explained
from perfbisect.store.schema import LAST_MOMENT

if TYPE_CHECKING:
    from perfbisect.core.domain.facts import DropHunt
    from perfbisect.store.history import History

FITNESS_CHECK = "fitness check"  # name of an A/A test that shows how fit its host is
ACCEPTED_CHECK = "accepted fitness check"  # name of a check whose level the user accepted as usual
KINDS = ("hunt", "compare", "noise", "prove")
DAMAGED = "damaged"  # state of a session whose row cannot be read
STATES = {
    "Found": "found",
    "Several": "several",
    "Unsettled": "unsettled",
    "NotReproduced": "not reproduced",
    "CodePlacement": "code placement",
    "Inconclusive": "inconclusive",
}


FIELDS = (  # (fields of a trial in JSON, fields of a hunt in JSON)
    "id kind started builder variant workloads host metric builds state runs failure origin series branch",
    (
        "id started builder variant workload host metric good bad commits candidates merges state culprit probability ratio builds runs"
        " failure origin name subject suspect suspicion"
    ),
)


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """The summary of a session: of a hunt, or of a trial (a comparison, a proof or an A/A test)."""

    id: int | str  # as in commands: 12, c3
    kind: str  # hunt, compare, noise, prove
    started: float  # seconds since the epoch
    builder: str
    variant: str
    workloads: tuple[str, ...]  # names of the workloads; a hunt has one workload
    host: str
    metric: str
    state: str  # running, interrupted, failed; done for a trial; for a hunt with a verdict, a value of STATES
    builds: int  # the number of builds that the session made
    runs: int
    failure: str = ""  # why the session failed
    origin: str = ""  # owner of an imported session
    name: str = ""  # the name that the user has given the session
    # Of a hunt:
    good: str = ""
    bad: str = ""
    commits: int = 0  # number of commits in the range
    candidates: int = 0  # without the good end
    merges: int = 0
    culprit: str | None = None  # full hash of the first commit that the verdict names
    probability: float | None = None
    # metric after the culprit relative to before it; without a culprit, of bad relative to good
    ratio: float | None = None
    subject: str = ""  # of the culprit
    suspect: str = ""  # of a running hunt: full hash of the most probable candidate, if there is a single one
    suspicion: float | None = None  # probability of the suspect
    # Of a trial:
    compared: tuple[str, ...] = ()  # names of the builds, the baseline first
    series: str = ""  # range of releases as written, if the trial compares all of its releases
    branch: str = ""  # branch as written, if the trial is a night of a watched branch; the last build is the tip

    @property
    def number(self) -> int:
        """The number of the session, without the letter of a trial: 3 for c3."""
        return self.id if isinstance(self.id, int) else int(self.id[1:])

    @property
    def range_or_builds(self) -> str:
        """For a hunt, its name and range; for a trial, the names of its builds, its releases, or its branch and tip."""
        if self.kind == "hunt":
            return f"{self.name}: {self.good}..{self.bad}" if self.name else f"{self.good}..{self.bad}"
        night = (self.branch, "at", *self.compared[-1:])
        return " ".join(night) if self.branch else self.series or ", ".join(self.compared)

    def as_json_object(self) -> dict[str, Any]:
        """The fields for JSON output: a hunt has a ``workload``; a trial has ``builds``, the names of its builds."""
        hunt = self.kind == "hunt"
        named = {"workload": " ".join(self.workloads)} if hunt else {"builds": self.compared}
        return {name: named[name] if name in named else getattr(self, name) for name in FIELDS[hunt].split()}

    def as_drop_hunt(self, workload: int, first_build: int, last_build: int) -> "DropHunt":
        """The data of this hunt, and of the commit that it names, for the comparison that showed the hunt's drop."""
        from perfbisect.core.domain.facts import DropHunt

        named = (self.culprit or "", self.subject) if self.state in NAMED else ()
        return DropHunt(workload, first_build, last_build, self.number, self.state, *named)

    @property
    def title(self) -> str:
        """The name of a hunt; if it has no name, its builder, workload and range.

        For a trial, the result of ``range_or_builds``.
        """
        hunted = self.name or " ".join((self.builder, *self.workloads, self.range_or_builds))
        return hunted if self.kind == "hunt" else self.range_or_builds


NAME = "coalesce(iif(json_valid(sessions.settings), json_extract(sessions.settings, '$.name'), NULL), '')"
SESSIONS = f"""
SELECT sessions.id, sessions.kind, sessions.started, builder, variant, workload, host, metric, build_count, run_count, origin, {NAME},
  ended, process, failure, CAST(request AS BLOB), iif(verdicts.kind = 'Several' AND verdicts.reason IS NOT NULL, 'Unsettled', verdicts.kind),
  good, bad, commits, candidates - 1, merges, suspects.commit_hash, suspects.probability, coalesce(suspects.ratio, verdicts.ratio), subject
FROM sessions
LEFT JOIN verdicts ON verdicts.session_id = sessions.id AND ended IS NOT NULL AND sessions.kind = 'hunt'
LEFT JOIN attempts ON attempts.id = (SELECT max(id) FROM attempts WHERE session_id = sessions.id)
LEFT JOIN suspects ON suspects.session_id = verdicts.session_id AND suspects.rank = 0
LEFT JOIN commits ON commits.commit_hash = suspects.commit_hash
"""

# The latest decision on the range of a hunt, not on the comparison of good with the merge base, which is before the
# range.
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


def checked_value(name: str, value: Any, expected_type: Any) -> Any:
    """``value``, unchanged. Raises ValueError for a wrong type or range: an SQLite column can have any value."""
    fits = isinstance(value, tuple if get_origin(expected_type) is tuple else expected_type)
    if not fits and not (expected_type in (float, float | None) and isinstance(value, int)):
        raise ValueError(f"{name} is {value!r:.60}, a value of a wrong type")
    limit = {"started": LAST_MOMENT, "at": LAST_MOMENT, "probability": 1.0}.get(name)
    if limit is not None and value is not None and not 0 <= value <= limit:
        raise ValueError(f"{name} is {value}, which is not between 0 and {limit:g}")
    if isinstance(value, str):
        value.encode()
    return value


def damaged_summary(number: int, kind: object, failure: str, origin: str = "") -> SessionSummary:
    """The summary of a session whose row cannot be read."""
    id_and_kind: tuple[int | str, str] = (number, "hunt") if kind == "hunt" else (f"?{number}", "compare")
    return SessionSummary(id_and_kind[0], id_and_kind[1], 0.0, "", "", (), "", "", DAMAGED, 0, 0, failure, origin)


def read_summaries(history: "History", sql_condition: str = "true", *values: object) -> Iterator[SessionSummary]:
    """The summaries of the sessions that satisfy an SQL condition, in the order of their numbers.

    A damaged session also has a summary.
    """
    for row in history.select(f"{SESSIONS} WHERE {sql_condition} ORDER BY sessions.id", values):
        try:
            session = summary_of_row(history, row)
            for column in fields(session):
                checked_value(column.name, getattr(session, column.name), column.type)
        except PerfBisectError:
            raise
        except Exception as failure:  # noqa: BLE001  # no list of errors is complete: a damaged row can have any value
            session = damaged_summary(row[0], row[1], f"its row cannot be read ({type(failure).__name__}: {failure})")
        yield session


def summary_of_row(history: "History", row: Sequence[Any]) -> SessionSummary:
    """The summary of a session, from a row of the SQL query ``SESSIONS``.

    If a trial's request is damaged in the history, ``compared`` is empty. For a hunt without a verdict, ``culprit`` is
    the first proven change. For an inconclusive hunt, ``suspect`` is empty.
    """
    number, kind, started, builder, variant, workload, *measured, origin, name = row[:12]
    ended, process, failure, request, verdict = row[12:17]
    if kind not in KINDS:
        raise ValueError(f"its kind is {kind!r}, which is not a kind of session")
    state = STATES[verdict] if verdict is not None else unfinished_state(process, failure)
    workloads: tuple[str, ...] = (workload,)
    further: dict[str, Any] = {}
    if kind == "hunt":
        named, subject, suspect = row[22:25], row[25], ()
        if ended is None:
            proven, leader = proven_change_and_suspect(history, number)
            named, suspect = proven or named, leader if state == "running" else ()
            [(subject,)] = history.select("SELECT subject FROM commits WHERE commit_hash = ?", named[:1]) or [("",)]
        elif state == STATES["Inconclusive"]:
            named, subject = (None, None, named[2]), ""
        further = dict(zip(OF_HUNT, (*row[17:22], *named, subject or "", *suspect), strict=False))
    else:
        state = "done" if ended is not None and failure is None else state
        with suppress(ValueError, TypeError, LookupError):
            trial = json.loads(request)
            workloads, compared = (tuple(str(item["name"]) for item in trial[part]) for part in ("works", "subjects"))
            series = str(trial["series"]["text"]) if trial["series"] else ""
            further = {"compared": compared, "series": series, "branch": str(trial.get("branch", ""))}
    host, metric, builds, runs = measured
    return SessionSummary(
        number if kind == "hunt" else session_name(kind, number), kind, started, builder, variant, workloads, host, metric, state, builds,
        runs, failure or "", history.other_owner(origin, process), name, **further,
    )  # fmt: skip


def proven_change_and_suspect(history: "History", hunt: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The first proven change and the most probable candidate, according to the latest decision in a hunt's log.

    The change is a tuple (commit, probability, ratio); the candidate is a tuple (commit, probability). The first tuple
    is empty if no change is proven, the second tuple if several candidates are equally probable. Both tuples are empty
    if the decision is damaged.
    """
    for stored in history.select(LATEST, [hunt]):
        with suppress(EnvironmentFailure), damage_explained(history.label, f"hunt {hunt}, table events,"):
            candidates, decided = map(json.loads, stored)
            order = decided["order"]
            steps = [*decided.get("found", ()), *([order["step"]] if "step" in order else order.get("steps", ()))]
            proven = [(candidates[x["candidate"]], x["probability"], x["ratio"]["middle"]) for x in steps[:1]]
            # A belief is stored as pairs (number of successive candidates, their equal probability), oldest candidates
            # first.
            belief = decided["belief"]["culprit"] or [[0, 0.0]]
            places = [*accumulate(wide for wide, _ in belief)]
            best = max(range(len(belief)), key=lambda run: belief[run][1])
            wide, probability = belief[best]
            leads = wide == 1 and places[-1] == len(candidates)
            return proven[0] if proven else (), (candidates[places[best] - 1], probability) if leads else ()
    return (), ()


def was_reason_interrupted(history: "History", hunt: int) -> bool:
    """Whether a hunt was interrupted after its verdict, while it measured the reason of the change."""
    follows = "SELECT iif(json_valid(body), json_extract(body, '$.reason_follows'), 0) FROM events WHERE session_id = ?"
    return history.select(f"{follows} AND kind = 'HuntEnded' ORDER BY id DESC LIMIT 1", [hunt]) == [(1,)]


def session_name(kind: str, session: int) -> str:
    """The name of a session, such as "hunt 12" or "c3"."""
    return f"hunt {session}" if kind == "hunt" else f"{kind[:1]}{session}"


def unfinished_state(process: str | None, failure: str | None) -> str:
    """The state of a hunt or trial that has not ended: running, interrupted or failed."""
    if failure is not None:
        return "failed"
    return "running" if process is not None and is_running(process) else "interrupted"
