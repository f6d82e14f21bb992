"""What hunts of several workloads cost together, beside each of them alone. See README.md.

Hunts that were played are kept as lines of JSON; the same command goes on where it was stopped.
"""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path

for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

sys.path.insert(0, str(Path(__file__).parents[1]))  # what benchmarks share

import numpy as np
from groups import Workload, hunt_together, worlds
from played import Facts, Played, load, play

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.settings import Policy, PriorKnowledge
from perfbisect.simulate.host_model import HostModel
from perfbisect.simulate.hunt import simulate_hunt
from perfbisect.simulate.scenario import Scenario
from perfbisect.simulate.tally import HuntCost, Judgement, ShareInterval, judge_verdict, mean, names_a_culprit

DROPS = (0.05, 0.03, 0.1, 0.04, 0.08)  # of the workloads, in this order


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the table."""

    commits: int
    runs: int  # that a build costs
    workloads: int
    culprits: int  # different ones; the workloads that changed take turns
    unchanged: int = 0  # the last so many of the workloads
    failing: float = 0.0  # share of commits that do not build

    @property
    def name(self) -> str:
        """Its name in the results."""
        return f"{self.commits}/{self.runs}/{self.workloads}/{self.culprits}/{self.unchanged}/{self.failing}"

    @property
    def scenario(self) -> Scenario:
        """A line of commits, a noise of 1 % and runs of a minute."""
        habits = HostModel(noise=0.01, build_seconds=60.0 * self.runs)
        return Scenario(Graph.straight_history(self.commits), failing=self.failing, habits=habits)

    @property
    def members(self) -> list[Workload]:
        """The workloads of a group."""
        changed = self.workloads - self.unchanged
        culprits = [*(number % self.culprits for number in range(changed)), *[None] * self.unchanged]
        return [Workload(drop, culprit) for drop, culprit in zip(DROPS, culprits, strict=False)]


GOALS = (Cell(100, 10, 2, 1), Cell(100, 10, 2, 2), Cell(100, 10, 5, 2), Cell(100, 10, 5, 5))
OTHERS = tuple(
    Cell(*each)
    for each in (
        (100, 10, 5, 1), (100, 10, 2, 1, 1), (100, 10, 5, 2, 2), (100, 1, 2, 2), (100, 100, 2, 2), (100, 10, 5, 2, 0, 0.1),
        (1000, 10, 2, 1), (1000, 10, 2, 2), (1000, 10, 5, 2), (1000, 10, 5, 5),
    )
)  # fmt: skip


def main() -> None:
    """Play what is missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hunts", type=int, default=200, help="in each cell with a goal (default: 200)")
    parser.add_argument("--others", type=int, default=40, help="in each other cell (default: 40)")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after so long; the next call goes on")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path.home() / ".cache/perfbisect/benchmarks/together.jsonl")
    parser.add_argument("--table", type=Path, help="file to write; of all hunts that were played")
    args = parser.parse_args()
    args.results.parent.mkdir(parents=True, exist_ok=True)
    wanted = [*((cell, args.hunts) for cell in GOALS), *((cell, args.others) for cell in OTHERS)]
    play(wanted, both, args.minutes, args.jobs, args.results)
    if args.table:
        args.table.write_text("\n".join(table(load(args.results))) + "\n")


def both(cell: Cell, seed: int) -> Facts:
    """The hunts of one group, alone and together, in the same worlds."""
    policy, prior = Policy(), PriorKnowledge(float(cell.runs))
    alone = worlds(cell.scenario, cell.members, seed)
    verdicts = [simulate_hunt(world, policy, prior).verdict for world in alone]
    group = worlds(cell.scenario, cell.members, seed)
    together = hunt_together(group, policy, prior)
    return {
        "alone": {
            "judged": [judge_verdict(verdict, world) for verdict, world in zip(verdicts, alone, strict=True)],
            "named": [names_a_culprit(verdict) for verdict in verdicts],
            "builds": [world.builds for world in alone],
            "runs": [world.runs for world in alone],
        },
        "together": {
            "judged": [judge_verdict(verdict, world) for verdict, world in zip(together.verdicts, group, strict=True)],
            "named": [names_a_culprit(verdict) for verdict in together.verdicts],
            "builds": together.builds,
            "runs": list(together.runs),
        },
    }


