"""One row for each hunt and trial, read without slow imports, so that `bisect history` starts fast."""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfbisect.process import is_running

if TYPE_CHECKING:
    from perfbisect.core.domain.trials import DropHunt

FITNESS_CHECK = "fitness check"  # the name of the settings of an A/A that shows how fit its host is
ACCEPTED_CHECK = "accepted fitness check"  # and of one whose level the user has accepted as usual
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
WITH latest AS (
  SELECT body, candidates FROM events, ranges
  WHERE events.id = (SELECT max(id) FROM events WHERE session_id = :hunt AND kind = 'Decided') AND ranges.session_id = :hunt
    AND json_valid(body) AND json_valid(candidates)
)
"""

SO_FAR = f"""{LATEST}
SELECT json_extract(candidates, '$[' || json_extract(step, '$.candidate') || ']'),
  json_extract(step, '$.probability'), json_extract(step, '$.ratio.middle')
FROM (
  SELECT candidates, coalesce(
    json_extract(body, '$.found[0]'), json_extract(body, '$.order.step'), json_extract(body, '$.order.steps[0]')
  ) AS step FROM latest
) WHERE step IS NOT NULL
"""

# A belief is run-length encoded: pairs of how many candidates, oldest first, have which probability.
SUSPECT = f"""{LATEST}, believed AS (
  SELECT candidates, json_extract(value, '$[0]') AS wide, json_extract(value, '$[1]') AS probability,
    sum(json_extract(value, '$[0]')) OVER (ORDER BY key) AS place
  FROM latest, json_each(body, '$.belief.culprit')
)
SELECT json_extract(candidates, '$[' || (place - 1) || ']'), probability FROM believed
WHERE wide = 1 AND probability = (SELECT max(probability) FROM believed)
  AND json_array_length(candidates) = (SELECT sum(wide) FROM believed)
"""

DROPS = """
SELECT json_extract(drop_between, '$[0]'), json_extract(drop_between, '$[1]'), json_extract(drop_between, '$[2]'), max(id)
FROM sessions WHERE about = ? AND kind = 'hunt' AND json_valid(drop_between) GROUP BY 1, 3, 2
"""

NAMED = ("found", "several", "unsettled")  # states of hunts whose verdict names a commit


def read_hunts(connection: sqlite3.Connection, hunt: int | None = None) -> tuple[Listed, ...]:
    """All hunts, or one, oldest first."""
    where, values = ("", []) if hunt is None else (" WHERE hunts.id = ?", [hunt])
    rows = connection.execute(f"{HUNTS}{where} ORDER BY hunts.id", values).fetchall()
    return tuple(listed_hunt(connection, row) for row in rows)


def listed_hunt(connection: sqlite3.Connection, row: Sequence[Any]) -> Listed:
    """A hunt from a row of ``HUNTS``; one without an end with the first change that is proven so far.

    The suspects of an inconclusive one are not named.
    """
    known, named = state(*row[12:16]), row[16:19]
    if row[12] is None:
        named = connection.execute(SO_FAR, {"hunt": row[0]}).fetchone() or named
    elif known == STATES["Inconclusive"]:
        named = (None, None, named[2])
    subject = connection.execute("SELECT subject FROM commits WHERE commit_hash = ?", [named[0]]).fetchone() or ("",)
    suspect = connection.execute(SUSPECT, {"hunt": row[0]}).fetchone() if known == "running" else None
    return Listed(*(*row[:12], known, *named, *row[19:21], row[15] or "", *row[21:], *subject, *(suspect or ())))


def read_trials(connection: sqlite3.Connection, trial: int | None = None) -> tuple[ListedTrial, ...]:
    """All trials but fitness checks, which are many and alike, or one; oldest first."""
    named = "coalesce(iif(json_valid(settings), json_extract(settings, '$.name'), ''), '')"
    others = f" WHERE {named} NOT IN (?, ?)", [FITNESS_CHECK, ACCEPTED_CHECK]
    where, values = others if trial is None else (" WHERE trials.id = ?", [trial])
    return tuple(listed_trial(*row) for row in connection.execute(f"{TRIALS}{where} ORDER BY trials.id", values))


def listed_trial(
    _number: int, name: str, kind: str, started: float, ended: float | None, process: str | None, failure: str | None,
    builder: str, variant: str, host: str, metric: str, runs: int, origin: str, workload: str, request: bytes,
) -> ListedTrial:  # fmt: skip
    """A trial from a row of ``TRIALS``; without the names of builds and workloads where its request is damaged."""
    try:
        asked = json.loads(request)
        works, builds = (tuple(str(each["name"]) for each in asked[part]) for part in ("works", "subjects"))
        series = str(asked["series"]["text"]) if asked["series"] else ""
        branch = str(asked.get("branch", ""))
    except (ValueError, TypeError, LookupError):
        works, builds, series, branch = (workload,), (), "", ""
    known = trial_state(ended, process, failure)
    about = failure or "", origin, series, branch
    return ListedTrial(name, kind, started, builder, variant, works, host, metric, builds, known, runs, *about)


def read_drop_hunts(connection: sqlite3.Connection, trial: int) -> "tuple[DropHunt, ...]":
    """The hunts for the drops of a comparison in their present states, by workloads, then builds; the newest for each."""
    rows = connection.execute(DROPS, [trial]).fetchall()
    return tuple(one.for_drop(*drop) for *drop, hunt in rows for one in read_hunts(connection, hunt))


def called(kind: str, session: int) -> str:
    """What a session is called: hunt 12, c3."""
    return f"hunt {session}" if kind == "hunt" else f"{kind[:1]}{session}"


def trial_state(ended: float | None, process: str | None, failure: str | None) -> str:
    """The state of a trial."""
    return "done" if ended is not None and failure is None else unfinished(process, failure)


def state(ended: float | None, kind: str | None, process: str | None, failure: str | None) -> str:
    """The state of a hunt."""
    if ended is not None and kind is not None:
        return STATES[kind]
    return unfinished(process, failure)


def unfinished(process: str | None, failure: str | None) -> str:
    """The state of a hunt or trial without an end: running, interrupted or failed."""
    if failure is not None:
        return "failed"
    return "running" if process is not None and is_running(process) else "interrupted"
