"""Plants in small programs: the explanation of a real hunt names the function, from real profiles, counts and the real diff."""

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
TIMED = (PROGRAMS / "timed.c").read_text()  # its runs are as long in each build; what they do in that time differs
OPTIMISED = (PROGRAMS / "optimised.c").read_text()
MAKEFILE = "bench: $(wildcard *.c)\n\t$(CC) {} -o $@ $^\n"
SLOWER_HASH = (
    "hash.c",
    "\treturn hash;",
    "\tfor (int i = 0; i < 2 * size; i++)\n\t\thash ^= hash << 7 ^ hash >> 9;\n\treturn hash;",
)


@dataclass(frozen=True)
class Plant:
    """What one commit does, and what must be said of it."""

    edits: tuple[tuple[str, str, str], ...]  # file, text, its replacement
    function: str  # that is first in the list
    said: str
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
    """These files after replacements, each of which has one place."""
    made = dict(files)
    for name, old, new in edits:
        assert made[name].count(old) == 1
        made[name] = made[name].replace(old, new)
    return made


def hunt(
    git: Repo, history: Path, before: Mapping[str, str], since: Mapping[str, str], flags: str, *asked: str
) -> tuple[Mapping[str, Any], str]:
    """What is kept of the commit that brings ``since``, after a hunt that named it; and what the hunt printed."""
    trees = (since if number >= CULPRIT else before for number in range(COMMITS))
    make = {"Makefile": MAKEFILE.format(flags)}
    hashes = git.history(tree | make | {"bench.c": f"{tree['bench.c']}/* {n} */\n"} for n, tree in enumerate(trees))
    kept = ["--history", str(history)]
    words = ["--build", "make", "--run", *asked, "--plain", "--no-layouts", *kept]
    done = bisect("run", "v0", f"v{COMMITS - 1}", *words, cwd=git.path)
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout
    for _ in range(3):  # on a busy machine the time for the reason may end before both builds have a profile
        if len(rows(history, PROFILED)) < 2:
            told = bisect("resume", "--plain", *kept, cwd=git.path).stdout
    [case] = json.loads(printed("show", "--json", *kept))["cases"]
    assert case["commit"]["sha"] == hashes[CULPRIT]
    return case, told


ENGINES = "-O2 -fno-omit-frame-pointer"


def test_the_function_of_a_plant_is_first(git: Repo, tmp_path: Path) -> None:
    plant, history = PLANTS["in an inlined function"], tmp_path / "history.db"
    asked = ["./bench", "--rate", "$.rate", "--operations", "$.operations"]
    case, told = hunt(git, history, ENGINE, edited(ENGINE, plant.edits), ENGINES, *asked)
    found = case["explanation"]
    assert found["functions"], found["missing"]
    first = found["functions"][0]
    assert first["function"] == plant.function
    assert first["part"] > 0.5
    assert first["changed"] is not bool(plant.inlined)
    assert first["inlined"] == ([plant.inlined] if plant.inlined else [])
    assert not [row for row in found["functions"] if row["partner"]]
    assert plant.said in case["why"]
    assert plant.said in told, "below the verdict, too"
    page = tmp_path / "page.html"
    exits(0, "report", "--output", str(page), "--history", str(history))
    link = rf'<a href="#[^"]+">\s*(<code>)?{plant.function}(</code>)?\s*</a>'
    assert re.search(link, page.read_text()), "with a link to its hunk"


@pytest.mark.calibrate
def test_a_reason_needs_no_option(git: Repo, tmp_path: Path) -> None:
    """Runs are as long in each build, which is compared by a cost."""
    history, engine = tmp_path / "history.db", ENGINE | {"bench.c": TIMED}
    plant = PLANTS["extra instructions"]
    case, _ = hunt(
        git, history, engine, edited(engine, plant.edits), ENGINES, "./bench", "--cost", "$.cost", "--unit", "ns/row"
    )
    first = case["explanation"]["functions"][0]
    assert (first["function"], first["changed"]) == (plant.function, True)
    assert first["part"] > 0.5
    assert f"of the loss is {plant.said}" in case["why"]
    assert re.fullmatch(r"1,0+ row", case["explanation"]["operation"])
    folder = tmp_path / "folded"
    exits(0, "report", "--folded", str(folder), "--output", str(tmp_path / "p.html"), "--history", str(history))
    parent, culprit = (
        sum(int(line.rpartition(" ")[2]) for line in (folder / f"{side}.folded").read_text().splitlines())
        for side in ("parent", "culprit")
    )
    assert culprit > 1.1 * parent, "the stacks, too, are of the same work"


needs_valgrind = pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")


def counted(git: Repo, history: Path, old: str, new: str, flags: str, *asked: str) -> str:
    """The reason of a hunt in which one commit replaces some text of the optimised program."""
    program = {"bench.c": OPTIMISED}
    case, _ = hunt(git, history, program, edited(program, [("bench.c", old, new)]), flags, *asked)
    if not case["explanation"]["counts"]:  # on a busy machine the time for the reason may end before
        bisect("why", "--max-time", "10m", "--plain", "--history", str(history), cwd=git.path)
        [case] = json.loads(printed("show", "--json", "--history", str(history)))["cases"]
    assert case["explanation"]["counts"], case["explanation"]["missing"]
    return str(case["why"])


@needs_valgrind
def test_debug_lines_tell_an_inlined_function_apart(git: Repo, tmp_path: Path) -> None:
    """By an operation, in a hunt by counts."""
    longer = "\th *= 2246822519u;"
    by_counts = ["./bench {events}", "--metric", "instructions/o"]
    why = counted(git, tmp_path / "h.db", longer, f"{longer}\n\th ^= h >> 13;", "-O2 -g", *by_counts)
    assert "`mix`, inlined into `hash`, which this commit changes, executes" in why
    assert " more instructions an operation (+" in why
    assert "waits" not in why


@needs_valgrind
def test_more_calls_and_longer_ones_are_told_apart(git: Repo, tmp_path: Path) -> None:
    """By a run, in a hunt by a cost that is not printed where the program is as slow as under valgrind."""
    twice = ("hash(row, 40) ^ 7", "hash(row, 40) ^ hash(row + 1, 40 - 1)")
    why = counted(git, tmp_path / "h.db", *twice, "-O2", "./bench 300000", "--cost", r"in ([0-9.]+) ms")
    assert "`hash`, called below `insert`, which this commit changes" in why
    assert re.search(
        r"`hash`[^.]* executes [0-9]+ million more instructions a run \(\+9[0-9] %\), called 2\.0 times", why
    )
