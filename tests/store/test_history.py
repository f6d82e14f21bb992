"""Sessions, events and settings are stored and read, also after kills, damage and loss of the file."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import sample_hunt as sample
from perfbisect.cli.commands.history import batch_line, session_table
from perfbisect.core.domain.events import (
    LIVE_ONLY,
    BuildFinished,
    BuildProgress,
    BuildStarted,
    CandidateSkipped,
    Commit,
    Decided,
    MetricChosen,
    RunFinished,
    RunProgress,
    SessionEnded,
    Warned,
)
from perfbisect.core.domain.orders import (
    Belief,
    CodePlacement,
    Decision,
    Found,
    Inconclusive,
    Interval,
    LayoutRatios,
    Measure,
    NotReproduced,
    PlannedRuns,
    Purpose,
    Reason,
    Several,
    Step,
    Verdict,
)
from perfbisect.core.domain.settings import ChangeDirection, Policy, PriorKnowledge
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.store.batches import all_batches, begin_batch
from perfbisect.store.history import History

ODD_TEXT = "J\udce4 \0\n'é→\U0001f9ed"  # with a lone surrogate


def test_each_kind_of_event_is_read_as_it_was_written(history: History) -> None:
    step = Step(3, 0.97, Interval(0.7, 0.8, 0.9), (2,))
    run = replace(sample.run(1, 5.0), visit=ODD_TEXT, samples=(), counters={ODD_TEXT: None, "x": -5e-324}, log=ODD_TEXT)
    events = [
        Warned("w", "a"),
        MetricChosen("cpu/o", "Because."),
        sample.started(),
        sample.started(sample.CANDIDATES[:2], resumed=True),
        BuildStarted(3, Commit("f" * 40, "2020-01-02", ODD_TEXT, "Größe ändern")),
        BuildFinished(0, sample.build(0, binary=ODD_TEXT, hits=2**40), None),
        BuildFinished(1, sample.build(1, seconds=1e-3), 0),
        CandidateSkipped(2, sample.skip(2, ODD_TEXT, "")),
        RunFinished(1, run),
        RunFinished(1, replace(run, operations=2**53, latency={"avg": 1.7e308})),
        SessionEnded(Found(step)),
        SessionEnded(Several((step, step))),
        SessionEnded(NotReproduced(step.ratio, 0.02)),
        SessionEnded(
            CodePlacement(replace(step, layouts=LayoutRatios(step.ratio, 7, 3)), step.ratio, 0.02, same_counts=True)
        ),
        SessionEnded(Found(replace(step, layouts=LayoutRatios(step.ratio, 5, 5)))),
        SessionEnded(Inconclusive((1, 2), (0.5, 0.4), step.ratio, Reason.BUILDS_SPENT)),
    ]
    hunt = sample.begin(history)
    for number, event in enumerate(events):
        history.append(hunt, event, number / 7)
    assert [(entry.at, entry.event) for entry in history.events(hunt)] == [(n / 7, e) for n, e in enumerate(events)]
    assert history.connection.execute("PRAGMA foreign_key_check").fetchall() == []


def test_progress_is_not_stored_and_nan_is_refused(history: History) -> None:
    hunt = sample.begin(history)
    for event in (BuildProgress(1, 2, 3, "compile"), RunProgress(1, 2.0, 3.0)):
        history.append(hunt, event, 5.0)
    with pytest.raises(ValueError, match="JSON"):
        history.append(hunt, RunFinished(1, replace(sample.run(1, 5.0), seconds=float("nan"))), 5.0)
    assert list(history.events(hunt)) == []


def test_settings_are_read_as_they_were_written(history: History) -> None:
    policy = Policy(confidence=0.9, direction=ChangeDirection.RISE, max_minutes=1.5)
    prior = PriorKnowledge(4.5, 0.01, ("small", "large"))
    asked = replace(
        sample.SETTINGS, overrides={"time": 3, "x": True, "y": 0.5, "z": "ä"}, policy=policy, prior=prior, metric="p95"
    )
    assert history.settings(sample.begin(history, asked)) == asked


def test_events_of_two_hunts_are_kept_apart(history: History) -> None:
    first, second = sample.begin(history), sample.begin(history)
    history.append(first, BuildFinished(1, sample.build(1), None), 1.0)
    history.append(second, BuildFinished(2, sample.build(2), None), 2.0)
    assert sample.logged(history, first) == [(1.0, BuildFinished(1, sample.build(1), None))]
    history.append(first, Warned("later"), 3.0)
    entries = list(history.events(first))
    assert list(history.events(first, entries[0].id)) == entries[1:]
    assert history.latest_hunt() == second
    assert history.start_time(first) == sample.BEGAN


def test_range_is_stored_once_for_all_attempts_of_a_hunt(history: History) -> None:
    candidates = tuple(f"{number:040x}" for number in range(2000))
    hunt = history.begin_session(sample.SETTINGS, sample.started(candidates), 1.0)
    again = sample.started(candidates, resumed=True)
    for _ in range(3):
        history.append(hunt, again, 2.0)
    assert [entry.event for entry in history.events(hunt)] == [again] * 3
    [(longest,)] = history.query("select max(length(body)) from events").rows
    assert longest < 1000


def test_unknown_hunt_is_an_error(history: History) -> None:
    for ask in (History.settings, History.start_time, sample.logged, History.candidates, History.session_summary):
        with pytest.raises(UsageError, match="no hunt 7"):
            ask(history, 7)
    assert history.hunts() == []
    with pytest.raises(UsageError, match="no hunts yet"):
        history.latest_hunt()


def test_hunt_is_running_until_its_end_and_after_its_resumption(history: History) -> None:
    hunt, ratio = sample.begin(history), Interval(0.9, 1.0, 1.1)
    moved = Step(1, 0.9, ratio, (0,), layouts=LayoutRatios(ratio, 7, 3))
    assert history.session_summary(hunt).state == "running"
    for at, (event, state, culprit) in enumerate((
        (SessionEnded(Inconclusive((1, 2), (0.5, 0.4), ratio, Reason.BUILDS_SPENT)), "inconclusive", None),  # no suspect
        (sample.started(resumed=True), "running", None),
        (SessionEnded(NotReproduced(ratio, 0.02)), "not reproduced", None),
        (SessionEnded(CodePlacement(moved, ratio, 0.02)), "code placement", sample.CANDIDATES[1]),
    )):  # fmt: skip
        history.append(hunt, event, 5.0 + at)
        listed = history.session_summary(hunt)
        assert (listed.state, listed.culprit) == (state, culprit)
        assert listed.probability == (0.9 if culprit else None)


WRITE = """
import sys
from pathlib import Path
import sample_hunt as sample
from perfbisect.core.domain.events import RunFinished
from perfbisect.store.history import History

