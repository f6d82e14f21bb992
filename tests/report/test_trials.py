"""Comparisons, series of releases, proofs and A/As in all forms."""

import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from rich.text import Text

import sample_hunt as sample
from perfbisect.core.domain.facts import SkipFacts
from perfbisect.core.domain.settings import TrialBuild, TrialRequest, TrialType, TrialWorkload
from perfbisect.core.domain.trials import DropHunt, Trial, TrialRun, TrialSkip
from perfbisect.report import markdown as forms
from perfbisect.report import terminal
from perfbisect.report.page.pages import page
from perfbisect.report.published import of_trial
from perfbisect.report.trial import document
from perfbisect.wording.glyphs import writable
from sample_series import series

TABLE = """\
Throughput relative to: 8.0.28
col-1 : 8.0.29
col-2 : community (8.0.40) = /opt/mysql-8.0.40

col-1  col-2
 1.00  <0.90>  point-query
 0.99  <0.95>  hot-points

<0.55>  <1.89>  update-index

95 % intervals, from 2 rounds of 1 run each
      col-1        col-2
0.998–1.002  0.899–0.902  point-query
0.988–0.992  0.948–0.952  hot-points

0.549–0.551  1.887–1.894  update-index

 min   max   avg  median
0.99  1.00  1.00    1.00  point, col-1
0.90  0.95  0.93    0.93  point, col-2
"""


def trial(*, broken: bool = False) -> Trial:
    """Three builds and three workloads, measured in two rounds that hardly differ."""
    subjects = (
        TrialBuild("8.0.28", "a" * 40, key="key-a", binary="1"),
        TrialBuild("8.0.29", "b" * 40, key="key-b", binary="2"),
        TrialBuild("community", path="/opt/mysql-8.0.40", key="key-c", binary="3", version="8.0.40"),
    )
    if broken:
        subjects = (*subjects[:2], TrialBuild("8.0.30", "c" * 40, trouble="c.c:1:\x1b[31m no"))
    works = tuple(TrialWorkload(name, name.partition("-")[0].replace("hot", "point"), 1.0, 10.0) for name in RATIOS)
    request = TrialRequest(TrialType.COMPARE, "mysql", "o2nofp", "dell32", "qps", {"time": 10}, subjects, works, 2, 1)
    made = Trial(3, request, sample.HOST, 0.0, "done")
    for number in range(2):
        for work, ratios in enumerate(RATIOS.values()):
            for subject, ratio in enumerate((1.0, *ratios)):
                if not subjects[subject].trouble:
                    speed = 1000.0 * (1 + number) * ratio * (1 + 0.0003 * number * (subject > 0))
                    run = sample.run(0, 100.0 * number, qps=speed)
                    made.runs.append(TrialRun(number, work, subject, 100.0 * number, 12.0, run))
    return made


RATIOS = {"point-query": (1.0, 0.9), "hot-points": (0.99, 0.95), "update-index": (0.55, 1.89)}


def lines(made: Trial, *, detailed: bool = False) -> list[str | Text]:
    return list(terminal.lines(document(made, detailed=detailed), header=False))


def plain(made: Trial, *, counters: bool = False) -> list[str]:
    return [str(line) for line in lines(made, detailed=counters)]


def delimited(made: Trial, delimiter: str) -> list[str]:
    return list(forms.delimited(document(made), delimiter))


def markdown(made: Trial, *, detailed: bool = False) -> list[str]:
    return list(forms.markdown(document(made, detailed=detailed)))


def header(made: Trial) -> str:
    """How it was measured."""
    return "\n".join(map(str, terminal.lines(document(made)))).partition("\n\n")[0]


def as_object(made: Trial) -> Any:
    return msgspec.json.decode(msgspec.json.encode(of_trial(made)))


def paged(made: Trial) -> str:
    return page(document(made, page=True))


def painted(line: str | Text) -> str:
    """The line with < and > around what has a colour."""
    shown = str(line)
    for span in reversed(line.spans if isinstance(line, Text) else []):
        if span.style:
            shown = f"{shown[: span.start]}<{shown[span.start : span.end].strip()}>{shown[span.end :]}"
    return shown


def test_the_field_s_table() -> None:
    assert "".join(f"{painted(line)}\n" for line in lines(trial())) == TABLE


def test_plain_text_has_no_colours_and_the_same_columns() -> None:
    assert " 0.55   1.89  update-index" in plain(trial())


