"""What is said of a watched branch, and its page."""

from dataclasses import replace

import pytest

import sample_hunt as sample
from perfbisect.core.domain.facts import SkipFacts
from perfbisect.core.domain.trials import DropHunt, Trial, TrialSkip
from perfbisect.core.stats.watched_branch import Branch
from perfbisect.report.branch import document, night, summary
from perfbisect.report.page.pages import page


@pytest.fixture
def line() -> tuple[Trial, Branch]:
    """Eight nights, with a drop whose hunt names a commit with a hostile subject."""
    nights = [sample.night(number) for number in range(8)]
    found = Branch.of(nights)
    request = replace(nights[-1].request, subjects=found.tips)
    hunts = (DropHunt(0, 4, 5, 12, "found", "c" * 40, "Lock <b>twice</b>"),)
    return replace(nights[-1], request=request, hunts=hunts), found


def test_a_step_with_its_commit(line: tuple[Trial, Branch]) -> None:
    first, second = summary(*line)
    assert first == "The line has 8 tips and 1 step:"
    assert second.startswith("  scan, tip 4 → tip 5: ×0.800 (")
    assert second.endswith("a drop of 20 %: cccccccccc Lock <b>twice</b> (hunt 12)")
    trial, lines = line
    undecided = replace(trial, hunts=(replace(trial.hunts[0], culprit="", state="code placement"),))
    assert [*summary(undecided, lines)][1].endswith("hunt 12: code placement")
    assert [*summary(replace(trial, hunts=()), lines)][1].endswith("not hunted")


def test_later_tips_that_could_not_be_built_are_told(line: tuple[Trial, Branch]) -> None:
    """Those since the last tip that was measured, by the summary and by the page."""
    nights = [sample.night(number) for number in range(5)]
    for number in (1, 3, 4):
        request = nights[number].request
        *earlier, tip = request.subjects
        tip = replace(tip, trouble="no compiler", name=f"<b>tip {number}")
        nights[number].request = replace(request, subjects=(*earlier, tip))
        for each in nights:
            each.runs = [run for run in each.runs if run.facts.commit != tip.commit]
    branch = Branch.of(nights)
    assert [tip.name for tip in branch.tips] == ["tip 0", "tip 2"]
    trial = replace(line[0], request=replace(line[0].request, subjects=branch.tips), hunts=())
    said = "2 later tips could not be built: <b>tip 3 and <b>tip 4."
    assert [*summary(trial, branch)] == ["The line has 2 tips and 0 steps.", said]
    assert said.replace("<", "&lt;").replace("b>", "b&gt;") in page(document(trial, branch, str))


def test_the_page_leads_to_the_hunt(line: tuple[Trial, Branch]) -> None:
    written = page(document(*line, lambda hunt: f"hunt-{hunt}.html"))
    assert 'href="hunt-12.html"' in written
    assert "main: 8 tips, 1 step" in written
    assert "<b>twice" not in written
    assert 'class="chart series"' in written


def test_what_a_eachsays() -> None:
    made = sample.night(5)
    [said] = night(made)
    assert said.startswith("scan: tip 5 is ×0.800")
    assert "of tip 3, in 3 rounds" in said
    assert "is the first tip of the line" in next(night(sample.night(0)))
    made.skips.append(TrialSkip(0, 2, 0.0, SkipFacts("", "run", "it \x1b[2Jfails", "", 0.0)))
    assert [*night(made)] == ["scan: tip 5 fails: it \\x1b[2Jfails"]
    tip = replace(made.request.subjects[-1], trouble="no compiler")
    made.request = replace(made.request, subjects=(*made.request.subjects[:-1], tip))
    assert [*night(made)] == ["tip 5 cannot be built, so nothing is measured: no compiler"]
