"""`bisect compare --hunt`: from a table of releases to the commits, with a script in place of a system."""

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from program import bisect_until, exits, printed, run

pytestmark = pytest.mark.tools

Commit = Callable[[str], str]

SCRIPT = """\
# commit {number}
noise=$(od -An -N1 -tu1 /dev/urandom)
case $1 in
one) echo "rate $(({one} + noise))";;
two) echo "rate $(({two} + noise))";;
esac
"""
SLOWER = {"one": (3, 9), "two": (5,)}  # commits that take 20 % from a workload
RELEASES = {"v1": 0, "v2": 6, "v3": 11}


@pytest.fixture
def commits(script: Commit, git: Callable[..., str]) -> list[str]:
    """A history of twelve commits and three releases; v2 is slower in both workloads, v3 in one again."""
    made = []
    for number in range(12):
        rates = {work: round(100_000 * 0.8 ** sum(at <= number for at in slow)) for work, slow in SLOWER.items()}
        made.append(script(SCRIPT.format(number=number, **rates)))
        for tag, at in RELEASES.items():
            if at == number:
                git("tag", tag)
    return made


def words(*more: str) -> list[str]:
    recipes = ["--builders", "builders", "--workloads", "workloads", "--repo", "repo"]
    return [*more, "-b", "script", "-w", "one,two", *recipes]


QUICK = ("--visits", "3", "--runs", "1", "--no-explain")


def test_each_drop_is_hunted_between_the_releases_where_it_happened(
    commits: list[str],
) -> None:
    """From one command; the culprits are in the table then, and in every form of it later."""
    status, out, err = run("compare", "v1", "v2", "v3", *words(), *QUICK, "--hunt")
    assert status == 0, out + err
    first, second, third = commits[3][:10], commits[9][:10], commits[5][:10]
    table = re.escape(f"0.80 {first}") + r" +" + re.escape(f"0.64 {second}") + r"  one\n *" + re.escape(f"0.80 {third}")
    assert re.search(table, out)
    assert f"two, v1 to v2: {third} change (hunt 3)" in out
    for form in ("", "--tsv", "--csv", "--markdown"):
        shown = exits(0, "show", "c1", *filter(None, [form]))
        assert all(name in shown for name in (first, second, third)), form
    told = json.loads(exits(0, "show", "c1", "--json"))["hunts"]
    assert [(each["workload"], each["first"], each["last"], each["culprit"]) for each in told] == [
        ("one", "v1", "v2", commits[3]), ("one", "v2", "v3", commits[9]), ("two", "v1", "v2", commits[5]),
    ]  # fmt: skip
    again = exits(0, "compare", "c1", "--hunt", "--json")
    assert json.loads(again)["hunts"] == told, "nothing is hunted twice"
    assert len(re.findall(r"^ *\d+ ", exits(0, "history"), re.MULTILINE)) == 3


def test_a_dry_run_says_what_would_be_hunted(commits: list[str]) -> None:
    before = exits(0, "compare", "v1", "v3", *words(), *QUICK, "--hunt", "--dry-run")
    assert "\nhunts, v1 to v3: 11 candidates\n" in before
    assert "runs of unknown length, since a command ends by itself, and in each visit a copy of the data" in before
    exits(0, "compare", "v1", "v3", *words(), *QUICK)
    told = exits(0, "compare", "c1", "--hunt", "--dry-run")
    assert told == "one and two, v1 to v3:\n  one: 36 % slower\n  two: 20 % slower\n  11 candidates\n"
    assert "hunts" not in exits(0, "history"), "nothing was hunted"
    alone = exits(0, "compare", "v1", "v3", "v3@lto", *words(), *QUICK, "--hunt", "--dry-run")
    assert "hunts, v3@lto and other builds: none: no other is a revision that is built and configured alike." in alone


def test_a_drop_from_a_parent_to_its_commit_is_found_already(commits: list[str]) -> None:
    advised = [run("compare", *ends, *words(), *QUICK)[2] for ends in (("v1", "v2"), (commits[2], commits[3]))]
    assert ["to find" in err for err in advised] == [True, False]


def test_a_table_without_drops_hunts_nothing(commits: list[str]) -> None:
    status, out, err = run("compare", "v2~1", "v2", *words(), *QUICK, "--hunt", "--json")
    assert status == 0
    assert "No drop of c1 is real and large enough to be hunted." in err
    assert json.loads(out)["hunts"] == []
    run("compare", "v1", "v3", *words(), *QUICK, "--visits", "1")
    _, cost, _ = run("compare", "c2", "--hunt", "--dry-run")
    assert "nothing would be hunted. A drop is seen from 2 rounds on: --visits." in cost


@pytest.mark.parametrize(
    ("builds", "told"),
    [
        (["v2", "v1"], "hunt nothing: Bad "),
        (["v1", "again=."], "no two revisions that are built and configured alike"),
        (["v1", "v1~0"], "hunt nothing: Good and bad are the same commit"),
    ],
)
def test_builds_without_commits_between_them_are_refused_before_anything_is_measured(
    commits: list[str], builds: list[str], told: str
) -> None:
    assert told in exits(3, "compare", *builds, *words(), "--hunt")
    assert "c1" not in exits(0, "history", "--history", "h.db") if Path("h.db").exists() else True


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["c1", "--hunt"], "There are no hunts yet"),
        (["v1", "v2", "--hunt"], "--builder is missing"),
        (["c1"], "is printed by `bisect show c1`"),
        (["c1", "--hunt", "-w", "one"], "`bisect compare c1 --hunt` alone hunts its drops"),
        (["c1", "--hunt", "--visits", "3"], "--visits has no effect: c1 keeps how it was measured"),
        (["v1", "v2", "--min-effect", "5%"], "--min-effect is for --hunt"),
    ],
)
def test_mistakes(commits: list[str], given: list[str], told: str) -> None:
    status, _, err = run("compare", *given)
    assert status == 3
    assert told in err


@pytest.mark.slow
def test_after_ctrl_c_in_a_hunt_the_hunts_go_on(commits: list[str]) -> None:
    """By the command that is printed: those that had begun continue, and the others begin."""
    cut = bisect_until(["compare", "v1", "v2", "v3", *words(), *QUICK, "--hunt"], ", search", signal.SIGINT)
    assert cut.returncode == 130
    assert "go on with: bisect compare c1 --hunt --no-explain" in cut.stderr
    assert re.search(r"0\.80 hunt 2 .*one$", printed("show", "c1"), re.MULTILINE)
    told = json.loads(printed("compare", "c1", "--hunt", "--no-explain", "--json"))["hunts"]
    assert [(each["hunt"], each["culprit"]) for each in told] == [(2, commits[3]), (4, commits[9]), (3, commits[5])]
