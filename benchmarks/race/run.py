"""Hunts for large drops beside `git bisect run` with a script, as one does it by hand. See benchmarks/README.md.

Each folder holds a repository with the tags ``first`` and ``last``, and what is hunted there. By hand: one clone, both ends built
and run once, the threshold half way between them, then one build and one run for each commit that git asks for. Ours is the
whole command, from nothing built to the proof. Both are made in turns; results are appended to a file, so that the benchmark
can be stopped and resumed.
"""

import argparse
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

SIDES = ("ours", "by hand")


def main() -> None:
    """Race the folders that have no result yet, then print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="file of the results, a JSON object a line")
    parser.add_argument(
        "folders", type=Path, nargs="+", help="each with repo/ and hunt.json: options, culprit, system, plant"
    )
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--histories", type=Path, help="folder that keeps the history of each hunt")
    asked = parser.parse_args()
    done = [json.loads(line) for line in asked.results.read_text().splitlines()] if asked.results.exists() else []
    for again in range(asked.repeats):
        for folder in asked.folders:
            case = json.loads((folder / "hunt.json").read_text())
            for side in SIDES if again % 2 == 0 else SIDES[::-1]:
                key = {"folder": folder.name, "again": again, "side": side}
                if any(key.items() <= one.items() for one in done):
                    continue
                with tempfile.TemporaryDirectory(prefix="race") as place:
                    repo = folder.resolve() / "repo"
                    kept = (asked.histories or Path(place)) / f"{folder.name}-{again}.db"
                    found = ours(case, repo, Path(place), kept) if side == "ours" else by_hand(case, repo, Path(place))
                done.append({**key, "system": case["system"], "culprit": case["culprit"], **found})
                with asked.results.open("a") as results:
                    results.write(json.dumps(done[-1]) + "\n")
    for line in table(done):
        print(line)


def ours(case: dict[str, object], repo: Path, place: Path, history: Path) -> dict[str, object]:
    """`bisect run` until the commit is named and proven."""
    (place / "hosts.toml").write_text(f'[hosts.local]\nroot = "{place}/root"\n')
    words = [
        "bisect", "run", "first", "last", "--repo", str(repo), "--hosts", f"{place}/hosts.toml", "--no-explain", "--json",
        "--history", str(history), *case["options"],  # type: ignore[misc]
    ]  # fmt: skip
    began = time.monotonic()
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    commits = {event["candidate"]: event["commit"]["sha"] for event in events if event["event"] == "BuildStarted"}
    verdict = next(
        (event["verdict"] for event in events if event["event"] == "HuntEnded"), {"kind": ended.stderr[-200:]}
    )
    named = commits.get(verdict["step"]["candidate"], "") if verdict["kind"] == "Found" else verdict["kind"]
    kinds = [event["event"] for event in events]
    return {
        "seconds": seconds, "named": named, "builds": kinds.count("BuildFinished"), "runs": kinds.count("RunFinished"),
    }  # fmt: skip


def by_hand(case: dict[str, object], repo: Path, place: Path) -> dict[str, object]:
    """`git bisect run` in one clone, whose files of the build before stay."""
    words = argparse.ArgumentParser()
    words.add_argument("--build", action="append", default=[])
    for name in ("--run", "--rate", "--cost"):
        words.add_argument(name, default="")
    option, _ = words.parse_known_args(case["options"])  # type: ignore[call-overload]
    tree = place / "clone"
    subprocess.run(["git", "clone", "-q", str(repo), str(tree)], check=True)
    build = " && ".join(option.build).replace("{jobs}", str(os.cpu_count()))
    steps: list[float] = []

    def measured(commit: str) -> float | None:
        """The time or the cost of an operation in one run; None where it does not build."""
        subprocess.run(["git", "checkout", "-q", "-f", commit], cwd=tree, check=True)
        if subprocess.run(build, shell=True, cwd=tree, capture_output=True, check=False).returncode:
            return None
        began = time.monotonic()
        ran = subprocess.run(shlex.split(option.run), cwd=tree, capture_output=True, text=True, check=True)
        steps.append(time.monotonic() - began)
        if pattern := option.rate or option.cost:
            value = float(re.findall(pattern, ran.stdout, re.MULTILINE)[-1])
            return 1 / value if option.rate else value
        return steps[-1]

    began = time.monotonic()
    ends = [measured("last"), measured("first")]
    assert ends[0], "bad builds"
    assert ends[1], "good builds"
    threshold = math.sqrt(ends[0] * ends[1])
    said = _git(tree, "bisect", "start", "last", "first")
    while " is the first bad commit" not in said:
        value = measured(_git(tree, "rev-parse", "HEAD").strip())
        said = _git(tree, "bisect", "skip" if value is None else "bad" if value > threshold else "good")
    seconds = time.monotonic() - began
    return {
        "seconds": seconds,
        "named": said.split()[0],
        "builds": len(steps),
        "runs": len(steps),
        "running": sum(steps),
    }


def _git(tree: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=tree, capture_output=True, text=True, check=True).stdout


def table(done: list[dict[str, object]]) -> list[str]:
    """A line for each folder: medians, and how often each was right."""
    lines = [
        "| system | ours: seconds | builds · runs | right | by hand: seconds | builds · runs | right | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for folder in dict.fromkeys(str(one["folder"]) for one in done):
        of = {side: [one for one in done if one["folder"] == folder and one["side"] == side] for side in SIDES}
        cells, middle = [], {}
        for side, each in of.items():
            right = sum(one["named"] == one["culprit"] for one in each)
            middle[side], builds, runs = (
                median(float(str(one[name])) for one in each) for name in ("seconds", "builds", "runs")
            )
            cells.append(f"{middle[side]:.0f} | {builds:.0f} · {runs:.0f} | {right} of {len(each)}")
        lines.append(f"| {of['ours'][0]['system']} | {' | '.join(cells)} | {middle['ours'] / middle['by hand']:.2f} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
