"""`--metric auto`: measured at the ends, chosen once, kept."""

import io
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path

import pytest

from computed import ComputedLab, CountingLab, commits, culprit, hunt, log_of, measured_by, problem, speeds, started
from named import found
from perfbisect.core.domain.events import Event, LabEvent, RunFinished, Warned
from perfbisect.core.domain.orders import Found, Measure, Verdict
from perfbisect.core.domain.settings import Direction, Policy, PriorKnowledge, Settings
from perfbisect.core.inference.hunt_state import HuntState, effect_of, fold, ratios
from perfbisect.core.inference.metric_choice import COUNTS, RUNS, Choice
from perfbisect.errors import UsageError
from perfbisect.hunt.auto_metric import choice_at_ends, with_metric_chosen
from perfbisect.hunt.further_runs import TIMED, culprit_timed
from perfbisect.hunt.resolve import resolve_settings
from perfbisect.hunt.search_problem import SavedLog, SearchProblem, WorkersFor
from perfbisect.hunt.setup import HuntSetup
from perfbisect.lab.measure import counting
from perfbisect.store.history import History
from perfbisect.ui.lines import PlainLines
from perfbisect.wording.reasons import metric_sentence

NAMES = commits(30)
LAST = len(NAMES) - 1


def chosen(
    log: SavedLog, timed: WorkersFor, counted: WorkersFor | None = None, most: int = 0
) -> tuple[Choice, list[Event]]:
    """The choice, and the events until then."""
    asked = replace(problem(NAMES), policy=Policy(max_runs=most))
    steps, events = choice_at_ends(asked, log, timed, counted), []
    while True:
        try:
            events.append(next(steps)[1])
        except StopIteration as end:
            return end.value, events


def runs_in(log: SavedLog) -> list[tuple[str, bool]]:
    """The commit of each run of a log, and whether it was counted exactly."""
    return [(e.facts.commit, bool(e.facts.counted)) for _, e in log.entries if isinstance(e, RunFinished)]


def test_counts_show_what_a_rate_hides(history: History) -> None:
    """A drop of 1 % by 5 % more instructions, with runs that vary by 1 %."""
    lab, log = CountingLab(NAMES, speeds(NAMES, 17, slow=0.99)), log_of(history, NAMES)
    choice, _ = chosen(log, measured_by(lab))
    assert choice.metric == "instructions/o"
    said = metric_sentence(choice)
    assert said.startswith("The metric is instructions/o, which shows the change between the ends best: a rise of ")
    assert "as QPS gives" in said
    assert sorted(runs_in(log)) == sorted([(NAMES[0], False), (NAMES[LAST], False)] * RUNS)
    rising = replace(problem(NAMES, choice.metric), policy=Policy(direction=Direction.RISE))
    assert culprit([event for _, event in hunt(rising, started(NAMES), log, measured_by(lab))]).candidate == 17


def exact_hunt(history: History, log: SavedLog, choice: Choice, timed: WorkersFor, counted: WorkersFor) -> HuntState:
    """The state after a hunt by exact counts, whose culprit is timed before its end."""
    by_counts: SearchProblem = replace(
        problem(NAMES, choice.metric),
        policy=Policy(direction=Direction.RISE, min_effect=0.001),
        prior=PriorKnowledge(exact=True),
    )

    def afterwards(verdict: Verdict) -> Generator[tuple[float, Event]]:
        return culprit_timed(found(verdict), by_counts, log, timed)

    for _ in hunt(by_counts, started(NAMES), log, counted, afterwards=afterwards):
        pass
    return fold((entry.at, entry.event) for entry in history.events(log.hunt))


@pytest.mark.parametrize("slow", [0.9, 0.9999])
def test_a_culprit_of_exact_counts_is_timed(history: History, slow: float) -> None:
    """It executes 10 % more, and is slower by 10 % or by nothing."""
    truth, log = speeds(NAMES, 17, slow=slow), log_of(history, NAMES)
    timed = measured_by(CountingLab(NAMES, truth, extra=1.1))
    lab = CountingLab(NAMES, truth, extra=1.1, exactly=True)
    choice, _ = chosen(log, timed, measured_by(lab, "instructions/o"))
    assert choice.metric == "instructions/o" and choice.best and choice.best.noise < 1e-4
    assert sorted(runs_in(log)[2 * RUNS :]) == sorted([(NAMES[0], True), (NAMES[LAST], True)] * COUNTS)
    state = exact_hunt(history, log, choice, timed, measured_by(lab, "instructions/o"))
    assert isinstance(state.verdict, Found)
    step = state.verdict.step
    assert (step.candidate, step.parents) == (17, (16,))
    ends = {NAMES[0], NAMES[LAST]}
    assert [commit for commit, counted in runs_in(log) if not counted and commit not in ends].count(NAMES[17]) == TIMED
    shown = ratios(state, "instructions/o")[NAMES[LAST]]
    assert shown.low == pytest.approx(1.1, abs=1e-4) and shown.high == pytest.approx(1.1, abs=1e-4)
    effect = effect_of(state, step, "qps")
    assert effect and effect.low < slow < effect.high
    assert (effect.high < 1) is (slow == 0.9)
    assert effect_of(state, replace(step, candidate=18, parents=(17,)), "qps") is None


