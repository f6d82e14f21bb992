"""`--patch`: old commits that do not build as they are, and patches that cannot help."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.tools

Exits = Callable[..., str]
Git = Callable[..., str]
SCRIPT = ["--builder", "script", "--workload", "one", "--repo", "repo"]
HUNT = [*SCRIPT, "--plain", "--no-explain"]
BROKEN = "does not build"
RATE = "chance=$(date +%N | cut -c 6)\necho rate {}0$chance # {}"


CHANCE = "chance=$(date +%N | cut -c 6)"


def diff(old: str, new: str, path: str = "run.sh") -> str:
    """A patch of the first line of a file, before that of chance."""
    return f"--- a/{path}\n+++ b/{path}\n@@ -1,2 +1,2 @@\n-{old}\n+{new}\n {CHANCE}\n"


@pytest.fixture
def commits(script: Callable[[str], str], git: Git, tmp_path: Path) -> list[str]:
    """Eight commits, slow from the fifth on; those before the sixth do not build, and fix.patch makes them build."""
    made = []
    for number in range(8):
        made.append(
            script(f"# {BROKEN if number < 6 else 'fine'}\n" + RATE.format(500 if number >= 5 else 1000, number))
        )
        git("tag", f"v{number}")
    (tmp_path / "fix.patch").write_text(diff(f"# {BROKEN}", "# patched"))
    return made


def test_commits_that_it_fits_are_built_with_it_and_the_report_says_which(
    exits: Exits, commits: list[str], git: Git, tmp_path: Path
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


def test_a_comparison_applies_it_too(exits: Exits, commits: list[str]) -> None:
    asked = ["compare", "v4", "v7", *SCRIPT, "--visits", "2", "--runs", "1"]
    assert "Nothing can be measured, because v4 cannot be built" in exits(4, *asked)
    assert "v7" in exits(0, *asked, "--patch", "fix.patch")
    assert commits


def test_one_that_fits_only_in_the_middle_of_the_range_is_used(
    exits: Exits, script: Callable[[str], str], git: Git, tmp_path: Path
) -> None:
    made = []
    for number in range(8):
        made.append(
            script(f"# {BROKEN if 2 <= number < 6 else 'fine'}\n" + RATE.format(500 if number >= 4 else 1000, number))
        )
        git("tag", f"v{number}")
    (tmp_path / "fix.patch").write_text(diff(f"# {BROKEN}", "# patched"))
    assert f"The culprit is {made[4][:10]}" in exits(0, "run", "v0", "v7", *HUNT, "--patch", "fix.patch")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (diff("# no such line", "# x"), "The patch odd.patch applies to no commit of v0..v7: patch failed: run.sh:1."),
        (diff("# x", "# y", "other"), "The patch odd.patch applies to no commit of v0..v7: other: does not exist in index"),
        ("--- /dev/null\n+++ b/../x\n@@ -0,0 +1 @@\n+x\n", "applies to no commit of v0..v7: invalid path '../x'"),
        ("--- /dev/null\n+++ b/.git/hooks/x\n@@ -0,0 +1 @@\n+x\n", "applies to no commit of v0..v7: invalid path '.git/hooks/x'"),
        ("just a text\n", "odd.patch is not a patch that git can read: No valid patches in input"),
        ("", "odd.patch is not a patch that git can read: No valid patches in input"),
        ("@" * (1 << 20) + "@", "The patch odd.patch has more than 1 MiB."),
        (None, "The patch odd.patch cannot be read: Is a directory."),
    ],
)  # fmt: skip
def test_what_cannot_help_is_said_before_anything_is_built(
    exits: Exits, commits: list[str], tmp_path: Path, content: str | None, sentence: str
) -> None:
    odd = tmp_path / "odd.patch"
    odd.mkdir() if content is None else odd.write_text(content)
    said = exits(3, "run", "v0", "v7", *HUNT, "--patch", "fix.patch", "--patch", "odd.patch")
    assert sentence in said.replace(f"{tmp_path}/", "")
    assert not (tmp_path / "x").exists()
    assert commits


def test_two_of_one_name_are_refused(exits: Exits, commits: list[str], tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more/fix.patch").write_text("x")
    said = exits(3, "run", "v0", "v7", *HUNT, "--patch", "fix.patch", "--patch", "more/fix.patch")
    assert "There are two patches of the name fix.patch." in said
    assert commits


def test_one_that_changes_only_ignored_paths_is_said_to_change_nothing(
    exits: Exits, script: Callable[[str], str], git: Git, tmp_path: Path
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


def test_a_dry_run_has_the_commands_for_the_patched_tree(exits: Exits, commits: list[str], tmp_path: Path) -> None:
    recipe = tmp_path / "builders/script/builder.toml"
    block = '[[when]]\nfile = "added"\nchange.build.compile = [["true", "with", "added"]]\n'
    recipe.write_text(recipe.read_text() + block)
    (tmp_path / "add.patch").write_text("--- /dev/null\n+++ b/added\n@@ -0,0 +1 @@\n+x\n")
    plain = exits(0, "run", "v0", "v7", *HUNT, "--dry-run")
    patched = exits(0, "run", "v0", "v7", *HUNT, "--dry-run", "--patch", "add.patch")
    assert "true with added" not in plain
    assert "true with added" in patched
    assert commits
