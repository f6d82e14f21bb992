"""What others have published about steps between releases, beside what was measured here, as a table.

python benchmarks/releases/published.py benchmarks/releases/published.tsv FOLDER…

FOLDER is one of results, of run.py. Of `published.tsv` those rows are printed whose releases and workload were measured. A
ratio is that of the later release to the earlier one, by rounds, with its 95 % interval. A direction agrees where the whole
interval lies on its side of 1, and is contradicted where it lies on the other one. `same` agrees where all of the interval is
within SAME of 1, and is contradicted where none of it is. The rest is open: the interval is too wide, or the change too small.
"""

import argparse
import csv
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from perfbisect.core.domain.orders import Interval
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.stats.paired_comparison import mean_logs_by_round, paired_ratio
from perfbisect.store.history import History

SAME = 0.05
SIDES = {  # direction: the ratios that it says
    "faster": (1.0, float("inf")),
    "same or faster": (1 - SAME, float("inf")),
    "same": (1 - SAME, 1 + SAME),
    "slower": (0.0, 1.0),
}


class Cell(NamedTuple):
    """A direction that was published, and the ratio of the same releases here."""

    published: dict[str, str]
    ratio: Interval
    rounds: int

    @property
    def verdict(self) -> str:
        """Whether both agree."""
        low, high = SIDES[self.published["direction"]]
        if low <= self.ratio.low and self.ratio.high <= high:
            return "agrees"
        return "contradicted" if self.ratio.high < low or self.ratio.low > high else "open"

    def __str__(self) -> str:
        row, said = self.published, self.published["direction"]
        figure = f": {row['figure']}" if row["figure"] else ""
        note = f" ({row['note']})" if row["note"] else ""
        here = f"{self.ratio.middle:.2f} ({self.ratio.low:.2f}–{self.ratio.high:.2f})"
        cells = (
            f"{row['from']} → {row['to']}",
            row["workload"],
            f"[{said}]({row['source']}){figure}{note}",
            here,
            self.verdict,
        )
        return f"| {' | '.join(cells)} |"


def cells(published: Path, trials: list[SessionState], *, by_cpu_time: bool) -> Iterator[Cell]:
    """The rows whose releases and workload were measured, in the order of the file."""
    with published.open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    for row in rows:
        for trial in trials:
            names = [build.name for build in trial.request.subjects]
            workloads = [workload.name.rpartition("/")[2] for workload in trial.request.works]
            if {row["from"], row["to"]} <= {*names} and row["workload"] in workloads:
                metric = "cpu/o" if by_cpu_time else trial.request.metric
                logs = mean_logs_by_round(trial, workloads.index(row["workload"]), metric)
                ends = ("to", "from") if by_cpu_time else ("from", "to")  # less CPU time is faster
                ratio = paired_ratio(*(logs.get(names.index(row[end]), {}) for end in ends))
                if ratio and ratio.interval:
                    yield Cell(row, ratio.interval, ratio.rounds)


def main() -> None:
    """Print the table, and how many of its cells agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("published", type=Path)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--by-cpu-time", action="store_true", help="compare by CPU time of the server per operation")
    args = parser.parse_args()
    trials = []
    for folder in args.folders:
        with closing(History.open(folder / "history.db", read_only=True)) as history:
            trials.append(history.trial("c1"))
    found = [*cells(args.published, trials, by_cpu_time=args.by_cpu_time)]
    print("| releases | workload | published | measured here (95 %) | |\n|---|---|---|--:|---|")
    print(*found, sep="\n")
    verdicts = Counter(each.verdict for each in found)
    print(f"\n{len(found)} cells: " + ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()))


if __name__ == "__main__":
    main()
