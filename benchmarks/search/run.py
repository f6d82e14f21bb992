"""Plays simulated hunts in all cells by all rules, and writes the table. See benchmarks/README.md."""

import argparse
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

for library in ("OPENBLAS", "OMP", "MKL"):  # matrices are small; must be set before numpy is imported
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

from cells import Cell, all_cells
from contest import MAIN, ORACLE, RULES, play
from results import Played, default_folder, load, save
from table import write

from perfbisect.simulate.tally import Trial

CHUNK = 10  # hunts between two looks at the clock
Task = tuple[str, str, list[int]]  # cell, rule, seeds


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hunts", type=int, default=50, help="in each cell by each rule (default: 50)")
    parser.add_argument("--cells", default="", metavar="REGEX", help="only cells whose name matches")
    parser.add_argument("--rules", default="main", help="main, oracle, all, or names separated by ';'")
    parser.add_argument("--minutes", type=float, default=0, help="stop after so long; the next call goes on")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--results", type=Path, default=default_folder(), help="folder of the hunts played so far")
    parser.add_argument("--table", type=Path, help="file to write, .md; a .json is written beside it")
    parser.add_argument("--list", action="store_true", help="print the names of cells and rules, and stop")
    return parser.parse_args()


@cache
def cell_of() -> dict[str, Cell]:
    """All cells by name."""
    return {cell.name: cell for cell in all_cells()}


def chosen_rules(text: str) -> tuple[str, ...]:
    """Names of rules."""
    oracle = tuple(f"git bisect R={repeats}" for repeats in ORACLE)
    named = {"main": MAIN, "oracle": oracle, "all": tuple(RULES)}.get(text) or tuple(text.split(";"))
    if unknown := set(named) - set(RULES):
        sys.exit(f"There is no rule {', '.join(sorted(unknown))}. There are: {'; '.join(RULES)}.")
    return named


def missing(cells: list[str], rules: tuple[str, ...], hunts: int, played: Played) -> Iterator[Task]:
    """What is left to play: a few hunts of every cell, then a few more, so that any stop leaves a fair table."""
    for start in range(0, hunts, CHUNK):
        for cell in cells:
            for rule in rules:
                done = played.get((cell, rule), {})
                if seeds := [s for s in range(start, min(start + CHUNK, hunts)) if s not in done]:
                    yield cell, rule, seeds


def work(task: Task) -> tuple[Task, dict[int, Trial]]:
    """Some hunts of one cell by one rule."""
    cell, rule, seeds = task
    return task, {seed: play(cell_of()[cell], rule, seed) for seed in seeds}


def command(asked: argparse.Namespace) -> str:
    """What to type for the same table; where files lie is left out."""
    words = ["--hunts", str(asked.hunts), "--cells", asked.cells, "--rules", asked.rules]
    return f"python benchmarks/search/run.py {shlex.join(words)}"


def main() -> None:
    """Play what is missing, then write the table."""
    asked = arguments()
    rules = chosen_rules(asked.rules)
    cells = [name for name in cell_of() if re.search(asked.cells, name)]
    if asked.list:
        print("\n".join([*cells, "", *rules]))
        return
    played = load(asked.results, rules)
    tasks = list(missing(cells, rules, asked.hunts, played))
    end = time.monotonic() + 60 * asked.minutes if asked.minutes else float("inf")
    pool = ProcessPoolExecutor(asked.jobs) if asked.jobs > 1 else None
    with_each = 4 * asked.jobs
    for i in range(0, len(tasks), with_each):
        if time.monotonic() > end:
            print(f"Time is up with {len(tasks) - i} of {len(tasks)} tasks left.", file=sys.stderr)
            break
        batch = tasks[i : i + with_each]
        for (cell, rule, _), trials in pool.map(work, batch) if pool else map(work, batch):
            save(asked.results, cell, rule, trials)
            played.setdefault((cell, rule), {}).update(trials)
        if sys.stderr.isatty():
            print(f"\r\x1b[K{min(i + with_each, len(tasks))}/{len(tasks)} tasks", end="", file=sys.stderr)
    if pool:
        pool.shutdown()
    known = {name: cell_of()[name] for name in cells}
    if asked.table:
        write(asked.table, known, played, rules, command(asked))


if __name__ == "__main__":
    main()
