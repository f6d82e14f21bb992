"""--patch and --skip: commits that do not build as they are."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from program import HUNT, SCRIPT, exits

pytestmark = pytest.mark.tools

# `--patch`: old commits that do not build as they are, and patches that cannot help.


Git = Callable[..., str]
BROKEN = "does not build"
RATE = "chance=$(date +%N | cut -c 6)\necho rate {}0$chance # {}"


CHANCE = "chance=$(date +%N | cut -c 6)"


def diff(old: str, new: str, path: str = "run.sh") -> str:
    """A patch of the first line of a file, before that of chance."""
    return f"--- a/{path}\n+++ b/{path}\n@@ -1,2 +1,2 @@\n-{old}\n+{new}\n {CHANCE}\n"


Make = Callable[[range, int], list[str]]


@pytest.fixture
def make(script: Callable[[str], str], git: Git, tmp_path: Path) -> Make:
    """``make(broken, slow)``: eight commits, slow from that one on; those that do not build do with fix.patch."""

    def commits(broken: range, slow: int) -> list[str]:
        made = []
        for number in range(8):
            first = BROKEN if number in broken else "fine"
            made.append(script(f"# {first}\n" + RATE.format(500 if number >= slow else 1000, number)))
            git("tag", f"v{number}")
        (tmp_path / "fix.patch").write_text(diff(f"# {BROKEN}", "# patched"))
        return made

    return commits


@pytest.fixture
def commits(make: Make) -> list[str]:
    """Eight commits, slow from the fifth on; those before the sixth do not build."""
    return make(range(6), 5)


def test_commits_that_it_fits_are_built_with_it_and_the_report_says_which(
    commits: list[str], git: Git, tmp_path: Path
) -> None:
    """The file is gone before the hunt is resumed; the clone stays as it was."""
    before = sorted(path.relative_to(tmp_path) for path in (tmp_path / "repo").rglob("*"))
    asked = ["run", "v0", "v7", *HUNT, "--patch", "fix.patch"]
    began = exits(2, *asked, "--max-runs", "2")
    assert f"built     {commits[0][:10]}" in began
    (tmp_path / "fix.patch").rename(tmp_path / "kept.patch")
    assert "The patch fix.patch cannot be read: No such file or directory." in exits(3, *asked)
    (tmp_path / "kept.patch").rename(tmp_path / "fix.patch")

    out = exits(0, *asked)
    assert f"The culprit is {commits[5][:10]}" in out
    lines = out.splitlines()
    [first] = [line for line in lines if f"built     {commits[0][:10]}" in line]
    assert first.endswith("an earlier build is used again, with fix.patch")
    [last] = [line for line in lines if f"built     {commits[7][:10]}" in line]
    assert last.endswith("without fix.patch")
    assert git("status", "--porcelain") == ""
    assert sorted(path.relative_to(tmp_path) for path in (tmp_path / "repo").rglob("*")) == before

    (tmp_path / "fix.patch").unlink()
    assert f"The culprit is {commits[5][:10]}" in exits(0, "resume", "--plain")
    assert f"The culprit is {commits[5][:10]}" in exits(0, "replay")
    shown = exits(0, "show")
    assert "  patch     fix.patch, in " in shown
    assert f"{commits[5][:10]} was built with fix.patch" in shown
    assert f"{commits[7][:10]} was built without fix.patch" in shown
    assert f"--patch {tmp_path / 'fix.patch'}" in shown.partition("To repeat:")[2]
    assert "- patch: fix.patch, in " in exits(0, "show", "--markdown")
    told = json.loads(exits(0, "show", "--json"))
    [patch] = told["settings"]["patches"]
    assert patch.keys() == {"name", "file", "sha256"}
    builds = {each["commit"]["sha"]: each["patches"]["fix.patch"] for each in told["candidates"]}
    assert builds[commits[5]] and builds[commits[4]] and not builds[commits[7]]


@pytest.mark.slow
@pytest.mark.usefixtures("commits")
def test_a_comparison_applies_it_too() -> None:
    asked = ["compare", "v4", "v7", *SCRIPT, "--visits", "2", "--runs", "1"]
    assert "Nothing can be measured, because v4 cannot be built" in exits(4, *asked)
    assert "v7" in exits(0, *asked, "--patch", "fix.patch")


@pytest.mark.slow
def test_one_that_fits_only_in_the_middle_of_the_range_is_used(make: Make) -> None:
    made = make(range(2, 6), 4)
    assert f"The culprit is {made[4][:10]}" in exits(0, "run", "v0", "v7", *HUNT, "--patch", "fix.patch")


CANNOT_HELP = [
    (diff("# no such line", "# x"), "The patch odd.patch applies to no commit of v0..v7: patch failed: run.sh:1."),
    (diff("# x", "# y", "other"), "The patch odd.patch applies to no commit of v0..v7: other: does not exist in index"),
    ("--- /dev/null\n+++ b/../x\n@@ -0,0 +1 @@\n+x\n", "applies to no commit of v0..v7: invalid path '../x'"),
    ("--- /dev/null\n+++ b/.git/hooks/x\n@@ -0,0 +1 @@\n+x\n", "applies to no commit of v0..v7: invalid path '.git/hooks/x'"),
    ("just a text\n", "odd.patch is not a patch that git can read: No valid patches in input"),
    ("", "odd.patch is not a patch that git can read: No valid patches in input"),
    ("@" * (1 << 20) + "@", "The patch odd.patch has more than 1 MiB."),
    (None, "The patch odd.patch cannot be read: Is a directory."),
]  # fmt: skip


@pytest.mark.usefixtures("commits")
def test_what_cannot_help_is_said_before_anything_is_built(tmp_path: Path) -> None:
    odd = tmp_path / "odd.patch"
    for content, sentence in CANNOT_HELP:
        odd.unlink(missing_ok=True)
        odd.mkdir() if content is None else odd.write_text(content)
        said = exits(3, "run", "v0", "v7", *HUNT, "--patch", "fix.patch", "--patch", "odd.patch")
        assert sentence in said.replace(f"{tmp_path}/", "")
    assert not (tmp_path / "x").exists()
    (tmp_path / "more").mkdir()
    (tmp_path / "more/fix.patch").write_text("x")
    said = exits(3, "run", "v0", "v7", *HUNT, "--patch", "fix.patch", "--patch", "more/fix.patch")
    assert "There are two patches of the name fix.patch." in said


@pytest.mark.slow
def test_one_that_changes_only_ignored_paths_is_said_to_change_nothing(
    script: Callable[[str], str], git: Git, tmp_path: Path
) -> None:
    recipe = tmp_path / "builders/script/builder.toml"
    (tmp_path / "repo/doc").mkdir()
    (tmp_path / "repo/doc/text").write_text(f"old\n{CHANCE}\n")
    recipe_with = 'ignore = ["doc/**"]\n'
    for number in range(2):
        script(RATE.format(1000 - 500 * number, number))
        git("tag", f"v{number}")
    recipe.write_text(recipe_with + recipe.read_text())
    (tmp_path / "doc.patch").write_text(diff("old", "new", "doc/text"))
    out = exits(0, "run", "v0", "v1", *HUNT, "--patch", "doc.patch")
    assert "The patch doc.patch changes only paths that the recipe of script ignores: builds stay as they are" in out


@pytest.mark.usefixtures("commits")
def test_a_dry_run_has_the_commands_for_the_patched_tree(tmp_path: Path) -> None:
    recipe = tmp_path / "builders/script/builder.toml"
    block = '[[when]]\nfile = "added"\nchange.build.compile = [["true", "with", "added"]]\n'
    recipe.write_text(recipe.read_text() + block)
    (tmp_path / "add.patch").write_text("--- /dev/null\n+++ b/added\n@@ -0,0 +1 @@\n+x\n")
    asked = ["run", "v0", "v7", *HUNT, "--dry-run"]
    assert "true with added" not in exits(0, *asked)
    assert "true with added" in exits(0, *asked, "--patch", "add.patch")


# `--skip`: commits that are known to be broken are left out, and what cannot be left out is said.


RATE_SKIP = "chance=$(date +%N | cut -c 6); echo rate {}0$chance"


@pytest.fixture
def commits_skip(script: Callable[[str], str], git: Callable[..., str]) -> list[str]:
    """Twelve commits; from the eighth on it is slow, and the fifth and sixth would hang."""
    made = []
    for number in range(12):
        text = "sleep 3600" if number in (5, 6) else RATE_SKIP.format(500 if number >= 8 else 1000)
        made.append(script(f"{text} # {number}"))
        git("tag", f"v{number}")
    return made


def test_what_is_left_out_is_not_built_and_stays_so(commits_skip: list[str]) -> None:
    asked = ["run", "v0", "v11", *HUNT, "--skip", "v4..v6", "--skip", commits_skip[2]]
    out = exits(0, *asked)
    left = [commits_skip[2], commits_skip[5], commits_skip[6]]
    for commit in left:
        assert (
            f"skipped   {commit[:10]}  left out: by --skip {commit if commit == commits_skip[2] else 'v4..v6'}" in out
        )
    assert not [commit for commit in left if f"building  {commit[:10]}" in out]
    assert f"The culprit is {commits_skip[8][:10]}" in out

    shown = exits(0, "show")
    assert f"  left out  3 candidates, by --skip v4..v6 --skip {commits_skip[2]}" in shown
    assert f"--skip v4..v6 --skip {commits_skip[2]}" in shown.partition("To repeat:")[2]
    assert not [line for line in shown.splitlines() if line.strip().startswith(commits_skip[5][:10])]
    assert "- left out: 3 candidates, by --skip v4..v6" in exits(0, "show", "--markdown")
    told = json.loads(exits(0, "show", "--json"))
    assert [each["commit"]["sha"] for each in told["candidates"] if each["left_out"]] == left
    assert f"The culprit is {commits_skip[8][:10]}" in exits(0, "replay")
    assert "left out: by --skip" not in exits(0, "resume", "--plain"), "its log has them"


@pytest.mark.slow
def test_a_culprit_among_what_is_left_out_is_one_of_several(commits_skip: list[str]) -> None:
    out = exits(2, "run", "v0", "v11", *HUNT, "--skip", "v4..v8")
    assert "Inconclusive, as commits that would separate the candidates were left out by --skip: the culprit" in out
    assert "is one of these 5 commits" in out
    assert "Try next: fewer commits in --skip" in out
    for commit in commits_skip[5:10]:
        assert f"%  {commit[:10]}" in out


MISTAKES = [
    ("v11", "--skip v11 leaves out the bad end, "),
    ("v1..v11", "--skip v1..v11 leaves out the bad end, "),
    ("v1", "--skip v1 leaves out the good end, "),
    ("v0..v4", "--skip v0..v4 leaves out the good end, "),
    ("v1..v10", "--skip leaves out every candidate between v1 and v11"),
    ("v0", "--skip v0 leaves out nothing: none of its commits is a candidate of v1..v11."),
    ("v4..v4", "--skip v4..v4 leaves out nothing"),
    ("v77", "'v77' is neither a release nor a revision"),
    ("v2...v3", "'v2...v3' is neither a revision nor a range of two."),
    ("--all", "'--all' is neither a release nor a revision"),
]


@pytest.mark.usefixtures("commits_skip")
def test_what_cannot_be_left_out_is_said(git: Callable[..., str]) -> None:
    """A commit of the range that changes nothing that is built is no candidate."""
    for skip, sentence in MISTAKES:
        assert sentence in exits(3, "run", "v1", "v11", *HUNT, "--skip", skip)
    git("commit", "-q", "--allow-empty", "-m", "docs")
    git("tag", "docs")
    git("tag", "-f", "v11", git("commit-tree", "v11^{tree}", "-p", "docs", "-m", "last"))
    assert "--skip docs leaves out nothing" in exits(3, "run", "v1", "v11", *HUNT, "--skip", "docs")