def test_counters_are_relative_to_the_base() -> None:
    told = plain(trial(), counters=True)
    at = told.index("update-index, relative to 8.0.28")
    assert told[at + 1].split() == ["baseline", "col-1", "col-2"]
    assert told[at + 2].split() == ["1,500", "0.55", "1.89", "qps"]


def test_what_was_not_measured_is_said() -> None:
    told = plain(trial(broken=True))
    assert " 1.00      –  point-query" in told
    assert told[-1] == r"8.0.30 was not measured: c.c:1:\x1b[31m no"
    assert "  builder   mysql, o2nofp\n  measured  QPS, time 10; 2 rounds of 1 run each" in header(trial())


def test_what_has_failed_on_the_way_is_said() -> None:
    made = trial()
    made.skips.append(TrialSkip(2, 1, 5.0, SkipFacts("b" * 40, "run", "it crashed", "log", 1.0)))
    bare = [replace(run, facts=replace(run.facts, counters={})) if run.subject == 2 else run for run in made.runs]
    told = replace(made, runs=bare, request=replace(made.request, metric="cpu/o"), state="failed", failure="no room")
    assert plain(told)[-4:] == [
        "8.0.29 fails in update-index: it crashed",
        *(f"community has no value of cpu/o in {name}." for name in RATIOS),
    ]
    assert header(told).startswith("Comparison c3, 1970-01-01 00:00: failed: no room\n")
    assert as_object(told)["skips"][0]["facts"]["reason"] == "it crashed"


def test_nothing_measured_yet_is_a_table_without_numbers() -> None:
    made = trial()
    made.runs.clear()
    assert "    –      –  point-query" in plain(made, counters=True)


def test_json_holds_everything() -> None:
    told = as_object(trial())
    [point, _, update] = told["workloads"]
    assert (point["work"], update["group"]) == ("point-query", "update")
    assert abs(update["ratios"][0]["ratio"] - 0.55) < 0.001
    assert update["counters"]["qps"][0] == 1500
    assert told["settings"]["subjects"][2]["path"] == "/opt/mysql-8.0.40"
    assert [group["group"] for group in told["groups"]] == ["point", "point"]


def test_tabs_between_columns_are_the_field_s_files() -> None:
    """The legend, then the header and a row for each test: ratios, then the name."""
    told = delimited(trial(), "\t")
    assert told[:8] == [
        "Throughput relative to: 8.0.28",
        "col-1 : 8.0.29",
        "col-2 : community (8.0.40) = /opt/mysql-8.0.40",
        "",
        "col-1\tcol-2\tworkload",
        "1.00\t0.90\tpoint-query",
        "0.99\t0.95\thot-points",
        "0.55\t1.89\tupdate-index",
    ]
    at = told.index("col-1 low\tcol-1 high\tcol-1 real\tcol-2 low\tcol-2 high\tcol-2 real\tworkload")
    assert [line.split("\t")[2::3] for line in told[at + 1 : at + 4]] == [
        ["", "worse"],
        ["", "worse"],
        ["worse", "better"],
    ]
    assert "min\tmax\tavg\tmedian\tgroup" in told
    assert "0.90\t0.95\t0.93\t0.93\tpoint, col-2" in told


def test_costs_are_absolute_and_relative_to_the_first_result() -> None:
    told = delimited(trial(), "\t")
    at = told.index("update-index, cpu/o in µs")
    assert told[at + 1 : at + 3] == ["--- absolute", "cpu/o\tcs/o\tr/o\trKB/o\twKB/o\to/s\tbuild"]
    assert told[at + 3] == "48\t0.6\t\t\t\t1500\t8.0.28"
    assert told[at + 7] == "--- relative to first result"
    assert told[at + 9 : at + 11] == ["1.00\t1.00\t\t\t\t0.55\t8.0.29", "1.00\t1.00\t\t\t\t1.89\tcommunity"]
    assert "update-index, absolute" in told


def test_without_perf_the_cpu_is_that_of_the_machine() -> None:
    made = trial()
    bare = [replace(run, facts=replace(run.facts, counters={})) for run in made.runs]
    told = delimited(replace(made, runs=bare), ",")
    at = told.index('"update-index, cpu/o in % of the machine per o/s"')
    base = told[at + 3].split(",")
    assert float(base[0]) == (80 / 1000 + 80 / 2000) / 2


def test_what_a_spreadsheet_would_execute_is_text() -> None:
    made = trial()
    works = (replace(made.request.works[0], name="=1+1"), *made.request.works[1:])
    told = delimited(replace(made, request=replace(made.request, works=works)), ",")
    assert "1.00,0.90,'=1+1" in told


