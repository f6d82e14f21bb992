"""Small programs with a planted slowdown: a real hunt explains it by profiles, counts and the diff."""

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perfbisect.repository import ctags
from program import bisect, exits, printed, rows
from repos import Repo

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.tools,
    pytest.mark.slow,
    pytest.mark.skipif(ctags.universal_ctags() is None, reason="Universal Ctags is not installed"),
]

COMMITS, CULPRIT = 2, 1
PROFILED = "select distinct json_extract(body, '$.candidate') from events where kind = 'Profiled'"
PROGRAMS = Path(__file__).parent / "programs"
ENGINE = {file.name: file.read_text() for file in (PROGRAMS / "engine").iterdir()}
TIMED = (PROGRAMS / "timed.c").read_text()  # each run takes the same time, in which a slower build does less work
OPTIMISED = (PROGRAMS / "optimised.c").read_text()
MAKEFILE = "bench: $(wildcard *.c)\n\t$(CC) {} -o $@ $^\n"
SLOWER_HASH = (
    "hash.c",
    "\treturn hash;",
    "\tfor (int i = 0; i < 2 * size; i++)\n\t\thash ^= hash << 7 ^ hash >> 9;\n\treturn hash;",
)


@dataclass(frozen=True)
class Plant:
    """The edits of one commit, and the explanation that a hunt must give."""

    edits: tuple[tuple[str, str, str], ...]  # file, text, its replacement
    function: str  # the first function in the list of the explanation
    reason: str
    inlined: str = ""


PLANTS = {
    "extra instructions": Plant((SLOWER_HASH,), "row_hash", "in `row_hash`, which this commit changes"),
    "in an inlined function": Plant(
        (("page.c", "\treturn key < other;", "\tfor (int i = 0; i < 32; i++)\n\t\tkey += zero;\n\treturn key < other;"),
         ("page.c", "static unsigned keys", "static volatile unsigned zero;\nstatic unsigned keys")),
        "slot_of",
        "in `slot_of`, into which `less` is inlined, which this commit changes",
        inlined="less",
    ),
}  # fmt: skip


