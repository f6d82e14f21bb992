"""Reports with profiles, the diff and changed query plans, made only from the history."""

from dataclasses import replace

import msgspec

import sample_hunt as sample
from counted import profile
from perfbisect.core.domain.events import ChangedFunctions, Planned, Profiled
from perfbisect.core.domain.facts import ChangeFacts, PlanFacts
from perfbisect.core.explain.evidence import Cause, Evidence, FunctionRow, Sureness
from perfbisect.report.hunt import document, function_cost_tables
from perfbisect.report.hunt import document as hunt_document
from perfbisect.report.hunt_report import HuntReport, read_hunt_report
from perfbisect.report.markdown import document_lines
from perfbisect.report.page import pages
from perfbisect.report.published import hunt_object
from perfbisect.report.terminal import document_text as in_terminal
from perfbisect.store.history import History
from pinned import pinned

PARENT = 6
SEARCH = ("main", "scan", "search")
EVIL = "<script>alert(1)</script>\x1b[2J"
BEFORE = {("main", "scan"): 4000, SEARCH: 9000, ("main", "log"): 7000, ("main", "old"): 3000, ("main", EVIL): 900}
AFTER = {("main", "scan"): 4000, SEARCH: 12_300, ("main", "log"): 7000, ("main", "new"): 3020, ("main", EVIL): 1900}
SENTENCE = "of the loss is in `search`, into which `less` is inlined, which this commit changes."
DIFF = """diff --git a/page.c b/page.c
--- a/page.c
+++ b/page.c
@@ -1,2 +1,2 @@ void fill(void)
 static int less(int a, int b)
 {
-\treturn a < b;
+\treturn a <= b;
"""


def printed(told: HuntReport) -> str:
    return in_terminal(document(told))


def issue(told: HuntReport) -> str:
    return "\n".join(document_lines(document(told)))


def write(history: History, changed: ChangeFacts | None) -> int:
    """The sample hunt with a profile of parent and culprit, and what the culprit changes."""
    hunt = sample.write(history)
    for node, stacks in ((PARENT, BEFORE), (sample.CULPRIT, AFTER)):
        facts = profile(sample.CANDIDATES[node], stacks, operations=1_000_000)
        history.append(hunt, Profiled(node, facts), sample.BEGAN + 9000)
    if changed:
        history.append(hunt, ChangedFunctions(sample.CULPRIT, changed), sample.BEGAN + 9001)
    return hunt


def change(*functions: str, note: str = "") -> ChangeFacts:
    commit, parent = sample.CANDIDATES[sample.CULPRIT], sample.CANDIDATES[PARENT]
    return ChangeFacts(commit, parent, functions, {"less": ("search",)}, 1, note=note)


def story(history: History, changed: ChangeFacts | None) -> HuntReport:
    write(history, changed)
    return read_hunt_report(history, 1)


def test_text_markdown_and_json_contain_the_functions(history: History) -> None:
    seen = story(history, change("less", note="Some of it is approximate."))
    for name, text in (("functions.txt", printed(seen)), ("functions.md", issue(seen))):
        assert "\x1b" not in text and "<script>" not in text.replace("`<script>`", "")
        pinned(f"report/{name}", text)
    [case] = msgspec.json.decode(msgspec.json.encode(hunt_object(seen)))["cases"]
    found = case["explanation"]
    assert (found["changed"], found["functions"][0]["inlined"]) == (["less"], ["less"])
    assert "Some of it is approximate." in found["missing"]
    assert SENTENCE in case["why"]


def test_page_joins_functions_diff_and_flame_graph(history: History) -> None:
    hunt = write(history, change("less"))
    told = read_hunt_report(history, hunt, lambda sha: sample.COMMITS[sample.CANDIDATES.index(sha)])
    text = pages.session_page(hunt_document(told, lambda *_: (DIFF, 0)))
    for part in (
        "into which <code>less</code> is inlined",
        '<a href="#case-1-hunk-0-0-0"><code>search</code></a>',  # where the inlined function begins
        'class="changed"',
        "cost moved to new",
        "cost moved from old",
        "called by scan",
        "search (engine)",  # a frame of the flame graph
    ):
        assert part in text
    assert "<script>alert" not in text and "\x1b" not in text


def test_report_omits_facts_that_were_not_read_or_recorded(history: History) -> None:
    text = printed(story(history, None))
    assert "of the loss is in `search`." in text and "this commit changes" not in text
    hunt = sample.write(history)
    history.append(hunt, Profiled(PARENT, profile(sample.CANDIDATES[PARENT], BEFORE)), sample.BEGAN + 9000)
    text = printed(read_hunt_report(history, hunt))
    assert "Cost of each function" not in text and "of the loss" not in text


def test_table_of_waits_comes_before_the_table_of_costs(history: History) -> None:
    """The table of waits is shown only if the commit waits longer, because all programs wait."""
    read = story(history, change("less"))
    [named] = read.changes
    row = FunctionRow("journal", "engine", 1.0, 90.0, part=0.9, error=2.0)
    for classes in ((), (Evidence(Cause.WAITING, None, Sureness.SURE),)):
        explanation = replace(named.explanation, waits=(row,), classes=classes)
        read.changes = (replace(named, explanation=explanation),)
        tables = list(function_cost_tables(explanation))
        titles = ["Waiting"] * len(classes) + ["Cost"]
        assert [
            table.lines_above[0].partition(" of each function without its callees, per operation, in µs")[0]
            for table in tables
        ] == titles
        assert (tables[0].rows[0].cells[0].text == "journal") is bool(classes)
        for shown in (printed, issue):
            assert ("journal" in shown(read)) is bool(classes)


STATEMENT = "SELECT c FROM sbtest1\nWHERE k BETWEEN ? AND ?"
INDEX = "Bitmap Heap Scan on sbtest1\n  ->  Bitmap Index Scan on k_1"
SCAN = "Seq Scan on sbtest1\x1b[2J"


def planned(history: History, *plans: tuple[int, str, str]) -> HuntReport:
    """The report of the sample hunt, with these query plans (candidate, statement, plan)."""
    hunt = sample.write(history)
    for node, statement, plan in plans:
        facts = PlanFacts(sample.CANDIDATES[node], "key", "local", statement, plan)
        history.append(hunt, Planned(node, facts), sample.BEGAN + 9000)
    return read_hunt_report(history, hunt)


def test_changed_plans_come_first(history: History) -> None:
    """Unchanged plans are not mentioned."""
    same = [(node, "SELECT 1", "Result") for node in (PARENT, sample.CULPRIT)]
    seen = planned(history, (PARENT, STATEMENT, INDEX), (sample.CULPRIT, STATEMENT, SCAN), *same)
    pinned("report/plans.txt", printed(seen))
    written = issue(seen)
    assert written.index("another query plan") < written.index(seen.changes[0].reason_sentences[0])
    assert "\n  before  Bitmap Heap Scan on sbtest1\n" in written
    assert "another query plan" not in printed(planned(history, *same, (0, STATEMENT, SCAN)))
