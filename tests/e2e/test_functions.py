"""Plants in a small engine, whose function the explanation of a real hunt must name, from real profiles and its real diff."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from perfbisect.repository import changed_functions as ctags
from program import bisect, rows
from repos import Repo

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.tools,
    pytest.mark.slow,
    pytest.mark.skipif(ctags.program() is None, reason="Universal Ctags is not installed"),
]

COMMITS, CULPRIT = 6, 3
PROFILED = "select distinct json_extract(body, '$.candidate') from events where kind = 'Profiled'"
BENCH = r"""
#include <stdio.h>
#include <time.h>
#include "engine.h"

enum { OPERATIONS = 2000000 };

int main(void)
{
	struct timespec from, to;
	unsigned long sum = 0;
	fill();
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
	for (unsigned op = 0; op < OPERATIONS; op++)
		sum += page_insert(op);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
	double seconds = (to.tv_sec - from.tv_sec) + (to.tv_nsec - from.tv_nsec) / 1e9;
	printf("{\"rate\": %.1f, \"operations\": %d, \"sum\": %lu}\n", OPERATIONS / seconds, OPERATIONS, sum);
	return 0;
}
"""
# Its runs are as long in each build; what they do in that time differs.
TIMED_BENCH = r"""
#include <stdio.h>
#include <time.h>
#include "engine.h"

int main(void)
{
	unsigned long sum = 0, op = 0;
	fill();
	while (op % 1000 || clock() < CLOCKS_PER_SEC / 2)
		sum += page_insert(op++);
	printf("{\"rate\": %lu, \"cost\": %.3f, \"sum\": %lu}\n", 2 * op, 5e8 / op, sum);
	return 0;
}
"""
HEADER = """
unsigned long page_insert(unsigned key);
unsigned long row_hash(const unsigned char *row, int size);
void fill(void);
"""
PAGE = r"""
#include "engine.h"

enum { KEYS = 4096, ROW = 96 };
static unsigned keys[KEYS];
static unsigned char row[ROW], packed[ROW];

void fill(void)
{
	for (int i = 0; i < KEYS; i++)
		keys[i] = 3 * i;
	for (int i = 0; i < ROW; i++)
		row[i] = i;
}

static int less(unsigned key, unsigned other)
{
	return key < other;
}