history = History.open(Path(sys.argv[1]))
hunt = sample.begin(history)
print(hunt, flush=True)
for number in range(int(sys.argv[2])):
    history.append(hunt, RunFinished(1, sample.run(1, float(number))), float(number))
    print(number, flush=True)
"""


def writer(path: Path, entries: int) -> "subprocess.Popen[str]":
    """Another process that begins a hunt, and prints its number and then the index of each appended event."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", WRITE, str(path), str(entries)], stdout=subprocess.PIPE, text=True, env=environment
    )


def test_kill_loses_no_acknowledged_event(path: Path) -> None:
    with writer(path, 10**6) as process:
        assert process.stdout is not None
        hunt = int(process.stdout.readline())
        acknowledged = [float(process.stdout.readline()) for _ in range(7)]
        process.send_signal(signal.SIGKILL)
        acknowledged += [float(line) for line in process.stdout.read().split("\n") if line.strip()]
    assert process.returncode == -signal.SIGKILL
    with closing(History.open(path, read_only=True)) as history:
        assert list(history.query("pragma integrity_check").rows) == [("ok",)]
        assert [at for at, _ in sample.logged(history, hunt)][: len(acknowledged)] == acknowledged
        assert history.session_summary(hunt).state == "interrupted"
        [(runs, events)] = history.query("select (select count(*) from runs), (select count(*) from events)").rows
        assert runs == events  # tables of facts never disagree with the log
    with closing(History.open(path)) as history:
        history.append(hunt, sample.started(resumed=True), 9.0)
        assert history.session_summary(hunt).state == "running"


