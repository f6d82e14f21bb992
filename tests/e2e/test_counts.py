"""Plants in an optimised program, whose function executes more instructions in each call, or is called more often."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from perfbisect.repository import changed_functions as ctags
from program import bisect
from repos import Repo

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.tools,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed"),
    pytest.mark.skipif(ctags.program() is None, reason="Universal Ctags is not installed"),
]

COMMITS, CULPRIT = 5, 2
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline unsigned mix(unsigned h)
{
	h ^= h >> 15;
	h *= 2246822519u;
	return h;
}

__attribute__((noinline)) unsigned hash(const unsigned char *row, int size)
{
	unsigned h = 1;
	for (int i = 0; i < size; i++)
		h = mix(h ^ row[i]);
	return h;
}

__attribute__((noinline)) unsigned insert(const unsigned char *row)
{
	return hash(row, 40) ^ 7;
}

int main(int count, char **words)
{
	unsigned char row[40] = {0};
	unsigned sum = 0;
	for (int i = 0; i < atoi(words[1]); i++) {
		row[i % 40] += i;
		sum += insert(row);
	}
	double ms = 1e3 * clock() / CLOCKS_PER_SEC;
	printf(ms < 200 ? "%u in %.3f ms\n" : "%u in %.3f s\n", sum, ms < 200 ? ms : ms / 1e3);
	return 0;
}
"""
LONGER = ("\th *= 2246822519u;", "\th *= 2246822519u;\n\th ^= h >> 13;")
OFTENER = ("hash(row, 40) ^ 7", "hash(row, 40) ^ hash(row + 1, 40 - 1)")


def reason(
    git: Repo, history: Path, plant: tuple[str, str], flags: str, command: str, *asked: str
) -> Mapping[str, str]:
    """What a hunt for the commit with the plant says of it; that it is named is asserted."""
    slow = PROGRAM.replace(*plant)
    assert slow != PROGRAM
    make = f"bench: bench.c\n\t$(CC) {flags} -o $@ bench.c\n"
    trees = ({"Makefile": make, "bench.c": f"{slow if n >= CULPRIT else PROGRAM}/* {n} */\n"} for n in range(COMMITS))
    culprit = git.history(trees)[CULPRIT]
    words = ["--build", "make", "--run", command, "--plain", "--no-layouts", "--history", str(history), *asked]
    done = bisect("run", "v0", f"v{COMMITS - 1}", *words, cwd=git.path)
    assert done.returncode == 0, done.stdout + done.stderr
    [case] = json.loads(bisect("show", "--json", "--history", str(history)).stdout)["cases"]
    assert case["commit"]["sha"] == culprit
    assert case["explanation"]["counts"], case["explanation"]["missing"]
    return dict(case)


def test_debug_lines_tell_an_inlined_function_apart(git: Repo, tmp_path: Path) -> None:
    """By an operation, in a hunt by counts."""
    case = reason(git, tmp_path / "h.db", LONGER, "-O2 -g", "./bench {events}", "--metric", "instructions/o")
    assert "`mix`, inlined into `hash`, which this commit changes, executes" in case["why"]
    assert " more instructions an operation (+" in case["why"]
    assert "waits" not in case["why"]


@pytest.mark.parametrize(
    "asked", [(), ("--cost", r"in ([0-9.]+) ms")], ids=["time", "a cost in another unit while counted"]
)
def test_more_calls_and_longer_ones_are_told_apart(git: Repo, tmp_path: Path, asked: tuple[str, ...]) -> None:
    """By a run, in a hunt by time, and by a cost that is not printed where the program is as slow as under valgrind."""
    case = reason(git, tmp_path / "h.db", OFTENER, "-O2", "./bench 300000", *asked)
    assert "`hash`, called below `insert`, which this commit changes" in case["why"]
    assert re.search(
        r"`hash`[^.]* executes [0-9,]+ more instructions a run \(\+9[0-9] %\), called 2\.0 times", case["why"]
    )
