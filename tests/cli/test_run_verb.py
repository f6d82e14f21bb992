"""--patch and --skip: commits that do not build as they are, and those that are left out; and good on another branch."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from program import HUNT, SCRIPT, exits, run
from repos import Repo

pytestmark = pytest.mark.tools

# `mistakes.txt` has patches that cannot help, and what cannot be left out.

BROKEN = "does not build"
CHANCE = "chance=$(date +%N | cut -c 6)"
Make = Callable[[range, int], list[str]]


def diff(old: str, new: str, path: str = "run.sh") -> str:
    """A patch of the first line of a file, before that of chance."""
    return f"--- a/{path}\n+++ b/{path}\n@@ -1,2 +1,2 @@\n-{old}\n+{new}\n {CHANCE}\n"


@pytest.fixture
def make(script: Callable[[str], str], git: Repo, tmp_path: Path) -> Make:
    """``make(broken, slow)``: eight commits, slow from that one on; those that do not build do with fix.patch."""
    (tmp_path / "fix.patch").write_text(diff(f"# {BROKEN}", "# patched"))

    def commits(broken: range, slow: int) -> list[str]:
        made = []
        for number in range(8):
            first, rate = BROKEN if number in broken else "fine", 500 if number >= slow else 1000
            made.append(script(f"# {first}\n{CHANCE}\necho rate {rate}0$chance # {number}"))
            git("tag", f"v{number}")
        return made

    return commits


@pytest.fixture
def commits(make: Make) -> list[str]:
    """Eight commits, slow from the fifth on; those before the sixth do not build."""
    return make(range(6), 5)


def test_commits_that_it_fits_are_built_with_it_and_named(commits: list[str], git: Repo, tmp_path: Path) -> None:
    """The file is gone before the hunt is resumed; the clone stays as it was."""
    before, patch, culprit = sorted(git.path.rglob("*")), tmp_path / "fix.patch", f"The culprit is {commits[5][:10]}"
    out = exits(0, "run", "v0", "v7", *HUNT, "--patch", "fix.patch")
    assert sorted(git.path.rglob("*")) == before and git("status", "--porcelain") == ""
    for number, ends in ((0, "with fix.patch"), (7, "without fix.patch")):
        [line] = [line for line in out.splitlines() if f"built     {commits[number][:10]}" in line]
        assert line.endswith(ends)
    patch.unlink()
    for said in (out, exits(0, "resume", "--plain"), exits(0, "replay"), shown := exits(0, "show")):
        assert culprit in said
    assert "  patch     fix.patch, in " in shown
    assert f"{commits[5][:10]} was built with fix.patch" in shown
    assert f"{commits[7][:10]} was built without fix.patch" in shown
    assert f"--patch {patch}" in shown.partition("To repeat:")[2]
    assert "- patch: fix.patch, in " in exits(0, "show", "--markdown")
    told = json.loads(exits(0, "show", "--json"))
    assert [one.keys() for one in told["settings"]["patches"]] == [{"name", "file", "sha256"}]
    builds = {each["commit"]["sha"]: each["patches"]["fix.patch"] for each in told["candidates"]}
    assert builds[commits[5]] and builds[commits[4]] and not builds[commits[7]]


ADDS = "--- /dev/null\n+++ b/{}\n@@ -0,0 +1 @@\n+x\n"


@pytest.mark.slow
def test_one_that_fits_only_in_the_middle_of_the_range_is_used(make: Make, tmp_path: Path) -> None:
    """A comparison applies it, too; one of ignored paths is said to change nothing."""
    made, recipe = make(range(2, 6), 4), tmp_path / "builders/script/builder.toml"
    asked = ["compare", "v4", "v7", *SCRIPT, "--visits", "2", "--runs", "1"]
    assert "Nothing can be measured, because v4 cannot be built" in exits(4, *asked)
    assert "v7" in exits(0, *asked, "--patch", "fix.patch")
    recipe.write_text(f'ignore = ["doc/**"]\n{recipe.read_text()}')
    (tmp_path / "doc.patch").write_text(ADDS.format("doc/text"))
    out = exits(0, "run", "v0", "v7", *HUNT, "--patch", "fix.patch", "--patch", "doc.patch")
    assert f"The culprit is {made[4][:10]}" in out
    assert (
        "The patch doc.patch changes only paths that the recipe of script ignores: the builds are the same without it"
        in out
    )


@pytest.mark.usefixtures("commits")
def test_a_dry_run_has_the_commands_for_the_patched_tree(tmp_path: Path) -> None:
    recipe = tmp_path / "builders/script/builder.toml"
    block = '[[when]]\nfile = "added"\nchange.build.compile = [["true", "with", "added"]]\n'
    recipe.write_text(recipe.read_text() + block)
    (tmp_path / "add.patch").write_text(ADDS.format("added"))
    asked = ["run", "v0", "v7", *HUNT, "--dry-run"]
    assert "true with added" not in exits(0, *asked)
    assert "true with added" in exits(0, *asked, "--patch", "add.patch")


def test_what_is_left_out_is_not_built_and_stays_so(make: Make) -> None:
    commits = make(range(0), 6)
    skip = ["--skip", "v3..v4", "--skip", commits[2]]
    out = exits(0, "run", "v0", "v7", *HUNT, *skip)
    left = {commits[2]: commits[2], commits[4]: "v3..v4"}
    for commit, given in left.items():
        assert f"skipped   {commit[:10]}  left out: by --skip {given}" in out
        assert f"building  {commit[:10]}" not in out
    for said in (out, exits(0, "replay"), shown := exits(0, "show")):
        assert f"The culprit is {commits[6][:10]}" in said
    assert f"  skipped   2 candidates, by {shlex.join(skip)}" in shown
    assert shlex.join(skip) in shown.partition("To repeat:")[2]
    assert not [line for line in shown.splitlines() if line.strip().startswith(commits[4][:10])]
    assert "- skipped: 2 candidates, by --skip v3..v4" in exits(0, "show", "--markdown")
    told = json.loads(exits(0, "show", "--json"))
    assert [each["commit"]["sha"] for each in told["candidates"] if each["left_out"]] == [*left]
    assert "left out: by --skip" not in exits(0, "resume", "--plain"), "its log has them"


# Good is not an ancestor of bad: what becomes of a hunt whose merge base is not as fast as good.


@pytest.mark.slow
def test_a_slower_base_is_reported_with_the_commands_for_the_changes(script: Callable[[str], str], git: Repo) -> None:
    base, bad = (script(f"{CHANCE}\necho rate $(({rate}0 + chance)) # {rate}") for rate in (1000, 700))
    git("checkout", "-qb", "side", base)
    good = script(f"{CHANCE}\necho rate $((20000 + chance)) # good")
    status, _, err = run("run", good, bad, *HUNT)
    assert status == 3
    assert f"The merge base {base[:10]} cannot be used in place of good {good[:10]}" in err
    assert "rate of good is 2.0" in err or "rate of good is 1.9" in err
    for end, told in (
        (good, "the change between the merge base and good: "),
        (bad, "a change between the merge base and bad: "),
    ):
        [command] = [line.partition(told)[2] for line in err.splitlines() if told in line]
        assert f"The culprit is {end[:10]}" in exits(0, *shlex.split(command)[1:], "--plain")


@pytest.mark.slow
def test_later_runs_leave_what_was_found_of_the_base(script: Callable[[str], str], git: Repo, tmp_path: Path) -> None:
    """The host's speed at the base changes once bad has run: by the bad end's runs, the hunt has begun."""
    slower = tmp_path / "slower"
    base = script(f"{CHANCE}; rate=1000; [ ! -e {slower} ] || rate=900\necho rate $((rate * 10 + chance))")
    bad = script(f"{CHANCE}; touch {slower}; echo rate 500$chance")
    git("checkout", "-qb", "side", base)
    good = script(f"{CHANCE}; echo rate 1000$chance")
    exits(0, "run", good, bad, *HUNT)
    assert f"The culprit is {bad[:10]}" in exits(0, "resume", "--plain")


@pytest.mark.slow
def test_a_branch_older_than_good_is_judged_by_what_it_began_with(script: Callable[[str], str], git: Repo) -> None:
    """The branch's third commit is to blame; its first is as slow as what it began at, and no more so than good."""

    def commit(rate: int, name: str) -> str:
        return script(f"chance=$(date +%N | cut -c 6-7)\necho rate $(({rate}00 + 1$chance * {rate} / 100)) # {name}")

    old, good, *_, trunk = [commit(rate, f"{at}") for at, rate in enumerate((800, 1000, 1000, 1000, 1000))]
    git("checkout", "-qb", "side", old)
    side = [commit(rate, f"side {number}") for number, rate in enumerate((800, 800, 600, 600))]
    git("checkout", "-q", trunk)
    git("merge", "-q", "--no-commit", "-s", "ours", "side")
    commit(750, "merge")
    bad, culprit = commit(750, "bad"), f"The culprit is {side[2][:10]}"
    out = exits(0, "run", good, bad, *HUNT)
    assert culprit in out and f"Proven against {side[1][:10]}, its parent" in out and f"built     {old[:10]}" in out
    said = "9 commits, 9 candidates, 1 merge"
    assert said in out and exits(0, "run", good, bad, *HUNT, "--dry-run").startswith(f"# {said}; about "), "as later"
    assert "a branch that is older than good began at 0." in exits(0, "show")
    exits(0, "resume", "--plain")
    planned = exits(0, "simulate", good, bad, "--repo", "repo", "--hunts", "2")
    assert planned.startswith("9 candidates, 1 of them merges, 4 on branches older than good; 2 hunts")
    assert culprit in exits(0, "replay")