def test_two_processes_write_while_a_third_process_reads(path: Path) -> None:
    with writer(path, 25) as first, writer(path, 25) as second:
        hunts = [int(process.stdout.readline()) for process in (first, second) if process.stdout]
        with closing(History.open(path, read_only=True)) as history:
            assert {listed.id for listed in history.hunts()} >= set(hunts)
        for process in (first, second):
            process.communicate(timeout=600)
    assert (first.returncode, second.returncode) == (0, 0)
    with closing(History.open(path, read_only=True)) as history:
        assert sorted(hunts) == [1, 2]
        assert [len(sample.logged(history, hunt)) for hunt in hunts] == [25, 25]


def decided(order: Measure | Verdict, culprit: list[float], **more: tuple[Step, ...]) -> Decided:
    """A decision with the probability ``culprit`` of each candidate."""
    return Decided(Decision(order, Belief(np.array(culprit), 0.9, 0.01, Interval(0.8, 0.9, 1.0)), **more))


ORDER = Measure((PlannedRuns(1, 1),), Purpose.SEARCH)
UNCHANGED = SessionEnded(NotReproduced(Interval(0.98, 1.0, 1.02), 0.03))


@pytest.mark.parametrize(
    ("culprit", "suspect"),
    [
        ([0.0, *[0.02] * 4, 0.82, *[0.02] * 5], (5, 0.82)),
        ([0.0] * 10 + [1.0], (10, 1.0)),
        ([0.0, *[0.1] * 10], None),
        ([0.0, 0.2, 0.25, 0.25, *[0.05] * 7], None),
        ([0.0, 1.0], None),  # of the comparison of good with the merge base
    ],
)
def test_probable_suspect_is_listed(history: History, culprit: list[float], suspect: tuple[int, float] | None) -> None:
    hunt = sample.begin(history)
    assert history.session_summary(hunt).suspect == ""
    history.append(hunt, decided(ORDER, culprit), 5.0)
    listed = history.session_summary(hunt)
    known = (sample.CANDIDATES[suspect[0]], suspect[1]) if suspect else ("", None)
    assert (listed.state, listed.suspect, listed.suspicion) == ("running", *known)
    history.append(hunt, UNCHANGED, 7.0)
    assert history.session_summary(hunt).suspect == ""


def test_running_hunt_is_listed_with_its_found_culprit(history: History) -> None:
    hunt, step = sample.begin(history), Step(sample.CULPRIT, 0.99, Interval(0.706, 0.718, 0.731), (6,))
    for event, culprit in (
        (replace(sample.started(sample.CANDIDATES[:2]), of_merge_base=True), None),
        (decided(Found(replace(step, candidate=1)), [0.0, 1.0]), None),  # good differs from the merge base
        (sample.started(), None),
        (decided(ORDER, [0.0, 1.0]), None),
        (decided(ORDER, [0.0, 1.0], found=(step,)), sample.CANDIDATES[sample.CULPRIT]),
        (decided(Several((replace(step, candidate=3),)), [0.0, 1.0]), sample.CANDIDATES[3]),  # not yet explained
        (UNCHANGED, None),
    ):
        history.append(hunt, event, 5.0)
        listed = history.session_summary(hunt)
        assert (listed.culprit, listed.probability, listed.state == "running") == (
            culprit, 0.99 if culprit else None, event != UNCHANGED,
        )  # fmt: skip
        assert culprit is None or listed.ratio == 0.718
    assert [entry.event.decision.found for entry in history.events(hunt) if isinstance(entry.event, Decided)][2] == (
        step,
    )


