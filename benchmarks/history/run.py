"""The history at scale: what it takes to read a history of many hunts, and to append a run to it.

python benchmarks/history/run.py                                1,000 hunts of 1,000 runs each, written once (10 minutes, 6 GB)
python benchmarks/history/run.py --hunts 20 --folder /tmp/small  a small one
python benchmarks/history/run.py --hunts 300 --against TREE      beside another checkout, which has written its own: --write there
python benchmarks/history/run.py --hunts 300 --central ADDRESS  beside a central history in PostgreSQL

Writing goes through the store as in a hunt, but for one transaction a hunt in place of one an event. Each command is a
process of its own, with the page cache warm; the time is the median of five.
"""

import argparse
import math
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from statistics import fmean, median, stdev

from invented import BEGAN, EACH, Invented

from perfbisect.core.domain.events import RunFinished
from perfbisect.core.stats.distributions import Student
from perfbisect.folders import cache_folder
from perfbisect.hunt import watching
from perfbisect.store.history import History

REPEATS = 5
APPENDED = 300  # runs
PAIRS = 20  # of measurements side by side
QUERIES = {
    "culprits": "select * from culprits",
    "rqps of a hunt": "select * from rqps where hunt_id = {hunt}",
    "candidates of a hunt": "select * from candidates where hunt_id = {hunt}",
    "runs of a hunt": "select * from runs where session_id = {hunt} order by started",
    "a counter of a hunt": "select node, avg(value / operations) from counters join runs on event_id = run_id"
    " where session_id = {hunt} and name = 'instructions' group by node",
    "build costs": "select * from build_costs",
    "builds of a commit": "select session_id, host, seconds from builds where commit_hash = (select bad_commit from hunts where id = {hunt})",
    "hunts of a system": "select id, workload, good, bad from hunts where builder = 'sqlite' order by id desc limit 20",
}


