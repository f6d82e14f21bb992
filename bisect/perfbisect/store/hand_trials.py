"""Results that were made by hand become a comparison of the history.

Each set of results of a build is a run of every test in it. The n-th sets of all builds are round n, so intervals exist
only where builds were measured repeatedly. The origin of such a trial begins with ``BY_HAND``: a trial with an origin counts
for no hunt, and is never continued.

How long a test was timed is not in the files. ``SECONDS`` stands in its place, and the operations are so many that QPS is
what the file says.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from perfbisect.core.domain.events import CandidateSkipped, RunFinished, TrialEnded, TrialStarted
from perfbisect.core.domain.facts import HostFacts, RunFacts, SkipFacts
from perfbisect.core.domain.settings import Settings, TrialBuild, TrialRequest, TrialType, TrialWorkload
from perfbisect.core.domain.trials import BY_HAND
from perfbisect.errors import UsageError
from perfbisect.store.hand_files import Measured, Results

if TYPE_CHECKING:
    from perfbisect.store.history import History

SECONDS = 1e6  # nominal; QPS is kept to a millionth
MOST_BUILDS, MOST_RUNS = 200, 100_000
LEFT_OUT = "warm"  # tests that only warm up
GROUPS = ("point", "range", "write")
CHANGES = ("delete", "insert", "update", "write")


@dataclass(frozen=True, slots=True)
class HandMade:
    """A comparison that was made by hand."""

    request: TrialRequest
    at: float  # when it was measured, in seconds since the epoch
    left_out: int  # tests
    events: list[RunFinished | CandidateSkipped] = field(default_factory=list)


def group_of(test: str) -> str:
    """The group of a test by its name, as published tables have it."""
    if "point" in test:
        return "point"
    return "write" if any(word in test for word in CHANGES) else "range"


def trial_of(sets: Sequence[Results], builder: str, host: str, at: float) -> HandMade:
    """The comparison with all results, relative to the first build.

    ``at`` is when it was measured, in seconds since the epoch; ``builder`` the system, or empty for the engine that the
    files name. Raises UsageError where there is nothing to compare.
    """
    builds = list(dict.fromkeys(each.build for each in sets))
    every = {test for each in sets for test in each.tests}
    tests = sorted(
        (test for test in every if LEFT_OUT not in test), key=lambda test: (GROUPS.index(group_of(test)), test)
    )
    if len(builds) < 2:
        raise UsageError(
            "There is only one build to compare." if builds else "There are no builds.",
            "Name the results of several builds; NAME=PATH sets the name of one.",
        )
    if not tests:
        raise UsageError("There are no results in these files.")
    if len(builds) > MOST_BUILDS or len(sets) * len(tests) > MOST_RUNS:
        raise UsageError(
            f"These are more than {MOST_BUILDS} builds or {MOST_RUNS:,} results.", "Import fewer at a time."
        )
    engines = {known.engine: None for each in sets for known in each.tests.values() if known.engine}
    rounds = numbered(sets)
    paths = {each.build: each.path for each in reversed(sets)}
    request = TrialRequest(
        TrialType.COMPARE, builder or next(iter(engines), BY_HAND), "", host, "qps", {},
        tuple(TrialBuild(build, path=paths[build]) for build in builds),
        tuple(TrialWorkload(test, group_of(test), 0.0, 0.0) for test in tests), max(rounds) + 1, 1,
    )  # fmt: skip
    made = HandMade(request, at, len(every) - len(tests))
    skipped = set[tuple[int, int]]()
    for number, each in zip(rounds, sets, strict=True):
        subject = builds.index(each.build)
        for work, test in enumerate(tests):
            if (known := each.tests.get(test)) is None:
                continue
            if known.qps:
                made.events.append(RunFinished(subject, facts(known, host, number, at), workload=work, round=number))
            elif (work, subject) not in skipped:
                skipped.add((work, subject))
                failure = SkipFacts(each.build, "run", f"no operations per second in {known.where}", "", 0.0)
                made.events.append(CandidateSkipped(subject, failure, workload=work, round=number))
    return made


def numbered(sets: Iterable[Results]) -> list[int]:
    """The round of each set. Raises UsageError where one is given twice: a copy is no repetition."""
    before: dict[str, list[Results]] = {}
    found = []
    for each in sets:
        known = before.setdefault(each.build, [])
        for other in known:
            if speeds(other) == speeds(each):
                raise UsageError(
                    f"{each.path} has the same results of {each.build} as {other.path}.",
                    "A copy is no repetition: leave out one of them.",
                )
        found.append(len(known))
        known.append(each)
    return found


def speeds(results: Results) -> dict[str, float]:
    """The QPS of each test."""
    return {test: known.qps for test, known in results.tests.items()}


def facts(known: Measured, host: str, number: int, at: float) -> RunFacts:
    """One result as a run."""
    operations = max(1, round(known.qps * SECONDS))
    costs = {name: cost * operations / SECONDS for name, cost in known.costs.items()}
    rates = {"cs": "cs/o", "r/s": "r/o", "rkB/s": "rKB/o", "wkB/s": "wKB/o"}
    system: dict[str, float | None] = {column: costs[name] for column, name in rates.items() if name in costs}
    if "cpu/o" in costs:
        system |= {"us": costs["cpu/o"], "sy": 0.0}  # the files have their sum
    return RunFacts(
        commit="", build_key="", visit=str(number), host=host, started=at, seconds=SECONDS, operations=operations,
        latency={}, samples=(), counters={}, system=system,
    )  # fmt: skip


def add(history: "History", made: HandMade, whose: str) -> tuple[str, bool]:
    """Store the comparison, all of it or nothing. Returns its name, and whether it is new: the same results are stored once."""
    uid, request = f"by-hand-{digest(made)}", made.request
    host, origin = HostFacts(request.host, "", 0, 0, "", ""), f"{BY_HAND}: {whose}" if whose else BY_HAND
    with history.transaction() as db:
        if known := db.execute("SELECT id FROM sessions WHERE uid = ?", [uid]).fetchone():
            return f"c{known[0]}", False
        settings = Settings("", "", "", request.builder, "", request.host, metric=request.metric)
        number = history.enter_trial(settings, request, host, made.at)
        db.table("sessions").update(number, {"uid": uid, "origin": origin})
        log = history.session_log(number)
        for event in (TrialStarted(number, request, host, resumed=False), *made.events, TrialEnded()):
            log.append(event, made.at)
    return f"c{number}", True


def digest(made: HandMade) -> str:
    """A hash of the results, whatever the folders are called in which they lie."""
    request = made.request
    results = [
        [each.round, each.workload, each.candidate, run.operations, sorted(run.system.items())]
        if isinstance(run := each.facts, RunFacts)
        else [each.workload, each.candidate]
        for each in made.events
    ]
    names = [
        [each.name for each in request.subjects],
        [each.name for each in request.works],
        request.builder,
        request.host,
    ]
    return hashlib.sha256(json.dumps([names, results]).encode()).hexdigest()[:32]