def least_builds(commits: int, most: int) -> list[float]:
    """The mean number of builds that any rule needs without noise, for 0, 1, … ``most`` different culprits.

    The ends included. Culprits are independent of each other and uniform over a line. By dynamic programming: a build
    divides a range with some culprits into two, each with those that are in it.
    """
    needed = np.zeros((most + 1, commits + 1))
    for size in range(2, commits + 1):
        left = np.arange(1, size)
        p = left / size
        for culprits in range(1, most + 1):
            needed[culprits, size] = np.min(
                1 + sum(
                    comb(culprits, j) * p**j * (1 - p) ** (culprits - j) * (needed[j, left] + needed[culprits - j, size - left])
                    for j in range(culprits + 1)
                )
            )  # fmt: skip
    return [2 + float(each) for each in needed[:, commits]]


def table(played: Played) -> Iterator[str]:
    """The table in Markdown."""
    yield "# Several workloads in one hunt, simulated: results"
    yield ""
    yield f"Written by `python {shlex.join(sys.argv)}` on {time.strftime('%Y-%m-%d')}. What the columns mean: [README](README.md)."
    least = {commits: least_builds(commits, 5) for commits in sorted({cell.commits for cell in (*GOALS, *OTHERS)})}
    for commits, fewest in least.items():
        yield from ("", f"## {commits:,} commits", "")
        yield (
            "| workloads | culprits | unchanged | do not build | build costs, runs | hunts | builds: dearest alone | all alone |"
            " together | × dearest | least × | runs: all alone | together | right alone | right together | wrong alone |"
            " wrong together | unchanged ones accused |"
        )
        yield "|" + "---|" * 18
        for cell in (*GOALS, *OTHERS):
            if cell.commits == commits and cell.name in played:
                yield row(cell, [*played[cell.name].values()], fewest)


def row(cell: Cell, each: Sequence[Facts], least: Sequence[float]) -> str:
    """One cell: means over its groups, and shares of their verdicts."""

    def share(kind: str, judgement: Judgement) -> str:
        verdicts = [judged for one in each for judged in one[kind]["judged"]]
        found = ShareInterval.of(sum(judged == judgement for judged in verdicts), len(verdicts))
        return f"{found.middle:.3f} ({found.low:.3f} to {found.high:.3f})"

    dearest = mean(max(one["alone"]["builds"]) for one in each)
    sums = [mean(sum(one["alone"][what]) for one in each) for what in ("builds", "runs")]
    together = mean(one["together"]["builds"] for one in each)
    ratio = together / dearest
    beyond = HuntCost.of([one["together"]["builds"] - ratio * max(one["alone"]["builds"]) for one in each])
    runs = mean(sum(one["together"]["runs"]) for one in each)
    accused = [
        sum(sum(one[kind]["named"][cell.workloads - cell.unchanged :]) for one in each)
        for kind in ("alone", "together")
    ]
    bound = f"{least[cell.culprits] / least[1]:.2f}" if not cell.failing else ""
    return " | ".join((
        f"| {cell.workloads}", str(cell.culprits), str(cell.unchanged), f"{100 * cell.failing:.0f} %", str(cell.runs),
        str(len(each)), f"{dearest:.1f}", f"{sums[0]:.1f}", f"{together:.1f}",
        f"{ratio:.2f} (± {1.96 * beyond.error / dearest:.2f})", bound, f"{sums[1]:.0f}", f"{runs:.0f}",
        *(share(kind, judgement) for judgement in (Judgement.RIGHT, Judgement.WRONG) for kind in ("alone", "together")),
        f"{accused[0]} alone, {accused[1]} together |" if cell.unchanged else "|",
    ))  # fmt: skip


if __name__ == "__main__":
    main()
