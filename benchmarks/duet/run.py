"""Hunts for small changes on a machine that is not silent, in turns and in rounds, on the same builds. See benchmarks/README.md.

Each case is a history of an optimised C program, made by a seed: many functions, five of which take the time, and in each
commit another one is changed. One commit makes a hot function slower by so much that the whole program is. Or one commit only
moves code, by which the program is slower and nothing is to be named. Or cases are folders with such histories of other
systems. Results are appended to a file, a line each; what is there is not measured
again, so the benchmark can be stopped and resumed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # what benchmarks share

import moved_code

HOT, FUNCTIONS, LOOPS = 5, 40, 400


def main() -> None:
    """Measure the cases that have no result yet, then print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="file of the results, a JSON object a line")
    parser.add_argument("--plants", default="2,2,2,2,2,2,2,2,2,2,1,1,5,5,20,20,0,0,0,0,0", help="per cent, 0: none")
    parser.add_argument(
        "--moved", type=int, default=0, help="in place of plants: so many histories that only move code"
    )
    parser.add_argument("--ways", default="auto,interleaved", help="of --pairing; default: no option at all")
    parser.add_argument("--commits", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=60.0, help="after which a hunt counts as not named")
    parser.add_argument("--systems", type=Path, nargs="+", default=[], help="folders, each with repo/ and hunt.json")
    parser.add_argument("--histories", type=Path, help="folder that keeps the history of each hunt")
    asked = parser.parse_args()
    done: list[dict[str, Any]] = (
        [json.loads(line) for line in asked.results.read_text().splitlines()] if asked.results.exists() else []
    )
    cases: list[tuple[Any, float, Path | None]]
    cases = [(folder.name, read(folder)["plant"], folder) for folder in asked.systems]
    plants = [0.0] * asked.moved or map(float, asked.plants.split(","))
    for case, plant, folder in cases or [(n, plant, None) for n, plant in enumerate(plants)]:
        for way in asked.ways.split(","):
            if any((one["case"], one["plant"], one["way"]) == (case, plant, way) for one in done):
                continue
            with tempfile.TemporaryDirectory(prefix="duet") as place:
                if folder is None:
                    random = Random(1000 * case + 7)
                    if asked.moved:
                        moved(Path(place, "case"), random, asked.commits)
                    else:
                        history(Path(place, "case"), random, asked.commits, plant / 100)
                kept = asked.histories or Path(place)
                found = hunt(folder or Path(place, "case"), way, asked.minutes, kept / f"{case}-{plant:g}-{way}.db")
            done.append({"case": case, "way": way, **found})
            with asked.results.open("a") as results:
                results.write(json.dumps(done[-1]) + "\n")
    for line in [*table(done, "plant"), "", *table(done, "system")]:
        print(line)


def read(folder: Path) -> dict[str, Any]:
    """What a folder says of its case: ``options`` of ``bisect run``, ``culprit``, ``plant`` in per cent, ``system``."""
    case: dict[str, Any] = json.loads((folder / "hunt.json").read_text())
    return case


def hunt(folder: Path, way: str, minutes: float, kept: Path) -> dict[str, object]:
    """One hunt: what it named, whether that is right, its seconds, runs and builds."""
    case = read(folder)
    plant, culprit = case["plant"], case["culprit"]
    words = [
        "bisect", "run", "first", "last", "--repo", f"{folder}/repo", *case["options"],
        "--max-time", f"{minutes}m", "--no-explain", "--json", "--history", str(kept),
    ]  # fmt: skip
    if way != "default":  # by time: counts of instructions, which are chosen otherwise, show nothing of the ways
        words += ["--metric", "latency"] * ("--metric" not in case["options"])
        words += ["--pairing", way]
        words += ["--min-effect", f"{min(max(plant, 1.0), 2.0) * 0.75}%"] * ("--min-effect" not in case["options"])
    began = time.monotonic()
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    runs = [event for event in events if event["event"] == "RunFinished"]
    verdicts = [event["verdict"] for event in events if event["event"] == "HuntEnded"]
    commits = {event["candidate"]: event["commit"]["sha"] for event in events if event["event"] == "BuildStarted"}
    if not verdicts:  # as where another session measures here: not a result
        raise SystemExit(f"{folder}: status {ended.returncode}: {ended.stderr}")
    verdict = verdicts[-1]
    named = commits.get(verdict["step"]["candidate"], "?") if verdict["kind"] == "Found" else ""
    pairing, metric = (
        [event["why"] for event in events if event["event"] == what] for what in ("PairingChosen", "MetricChosen")
    )
    return {
        "system": case["system"], "plant": plant, "verdict": verdict["kind"], "named": named, "culprit": culprit,
        "seconds": round(seconds, 1), "runs": len(runs), "rounds": sum(bool(run["facts"].get("round")) for run in runs) // 2,
        "builds": sum(event["event"] == "BuildFinished" for event in events), "pairing": pairing, "metric": metric,
    }  # fmt: skip


def history(folder: Path, random: Random, commits: int, plant: float) -> None:
    """Make a case: a repository with the tags ``first`` and ``last``, and what is to be found in it."""
    at = random.randrange(1, commits) if plant else 0
    versions = changed(random, commits, at, plant)
    made(
        folder,
        versions,
        at,
        {"options": ["--build", "make", "--run", "./program"], "plant": 100 * plant, "system": "generated C"},
    )