def replace_history(path: Path) -> None:
    """Replace the history by another history."""
    other = path.with_name("other.db")
    History.open(other).close()
    other.replace(path)


def begin_anew(path: Path) -> None:
    """Move the history away, and begin another history in its place."""
    path.rename(path.with_name("moved.db"))
    with closing(History.open(path)) as another:
        sample.begin(another)


ODD = (
    "UPDATE attempts SET failure = x'ff' WHERE session_id = {}",
    "UPDATE attempts SET failure = CAST(x'ff' AS TEXT) WHERE session_id = {}",
    "UPDATE attempts SET process = 'x' WHERE session_id = {}",
    "UPDATE sessions SET started = 9e999 WHERE id = {}",
    "UPDATE sessions SET started = 1e18 WHERE id = {}",
    "UPDATE sessions SET host = x'00' WHERE id = {}",
    "UPDATE sessions SET run_count = 'many' WHERE id = {}",
)
TRIAL = sample.series({"scan": ((8, -0.1),)}, rounds=1)
KINDS: list[tuple[Callable[[History], int], str]] = [
    *((sample.write, odd) for odd in (*ODD, "UPDATE verdicts SET kind = 'x' WHERE session_id = {}")),
    *(
        (partial(sample.write_trial, trial=TRIAL), odd)
        for odd in (*ODD, "UPDATE sessions SET kind = 'x' WHERE id = {}")
    ),
]


@pytest.mark.parametrize(("write", "odd"), KINDS)
def test_damaged_session_is_named_others_are_shown(history: History, write: Callable[[History], int], odd: str) -> None:
    numbers = [write(history) for _ in range(3)]
    if write is not sample.write or "process" in odd:
        history.connection.execute("UPDATE sessions SET ended = NULL")
    history.connection.execute(odd.format(numbers[1]))
    found = sorted(history.hunts_and_trials(), key=lambda one: str(one.id)[-1])
    assert [one.state == "damaged" for one in found] == [False, True, False]
    assert "its row cannot be read" in found[1].failure and session_table(found)
    if write is sample.write:
        with pytest.raises(EnvironmentFailure, match=f"row {numbers[1]}, cannot be read"):
            history.session_summary(numbers[1])


def test_damaged_batch_is_named_and_hides_no_other(history: History) -> None:
    numbers = [begin_batch(history, f"{name}.toml", [], 1.0) for name in "abc"]
    history.connection.execute("UPDATE batches SET file = x'ff' WHERE id = ?", [numbers[1]])
    found = all_batches(history)
    assert [one.file.endswith(".toml") for one in found] == [True, False, True]
    assert f"batch {numbers[1]}, table batches" in batch_line(found[1])


@pytest.mark.parametrize(
    "lose", [Path.unlink, lambda path: path.rename(path.with_name("moved.db")), replace_history, begin_anew]
)
def test_history_lost_while_written_is_saved(history: History, path: Path, lose: Callable[[Path], object]) -> None:
    hunt = sample.begin(history)
    events = [entry for entry in sample.events() if not isinstance(entry[1], LIVE_ONLY)]
    for at, event in events[:5]:
        history.append(hunt, event, at)
    before = history.select("SELECT * FROM events")
    lose(path)
    with pytest.raises(EnvironmentFailure, match=r"was deleted or moved .* is now in .*saved.*\.db"):
        history.append(hunt, events[5][1], events[5][0])
    assert history.path != path and history.path.stat().st_mode & 0o077 == 0
    history.enter_failure(hunt, "the history was lost", 9.0)
    assert history.select("SELECT * FROM events") == before
    with closing(History.open(history.path, read_only=True)) as saved:
        assert saved.select("SELECT * FROM events") == before
        assert saved.session_summary(hunt).failure == "the history was lost"
    if lose is begin_anew:
        with closing(History.open(path, read_only=True)) as another:
            assert [one.id for one in another.hunts_and_trials()] == [1], "the new history is intact"
