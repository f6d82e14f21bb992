"""`bisect nightly`: a branch that is watched for ten nights, and what a second start, an interruption and a kill leave."""

import json
import re
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from perfbisect.cli.commands.nightly import page_of_branch
from program import SCRIPT, bisect, bisect_until, executable, exits, rows, run

pytestmark = pytest.mark.tools

HOW = [*SCRIPT, "--no-explain", "--pairing", "turns", "--visits", "3", "--runs", "1", "--history", "h.db"]
JITTER = "jitter=$(( $(date +%N | cut -c 4-6 | sed 's/^0*//;s/^$/0/') / 20 ))\n"  # of a rate of 10,000 less than 0.5 %

Commit = Callable[[str], str]


def at(rate: int, number: int) -> str:
    """The script of a commit."""
    return f"# change {number}\n{JITTER}echo rate $(({rate} + jitter))"


@pytest.fixture
def keep(tmp_path: Path) -> Path:
    """A program that keeps what it is sent, a line for each notice."""
    return executable(tmp_path / "keep", f"#!/bin/sh\ntr -d '\\n' >>{tmp_path}/kept\necho >>{tmp_path}/kept\n")


def notices(folder: Path) -> list[dict[str, str]]:
    kept = folder / "kept"
    return [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []


@pytest.mark.calibrate
@pytest.mark.e2e
def test_ten_nights(script: Commit, keep: Path, tmp_path: Path) -> None:
    """100 commits with three drops, two improvements, a night without commits, one without a change, and a broken build."""
    changes = {15: 0.8, 34: 1.25, 58: 0.85, 77: 1.2, 95: 0.75}  # commit → what it makes of the rate
    broken = range(68, 71)
    nights = [10, 20, 30, 40, 40, 50, 60, 70, 80, 100]
    rate, hashes = 10000, list[str]()
    words = ["nightly", "main", *HOW, "--notify", str(keep), "--page", "pages"]
    said = []
    for commits in nights:
        while len(hashes) < commits:
            number = len(hashes) + 1
            rate = round(rate * changes.get(number, 1.0))
            hashes.append(script(f"# {number} does not build" if number in broken else at(rate, number)))
        ended = run(*words)
        assert ended.status == 0, ended.err
        said.append(ended.out)
        measured, sent = rows(Path("h.db"), "select count(*) from runs"), len(notices(tmp_path))
        again = run(*words)
        assert again.status == 0
        assert rows(Path("h.db"), "select count(*) from runs") == measured, "a second start measures nothing"
        assert len(notices(tmp_path)) == sent
    culprits = [hashes[number - 1] for number, factor in changes.items() if factor < 1]
    for culprit, got in zip(culprits, notices(tmp_path), strict=True):
        assert f"The culprit is {culprit[:10]}" in got["text"]
        assert Path(got["page"]).exists()
    assert "cannot be built" in said[7]
    assert rows(Path("h.db"), "select count(*) from hunts") == [(3,)]
    assert rows(Path("h.db"), "select count(*) from trials where kind = 'noise'") == [(1,)], (
        "one check of the host a day"
    )
    steps = [line for line in said[-1].splitlines() if line.startswith("  one, ")]
    assert [line.endswith("an improvement") for line in steps] == [factor > 1 for factor in changes.values()]
    page = Path("pages/main.html").read_text()
    for culprit in culprits:
        assert culprit[:10] in page
    assert len(re.findall(r'href="hunt-\d+\.html"', page)) == 3


def two_nights(script: Commit) -> tuple[list[str], str]:
    """A first night, then five commits of which the third slows both workloads. The words of the second night, and that commit."""
    words = ["nightly", "main", *HOW, "--workload", "one,two"]
    script(at(10000, 0))
    assert "nothing to compare it with yet" in exits(0, *words)
    culprit = [script(at(10000 if number < 3 else 7000, number)) for number in range(1, 6)][2]
    return words, culprit


@pytest.mark.slow
@pytest.mark.e2e
def test_a_night_that_was_cut_short_goes_on_with_the_same_command(script: Commit, keep: Path, tmp_path: Path) -> None:
    """It is killed in its rounds and interrupted in its hunts; then its notice, one for both, cannot be sent at first."""
    words, culprit = two_nights(script)
    assert bisect_until(words, "run 3 of", signal.SIGKILL).returncode == -signal.SIGKILL
    ended = bisect_until([*words, "--notify", str(keep)], "ran ", signal.SIGINT)
    assert ended.returncode == 130
    assert "the same command goes on" in ended.stderr
    assert not notices(tmp_path)
    assert "the next call tries again" in exits(0, *words, "--notify", "false")
    exits(0, *words, "--notify", str(keep))
    exits(0, *words, "--notify", str(keep))
    [got] = notices(tmp_path)
    assert f"The culprit is {culprit[:10]}" in got["text"]
    every = [("noise", None), ("compare", None), ("compare", None), ("hunt", 3), ("hunt", 3)]
    assert rows(Path("h.db"), "select kind, about from sessions order by id") == every
    assert culprit[:10] in exits(0, "show", "c3", "--history", "h.db")
    assert "main at" in exits(0, "history", "--history", "h.db")
    assert "`bisect nightly main` hunts the drops" in exits(3, "compare", "c3", "--hunt", "--history", "h.db")


@pytest.mark.calibrate
@pytest.mark.e2e
def test_a_night_that_was_cut_short_in_a_reason_goes_on_with_it(script: Commit, keep: Path, tmp_path: Path) -> None:
    """Nothing is sent, and no page is written, before the reason is complete."""
    words = ["nightly", "main", *HOW, "--explain", "--notify", str(keep), "--page", "pages"]
    script(at(10000, 0))
    exits(0, *words)
    culprit = script(at(6000, 1))
    ended = bisect_until(words, "counters: ", signal.SIGINT)
    assert ended.returncode == 130 and "the same command goes on" in ended.stderr
    assert re.search(r"one, \w{10} to \w{10}: ×0\.\d+ \(.*\) in all rounds, so it is hunted\.", ended.stderr)
    assert not notices(tmp_path) and not [*Path("pages").glob("hunt-*")]
    reasons = "select count(*) from events where kind in ('Counted', 'Profiled', 'Unexplained')"
    [(cut,)] = rows(Path("h.db"), reasons)
    exits(0, *words)
    [(complete,)] = rows(Path("h.db"), reasons)
    assert complete > cut and len([*Path("pages").glob("hunt-*")]) == 1
    [got] = notices(tmp_path)
    assert f"The culprit is {culprit[:10]}" in got["text"]
    exits(0, *words)
    assert rows(Path("h.db"), reasons) == [(complete,)] and len(notices(tmp_path)) == 1
    assert rows(Path("h.db"), "select count(*) from hunts") == [(1,)]


@pytest.mark.slow
def test_a_tip_that_does_not_build_ends_the_night(script: Commit) -> None:
    script("# does not build")
    words = ["nightly", "main", *HOW, "--page", "pages"]
    assert "cannot be built" in exits(0, *words)
    assert "cannot be built" in exits(0, *words)
    assert rows(Path("h.db"), "select count(*) from trials where kind = 'compare'") == [(1,)]
    page = Path("pages/main.html").read_text()
    assert "main: 0 tips, 0 steps" in page and "1 later tip could not be built: " in page
    assert "There are no hunts yet" in exits(3, "resume", "--history", "h.db"), "nothing is unfinished"
    with closing(sqlite3.connect("h.db")) as history, history:
        history.execute("update sittings set process = 'anna@desk:1 x 1 1 1'")
    assert "bisect history import h.db --own" in exits(3, *words), "a line of others"


@pytest.mark.slow
def test_a_branch_that_was_rewritten_goes_on_without_its_lost_tips(script: Commit, git: Callable[..., str]) -> None:
    """And a page that is missing is written again."""
    words = ["nightly", "main", *HOW, "--page", "pages"]
    for number, rate in enumerate((10000, 7000)):
        script(at(rate, number))
        exits(0, *words)
    [page] = Path("pages").glob("hunt-*.html")
    page.unlink()
    assert "a drop of 30 %" in exits(0, *words) and page.exists()
    git("reset", "--hard", "HEAD~1")
    script(at(7000, 2))
    git("reflog", "expire", "--expire=now", "--all")
    git("gc", "--prune=now")
    assert "The line has 2 tips and 1 step" in exits(0, *words)


@pytest.mark.slow
def test_two_calls_at_once_are_refused(script: Commit, tmp_path: Path) -> None:
    script(f"until [ -e {tmp_path}/go ]; do sleep 0.1; done\necho rate 100")
    words = ["nightly", "main", *HOW]

    def second(_: object) -> None:
        ended = bisect(*words)
        assert ended.returncode == 4
        assert "Another process works on a night of main" in ended.stderr
        (tmp_path / "go").touch()

    assert bisect_until(words, "building", second).returncode == 0


def test_what_is_refused(script: Commit) -> None:
    script(at(10000, 0))
    assert "Name your clone with --repo" in exits(3, "nightly", "main", "-b", "script", "-w", "one")
    assert "no-such-branch" in exits(3, "nightly", "no-such-branch", *HOW)


def test_each_branch_has_a_page_of_its_own() -> None:
    names = ["main", "a-b", "a/b", "a.b", "a/-b", "hunt-12"]
    pages = [*map(page_of_branch, names)]
    assert pages[:2] == ["main.html", "a-b.html"]
    assert len({*pages, "hunt-12.html"}) == len(names) + 1