def test_markdown_has_what_is_real_in_bold() -> None:
    told = markdown(trial(), detailed=True)
    assert "| col-1 | col-2 | workload |" in told
    assert "| 1.00 | **0.90** | point-query |" in told
    assert "| **0.55** | **1.89** | update-index |" in told
    assert told.count("</details>") == 1
    brief = markdown(trial(broken=True))
    assert "</details>" not in brief
    assert brief[-1].startswith("- 8.0.30 was not measured")


def test_the_page_has_the_table_and_its_colours() -> None:
    page = paged(trial())
    assert '<td class="num worse">0.55</td><td class="num better">1.89</td><th scope="row">update-index</th>' in page
    assert "col-1 : 8.0.29" in page
    assert "Relative table" in page


def paced(*, share: float) -> Trial:
    """The same trial with a background of 100 rows per second in its first workload, of which one build holds a share."""
    made = trial()
    for place, each in enumerate(made.runs):
        if each.work == 0:
            done = 1000 * (share if each.subject == 2 else 1.0)
            found = {
                **each.facts.counters,
                "insert-done": done,
                "insert-due": 1000.0,
                "insert-rate": 100.0,
                "client-busy": 0.1 + 0.25 * each.subject,
            }
            made.runs[place] = replace(each, facts=replace(each.facts, counters=found))
    return made


def test_a_rate_that_was_not_sustained_fails() -> None:
    told = plain(paced(share=0.871))
    at = told.index("Background rows per second")
    assert told[at + 1 : at + 3] == [
        "wanted  baseline  col-1  col-2",
        "   100       100    100   87.1  point-query",
    ]
    assert "community fails the SLA of point-query: it sustains 87.1 of 100 rows per second (insert)." in told
    assert "In point-query of community the client is busy for 60 % of the time, and may limit it." in told
    assert len([line for line in told if "SLA" in line or "busy" in line]) == 2
    assert "| 100 | 100 | 100 | **87.1** | point-query |" in markdown(paced(share=0.871))
    table = delimited(paced(share=0.871), ",")
    at = table.index("Background rows per second")
    assert table[at + 1] == "wanted,wanted SLA,baseline,baseline SLA,col-1,col-1 SLA,col-2,col-2 SLA,workload"
    assert table[at + 2] == "100,,100,,100,,87.1,fails,point-query"
    (level,) = as_object(paced(share=0.871))["service_levels"]
    assert level["builds"][2] == {"role": "insert", "wanted": 100, "held": 87.1, "sustained": False}


def test_a_rate_that_was_sustained_is_only_a_table() -> None:
    told = plain(paced(share=0.995))
    assert "   100       100    100   99.5  point-query" in told
    assert not [line for line in told if "SLA" in line]


def hunted() -> Trial:
    """The same with hunts for some drops: of one the culprit is known."""
    hunts = (DropHunt(0, 0, 1, 14, "not reproduced"), DropHunt(2, 0, 1, 12, "found", "5" * 40, "Check keys \x1b[31m"), DropHunt(2, 0, 2, 13, "interrupted"))  # fmt: skip
    return replace(trial(), hunts=hunts)


def test_the_culprit_is_in_the_cell_of_its_drop() -> None:
    shown = [painted(line) for line in lines(hunted())]
    assert shown[4:9] == [
        "col-1                 col-2",
        " 1.00 not reproduced  <0.90>          point-query",
        " 0.99                 <0.95>          hot-points",
        "",
        "<0.55> 5555555555      <1.89> hunt 13  update-index",
    ]
    [named] = [line for line in shown if line.startswith("update-index, 8.0.28 to 8.0.29: 5555555555 Check keys")]
    assert named.endswith("(hunt 12)")
    assert "\x1b" not in named


def test_the_culprit_in_other_forms() -> None:
    made = hunted()
    assert f"0.55\t{'5' * 40}\t1.89\tinterrupted\tupdate-index" in delimited(made, "\t")
    assert "col-1,col-1 culprit,col-2,col-2 culprit,workload" in delimited(made, ",")
    assert "| **0.55** 5555555555 | **1.89** hunt 13 | update-index |" in markdown(made)
    assert as_object(made)["hunts"][1] == {
        "workload": "update-index", "first": "8.0.28", "last": "8.0.29", "hunt": 12, "state": "found",
        "culprit": "5" * 40, "subject": "Check keys \x1b[31m",
    }  # fmt: skip
    assert '<td class="num worse">0.55 <code>5555555555</code></td>' in paged(made)