def edited(files: Mapping[str, str], edits: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    """``files`` after ``edits``. The text that an edit replaces occurs once in its file."""
    changed = dict(files)
    for name, old, new in edits:
        assert changed[name].count(old) == 1
        changed[name] = changed[name].replace(old, new)
    return changed


def hunt(
    git: Repo, history: Path, before: Mapping[str, str], since: Mapping[str, str], flags: str, *asked: str
) -> tuple[Mapping[str, Any], str]:
    """Hunt for the commit that replaces ``before`` by ``since``. Return its stored case, and the output of the hunt."""
    trees = (since if number >= CULPRIT else before for number in range(COMMITS))
    make = {"Makefile": MAKEFILE.format(flags)}
    hashes = git.history(tree | make | {"bench.c": f"{tree['bench.c']}/* {n} */\n"} for n, tree in enumerate(trees))
    kept = ["--history", str(history)]
    words = ["--build", "make", "--run", *asked, "--plain", "--no-layouts", *kept]
    done = bisect("run", "v0", f"v{COMMITS - 1}", *words, cwd=git.path)
    assert done.returncode == 0, done.stdout + done.stderr
    output = done.stdout
    for _ in range(3):  # on a busy machine, the time limit of the explanation may end before both profiles
        if len(rows(history, PROFILED)) < 2:
            output = bisect("resume", "--plain", *kept, cwd=git.path).stdout
    [case] = json.loads(printed("show", "--json", *kept))["cases"]
    assert case["commit"]["sha"] == hashes[CULPRIT]
    return case, output


ENGINES = "-O2 -fno-omit-frame-pointer"


def test_explanation_lists_the_slower_function_first(git: Repo, tmp_path: Path) -> None:
    plant, history = PLANTS["in an inlined function"], tmp_path / "history.db"
    asked = ["./bench", "--rate", "$.rate", "--operations", "$.operations"]
    case, output = hunt(git, history, ENGINE, edited(ENGINE, plant.edits), ENGINES, *asked)
    found = case["explanation"]
    assert found["functions"], found["missing"]
    first = found["functions"][0]
    assert first["function"] == plant.function
    assert first["part"] > 0.5
    assert first["changed"] is not bool(plant.inlined)
    assert first["inlined"] == ([plant.inlined] if plant.inlined else [])
    assert not [row for row in found["functions"] if row["partner"]]
    assert plant.reason in case["why"]
    assert plant.reason in output, "the explanation is also below the verdict"
    page = tmp_path / "page.html"
    exits(0, "report", "--output", str(page), "--history", str(history))
    link = rf'<a href="#[^"]+">\s*(<code>)?{plant.function}(</code>)?\s*</a>'
    assert re.search(link, page.read_text()), "the page links the function to its hunk"


@pytest.mark.calibrate
def test_explanation_of_runs_of_fixed_time_needs_no_option(git: Repo, tmp_path: Path) -> None:
    """The cost that the program prints gives the work of a run."""
    history, engine = tmp_path / "history.db", ENGINE | {"bench.c": TIMED}
    plant = PLANTS["extra instructions"]
    case, _ = hunt(
        git, history, engine, edited(engine, plant.edits), ENGINES, "./bench", "--cost", "$.cost", "--unit", "ns/row"
    )
    first = case["explanation"]["functions"][0]
    assert (first["function"], first["changed"]) == (plant.function, True)
    assert first["part"] > 0.5
    assert f"of the loss is {plant.reason}" in case["why"]
    assert re.fullmatch(r"1,0+ row", case["explanation"]["operation"])
    folder = tmp_path / "folded"
    exits(0, "report", "--folded", str(folder), "--output", str(tmp_path / "p.html"), "--history", str(history))
    parent, culprit = (
        sum(int(line.rpartition(" ")[2]) for line in (folder / f"{side}.folded").read_text().splitlines())
        for side in ("parent", "culprit")
    )
    assert culprit > 1.1 * parent, "the exported stacks are costs of the same work"


needs_valgrind = pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")


def counted(git: Repo, history: Path, old: str, new: str, flags: str, *asked: str) -> str:
    """The explanation of a hunt for the commit that replaces ``old`` by ``new`` in the optimised program."""
    program = {"bench.c": OPTIMISED}
    case, _ = hunt(git, history, program, edited(program, [("bench.c", old, new)]), flags, *asked)
    if not case["explanation"]["counts"]:  # on a busy machine, the explanation may end before the counts
        bisect("why", "--max-time", "10m", "--plain", "--history", str(history), cwd=git.path)
        [case] = json.loads(printed("show", "--json", "--history", str(history)))["cases"]
    assert case["explanation"]["counts"], case["explanation"]["missing"]
    return str(case["why"])


@needs_valgrind
def test_debug_lines_separate_an_inlined_function_from_its_caller(git: Repo, tmp_path: Path) -> None:
    """The hunt counts instructions. The explanation is per operation."""
    longer = "\th *= 2246822519u;"
    by_counts = ["./bench {events}", "--metric", "instructions/o"]
    why = counted(git, tmp_path / "h.db", longer, f"{longer}\n\th ^= h >> 13;", "-O2 -g", *by_counts)
    assert "`mix`, inlined into `hash`, which this commit changes, executes" in why
    assert " more instructions an operation (+" in why
    assert "waits" not in why


@needs_valgrind
def test_explanation_separates_more_calls_from_longer_calls(git: Repo, tmp_path: Path) -> None:
    """The explanation is per run, because the program prints no cost if it is as slow as under valgrind."""
    twice = ("hash(row, 40) ^ 7", "hash(row, 40) ^ hash(row + 1, 40 - 1)")
    why = counted(git, tmp_path / "h.db", *twice, "-O2", "./bench 300000", "--cost", r"in ([0-9.]+) ms")
    assert "`hash`, called below `insert`, which this commit changes" in why
    assert re.search(
        r"`hash`[^.]* executes [0-9]+ million more instructions a run \(\+9[0-9] %\), called 2\.0 times", why
    )
