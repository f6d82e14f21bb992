"""`bisect nightly`: ten nights of a branch, a second start in a night, interruptions, kills, and a rewritten branch."""

import json
import re
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from program import SCRIPT, bisect, bisect_until, executable, exits, rows
from repos import Repo

pytestmark = pytest.mark.tools

HOW = [*SCRIPT, "--no-explain", "--pairing", "interleaved", "--visits", "3", "--runs", "1", "--history", "h.db"]
NIGHT = ["nightly", "main", *HOW, "--page", "pages"]
JITTER = "jitter=$(( $(date +%N | cut -c 4-6 | sed 's/^0*//;s/^$/0/') / 20 ))\n"  # less than 0.5 % of a rate of 10,000
REASONS = "select count(*) from events where kind in ('Counted', 'Profiled', 'Unexplained')"

Commit = Callable[[str], str]


def at(rate: int, number: int) -> str:
    """The script of commit ``number``, which prints ``rate`` with jitter."""
    return f"# change {number}\n{JITTER}echo rate $(({rate} + jitter))"


def notices() -> list[dict[str, str]]:
    kept = Path("kept")
    return [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []


def asked(sql: str) -> list[tuple[object, ...]]:
    return rows(Path("h.db"), sql)


@pytest.fixture
def keep(tmp_path: Path) -> list[str]:
    """The option ``--notify`` with a program that appends each notice to the file ``kept``, as a line."""
    text = f"#!/bin/sh\ntr -d '\\n' >>{tmp_path}/kept\necho >>{tmp_path}/kept\n"
    return ["--notify", str(executable(tmp_path / "keep", text))]


@pytest.mark.calibrate
@pytest.mark.e2e
def test_ten_nights_hunt_each_drop_once(script: Commit, keep: list[str]) -> None:
    """100 commits with three drops, two improvements, nights without commits or without a change, a broken build."""
    changes = {15: 0.8, 34: 1.25, 58: 0.85, 77: 1.2, 95: 0.75}  # commit → factor on the rate
    rate, hashes, said = 10000, list[str](), list[str]()
    for commits in (10, 20, 30, 40, 40, 50, 60, 70, 80, 100):
        while len(hashes) < commits:
            number = len(hashes) + 1
            rate = round(rate * changes.get(number, 1.0))
            hashes.append(script(f"# {number} does not build" if number in range(68, 71) else at(rate, number)))
        said.append(exits(0, *NIGHT, *keep))
        measured, sent = asked("select count(*) from runs"), notices()
        exits(0, *NIGHT, *keep)
        assert (asked("select count(*) from runs"), notices()) == (measured, sent), "a second start measures nothing"
    culprits = [hashes[number - 1] for number, factor in changes.items() if factor < 1]
    page = Path("pages/main.html").read_text()
    for culprit, got in zip(culprits, notices(), strict=True):
        assert f"The culprit is {culprit[:10]}" in got["text"] and culprit[:10] in page
        assert Path(got["page"]).exists()
    assert "cannot be built" in said[7]
    assert asked("select count(*) from hunts") == [(3,)]
    assert asked("select count(*) from trials where kind = 'noise'") == [(1,)], "one check of the host a day"
    steps = [line for line in said[-1].splitlines() if line.startswith("  one, ")]
    assert [line.endswith("an improvement") for line in steps] == [factor > 1 for factor in changes.values()]
    assert len(re.findall(r'href="hunt-\d+\.html"', page)) == 3


@pytest.mark.slow
@pytest.mark.e2e
def test_same_command_continues_an_interrupted_night(script: Commit, keep: list[str]) -> None:
    """The night is killed in its rounds, then interrupted in its hunts; then its notice, for two hunts, fails once."""
    words = ["nightly", "main", *HOW, "--workload", "one,two"]
    script(at(10000, 0))
    assert "is the first tip of the series, so it has no ratio yet" in exits(0, *words)
    culprit = [script(at(10000 if number < 3 else 7000, number)) for number in range(1, 6)][2]
    assert bisect_until(words, "run 3 of", signal.SIGKILL).returncode == -signal.SIGKILL
    ended = bisect_until([*words, *keep], "ran ", signal.SIGINT)
    assert ended.returncode == 130 and "repeat this command" in ended.stderr
    assert not notices()
    assert "the next nightly run repeats the command" in exits(0, *words, "--notify", "false")
    exits(0, *words, *keep)
    exits(0, *words, *keep)
    [got] = notices()
    assert f"The culprit is {culprit[:10]}" in got["text"]
    every = [("noise", None), ("compare", None), ("compare", None), ("hunt", 3), ("hunt", 3)]
    assert asked("select kind, about from sessions order by id") == every
    assert culprit[:10] in exits(0, "show", "c3", "--history", "h.db")
    assert "main at" in exits(0, "history", "--history", "h.db")
    assert "To hunt the drops of its branch: bisect nightly main" in exits(
        3, "compare", "c3", "--hunt", "--history", "h.db"
    )


@pytest.mark.calibrate
@pytest.mark.e2e
def test_next_start_completes_an_interrupted_explanation(script: Commit, keep: list[str]) -> None:
    """No notice is sent, and no page is written, before the explanation is complete."""
    words = [*NIGHT, "--explain", *keep]
    script(at(10000, 0))
    exits(0, *words)
    culprit = script(at(6000, 1))
    ended = bisect_until(words, "counters: ", signal.SIGINT)
    assert ended.returncode == 130 and "repeat this command" in ended.stderr
    assert re.search(r"one, \w{10} to \w{10}: rate is ×0\.\d+ \(.*\) in all rounds, so a hunt begins\.", ended.stderr)
    assert not notices() and not [*Path("pages").glob("hunt-*")]
    cut, _ = asked(REASONS), exits(0, *words)
    complete = asked(REASONS)
    assert complete > cut and len([*Path("pages").glob("hunt-*")]) == 1
    exits(0, *words)
    [got] = notices()
    assert f"The culprit is {culprit[:10]}" in got["text"]
    assert (asked(REASONS), asked("select count(*) from hunts")) == (complete, [(1,)])


@pytest.mark.slow
def test_a_tip_that_does_not_build_ends_the_night(script: Commit) -> None:
    script("# does not build")
    assert "cannot be built" in exits(0, *NIGHT)
    assert "cannot be built" in exits(0, *NIGHT)
    assert asked("select count(*) from trials where kind = 'compare'") == [(1,)]
    page = Path("pages/main.html").read_text()
    assert "main: 0 tips, 0 steps" in page and "1 later tip could not be built: " in page
    assert "The history h.db has no hunts yet." in exits(3, "resume", "--history", "h.db"), "no session is unfinished"
    with closing(sqlite3.connect("h.db")) as history, history:
        history.execute("update attempts set process = 'anna@desk:1 x 1 1 1'")
    assert "bisect history import h.db --own" in exits(3, *NIGHT), "another user's series"


@pytest.mark.slow
def test_series_of_rewritten_branch_omits_lost_tips(script: Commit, git: Repo) -> None:
    """Also, a missing page is written again."""
    for number, rate in enumerate((10000, 7000)):
        script(at(rate, number))
        exits(0, *NIGHT)
    [page] = Path("pages").glob("hunt-*.html")
    page.unlink()
    assert "a drop of 30 %" in exits(0, *NIGHT) and page.exists()
    git("reset", "--hard", "HEAD~1")
    script(at(7000, 2))
    git("reflog", "expire", "--expire=now", "--all")
    git("gc", "--prune=now")
    assert "The series has 2 tips and 1 step" in exits(0, *NIGHT)


@pytest.mark.slow
def test_second_nightly_at_the_same_time_is_refused(script: Commit, tmp_path: Path) -> None:
    script(f"until [ -e {tmp_path}/go ]; do sleep 0.1; done\necho rate 100")

    def second(_: object) -> None:
        ended = bisect(*NIGHT)
        assert ended.returncode == 4 and "Another process works on a night of main" in ended.stderr
        (tmp_path / "go").touch()

    assert bisect_until(NIGHT, "building", second).returncode == 0