def test_without_a_change_it_stays_that_of_the_workload(history: History) -> None:
    choice, _ = chosen(log_of(history, NAMES), measured_by(CountingLab(NAMES, speeds(NAMES, 17, slow=1.0))))
    assert choice.metric == "qps"
    assert "no recorded metric shows a change" in metric_sentence(choice)


@pytest.mark.parametrize("cut", range(1, 20, 3))
def test_a_cut_choice_goes_on_by_the_same_runs(history: History, cut: int) -> None:
    truth = speeds(NAMES, 17, slow=0.99)
    lab, exact = CountingLab(NAMES, truth), CountingLab(NAMES, truth, exactly=True)
    workers = measured_by(lab), measured_by(exact, "instructions/o")
    log = log_of(history, NAMES)
    steps = choice_at_ends(problem(NAMES), log, *workers)
    for _ in range(cut):
        next(steps)
    steps.close()
    again = SavedLog(history, log.hunt)
    choice, _ = chosen(again, *workers)
    assert choice.metric == "instructions/o"
    assert len(runs_in(again)) == 2 * (RUNS + COUNTS)
    assert chosen(again, *workers) == (choice, [])


@pytest.mark.parametrize(("most", "made"), [(1, 0), (2, 2), (4, 4), (7, 6)])
def test_the_budget_counts_for_it(history: History, most: int, made: int) -> None:
    """Both ends have equally many runs; a single one compares nothing, and is left to the search."""
    log, lab = log_of(history, NAMES), measured_by(CountingLab(NAMES, speeds(NAMES, 17)))
    chosen(log, lab, lab, most=most)
    assert len(runs_in(log)) == made


def test_a_method_that_fails_is_said_and_the_others_remain(history: History) -> None:
    """valgrind does not know every instruction of every processor."""

    class Failing(ComputedLab):
        def measure(self, order: Measure) -> Generator[LabEvent]:
            raise UsageError("no.", "Do this.")
            yield

    lab = CountingLab(NAMES, speeds(NAMES, 17, slow=0.99))
    choice, events = chosen(log_of(history, NAMES), measured_by(lab), measured_by(Failing(NAMES, {})))
    assert choice.metric == "instructions/o"
    assert Warned("Instructions are not counted exactly: no.", "Do this.") in events


def test_an_end_that_does_not_build(history: History) -> None:
    """Nothing can be compared: the hunt ends by itself, in the workload's own metric."""
    lab = CountingLab(NAMES, speeds(NAMES, 17), frozenset({NAMES[0]}))
    log = log_of(history, NAMES)
    assert chosen(log, measured_by(lab))[0].metric == "qps"
    assert chosen(log, measured_by(lab))[1] == []


def test_a_culprit_beyond_the_budget_is_not_timed(history: History) -> None:
    log, truth = log_of(history, NAMES), speeds(NAMES, 17)
    timed = measured_by(CountingLab(NAMES, truth))
    exact = measured_by(CountingLab(NAMES, truth, exactly=True), "instructions/o")
    few = replace(
        problem(NAMES, "instructions/o"),
        policy=Policy(direction=Direction.RISE, max_runs=14),
        prior=PriorKnowledge(exact=True),
    )
    state = fold(
        hunt(few, started(NAMES), log, exact, afterwards=lambda verdict: culprit_timed(found(verdict), few, log, timed))
    )
    assert state.verdict is not None
    assert all(counted for _, counted in runs_in(log))


@pytest.mark.tools
def test_the_choice_and_the_hunt_are_said_once_each(
    history: History, git: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe and the host are real, as the choice asks them how to count; the measurements are not."""
    monkeypatch.setattr(counting, "method", lambda _: "")
    for number in range(2):
        (tmp_path / "repo" / "file.c").write_text(f"int x = {number};\n")
        git("add", "-A")
        git("commit", "-qm", f"commit {number}")
    asked = Settings("HEAD~1", "HEAD", str(tmp_path / "repo"), "demo", "update-index", "local", choose_metric=True)
    [setup] = HuntSetup.set_up([resolve_settings(asked)])
    lab, log, out = CountingLab(NAMES, speeds(NAMES, 17, slow=0.99)), log_of(history, NAMES), io.StringIO()
    view = PlainLines(out, {1: ""})
    steps = with_metric_chosen(setup, problem(NAMES), started(NAMES), log, lambda _: measured_by(lab))
    while True:
        try:
            at, event = next(steps)
        except StopIteration as end:
            after = end.value.settings
            break
        view.show(1, [(at, event)])
    assert (after.metric, after.choose_metric) == ("instructions/o", False)
    by_counts = replace(problem(NAMES, after.metric), policy=after.policy)
    for at, event in hunt(by_counts, None, log, measured_by(lab)):
        view.show(1, [(at, event)])
    words = [line[10:].split()[0] for line in out.getvalue().splitlines() if line[10:].strip()]
    assert [word for word in words if word in ("hunt", "metric", "warning")] == ["hunt", "metric"]
    assert "rinstructions/o" in out.getvalue(), "what follows is compared by the metric that was chosen"
    state = fold((entry.at, entry.event) for entry in history.events(log.hunt))
    assert state.started and state.started.metric == "instructions/o"
    assert state.why_metric.startswith("The metric is instructions/o, which shows the change")