@pytest.fixture(scope="module")
def line() -> Trial:
    """Twenty releases of which 1.7 is a gap: one change in two workloads, one for the better, and the newest release."""
    steps = {"scan": ((5, -0.1), (12, 0.4)), "update-index": ((5, -0.2),), "point-query": ((19, -0.5),)}
    return series(steps, gaps=(7,))


def test_a_row_for_each_release_with_its_level_and_that_of_its_neighbours(line: Trial) -> None:
    told = plain(line)
    start = told.index("scan: QPS relative to 1.0")
    rows = told[start + 2 : start + 22]
    assert [row.split()[0] for row in rows] == [f"1.{number}" for number in range(20)]
    dots = {number: row.find("●") for number, row in enumerate(rows)}
    assert dots[7] == -1
    assert rows[7].split()[1] == "–"
    assert max(dots[number] for number in (5, 6, 8, 9, 10, 11)) < min(dots[number] for number in range(5))
    assert max(dots[number] for number in range(5)) < min(dots[number] for number in range(12, 20))
    assert re.search(r"a drop of (8|9|10|11)(\.\d)? %$", rows[5])
    assert re.search(r"a rise of \d\d %$", rows[12])
    assert not any("drop" in row or "rise" in row for number, row in enumerate(rows) if number not in (5, 12))


def test_the_steps_and_what_to_hunt(line: Trial) -> None:
    text = "\n".join(plain(line))
    assert re.search(r"^  scan, 1\.4 → 1\.5: ×0\.9\d+ \(0\.\d+–0\.\d+\), a drop of", text, re.MULTILINE)
    assert re.search(
        r"point-query, 1\.18 → 1\.19: .*; one release alone, which may be its code placement$", text, re.MULTILINE
    )
    commands = [line.strip() for line in text.splitlines() if line.startswith("  bisect run")]
    assert commands == [
        "bisect run 1.18 1.19 --workload point-query --builder demo",
        "bisect run 1.4 1.5 --workload scan,update-index --builder demo",
        "bisect run 1.11 1.12 --workload scan --direction rise --builder demo",
    ]
    assert "Left out of 1.0..1.19: 1.3.1 (a pre-release)." in text
    assert "1.7 was not measured: error" in text


def test_small_steps_are_hunted_with_a_smaller_effect() -> None:
    text = "\n".join(plain(series({"scan": ((9, -0.01),)}, noise=0.0005)))
    assert "bisect run 1.8 1.9 --workload scan --min-effect 0.5% --builder demo" in text


def test_no_step_and_an_old_terminal() -> None:
    text = "\n".join(plain(series({})))
    assert "No step is announced." in text
    assert "bisect run" not in text
    poor = writable(text, "ascii")
    assert poor.isascii()
    assert len(poor) == len(text)


def test_json_has_everything_that_text_says(line: Trial) -> None:
    found = as_object(line)
    assert found["settings"]["series"]["text"] == "1.0..1.19"
    scan = found["series"]["lines"][0]
    assert [step["since"] for step in scan["steps"]] == ["1.5", "1.12"]
    assert [step["worse"] for step in scan["steps"]] == [True, False]
    assert scan["releases"][7] == {"release": "1.7", "ratio": None}
    assert found["series"]["hunts"][1]["workloads"] == ["scan", "update-index"]


def test_tables_for_programs_and_for_issues(line: Trial) -> None:
    rows = delimited(line, ",")
    assert "scan,update-index,point-query,release" in rows
    assert ",,,1.7" in rows
    assert any(re.fullmatch(r"1\.4,1\.5,1\.4,1\.5,0\.[\d.,]+,worse,scan", row) for row in rows)
    issue = markdown(line)
    assert "| after | since | within (95 %) | ratio (95 %) | workload |" in issue
    assert "| – | – | – | 1.7 |" in issue


def test_the_page_draws_every_release_and_every_step(line: Trial) -> None:
    page = paged(line)
    charts = re.findall(r'<svg class="chart series".*?</svg>', page)
    assert [chart.count("<circle") for chart in charts] == [19, 19, 19]
    assert [len(re.findall('class="step (?:bad|good)"', chart)) for chart in charts] == [2, 1, 1]
    assert [len(re.findall('class="plateau"', chart)) for chart in charts] == [3, 2, 2]
    assert "1.0 to 1.19 of demo: 4 steps in 3 workloads" in page
    assert "bisect run 1.4 1.5 --workload scan,update-index --builder demo" in page
