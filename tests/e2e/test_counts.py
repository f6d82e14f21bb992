"""Hunts for what timings hide: 1 % more instructions among many commits, and a commit that only moves code."""

import json
import random
import shutil
from pathlib import Path

import pytest
from moved_code import MAKEFILE, main, steps

from program import bisect, rows
from repos import Repo

pytestmark = [pytest.mark.e2e, pytest.mark.tools, pytest.mark.slow]
needs_valgrind = pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind: apt-get install valgrind")

COMMITS = 24
# A run takes 45 ms on an idle machine. Other processes disturb shorter runs more.
HASHING = (Path(__file__).parent / "programs" / "hashing.c").read_text().replace("ROWS = 30000", "ROWS = 90000")
HOT = "\treturn h;"
PLANT = "\th ^= h >> 15;\n\th *= 2246822519u;\n\th ^= h >> 13;\n\th += h << 3;\n\treturn h;"  # 1 % of a row's work


def housekeeping(edits: dict[int, int]) -> str:
    """A function that runs once. Most commits change it, and so change the code placement and the counts slightly."""
    lines = [f"\tfor (int i = 0; i < {n}; i++)\n\t\tcold[{at}] += i;" for at, n in sorted(edits.items())]
    return "\n".join(["extern unsigned cold[64];", "int housekeeping(void)", "{", *lines, "\treturn cold[3];", "}"])


def planted(git: Repo, seed: int) -> str:
    """Write a history with tags v0, v1, … Return the hash of the commit that adds the instructions of PLANT."""
    chance = random.Random(seed)
    place, edits = chance.randrange(5, COMMITS - 5), {3: 4}
    trees = []
    for number in range(COMMITS):
        edits[chance.randrange(64)] = chance.randrange(1, 30)
        engine = HASHING.replace(HOT, PLANT) if number >= place else HASHING
        trees.append({"engine.c": engine, "keeping.c": f"{housekeeping(edits)}\n/* change {number} */\n"})
    git.write({"Makefile": "bench: engine.c keeping.c\n\t$(CC) -O2 -o $@ engine.c keeping.c\n"})
    return git.history(trees)[place]


@needs_valgrind
def test_hunt_without_options_names_a_rise_of_instructions_by_1_percent(git: Repo, tmp_path: Path) -> None:
    """The explanation names the instructions."""
    history = str(tmp_path / "history.db")
    culprit = planted(git, seed=7)
    hunt = ["run", "v0", f"v{COMMITS - 1}", "--build", "make -j{jobs}", "--run", "./bench", "--plain"]
    done = bisect(*hunt, "--history", history, cwd=git.path)
    assert done.returncode == 0, done.stdout + done.stderr
    story = json.loads(bisect("show", "--json", "--history", history, cwd=git.path).stdout)
    [case] = story["cases"]
    assert case["commit"]["sha"] == culprit
    by_counts, beside = (
        "which shows a rise of 1.0 %",
        "executes 1.0 % more instructions than its parent",
    )  # if the time of runs has named the culprit
    assert by_counts in done.stdout or beside in done.stdout
    assert 1.0 < case["ratio"]["middle"] < 1.1
    assert (
        case["why"].startswith("After this commit, the program executes more instructions per run (code bloat): ×1.01")
        or by_counts not in done.stdout
    )
    profiled = case["explanation"][
        "functions"
    ]  # on a busy machine, the time limit of the explanation may end before the profiles
    assert "`hash`" in case["why"] or not profiled


@needs_valgrind
@pytest.mark.parametrize("fails", [False, True])
def test_hunt_counts_instructions_in_addition_to_time(git: Repo, tmp_path: Path, fails: bool) -> None:
    """The counts lead to the commit. A program that cannot be counted is only timed."""
    history, more = str(tmp_path / "history.db"), "for (int i = 0; i < 8; i++) { h ^= h >> 15; h *= 2246822519u; }\n"
    git.write({"Makefile": "bench: engine.c\n\tsleep 2\n\t$(CC) -O2 -o $@ engine.c\n"})
    trees = [HASHING.replace(HOT, more + HOT) if number >= 9 else HASHING for number in range(16)]
    hashes = git.history(
        {"engine.c": f"{tree}\nint housekeeping(void) {{ return {number}; }}\n"} for number, tree in enumerate(trees)
    )
    run = "sh -c 'case $LD_PRELOAD in *fixed*) exit 3;; esac; exec ./bench'" if fails else "./bench"
    hunt = ["run", "v0", "v15", "--build", "make", "--run", run, "--plain", "--no-explain", "--history", history]
    done = bisect(*hunt, *(["--max-runs", "16"] if fails else []), cwd=git.path)
    if not fails:
        assert done.returncode == 0, done.stdout + done.stderr
        assert rows(Path(history), "select culprit from culprits") == [(hashes[9],)]
    assert ("cannot be counted: " in done.stdout) is fails
    assert bool(rows(Path(history), 'select * from events where body like \'%"counted":"valgrind%\'')) is not fails


LAST, MOVED, SLOWER = 7, 3, 5
RUN = ["--build", "make", "--run", "./bench", "--rate", r"rounds/s: (\d+)", "--no-explain"]


@pytest.fixture
def repository(git: Repo) -> Path:
    """A repository: commit MOVED moves functions, commit SLOWER adds work, other commits change no executed code."""
    git.write({"Makefile": MAKEFILE})
    git.history(
        {
            "steps.c": steps(number >= MOVED),
            "main.c": main(700 if number >= SLOWER else 500),
            "version.c": f"int version = {100 + number};\n",
        }
        for number in range(LAST + 1)
    )
    return git.path


@needs_valgrind
def test_commit_that_only_moves_code_is_not_the_culprit(tmp_path: Path, repository: Path) -> None:
    history = str(tmp_path / "history.db")
    ended = bisect("run", f"v{MOVED - 1}", f"v{SLOWER - 1}", *RUN, "--plain", "--history", history, cwd=repository)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "Code placement: " in ended.stdout
    assert f"“change {MOVED}”" in ended.stdout
    assert "This commit moves code, and executes the same instructions as its parent." in ended.stdout
    replayed = bisect("replay", "--history", history, cwd=repository).stdout
    assert "This commit moves code, and executes the same instructions" in replayed


@pytest.mark.calibrate
def test_slower_commit_after_a_move_of_code_is_named(tmp_path: Path, repository: Path) -> None:
    history = str(tmp_path / "history.db")
    ended = bisect("run", "v0", f"v{LAST}", *RUN, "--plain", "--history", history, cwd=repository)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"“change {SLOWER}”" in ended.stdout.partition("The culprit is ")[2].splitlines()[0]
