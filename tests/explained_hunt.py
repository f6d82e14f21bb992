"""The sample hunt with an explanation of its culprit: counters, functions, plans, profiles, and the diff."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import sample_hunt as sample
from perfbisect.core.domain.orders import Interval
from perfbisect.core.explain.evidence import CounterRow, Explanation, FunctionRow, PlanRow
from perfbisect.report.hunt import document as hunt_document
from perfbisect.report.hunt_report import HuntReport, read_hunt_report
from perfbisect.report.page import pages
from perfbisect.report.profiles import HuntProfiles
from perfbisect.store.history import History
from perfbisect.wording.reasons import open_questions

PARENT, CULPRIT = sample.CANDIDATES[6], sample.CANDIDATES[sample.CULPRIT]
WORK = "engine;main;run_workload;update_row"
SHARED = {
    "engine;main;run_workload": 0.6,
    f"{WORK}": 2.1,
    f"{WORK};find_leaf": 6.0,
    f"{WORK};find_leaf;compare_keys": 9.5,
    f"{WORK};write_log": 3.2,
    f"{WORK};write_log;checksum": 4.4,
    f"{WORK};page_insert;memmove": 5.8,
}
PROFILES = HuntProfiles(
    parent={**SHARED, f"{WORK};page_insert": 4.0, f"{WORK};page_insert;reuse_cell": 2.5},
    culprit={
        **{stack: 1.02 * cost for stack, cost in SHARED.items()},
        f"{WORK};page_insert": 4.9,
        f"{WORK};page_insert;check_order": 8.6,
        f"{WORK};page_insert;check_order;compare_keys": 3.1,
    },
    unit="us",
)


def function(name: str, parent: float, culprit: float, part: float, binary: str = "engine", **more: Any) -> FunctionRow:
    """A row of a function in the profiles of parent and culprit."""
    return FunctionRow(name, binary, parent, culprit, error=0.3, part=part, **more)


EXPLANATION = Explanation(
    parent=PARENT,
    culprit=CULPRIT,
    counters=(
        CounterRow("instructions/o", 280_000, 378_000, Interval(1.345, 1.350, 1.355), 160.0, 6),
        CounterRow("cpu/o", 48.0, 64.8, Interval(1.33, 1.35, 1.37), 40.0, 6, "us"),
        CounterRow("branches/o", 51_000, 66_000, Interval(1.27, 1.29, 1.31), 31.0, 6, share=0.74),
        CounterRow("ipc", 2.0, 1.97, Interval(0.97, 0.985, 1.001), 1.9, 6),
        CounterRow("dTLB-load-misses/o", 12.0, 11.9, Interval(0.9, 0.99, 1.09), 0.2, 6),
    ),
    functions=(
        function("check_order", 0.0, 8.6, 0.6, changed=True, callers=("page_insert", "update_row")),
        function("compare_keys", 9.5, 12.8, 0.25, callers=("check_order", "find_leaf")),
        function("reuse_cell", 2.5, 0.0, -0.2, partner="page_insert"),
        function("page_insert", 4.0, 4.9, 0.1, changed=True),
        function("memmove", 5.8, 5.9, 0.01, binary="libc.so.6"),
    ),
    unit="us",
    changed=("check_order", "page_insert", "slot_of"),
    missing=("Plans were not asked for: the engine has none.",),
)
PLAN = PlanRow("SELECT c FROM t WHERE k = 1", "SEARCH t USING INDEX k_1 (k=?)", "SCAN t")
DIFF = (Path(__file__).parent / "given" / "culprit.diff").read_text()


def explained(history: History, hunt: int, plans: tuple[PlanRow, ...] = ()) -> HuntReport:
    """The report of ``hunt``, which is the sample hunt, with the explanation of its culprit."""
    report = read_hunt_report(history, hunt, lambda sha: sample.COMMITS[sample.CANDIDATES.index(sha)])
    [change] = report.changes
    found = replace(EXPLANATION, plans=plans)
    report.changes = (replace(change, explanation=found, unknown_reasons=tuple(open_questions(found))),)
    report.profiles = PROFILES
    return report


def diff_of(before: str, after: str) -> tuple[str, int]:
    """The diff of the culprit."""
    assert (before, after) == (PARENT, CULPRIT)
    return DIFF, 0


HOSTILE = (
    "</title></script><script>document.title='EVIL'</script><img src=x onerror=alert(1)>\" ' {{7*7}} {% x %} \u202egnp"
)


FOREIGN = {  # fields whose text is not by perfbisect
    "function", "callers", "partner", "name", "missing", "date", "author", "subject", "why",
    "repository", "good", "overrides", "cpu", "settings",
}  # fmt: skip


def hostile(value: Any) -> Any:
    """A copy of ``value`` in which all foreign text is hostile."""
    if isinstance(value, tuple):
        return tuple(map(hostile, value))
    if not is_dataclass(value) or isinstance(value, type):
        return value
    inside = {field.name: getattr(value, field.name) for field in fields(value)}
    return replace(
        value, **{name: foreign(each) if name in FOREIGN else hostile(each) for name, each in inside.items()}
    )


def foreign(value: Any) -> Any:
    """``value`` with all its text replaced by hostile text."""
    match value:
        case str():
            return HOSTILE
        case Mapping():
            return {HOSTILE: HOSTILE}
        case tuple():
            return (HOSTILE,)
        case _:
            return hostile(value)


def hostile_page(history: History) -> str:
    """The page of a hunt in which all foreign text is hostile."""
    report = explained(history, sample.write(history), (PlanRow(HOSTILE, HOSTILE, HOSTILE),))
    report.summary, report.settings, report.changes = map(hostile, (report.summary, report.settings, report.changes))
    report.state.started = hostile(report.state.started)
    report.state.tested = {sha: replace(row, commit=hostile(row.commit)) for sha, row in report.state.tested.items()}
    report.advice_by_warning, report.proof_sentences = (
        foreign(report.advice_by_warning),
        foreign(report.proof_sentences),
    )
    report.profiles = replace(PROFILES, parent={f"{HOSTILE};{HOSTILE}": 1.0}, culprit={HOSTILE: 2.0}, notes=(HOSTILE,))
    diff = f"diff --git a/{HOSTILE} b/{HOSTILE}\n@@ -1 +1 @@ {HOSTILE}\n-{HOSTILE}\n+{HOSTILE}\n"
    return pages.session_page(hunt_document(report, lambda _before, _after: (diff, 3)))
