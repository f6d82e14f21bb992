"""Plays simulated hunts in all cells by all rules, and writes the table. See benchmarks/README.md."""

import argparse
import itertools
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import suppress
from functools import cache
from pathlib import Path

for library in ("OPENBLAS", "OMP", "MKL"):  # matrices are small; must be set before numpy is imported
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

from cells import Cell, all_cells
from contest import MAIN, ORACLE, RULES, is_ours, play, takes_part
from results import Played, default_folder, load, save
from table import write

from perfbisect.simulate.tally import JudgedHunt

CHUNK = 10  # hunts between two checks of the time
Task = tuple[str, str, list[int]]  # cell, rule, seeds


def arguments() -> argparse.Namespace:
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hunts", type=int, default=50, help="in each cell by each rule (default: 50)")
    parser.add_argument("--peer-hunts", type=int, help="the same of the peers (default: as many)")
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


def missing(cells: list[str], rules: tuple[str, ...], hunts: dict[str, int], played: Played) -> Iterator[Task]:
    """The tasks that are missing for so many ``hunts`` by each rule.

    A few hunts of every cell come before more of any, so that the table is balanced whenever it stops. The cells that
    count for most goals come first, with all their hunts.
    """
    for _, group in itertools.groupby(cells, key=lambda name: cell_of()[name].urgent):
        of_group = list(group)
        for start in range(0, max(hunts.values()), CHUNK):
            for cell, rule in itertools.product(of_group, rules):
                done = played.get((cell, rule), {})
                seeds = [s for s in range(start, min(start + CHUNK, hunts[rule])) if s not in done]
                if seeds and takes_part(cell_of()[cell], rule):
                    yield cell, rule, seeds


def work(task: Task) -> tuple[Task, dict[int, JudgedHunt]]:
    """Some hunts of one cell by one rule."""
    cell, rule, seeds = task
    return task, {seed: play(cell_of()[cell], rule, seed) for seed in seeds}


def outcomes(tasks: list[Task], jobs: int, end: float) -> Iterator[tuple[Task, dict[int, JudgedHunt]]]:
    """The results of ``tasks`` until the time ``end`` (of the monotonic clock), in ``jobs`` processes."""
    waiting = itertools.takewhile(lambda _: time.monotonic() < end, tasks)
    if jobs == 1:
        yield from map(work, waiting)
        return
    with ProcessPoolExecutor(jobs, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)) as pool:
        under_way = {pool.submit(work, task) for task in itertools.islice(waiting, 2 * jobs)}
        while under_way:
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            under_way |= {pool.submit(work, task) for task in itertools.islice(waiting, len(done))}
            yield from (future.result() for future in done)


def command(args: argparse.Namespace) -> str:
    """The command for the same table, without the folders of files."""
    words = ["--hunts", str(args.hunts), "--cells", args.cells, "--rules", args.rules]
    if args.peer_hunts is not None:
        words += ["--peer-hunts", str(args.peer_hunts)]
    return f"python benchmarks/search/run.py {shlex.join([*words, '--table', args.table.name])}"


def main() -> None:
    """Play what is missing, then write the table."""
    args = arguments()
    rules = chosen_rules(args.rules)
    cells = [name for name in cell_of() if re.search(args.cells, name)]
    if args.list:
        print("\n".join([*cells, "", *rules]))
        return
    played = load(args.results, rules)
    peers = args.hunts if args.peer_hunts is None else args.peer_hunts
    tasks = list(missing(cells, rules, {rule: args.hunts if is_ours(rule) else peers for rule in rules}, played))
    end = time.monotonic() + 60 * args.minutes if args.minutes else float("inf")
    with suppress(KeyboardInterrupt):
        for done, ((cell, rule, _), trials) in enumerate(outcomes(tasks, args.jobs, end), 1):
            save(args.results, cell, rule, trials)
            played.setdefault((cell, rule), {}).update(trials)
            print(f"{done} of {len(tasks)} parts played", file=sys.stderr, flush=True)
    if args.table:
        write(args.table, {name: cell_of()[name] for name in cells}, played, rules, command(args))


if __name__ == "__main__":
    main()
