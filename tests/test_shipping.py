"""What users get: a wheel with every recipe in it, verbs that are documented, help with examples."""

import subprocess
import sys
import zipfile
from pathlib import Path

import click
import pytest

from perfbisect.cli.main import VERBS, bisect

ROOT = Path(__file__).parents[1]


@pytest.mark.tools
def test_the_wheel_holds_every_recipe_and_source_of_the_demo(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    [wheel] = tmp_path.glob("*.whl")
    shipped = set(zipfile.ZipFile(wheel).namelist())
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    expected = {
        f"perfbisect/{name.removeprefix('bisect/perfbisect/')}"
        for name in listed
        if name.startswith(("bisect/perfbisect/", "builders/", "workloads/")) or name == "hosts.toml"
    }
    assert expected
    assert expected <= shipped


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_documented_and_has_examples(verb: str) -> None:
    assert f"`bisect {verb}" in (ROOT / "docs" / "commands.md").read_text()
    command = bisect.get_command(click.Context(bisect), verb)
    assert command is not None
    assert command.help
    assert f"bisect {verb}" in (command.epilog or "")


def test_no_machine_of_ours_is_named_in_the_project() -> None:
    """Paths of somebody's home or checkout have no place in what is shipped."""
    found = subprocess.run(
        ["git", "grep", "-nIE", r"(^|[^A-Za-z0-9_.])/(work|root|home/[a-z]+)/", "--", ".", ":!tests"],
        cwd=ROOT, check=False, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert found == ""