def write(path: Path, hunts: int, runs: int) -> None:
    """Write the hunts that the history lacks."""
    with closing(History.open(path)) as history:
        history.connection.execute("PRAGMA synchronous = OFF")  # of a file that can be written again
        [(done,)] = history.connection.execute("SELECT count(*) FROM hunts")
        for number in range(done, hunts):
            with history.transaction():
                add(history, Invented(number, runs))
            if sys.stderr.isatty() or number % 50 == 0:
                print(f"\r{number + 1} of {hunts} hunts", end="", file=sys.stderr)
        history.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def add(history: History, one: Invented) -> int:
    """Write a hunt; returns its number."""
    hunt = history.begin_session(one.settings(), one.started(), one.began)
    for at, event in one.events():
        history.append(hunt, event, at)
    return hunt


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the wall and of the processor, medians of some repeats after one that warms the page cache."""
    work()
    walls, processors = [], []
    for _ in range(REPEATS):
        began, used = time.perf_counter(), processor()
        work()
        walls.append(time.perf_counter() - began)
        processors.append(processor() - used)
    return median(walls), median(processors)


def processor() -> float:
    """Seconds of CPU time that this process and its children have used."""
    times = os.times()
    return sum(times[:4])


def command(path: Path, *words: str) -> Callable[[], object]:
    """A verb on the history, as a process."""
    line = [sys.executable, "-c", "from perfbisect.cli.main import main; main()", *words, "--history", str(path)]

    def work() -> None:
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)

    return work


def side_by_side(pairs: Mapping[str, tuple[Sequence[str], Sequence[str]]], trees: tuple[Path, Path]) -> None:
    """CPU time of two Python programs each in turns, and the ratio of the first to the second with its 95 % interval.

    Each has a source tree. Both have compiled modules: the first turn, which does not count, compiles them.
    """
    print("| what | this, CPU s | other, CPU s | ratio | 95 % interval |\n|---|--:|--:|--:|--:|", flush=True)
    for what, both in pairs.items():
        taken: tuple[list[float], list[float]] = ([], [])
        for turn in range(PAIRS + 1):
            for side in (0, 1) if turn % 2 else (1, 0):
                environment = {**os.environ, "PYTHONPATH": str(trees[side] / "bisect"), "PYTHONDONTWRITEBYTECODE": ""}
                process = subprocess.Popen([sys.executable, *both[side]], stdout=subprocess.DEVNULL, env=environment)
                _, status, used = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
                assert not process.returncode, both[side]
                taken[side].append(used.ru_utime + used.ru_stime)
        logs = [math.log(one / other) for one, other in zip(taken[0][1:], taken[1][1:], strict=True)]
        middle, error = fmean(logs), Student(PAIRS - 1).quantile() * stdev(logs) / math.sqrt(PAIRS)
        low, ratio, high = (math.exp(middle + sign * error) for sign in (-1, 0, 1))
        print(
            f"| {what} | {median(taken[0]):.3f} | {median(taken[1]):.3f} | {ratio:.3f} | {low:.3f} to {high:.3f} |",
            flush=True,
        )


def program(*words: str) -> tuple[str, str]:
    """What Python executes for a verb."""
    return "-c", f"import sys; from perfbisect.cli.main import main; sys.argv = ['bisect', *{words!r}]; main()"


def beside_checkout(here: Path, there: Path, tree: Path, hunt: str) -> None:
    """Reading the histories of two checkouts."""
    opening = "from pathlib import Path; from perfbisect.store.history import History; History.open(Path({!r}), read_only=True)"
    pairs: dict[str, tuple[Sequence[str], Sequence[str]]] = {
        "open": (("-c", opening.format(str(here))), ("-c", opening.format(str(there))))
    }
    for words in (("history",), ("show", hunt)):
        both = (program(*words, "--history", str(here)), program(*words, "--history", str(there)))
        pairs[f"`bisect {' '.join(words)}`"] = both
    side_by_side(pairs, (Path(__file__).parents[2], tree))


def beside_central(path: Path, address: str, hunt: str) -> None:
    """A push of all, of nothing, and reading what is pushed beside reading the history itself."""
    push = program("push", "--to", address, "--as", "here", "--history", str(path))
    for what in ("all", "nothing new"):
        began = time.perf_counter()
        subprocess.run([sys.executable, *push], check=True, stdout=subprocess.DEVNULL)
        print(f"push of {what}: {time.perf_counter() - began:.2f} s on the wall")
    print()
    pairs: dict[str, tuple[Sequence[str], Sequence[str]]] = {
        "`bisect history`": (program("history", "--from", address), program("history", "--history", str(path))),
        "`bisect show`": (
            program("show", f"here:{hunt}", "--from", address),
            program("show", hunt, "--history", str(path)),
        ),
    }
    tree = Path(__file__).parents[2]
    side_by_side(pairs, (tree, tree))


class Silent:
    """A view of `watch` that shows nothing."""

    def add_earlier_events(self, hunt: int, events: object) -> None:
        list(events)  # type: ignore[call-overload]

    def add_events(self, hunt: int, events: object) -> None:
        list(events)  # type: ignore[call-overload]

    def show_hunt_end(self, hunt: int, at: float) -> None:
        pass

    def close(self) -> None:
        pass


def start_watching(path: Path, hunt: int) -> None:
    """Which hunts run now, and the first picture of one."""
    with closing(History.open(path, read_only=True)) as history:
        watching.running_sessions(history)
        next(watching.watch(history, [hunt], Silent(), time.sleep))


def appending(path: Path, number: int) -> list[float]:
    """The seconds of each append of a run, durable as in a hunt."""
    times = []
    with closing(History.open(path)) as history:
        one = Invented(number, APPENDED)
        hunt = history.begin_session(one.settings(), one.started(), one.began)
        for at, event in one.events():
            began = time.perf_counter()
            history.append(hunt, event, at)
            if isinstance(event, RunFinished):
                times.append(time.perf_counter() - began)
    return times


def beginning(path: Path, number: int) -> tuple[float, float]:
    """The seconds that a new hunt takes to read what earlier ones know."""
    from perfbisect.hunt.lifecycle import known_failures
    from perfbisect.hunt.session import with_prior_knowledge
    from perfbisect.store.prior_data import latest_build_and_dataset_keys

    with closing(History.open(path, read_only=True)) as history:
        one = Invented(number, 10)
        settings = one.settings()

        def work() -> None:
            with_prior_knowledge(history, settings)
            known_failures(history, settings, BEGAN + EACH * number)
            latest_build_and_dataset_keys(history, settings)

        return timed(work)


def main() -> None:
    """Write the history where it is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hunts", type=int, default=1_000)
    parser.add_argument("--runs", type=int, default=1_000, help="of each hunt")
    parser.add_argument("--folder", type=Path, default=cache_folder() / "benchmarks" / "history")
    parser.add_argument("--write", action="store_true", help="only write")
    parser.add_argument("--against", type=Path, metavar="TREE", help="another checkout")
    parser.add_argument(
        "--central", metavar="ADDRESS", help="an empty central history: bisect push --sql | psql ADDRESS"
    )
    parser.add_argument("--their-folder", type=Path, help="of the histories that it has written")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    path = given.folder / f"{given.hunts}x{given.runs}.db"
    write(path, given.hunts, given.runs)
    if given.write:
        return
    hunt = str(given.hunts // 2 + 1)
    if given.against:
        beside_checkout(path, (given.their_folder or given.folder) / path.name, given.against, hunt)
        return
    if given.central:
        beside_central(path, given.central, hunt)
        return
    with closing(sqlite3.connect(path)) as connection:
        sizes = [connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("hunts", "runs")]
    print(f"{sizes[0]:,} hunts, {sizes[1]:,} runs, {path.stat().st_size / 1e9:.1f} GB\n")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        few = Path(folder) / "few.db"
        write(few, 1, given.runs)
        page = ("--output", str(Path(folder) / "page.html"))
        rows: list[tuple[str, Callable[[], object], Callable[[], object]]] = [
            ("`bisect history`", command(path, "history"), command(few, "history")),
            (f"`bisect show {hunt}`", command(path, "show", hunt), command(few, "show", "1")),
            (f"`bisect report {hunt}`", command(path, "report", hunt, *page), command(few, "report", "1", *page)),
            (
                "`bisect watch`, until the first picture",
                lambda: start_watching(path, int(hunt)),
                lambda: start_watching(few, 1),
            ),
        ]
        for name, sql in QUERIES.items():
            asked = [command(file, "query", sql.format(hunt=one)) for file, one in ((path, hunt), (few, "1"))]
            rows.append((f"`bisect query`: {name}", asked[0], asked[1]))
        print("| what | wall, s | CPU, s | wall with one hunt, s | CPU |\n|---|--:|--:|--:|--:|", flush=True)
        for what, many, one in rows:
            line(what, timed(many), timed(one))
        line("what earlier hunts know, for a new one", beginning(path, given.hunts), beginning(few, 50))
        print(append_table(path, Path(folder) / "empty.db", given.hunts))


def line(what: str, many: tuple[float, float], one: tuple[float, float]) -> None:
    """Print a row of the table."""
    print(f"| {what} | {many[0]:.2f} | {many[1]:.2f} | {one[0]:.2f} | {one[1]:.2f} |", flush=True)


def append_table(path: Path, empty: Path, number: int) -> str:
    """Appends to a copy of the history and to an empty one, in turns of a hunt."""
    copy = path.with_name("copy.db")
    subprocess.run(["cp", "--reflink=auto", str(path), str(copy)], check=True)
    try:
        big: list[float] = []
        small: list[float] = []
        for turn in range(REPEATS):
            small += appending(empty, number + turn)
            big += appending(copy, number + turn)
    finally:
        for file in (copy, copy.with_name("copy.db-wal"), copy.with_name("copy.db-shm")):
            with suppress(FileNotFoundError):
                file.unlink()
    lines = ["\n| append a run | empty history, ms | this history, ms | ratio |", "|---|--:|--:|--:|"]
    for name, of in (("median", median), ("90th percentile", lambda some: sorted(some)[len(some) * 9 // 10])):
        before, now = 1e3 * of(small), 1e3 * of(big)  # type: ignore[operator]
        lines.append(f"| {name} | {before:.2f} | {now:.2f} | {now / before:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