def moved(folder: Path, random: Random, commits: int) -> None:
    """Make a case without a culprit: one commit moves code, and by that alone the program takes up to 25 % longer."""
    at, main_c = random.randrange(1, commits), moved_code.main(random.choice((700, 1000, 1500)), 600_000)
    version, versions = 100, []
    for number in range(commits):
        version += random.random() < 0.5  # or a comment is changed, and the binary is the same
        versions.append({
            "Makefile": moved_code.MAKEFILE, "main.c": main_c, "steps.c": moved_code.steps(number >= at),
            "version.c": f"int version = {version}; /* {number} */\n",
        })  # fmt: skip
    options = ["--build", "make", "--run", "./bench", "--min-effect", "2%"]
    made(folder, versions, 0, {"options": options, "plant": 0.0, "system": "moved code", "moved": at})


def made(folder: Path, versions: Iterable[dict[str, str]], culprit: int, case: dict[str, Any]) -> None:
    """Write a case: commits with these files, of which the one with the number ``culprit`` is it; 0: none."""
    place = folder / "repo"
    place.mkdir(parents=True)
    git(place, "init", "-q", "-b", "main")
    for number, files in enumerate(versions):
        for name, text in files.items():
            (place / name).write_text(text)
        git(place, "add", ".")
        git(place, "commit", "-q", "-m", f"change {number}")
        if not number:
            git(place, "tag", "first")
    git(place, "tag", "last")
    sha = git(place, "rev-list", "-1", f"--grep=^change {culprit}$", "last").strip() if culprit else ""
    (folder / "hunt.json").write_text(json.dumps({**case, "culprit": sha}))


def changed(random: Random, commits: int, at: int, plant: float) -> Iterator[dict[str, str]]:
    """The files of each commit; from the one with the number ``at`` on, a hot function takes longer."""
    constant = [random.randrange(3, 1 << 20) | 1 for _ in range(FUNCTIONS)]
    loops = [LOOPS] * HOT
    extra = [0] * FUNCTIONS
    makefile = "program: $(wildcard *.c)\n\t$(CC) -O2 -c $^\n\t$(CC) -O2 -o program *.o\n"
    for number in range(commits):
        if number == at and plant:
            loops[random.randrange(HOT)] += round(HOT * LOOPS * plant)
        elif random.random() < 0.2:
            constant[random.randrange(HOT)] += 2  # of a hot function, which takes as long as before
        else:
            extra[random.randrange(HOT, FUNCTIONS)] += 1
        files = {"Makefile": makefile, "main.c": MAIN}
        for file in range(FUNCTIONS // HOT):
            members = range(file * HOT, (file + 1) * HOT)
            text = "".join(function(n, constant[n], extra[n], loops[n] if n < HOT else 8) for n in members)
            files[f"part{file}.c"] = f"#include <stdint.h>\nextern uint64_t table[1024];\n{text}"
        yield files


def function(number: int, constant: int, extra: int, loops: int) -> str:
    """The text of a function: mixed arithmetic and memory in a loop; ``extra`` statements before it, which take no time."""
    # So large that no compiler multiplies by shifts, which take other time.
    constant = constant * 2654435761 % 2**31 | 2**30 | 1
    before = "".join(f"    x += x >> {3 + place % 9};\n" for place in range(extra))
    step = (f"x ^= x << 13; x ^= x >> 7; x ^= x << 17; x += {constant}u", f"x = x * {constant}u + (x >> 11)",
            f"x ^= table[x & 1023]; table[(x >> 9) & 1023] += x; x += {constant}u")[number % 3]  # fmt: skip
    return f"uint64_t function{number}(uint64_t x) {{\n{before}    for (int i = 0; i < {loops}; i++) {{ {step}; }}\n    return x;\n}}\n"


CALLS = "".join(f"x = function{n}(x);" for n in range(HOT))
MAIN = f"""\
#include <stdint.h>
#include <stdio.h>
uint64_t table[1024];
{"".join(f"uint64_t function{n}(uint64_t);" for n in range(FUNCTIONS))}
int main(void) {{
    uint64_t x = 88172645463325252u;
    for (int round = 0; round < 180000; round++) {{ {CALLS} }}
    {"".join(f"x = function{n}(x);" for n in range(HOT, FUNCTIONS))}
    printf("%llu\\n", (unsigned long long)x);
    return 0;
}}
"""


def git(place: Path, *words: str) -> str:
    """Run git, as somebody; returns its output."""
    who = ["-c", "user.name=duet", "-c", "user.email=duet@localhost"]
    return subprocess.run(["git", *who, *words], cwd=place, check=True, capture_output=True, text=True).stdout


def table(done: list[dict[str, object]], by: str) -> list[str]:
    """A line for each plant, or system, and way."""
    lines = [
        f"| {by} | way | right | wrong | not named | median seconds of the right ones | runs |",
        "|---|---|---|---|---|---|---|",
    ]
    for of_what, way in dict.fromkeys((one[by], one["way"]) for one in done):
        of = [one for one in done if (one[by], one["way"]) == (of_what, way)]
        right = [one for one in of if one["named"] == one["culprit"]]  # where nothing was planted: nothing named
        wrong = [one for one in of if one["named"] and one["named"] != one["culprit"]]
        seconds, runs = sorted(float(str(one["seconds"])) for one in right), sorted(int(str(one["runs"])) for one in of)
        middle = f"{seconds[len(seconds) // 2]:.0f}" if seconds else "–"
        lines.append(
            f"| {f'{of_what:g} %' if isinstance(of_what, float) else of_what} | {way} | {len(right)} | {len(wrong)} | {len(of) - len(right) - len(wrong)} | {middle} | {runs[len(runs) // 2]} |"
        )
    return lines


if __name__ == "__main__":
    main()
