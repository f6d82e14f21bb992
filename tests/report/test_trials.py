"""Reports of comparisons, series of releases, watched branches, proofs and A/A tests, in all formats.

Whole reports are compared with the files below trials/. To accept a changed report, delete its file and run twice.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
from releases import published
from rich.text import Text

import sample_hunt as sample
from perfbisect.core.domain.codec import map_floats
from perfbisect.core.domain.events import PairingChosen
from perfbisect.core.domain.facts import DropHunt, SkipFacts, TrialRun, TrialSkip
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import RevertedCommits, TrialBuild, TrialRequest, TrialType, TrialWorkload
from perfbisect.core.stats.watched_branch import BranchLevels
from perfbisect.report import terminal
from perfbisect.report.markdown import delimited_lines, document_lines
from perfbisect.report.page.pages import session_page
from perfbisect.report.published import trial_object
from perfbisect.report.series import branch_document, branch_sentences, night_sentences
from perfbisect.report.trial import document
from perfbisect.wording.glyphs import writable
from pinned import pinned
from sample_hunt import series

RATIOS = {"point-query": (1.0, 0.9), "hot-points": (0.99, 0.95), "update-index": (0.55, 1.89)}
HUNTS = (
    DropHunt(0, 0, 1, 14, "not reproduced"),
    DropHunt(2, 0, 1, 12, "found", "5" * 40, "Check keys \x1b[31m"),
    DropHunt(2, 0, 2, 13, "interrupted"),
)


def made_of(request: TrialRequest, rates: Callable[[int, int, int], float]) -> SessionState:
    """A trial with these rates by round, workload and build. Builds with ``trouble`` have no runs."""
    made = SessionState.of_trial(3, request, sample.HOST, 0.0, "done")
    sizes = (request.rounds, len(request.works), len(request.subjects))
    for number, work, subject in product(*map(range, sizes)):
        if not request.subjects[subject].trouble:
            run = sample.run(0, 100.0 * number, qps=rates(number, work, subject))
            made.runs.append(TrialRun(number, work, subject, 100.0 * number, 12.0, run))
    return made


def comparison(*, broken: bool = False) -> SessionState:
    """Three builds and three workloads, measured in two rounds that hardly differ."""
    third = TrialBuild("community", path="/opt/mysql-8.0.40", key="key-c", binary="3", version="8.0.40")
    builds = (
        TrialBuild("8.0.28", "a" * 40, key="key-a", binary="1"),
        TrialBuild("8.0.29", "b" * 40, key="key-b", binary="2"),
        TrialBuild("8.0.30", "c" * 40, trouble="c.c:1:\x1b[31m no") if broken else third,
    )
    works = tuple(TrialWorkload(name, name.partition("-")[0].replace("hot", "point"), 1.0, 10.0) for name in RATIOS)
    request = TrialRequest(TrialType.COMPARE, "mysql", "o2nofp", "dell32", "qps", {"time": 10}, builds, works, 2, 1)
    ratios = [(1.0, *others) for others in RATIOS.values()]
    return made_of(
        request,
        lambda number, work, build: 1000 * (1 + number) * ratios[work][build] * (1 + 3e-4 * number * (build > 0)),
    )


def failed() -> SessionState:
    """The comparison with a crash, and with a build without counters."""
    made = comparison()
    skip = TrialSkip(2, 1, 5.0, SkipFacts("b" * 40, "run", "it crashed", "log", 1.0))
    runs = [replace(run, facts=replace(run.facts, counters={})) if run.subject == 2 else run for run in made.runs]
    request = replace(made.request, metric="cpu/o")
    return replace(made, runs=runs, skips=[skip], request=request, state="failed", failure="no room")


def paced(share: float) -> SessionState:
    """The comparison with 100 inserted rows per second in its first workload; a build sustains only ``share``."""
    made = comparison()
    for place, each in enumerate(made.runs):
        if each.work == 0:
            paced = {"insert-done": 1000 * (share if each.subject == 2 else 1.0), "insert-due": 1000.0}
            found = {**each.facts.counters, **paced, "insert-rate": 100.0, "client-busy": 0.1 + 0.25 * each.subject}
            made.runs[place] = replace(each, facts=replace(each.facts, counters=found))
    return made


def line() -> SessionState:
    """Twenty releases without 1.7: a drop of two workloads, an improvement, and a drop of the newest release."""
    steps = {"scan": ((5, -0.1), (12, 0.4)), "update-index": ((5, -0.2),), "point-query": ((19, -0.5),)}
    return series(steps, gaps=(7,))


def proof() -> SessionState:
    """A proof in which the revert regains most of the loss."""
    builds = tuple(TrialBuild(name, name * 10, key=name) for name in ("1.0", "1.1", "1.1 without cccccccccc"))
    request = TrialRequest(
        TrialType.PROVE, "demo", "o2nofp", "local", "qps", {}, builds, (TrialWorkload("scan", "scan", 1.0, 10.0),),
        3, 1, RevertedCommits(7, ("c" * 40,)),
    )  # fmt: skip
    return made_of(request, lambda number, _, build: (1000.0, 500.0, 900.0)[build] + number * (0.0, 4.0, 10.0)[build])


def noise() -> SessionState:
    """An A/A test of one build."""
    builds, works = (TrialBuild("3.42.0", "d" * 40),), (TrialWorkload("scan", "scan", 1.0, 10.0),)
    request = TrialRequest(TrialType.NOISE, "sqlite", "o2nofp", "local", "qps", {}, builds, works, 8, 1)
    return made_of(request, lambda number, _work, _build: 20_000.0 + 60 * (number * 5 % 8))


TRIALS = {
    "comparison": comparison(),
    "broken": comparison(broken=True),
    "failed": failed(),
    "hunted": replace(comparison(), hunts=HUNTS),
    "paced": paced(0.871),
    "series": line(),
    "proof": proof(),
    "noise": noise(),
}


def painted(line: str | Text) -> str:
    """The line with < and > around coloured text."""
    shown = str(line)
    for span in reversed(line.spans if isinstance(line, Text) else []):
        if span.style:
            shown = f"{shown[: span.start]}<{shown[span.start : span.end].strip()}>{shown[span.end :]}"
    return shown


def plain(made: SessionState) -> list[str]:
    return [str(line) for line in terminal.document_lines(document(made))]


def as_object(made: SessionState) -> Any:
    return msgspec.json.decode(msgspec.json.encode(trial_object(made)))


def as_json(made: SessionState) -> str:
    """Indented, with eight digits: further digits differ between processors."""
    rounded = map_floats(as_object(made), lambda number: float(f"{number:.8g}"))
    return msgspec.json.format(msgspec.json.encode(rounded)).decode()


FORMS: dict[str, Callable[[SessionState], Iterable[str]]] = {
    "txt": lambda made: map(painted, terminal.document_lines(document(made))),
    "md": lambda made: document_lines(document(made)),
    "tsv": lambda made: delimited_lines(document(made), "\t"),
    "json": lambda made: as_json(made).splitlines(),
}


IN_JSON = ("hunted", "paced", "proof", "noise")  # these have all fields
CASES = [(name, form) for name in TRIALS for form in FORMS if form != "json" or name in IN_JSON]


@pytest.mark.parametrize(("name", "form"), CASES)
def test_report_of_each_trial_in_each_format(name: str, form: str) -> None:
    text = "".join(f"{line}\n" for line in FORMS[form](TRIALS[name]))
    assert "\x1b" not in text
    pinned(f"report/trials/{name}.{form}", text)


def test_short_report_omits_measurement_details_and_costs() -> None:
    told = [str(line) for line in terminal.document_lines(document(comparison(), detailed=False), header=False)]
    assert told[0] == "Throughput relative to: 8.0.28"
    assert " 0.55   1.89  update-index" in told
    assert not [line for line in told if "cpu/o" in line]
    assert "    –      –  point-query" in plain(replace(comparison(), runs=[])), "nothing is measured yet"


def beside() -> SessionState:
    """A comparison with paired runs of two builds after interleaved runs."""
    made = comparison()
    chosen = PairingChosen(True, "Builds run in pairs.", alone=None, beside=None)
    for number, noise in enumerate((1.0, 1.4, 0.8)):
        for subject, rate in ((1, 900.0), (0, 1000.0)):
            run = replace(sample.run(0, 900.0 + number, qps=rate * noise), round=f"r{number}")
            made.runs.append(TrialRun(2 + number, 0, subject, 0.0, 12.0, run))
    return replace(made, pairing=chosen)


def test_report_counts_all_runs_and_tables_use_only_paired_runs() -> None:
    made = beside()
    told = plain(replace(made, request=replace(made.request, metric="latency")))
    whole = "6 paired runs in 3 rounds; 18 further interleaved runs only to choose between paired and interleaved runs"
    assert f"  measured  latency, time 10; {whole}" in told and f"95 % intervals, from {whole}" in told
    assert "latency (above 1: slower) relative to: 8.0.28" in told
    assert not [line for line in told if "r/o" in line], "nothing is read"
    (costs,) = (at for at, line in enumerate(told) if line.startswith("point-query, cpu/o"))
    assert told[costs].endswith("medians of paired runs, not by pairs")
    assert [line.split()[-2:] for line in told[costs + 3 : costs + 5]] == [["1,000", "8.0.28"], ["900", "8.0.29"]]
    alone = [replace(run, facts=replace(run.facts, operations=1)) for run in made.runs]
    assert not [line for line in plain(replace(made, runs=alone)) if "o/s" in line or line.endswith("qps")]


def test_report_draws_pairs_and_states_the_choice_of_pairing() -> None:
    made = beside()
    assert "  pairing   Builds run in pairs." in plain(made)
    assert as_object(made)["pairing"]["together"] is True
    two = replace(made.request, subjects=made.request.subjects[:2], works=made.request.works[:1])
    one = replace(made, request=two, pairing=PairingChosen(True, "", by_cpu=True))
    assert any("than 8.0.28 by CPU time" in each for each in plain(one))
    text = session_page(document(made, for_page=True))
    assert text.count("paired runs</h2>") == 1, "only one build has pairs, in one workload"
    assert text.count("×0.900</title>") == 3
    assert "paired runs</h2>" not in session_page(document(comparison(), for_page=True))


def test_json_of_a_series_has_steps_gaps_and_hunts() -> None:
    found = as_object(line())["series"]
    scan = found["lines"][0]
    assert [(step["since"], step["worse"]) for step in scan["steps"]] == [("1.5", True), ("1.12", False)]
    assert scan["releases"][7] == {"release": "1.7", "ratio": None}
    assert found["hunts"][1]["workloads"] == ["scan", "update-index"]
    assert as_object(failed())["skips"][0]["facts"]["reason"] == "it crashed"


def test_tables_for_spreadsheets() -> None:
    """Without perf, CPU time is that of the machine. A formula is escaped, so a spreadsheet does not execute it."""
    made = comparison()
    bare = [replace(run, facts=replace(run.facts, counters={})) for run in made.runs]
    works = (replace(made.request.works[0], name="=1+1"), *made.request.works[1:])
    told = list(delimited_lines(document(replace(made, runs=bare, request=replace(made.request, works=works))), ","))
    assert "1.00,0.90,'=1+1" in told
    at = told.index('"update-index, cpu/o in % of the machine per o/s"')
    assert float(told[at + 3].split(",")[0]) == (80 / 1000 + 80 / 2000) / 2


def test_report_with_small_or_no_effects() -> None:
    """A sustained rate has no warning, a small step has a small `--min-effect`, and a series may have no step."""
    told = plain(paced(0.995))
    assert "   100       100    100   99.5  point-query" in told
    assert not [line for line in told if "SLA" in line]
    text = "\n".join(plain(series({"scan": ((9, -0.01),)}, noise=0.0005)))
    assert "bisect run 1.8 1.9 --workload scan --min-effect 0.5% --builder demo" in text
    text = "\n".join(plain(series({})))
    assert "No step was found." in text and "bisect run" not in text
    assert writable(text, "ascii").isascii()


def test_pages_of_all_trials() -> None:
    told = {name: session_page(document(made, for_page=True)) for name, made in TRIALS.items()}
    for name, words in {
        "comparison": ("worse in 3 and better in 1 of 6 ratios</h1>", "col-1 : 8.0.29", "Relative to 8.0.28"),
        "hunted": ("5555555555",),
        "proof": ("regains",),
        "noise": ("Smallest detectable drop",),
        "series": ("4 steps in 3 workloads", "bisect run 1.4 1.5 --workload scan,update-index --builder demo"),
    }.items():
        assert not [each for each in words if each not in told[name]]
    two = replace(comparison(), request=replace(comparison().request, subjects=comparison().request.subjects[:2]))
    assert "8.0.29 against 8.0.28: worse in 1 of 3 workloads</h1>" in session_page(document(two, for_page=True))
    charts = re.findall(r'<svg class="chart series".*?</svg>', told["series"])
    drawn = [[len(re.findall(sign, chart)) for sign in ("<circle", 'class="step ', '"plateau"')] for chart in charts]
    assert drawn == [[19, 2, 3], [19, 1, 2], [19, 1, 2]]


@pytest.mark.parametrize(("releases", "marks"), [(8, [8, 1, 2]), (4, [4, 0, 3])])
def test_installed_releases_are_drawn_as_a_line(releases: int, marks: list[int]) -> None:
    """In the given order, with steps if there are enough releases. Builds in one folder are no releases."""
    made = series({"scan": ((3, -0.3),)}, releases=releases)
    builds = tuple(replace(each, path=f"/srv/{each.name}") for each in made.request.subjects)
    made.request = replace(made.request, subjects=builds, series=None)
    told = session_page(document(made, for_page=True))
    [scan, *others] = re.findall(r'<svg class="chart series".*?</svg>', told)
    assert [len(re.findall(sign, scan)) for sign in ("<circle", 'class="step ', '"plateau"')] == marks
    assert len(others) == 2 and all(f">{each.name}</text>" in scan for each in builds)
    assert ("scan, 1.2 → 1.3: ×0.7" in told) == (releases == 8) and "Relative to 1.0" in told
    assert "Steps" not in "".join(plain(made))
    made.request = replace(made.request, subjects=tuple(replace(each, path="/srv/one") for each in builds))
    assert "chart series" not in session_page(document(made, for_page=True))


def test_published_results_are_compared_with_measured_ratios(tmp_path: Path) -> None:
    """By whole intervals: if the interval is too wide, the result is open. Unmeasured workloads are left out."""
    made = series({"scan": ((3, -0.3),)}, releases=8)
    directions = [
        ("1.2", "1.3", "scan", "slower"), ("1.2", "1.3", "scan", "faster"), ("1.3", "1.4", "scan", "same"),
        ("1.2", "1.3", "scan", "same"), ("1.3", "1.4", "scan", "faster"), ("1.2", "1.3", "other", "same"),
    ]  # fmt: skip
    rows = [
        ["system", "from", "to", "workload", "direction", "figure", "source", "note"],
        *(["x", *row, "", "a", ""] for row in directions),
    ]
    (tmp_path / "published.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    found = [*published.cells(tmp_path / "published.tsv", [made], by_cpu_time=False)]
    assert [each.verdict for each in found] == ["agrees", "contradicted", "agrees", "contradicted", "open"]
    assert str(found[0]).startswith("| 1.2 → 1.3 | scan | [slower](a) | 0.7")


@pytest.fixture
def watched() -> tuple[SessionState, BranchLevels]:
    """Eight nights, with a drop whose hunt names a commit with a hostile subject."""
    nights = [sample.night(number) for number in range(8)]
    found = BranchLevels.from_nights(nights)
    hunts = (DropHunt(0, 4, 5, 12, "found", "c" * 40, "Lock <b>twice</b>"),)
    return replace(nights[-1], request=replace(nights[-1].request, subjects=found.tips), hunts=hunts), found


def test_step_of_a_branch_is_reported_with_its_commit(watched: tuple[SessionState, BranchLevels]) -> None:
    """The page also has a link to the hunt."""
    first, second = branch_sentences(*watched)
    assert first == "The series has 8 tips and 1 step in speed:"
    assert second.startswith("  scan, tip 4 → tip 5: ×0.800 (")
    assert second.endswith("a drop of 20 %: culprit cccccccccc Lock <b>twice</b> (hunt 12)")
    trial, lines = watched
    undecided = replace(trial, hunts=(replace(trial.hunts[0], culprit="", state="code placement"),))
    assert [*branch_sentences(undecided, lines)][1].endswith("hunt 12: code placement")
    assert [*branch_sentences(replace(trial, hunts=()), lines)][1].endswith("not hunted")
    written = session_page(branch_document(*watched, lambda hunt: f"hunt-{hunt}.html"))
    assert 'href="hunt-12.html"' in written and 'class="chart series"' in written
    assert "main: 8 tips, 1 step" in written and "<b>twice" not in written


def test_report_names_later_tips_that_could_not_be_built(watched: tuple[SessionState, BranchLevels]) -> None:
    """The summary and the page name the unbuildable tips after the last measured tip."""
    nights = [sample.night(number) for number in range(5)]
    for number in (1, 3, 4):
        request = nights[number].request
        *earlier, tip = request.subjects
        tip = replace(tip, trouble="no compiler", name=f"<b>tip {number}")
        nights[number].request = replace(request, subjects=(*earlier, tip))
        for each in nights:
            each.runs = [run for run in each.runs if run.facts.commit != tip.commit]
    found = BranchLevels.from_nights(nights)
    assert [tip.name for tip in found.tips] == ["tip 0", "tip 2"]
    trial = replace(watched[0], request=replace(watched[0].request, subjects=found.tips), hunts=())
    said = "2 later tips could not be built: <b>tip 3 and <b>tip 4."
    assert [*branch_sentences(trial, found)] == ["The series has 2 tips and 0 steps in speed.", said]
    assert said.replace("<b>", "&lt;b&gt;") in session_page(branch_document(trial, found, str))


def test_report_of_a_night_has_a_ratio_or_a_failure() -> None:
    made = sample.night(5)
    [said] = night_sentences(made)
    assert said.startswith("scan: tip 5 is ×0.800") and "of tip 3, in 3 rounds" in said
    assert "is the first tip of the series" in next(night_sentences(sample.night(0)))
    made.skips.append(TrialSkip(0, 2, 0.0, SkipFacts("", "run", "it \x1b[2Jfails", "", 0.0)))
    assert [*night_sentences(made)] == ["scan: tip 5 fails: it \\x1b[2Jfails"]
    *others, tip = made.request.subjects
    made.request = replace(made.request, subjects=(*others, replace(tip, trouble="no compiler")))
    assert [*night_sentences(made)] == ["tip 5 cannot be built, so it is not measured: no compiler"]
