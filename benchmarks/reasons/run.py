"""Whether a hunt says the right reason: class and function of slowdowns planted in the demo's engine.

python benchmarks/reasons/run.py [--plants REGEX] [--random N --seed S] [--device NAME] [--table FILE]

Each plant is a commit in a repository of its own, which `bisect run` hunts from its parent to the commit after it, on this
machine. Right is a verdict whose first class is that of the plant, and whose list of functions begins with the planted
one, or with one into which that is inlined. Prints a line for each, and writes the table.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plants import PLANTS, Plant, Tree, drawn

from perfbisect.demo.history import first_release_tree

HEADER = """\
| plant | class | function | its share of the loss | s |
|---|---|---|--:|--:|"""
BISECT = (sys.executable, "-c", "from perfbisect.cli.main import main; main()")


@dataclass(frozen=True)
class Result:
    """What a hunt said of a plant."""

    cause: str
    function: str  # the first of the list
    inlined: tuple[str, ...]
    share: float | None
    seconds: float

    def right(self, plant: Plant) -> tuple[bool, bool]:
        """Whether the class is right, and the function."""
        return self.cause == plant.cause, plant.function in (self.function, *self.inlined)


def git(repository: Path, *words: str) -> str:
    """What git prints."""
    return subprocess.run(["git", *words], cwd=repository, check=True, capture_output=True, text=True).stdout.strip()


def commit(repository: Path, tree: Tree, subject: str) -> str:
    """Commit the tree; its hash."""
    for path, text in tree.items():
        (repository / path).parent.mkdir(parents=True, exist_ok=True)
        (repository / path).write_text(text)
    git(repository, "add", "-A")
    git(repository, "-c", "user.name=plants", "-c", "user.email=plants@localhost", "commit", "-qm", subject)
    return git(repository, "rev-parse", "HEAD")


def hunted(plant: Plant, folder: Path, device: str) -> Result:
    """Plant it, hunt it, and read the reason. Raises SystemExit where the hunt does not name the plant."""
    repository = folder / "repository"
    repository.mkdir(parents=True)
    git(repository, "init", "-q")
    parent = plant.before(dict(first_release_tree()))
    good = commit(repository, parent, "Parent")
    planted = commit(repository, plant.change(parent), "Plant")
    bad = commit(
        repository,
        {**plant.change(parent), "src/node.c": plant.change(parent)["src/node.c"] + "\n/* End. */\n"},
        "After",
    )
    hosts = folder / "hosts.toml"
    hosts.write_text(f'[hosts.here]\naddress = "local"\nroot = "{folder.parent}/root"\ndevice = "{device}"\n')
    began = time.monotonic()
    options = [
        "--builder",
        "demo",
        "--workload",
        plant.workload,
        "--repo",
        str(repository),
        "--hosts",
        str(hosts),
        "--host",
        "here",
    ]
    history = ["--history", str(folder / "history.db")]
    done = subprocess.run(
        [*BISECT, "run", good, bad, *options, *history, "--no-layouts", "--plain", *plant.options],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    seconds = time.monotonic() - began
    (folder / "log").write_text(done.stdout + done.stderr)
    shown: dict[str, Any] = json.loads(
        subprocess.run([*BISECT, "show", *history, "--json"], cwd=folder, check=True, capture_output=True).stdout
    )
    case = next((case for case in shown["cases"] if case["commit"]["sha"] == planted), None)
    if case is None:
        return Result("not named", "", (), None, seconds)
    found = case["explanation"]
    cause = found["classes"][0]["cause"] if found["classes"] else "none"
    rows = (found["waits"] if cause == "waiting" else []) or found["functions"]  # in the order of a report
    first = rows[0] if rows else {"function": "", "inlined": [], "part": None}
    return Result(cause, first["function"], tuple(first["inlined"]), first["part"], seconds)


def line(plant: Plant, result: Result) -> str:
    """A row of the table; what is wrong is marked, with what was expected."""
    of_class, of_function = result.right(plant)
    cause = result.cause if of_class else f"**{result.cause}**, not {plant.cause}"
    into = f", with `{', '.join(result.inlined)}` inlined" if result.inlined else ""
    function = f"`{result.function}`{into}" if result.function else "none"
    function = function if of_function else f"**{function}**, not `{plant.function}`"
    share = "–" if result.share is None else f"{result.share:.0%}"
    return f"| {plant.name} | {cause} | {function} | {share} | {result.seconds:.0f} |"


def main() -> None:
    """Hunt the plants one after another."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--plants", metavar="REGEX", default="", help="only plants whose name matches")
    parser.add_argument(
        "--random", type=int, metavar="N", default=0, help="N plants of more code at random, in place of the others"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the random ones (default: 1)")
    parser.add_argument("--device", default="", metavar="NAME", help="block device of the files, for iostat")
    parser.add_argument("--table", type=Path, help="file to write")
    parser.add_argument("--folder", type=Path, help="where all is kept (default: a new one that is removed)")
    options = parser.parse_args()
    plants = [each for each in (drawn(options.random, options.seed) or PLANTS) if re.search(options.plants, each.name)]
    lines = [HEADER]
    print(HEADER, flush=True)
    right = [0, 0]
    with tempfile.TemporaryDirectory(prefix="reasons-") as scratch:
        place = options.folder or Path(scratch)
        for number, plant in enumerate(plants):
            result = hunted(plant, place.absolute() / f"{number}-{os.getpid()}", options.device)
            right = [sum(each) for each in zip(right, result.right(plant), strict=True)]
            lines.append(line(plant, result))
            print(lines[-1], flush=True)
    lines += ["", f"Class right in {right[0]}, function in {right[1]}, of {len(plants)}."]
    print(lines[-1])
    if options.table:
        options.table.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