__attribute__((noinline)) int slot_of(unsigned key)
{
	int low = 0, high = KEYS;
	while (low < high) {
		int middle = (low + high) / 2;
		if (less(keys[middle], key))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

__attribute__((noinline)) static unsigned write_row(unsigned key)
{
	unsigned sum = key;
	for (int i = 0; i < ROW; i++) {
		sum = sum * 33 + row[i];
		packed[i] = sum >> 7;
	}
	return sum + packed[key % ROW];
}

unsigned long page_insert(unsigned key)
{
	return slot_of(key * 2654435761u % (3 * KEYS)) + write_row(key) + row_hash(packed, ROW);
}
"""
HASH = r"""
#include "engine.h"

unsigned long row_hash(const unsigned char *row, int size)
{
	unsigned long hash = 14695981039346656037ul;
	for (int i = 0; i < size; i++)
		hash = (hash ^ row[i]) * 1099511628211ul;
	return hash;
}
"""
ENGINE = {"bench.c": BENCH, "engine.h": HEADER, "page.c": PAGE, "hash.c": HASH}
SLOWER_HASH = (
    "hash.c",
    "\treturn hash;",
    "\tfor (int i = 0; i < 2 * size; i++)\n\t\thash ^= hash << 7 ^ hash >> 9;\n\treturn hash;",
)
MOVED = ("page.c", "unsigned write_row(unsigned key)", "unsigned encode_row(unsigned key)")


@dataclass(frozen=True)
class Plant:
    """What one commit does, and what must be said of it."""

    edits: tuple[tuple[str, str, str], ...]  # file, text, its replacement
    function: str  # that is first in the list
    said: str
    inlined: str = ""
    moved: Mapping[str, str] = field(default_factory=dict)


PLANTS = {
    "extra instructions": Plant((SLOWER_HASH,), "row_hash", "in `row_hash`, which this commit changes"),
    "in an inlined function": Plant(
        (("page.c", "\treturn key < other;", "\tfor (int i = 0; i < 16; i++)\n\t\tkey += zero;\n\treturn key < other;"),
         ("page.c", "static unsigned keys", "static volatile unsigned zero;\nstatic unsigned keys")),
        "slot_of",
        "in `slot_of`, into which `less` is inlined, which this commit changes",
        inlined="less",
    ),
    "cost moved beside a loss": Plant(
        (SLOWER_HASH, MOVED, ("page.c", "write_row(key) +", "encode_row(key) +")),
        "row_hash",
        "Cost moved from `write_row` to `encode_row`",
        moved={"write_row": "encode_row", "encode_row": "write_row"},
    ),
}  # fmt: skip


def planted(git: Repo, plant: Plant, bench: str = BENCH) -> str:
    """A history of the engine in which one commit has the plant; returns its hash."""
    make = "bench: bench.c page.c hash.c engine.h\n\t$(CC) -O2 -fno-omit-frame-pointer -o $@ bench.c page.c hash.c\n"
    slow = ENGINE | {"Makefile": make}
    for name, old, new in plant.edits:
        assert slow[name].count(old) == 1
        slow[name] = slow[name].replace(old, new)
    trees = (slow if number >= CULPRIT else slow | ENGINE for number in range(COMMITS))
    return git.history(tree | {"bench.c": f"{bench}/* {n} */\n"} for n, tree in enumerate(trees))[CULPRIT]


@pytest.mark.parametrize("name", PLANTS)
def test_the_function_of_a_plant_is_first(git: Repo, tmp_path: Path, name: str) -> None:
    plant, repo, history = PLANTS[name], git.path, tmp_path / "history.db"
    culprit = planted(git, plant)
    asked = ["--build", "make", "--run", "./bench", "--rate", "$.rate", "--operations", "$.operations"]
    done = bisect(
        "run", "v0", f"v{COMMITS - 1}", *asked, "--plain", "--no-layouts", "--history", str(history), cwd=repo
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout
    for _ in range(3):  # on a busy machine the time for the reason may end before both builds have a profile
        if len(rows(history, PROFILED)) < 2:
            told = bisect("resume", "--plain", "--history", str(history), cwd=repo).stdout
    [case] = json.loads(bisect("show", "--json", "--history", str(history)).stdout)["cases"]
    assert case["commit"]["sha"] == culprit
    found = case["explanation"]
    assert found["functions"], found["missing"]
    first = found["functions"][0]
    assert first["function"] == plant.function
    assert first["part"] > 0.5
    assert first["changed"] is not bool(plant.inlined)
    assert first["inlined"] == ([plant.inlined] if plant.inlined else [])
    assert {row["function"]: row["partner"] for row in found["functions"] if row["partner"]} == plant.moved
    assert plant.said in case["why"]
    assert plant.said in told, "below the verdict, too"
    page = tmp_path / "page.html"
    assert bisect("report", "--output", str(page), "--history", str(history), cwd=repo).returncode == 0
    link = rf'<a href="#[^"]+">\s*(<code>)?{plant.function}(</code>)?\s*</a>'
    assert re.search(link, page.read_text()), "with a link to its hunk"


@pytest.mark.parametrize(
    ("bench", "found_by"),
    [(BENCH, []), (TIMED_BENCH, ["--rate", "$.rate"]), (TIMED_BENCH, ["--cost", "$.cost"])],
    ids=["by wall time", "by a rate", "by a cost"],
)
def test_a_reason_needs_no_option(git: Repo, tmp_path: Path, bench: str, found_by: list[str]) -> None:
    history = tmp_path / "history.db"
    culprit = planted(git, PLANTS["extra instructions"], bench)
    asked = ["--build", "make", "--run", "./bench", *found_by, "--plain", "--no-layouts", "--history", str(history)]
    done = bisect("run", "v0", f"v{COMMITS - 1}", *asked, cwd=git.path)
    assert done.returncode == 0, done.stdout + done.stderr
    [case] = json.loads(bisect("show", "--json", "--history", str(history)).stdout)["cases"]
    assert case["commit"]["sha"] == culprit
    first = case["explanation"]["functions"][0]
    assert (first["function"], first["changed"]) == ("row_hash", True)
    assert first["part"] > 0.5
    assert "of the loss is in `row_hash`, which this commit changes" in case["why"]
    assert ("has no count of operations" in " ".join(case["explanation"]["missing"])) is bool(found_by)
    folder = tmp_path / "folded"
    said = bisect("report", "--folded", str(folder), "--output", str(tmp_path / "p.html"), "--history", str(history))
    assert said.returncode == 0, said.stderr
    parent, culprit = (
        sum(int(line.rpartition(" ")[2]) for line in (folder / f"{side}.folded").read_text().splitlines())
        for side in ("parent", "culprit")
    )
    assert culprit > 1.1 * parent, "the stacks, too, are of the same work"
