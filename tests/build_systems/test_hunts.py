"""Hunts in histories that move from make to cmake."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from program import bisect

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

# Prints a speed that varies a little, and no more on a busy machine.
MAIN = """\
#include <stdio.h>
#include <time.h>
int main(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    printf("ops: %.3f\\n", 600.0 / STEPS + now.tv_nsec / 1000 % 1000 / 1000.0);
    return 0;
}
"""
MAKEFILE = (
    "tool: main.c\n\t$(CC) -DSTEPS=MANY -o $@ $<\ninstall: tool\n\tinstall -D tool $(DESTDIR)$(PREFIX)/bin/tool\n"
)
CMAKE = """\
cmake_minimum_required(VERSION 3.10)
project(tool C)
add_executable(tool main.c)
target_compile_definitions(tool PRIVATE STEPS=MANY)
install(TARGETS tool RUNTIME DESTINATION bin)
"""
RECIPE = 'summary = "a tool"\ndriver = "command"\nprograms = ["bin/tool"]\n'


@pytest.mark.parametrize("culprit", [2, 4, 6], ids=["before", "the change itself", "after"])
def test_a_range_across_a_change_of_the_build_system(tmp_path: Path, git: Callable[..., str], culprit: int) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    repo, commits = tmp_path / "repo", []
    for number in range(8):
        for old in ("Makefile", "CMakeLists.txt"):
            (repo / old).unlink(missing_ok=True)
        text, name = (MAKEFILE, "Makefile") if number < 4 else (CMAKE, "CMakeLists.txt")
        (repo / name).write_text(text.replace("MANY", "3" if number >= culprit else "2"))
        (repo / "main.c").write_text(f"/* {number} */\n{MAIN}")
        git("add", "-A")
        git("commit", "-qm", f"Change {number}")
        commits.append(git("rev-parse", "HEAD"))
    recipe = tmp_path / "builders" / "tool" / "builder.toml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text(RECIPE)
    (tmp_path / "hosts.toml").write_text(f'[hosts.here]\nroot = "{tmp_path}/root"\n')
    hunted = bisect(
        "run", commits[0], commits[-1], "--builder", "tool", "--run", "{prefix}/bin/tool", "--repo", str(repo),
        "--builders", str(tmp_path / "builders"), "--hosts", str(tmp_path / "hosts.toml"), "--host", "here", "--plain", "--no-explain",
        "--rate", "ops: ([0-9.]+)", cwd=tmp_path,
    )  # fmt: skip
    assert hunted.returncode == 0, hunted.stdout + hunted.stderr
    assert f"The culprit is {commits[culprit][:10]}" in hunted.stdout
    changed = "The build changed at this commit too, from make to cmake" in hunted.stdout
    assert changed == (culprit == 4)
    shown = bisect("show", "--json", cwd=tmp_path).stdout
    assert any("The build changed" in sentence for sentence in json.loads(shown)["verdict"]) == changed
