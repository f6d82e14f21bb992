"""The report of a series of releases in all its forms."""

import json
import re

import pytest

from perfbisect.core.domain.trials import Trial
from perfbisect.report import comparison, comparison_forms
from perfbisect.report.page.trial import trial_page
from perfbisect.wording.glyphs import writable
from sample_series import series


@pytest.fixture(scope="module")
def trial() -> Trial:
    """Twenty releases of which 1.7 is a gap: one change in two workloads, one for the better, and the newest release."""
    steps = {"scan": ((5, -0.1), (12, 0.4)), "update-index": ((5, -0.2),), "point-query": ((19, -0.5),)}
    return series(steps, gaps=(7,))


def test_a_row_for_each_release_with_its_level_and_that_of_its_neighbours(trial: Trial) -> None:
    lines = list(map(str, comparison.lines(trial)))
    start = lines.index("scan: QPS relative to 1.0")
    rows = lines[start + 2 : start + 22]
    assert [row.split()[0] for row in rows] == [f"1.{number}" for number in range(20)]
    dots = {number: row.find("●") for number, row in enumerate(rows)}
    assert dots[7] == -1
    assert rows[7].split()[1] == "–"
    assert max(dots[number] for number in (5, 6, 8, 9, 10, 11)) < min(dots[number] for number in range(5))
    assert max(dots[number] for number in range(5)) < min(dots[number] for number in range(12, 20))
    assert re.search(r"a drop of (8|9|10|11)(\.\d)? %$", rows[5])
    assert re.search(r"a rise of \d\d %$", rows[12])
    assert not any("drop" in row or "rise" in row for number, row in enumerate(rows) if number not in (5, 12))


def test_the_steps_and_what_to_hunt(trial: Trial) -> None:
    text = "\n".join(map(str, comparison.lines(trial)))
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
    text = "\n".join(map(str, comparison.lines(series({"scan": ((9, -0.01),)}, noise=0.0005))))
    assert "bisect run 1.8 1.9 --workload scan --min-effect 0.5% --builder demo" in text


def test_no_step_and_an_old_terminal() -> None:
    text = "\n".join(map(str, comparison.lines(series({}))))
    assert "No step is announced." in text
    assert "bisect run" not in text
    plain = writable(text, "ascii")
    assert plain.isascii()
    assert len(plain) == len(text)


def test_json_has_everything_that_text_says(trial: Trial) -> None:
    found = json.loads(comparison.as_object(trial))
    assert found["settings"]["series"]["text"] == "1.0..1.19"
    scan = found["series"]["lines"][0]
    assert [step["since"] for step in scan["steps"]] == ["1.5", "1.12"]
    assert [step["worse"] for step in scan["steps"]] == [True, False]
    assert scan["releases"][7] == {"release": "1.7", "ratio": None}
    assert found["series"]["hunts"][1]["workloads"] == ["scan", "update-index"]


def test_tables_for_programs_and_for_issues(trial: Trial) -> None:
    rows = list(comparison_forms.delimited(trial, ","))
    assert "scan,update-index,point-query,release" in rows
    assert ",,,1.7" in rows
    assert any(re.fullmatch(r"1\.4,1\.5,1\.4,1\.5,0\.[\d.,]+,worse,scan", row) for row in rows)
    issue = list(comparison_forms.markdown(trial, detailed=False))
    assert "| after | since | within (95 %) | ratio (95 %) | workload |" in issue
    assert "| – | – | – | 1.7 |" in issue


def test_the_page_draws_every_release_and_every_step(trial: Trial) -> None:
    page = trial_page(trial, history=None)
    charts = re.findall(r'<svg class="chart series".*?</svg>', page)
    assert [chart.count("<circle") for chart in charts] == [19, 19, 19]
    assert [len(re.findall('class="step (?:bad|good)"', chart)) for chart in charts] == [2, 1, 1]
    assert [len(re.findall('class="plateau"', chart)) for chart in charts] == [3, 2, 2]
    assert "1.0 to 1.19 of demo: 4 steps in 3 workloads" in page
    assert "bisect run 1.4 1.5 --workload scan,update-index --builder demo" in page
