"""--patch for commits that do not build, --skip for commits that are left out, and a good commit on another branch."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from program import HUNT, SCRIPT, exits, run
from repos import Repo

pytestmark = pytest.mark.tools

# `mistakes.txt` has patches that are refused, and commits that cannot be skipped.

BROKEN = "does not build"
CHANCE = "chance=$(date +%N | cut -c 6)"
Make = Callable[[range, int], list[str]]


def diff(old: str, new: str, path: str = "run.sh") -> str:
    """A patch of the first line of a file, which is followed by CHANCE."""
    return f"--- a/{path}\n+++ b/{path}\n@@ -1,2 +1,2 @@\n-{old}\n+{new}\n {CHANCE}\n"


@pytest.fixture
def make(script: Callable[[str], str], git: Repo, tmp_path: Path) -> Make:
    """``make(broken, slow)``: eight commits, slow from number ``slow`` on. fix.patch repairs the commits ``broken``."""
    (tmp_path / "fix.patch").write_text(diff(f"# {BROKEN}", "# patched"))

    def commits(broken: range, slow: int) -> list[str]:
        hashes = []
        for number in range(8):
            first, rate = BROKEN if number in broken else "fine", 500 if number >= slow else 1000
            hashes.append(script(f"# {first}\n{CHANCE}\necho rate {rate}0$chance # {number}"))
            git("tag", f"v{number}")
        return hashes

    return commits


@pytest.fixture
def commits(make: Make) -> list[str]:
    """Eight commits, slow from the sixth commit on. The first six commits do not build."""
    return make(range(6), 5)


def test_patch_is_applied_to_the_commits_that_it_fits(commits: list[str], git: Repo, tmp_path: Path) -> None:
    """The patch file is deleted before the hunt is resumed. The hunt does not change the clone."""
    before, patch, culprit = sorted(git.path.rglob("*")), tmp_path / "fix.patch", f"The culprit is {commits[5][:10]}"
    out = exits(0, "run", "v0", "v7", *HUNT, "--patch", "fix.patch")
    assert sorted(git.path.rglob("*")) == before and git("status", "--porcelain") == ""
    for number, ends in ((0, "with fix.patch"), (7, "without fix.patch")):
        [line] = [line for line in out.splitlines() if f"built     {commits[number][:10]}" in line]
        assert line.endswith(ends)
    patch.unlink()
    for output in (out, exits(0, "resume", "--plain"), exits(0, "replay"), shown := exits(0, "show")):
        assert culprit in output
    assert "  patch     fix.patch, in " in shown
    assert f"{commits[5][:10]} was built with fix.patch" in shown
    assert f"{commits[7][:10]} was built without fix.patch" in shown
    assert f"--patch {patch}" in shown.partition("To repeat:")[2]
    assert "- patch: fix.patch, in " in exits(0, "show", "--markdown")
    report = json.loads(exits(0, "show", "--json"))
    assert [stored.keys() for stored in report["settings"]["patches"]] == [{"name", "file", "sha256"}]
    builds = {each["commit"]["sha"]: each["patches"]["fix.patch"] for each in report["candidates"]}
    assert builds[commits[5]] and builds[commits[4]] and not builds[commits[7]]


ADDS = "--- /dev/null\n+++ b/{}\n@@ -0,0 +1 @@\n+x\n"


@pytest.mark.slow
def test_patch_that_fits_only_commits_inside_the_range_is_used(make: Make, tmp_path: Path) -> None:
    """Also in a comparison. A note says that a patch of ignored paths has no effect."""
    hashes, recipe = make(range(2, 6), 4), tmp_path / "builders/script/builder.toml"
    words = ["compare", "v4", "v7", *SCRIPT, "--visits", "2", "--runs", "1"]
    assert "Nothing can be measured, because v4 cannot be built" in exits(4, *words)
    assert "v7" in exits(0, *words, "--patch", "fix.patch")
    recipe.write_text(f'ignore = ["doc/**"]\n{recipe.read_text()}')
    (tmp_path / "doc.patch").write_text(ADDS.format("doc/text"))
    out = exits(0, "run", "v0", "v7", *HUNT, "--patch", "fix.patch", "--patch", "doc.patch")
    assert f"The culprit is {hashes[4][:10]}" in out
    assert (
        "The patch doc.patch changes only paths that the recipe of script ignores: the builds are the same without it"
        in out
    )


@pytest.mark.usefixtures("commits")
def test_dry_run_prints_the_commands_for_the_patched_tree(tmp_path: Path) -> None:
    recipe = tmp_path / "builders/script/builder.toml"
    block = '[[when]]\nfile = "added"\nchange.build.compile = [["true", "with", "added"]]\n'
    recipe.write_text(recipe.read_text() + block)
    (tmp_path / "add.patch").write_text(ADDS.format("added"))
    words = ["run", "v0", "v7", *HUNT, "--dry-run"]
    assert "true with added" not in exits(0, *words)
    assert "true with added" in exits(0, *words, "--patch", "add.patch")


def test_skipped_commits_are_not_built_and_stay_skipped(make: Make) -> None:
    commits = make(range(0), 6)
    skip = ["--skip", "v3..v4", "--skip", commits[2]]
    out = exits(0, "run", "v0", "v7", *HUNT, *skip)
    left = {commits[2]: commits[2], commits[4]: "v3..v4"}
    for commit, given in left.items():
        assert f"skipped   {commit[:10]}  left out: by --skip {given}" in out
        assert f"building  {commit[:10]}" not in out
    for output in (out, exits(0, "replay"), shown := exits(0, "show")):
        assert f"The culprit is {commits[6][:10]}" in output
    assert f"  skipped   2 candidates, by {shlex.join(skip)}" in shown
    assert shlex.join(skip) in shown.partition("To repeat:")[2]
    assert not [line for line in shown.splitlines() if line.strip().startswith(commits[4][:10])]
    assert "- skipped: 2 candidates, by --skip v3..v4" in exits(0, "show", "--markdown")
    report = json.loads(exits(0, "show", "--json"))
    assert [each["commit"]["sha"] for each in report["candidates"] if each["left_out"]] == [*left]
    assert "left out: by --skip" not in exits(0, "resume", "--plain"), "the log already has the skipped commits"


# Good is not an ancestor of bad, and the merge base may be slower than good.


@pytest.mark.slow
def test_slower_merge_base_ends_the_hunt_with_two_commands(script: Callable[[str], str], git: Repo) -> None:
    base, bad = (script(f"{CHANCE}\necho rate $(({rate}0 + chance)) # {rate}") for rate in (1000, 700))
    git("checkout", "-qb", "side", base)
    good = script(f"{CHANCE}\necho rate $((20000 + chance)) # good")
    status, _, err = run("run", good, bad, *HUNT)
    assert status == 3
    assert f"The merge base {base[:10]} cannot be used in place of good {good[:10]}" in err
    assert "rate of good is 2.0" in err or "rate of good is 1.9" in err
    for end, label in (
        (good, "the change between the merge base and good: "),
        (bad, "a change between the merge base and bad: "),
    ):
        [command] = [line.partition(label)[2] for line in err.splitlines() if label in line]
        assert f"The culprit is {end[:10]}" in exits(0, *shlex.split(command)[1:], "--plain")


@pytest.mark.slow
def test_accepted_merge_base_stays_after_later_runs(script: Callable[[str], str], git: Repo, tmp_path: Path) -> None:
    """The first run of bad slows down the host for later runs of the base. The hunt has then begun."""
    slower = tmp_path / "slower"
    base = script(f"{CHANCE}; rate=1000; [ ! -e {slower} ] || rate=900\necho rate $((rate * 10 + chance))")
    bad = script(f"{CHANCE}; touch {slower}; echo rate 500$chance")
    git("checkout", "-qb", "side", base)
    good = script(f"{CHANCE}; echo rate 1000$chance")
    exits(0, "run", good, bad, *HUNT)
    assert f"The culprit is {bad[:10]}" in exits(0, "resume", "--plain")


@pytest.mark.slow
def test_branch_older_than_good_is_compared_with_its_branch_point(script: Callable[[str], str], git: Repo) -> None:
    """The culprit is the third commit of the branch. The branch point and the first commit are slower than good."""

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
    size = "9 commits, 9 candidates, 1 merge"
    assert size in out and exits(0, "run", good, bad, *HUNT, "--dry-run").startswith(f"# {size}; about "), "equal"
    assert "a branch that is older than good began at 0." in exits(0, "show")
    exits(0, "resume", "--plain")
    planned = exits(0, "simulate", good, bad, "--repo", "repo", "--hunts", "2")
    assert planned.startswith("9 candidates, 1 of them merges, 4 on branches older than good; 2 hunts")
    assert culprit in exits(0, "replay")
