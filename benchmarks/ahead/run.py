"""How much sooner hunts end with build hosts, beside plain bisection with as many. See README.md.

Hunts that were played are kept as lines of JSON; the same command goes on where it was stopped.
"""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

sys.path.insert(0, str(Path(__file__).parents[1]))  # what benchmarks share

from played import Facts, Played, load, play
from rules import git_bisect, ours, parallel_bisect

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.settings import Policy, PriorKnowledge
from perfbisect.simulate.host_model import HostModel
from perfbisect.simulate.scenario import Scenario, random_merging_graph
from perfbisect.simulate.tally import Judgement, SearchRule, ShareInterval, judged_hunt_of_seed, mean

BUILD_HOSTS = (0, 1, 2, 4, 8, 16)
WORLDS = ("line", "merges", "failing", "cached")
COMMITS = 1000


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the table."""

    world: str
    runs: int  # that a build costs
    rule: str
    build_hosts: int  # 0: the host builds what it measures, as without build hosts

    @property
    def name(self) -> str:
        """Its name in the results."""
        return f"{self.world}/B={self.runs}/{self.rule}/{self.build_hosts}"

    @property
    def scenario(self) -> Scenario:
        """A drop of 5 % at a noise of 1 % and runs of a minute."""
        habits = HostModel(
            noise=0.01, build_seconds=60.0 * self.runs, cached_share=0.1 if self.world == "cached" else 1.0
        )
        graph = random_merging_graph(COMMITS) if self.world == "merges" else Graph.straight_history(COMMITS)
        return Scenario(graph, effect=0.05, failing=0.1 if self.world == "failing" else 0.0, habits=habits)

    def search(self) -> SearchRule:
        """The search that is played."""
        if self.rule.startswith("bisect"):
            repeats = int(self.rule.removeprefix("bisect R="))
            return parallel_bisect(repeats, self.build_hosts) if self.build_hosts else git_bisect(repeats)
        between = self.rule == "ours, host builds too"
        known = PriorKnowledge(float(self.runs))
        return partial(ours, prior=known, build_hosts=self.build_hosts, builds_between=between)


def main() -> None:
    """Play what is missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hunts", type=int, default=200, help="in each cell (default: 200)")
    parser.add_argument("--worlds", default="line", help=f"of {', '.join(WORLDS)} (default: line)")
    parser.add_argument("--costs", default="100,10", help="of a build, in runs (default: 100,10)")
    parser.add_argument("--rules", default="ours;bisect R=3;bisect R=5", help="or: ours, host builds too")
    parser.add_argument("--build-hosts", default=",".join(map(str, BUILD_HOSTS)))
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after so long; the next call goes on")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path.home() / ".cache/perfbisect/benchmarks/ahead.jsonl")
    parser.add_argument("--table", type=Path, help="file to write; of all hunts that were played")
    args = parser.parse_args()
    cells = [
        Cell(world, int(cost), rule, int(hosts))
        for cost in args.costs.split(",")
        for world in args.worlds.split(",")
        for rule in args.rules.split(";")
        for hosts in args.build_hosts.split(",")
        if hosts != "0" or rule != "ours, host builds too"
    ]
    args.results.parent.mkdir(parents=True, exist_ok=True)
    play([(cell, args.hunts) for cell in cells], hunt, args.minutes, args.jobs, args.results)
    if args.table:
        args.table.write_text("\n".join(table(load(args.results))) + "\n")


def hunt(cell: Cell, seed: int) -> Facts:
    """One hunt."""
    trial = judged_hunt_of_seed(cell.scenario, seed, cell.search(), Policy())
    return {
        "judgement": trial.judgement,
        "hours": trial.minutes / 60,
        "builds": trial.builds,
        "unused": trial.unused,
        "ended": trial.cancelled,
        "runs": trial.runs,
    }


def table(played: Played) -> Iterator[str]:
    """The table in Markdown."""
    yield "# Builds ahead, simulated: results"
    yield ""
    yield f"Written by `python {shlex.join(sys.argv)}` on {time.strftime('%Y-%m-%d')}. What the columns mean: [README](README.md)."
    groups = sorted({tuple(name.split("/")[:2]) for name in played}, key=lambda g: (WORLDS.index(g[0]), -len(g[1])))
    for world, cost in groups:
        yield from ("", f"## {world}, a build costs {cost.removeprefix('B=')} runs", "")
        yield "| rule | build hosts | hunts | right | wrong | hours | faster | builds | of no use | ended | runs |"
        yield "|---|---|---|---|---|---|---|---|---|---|---|"
        inside = [name for name in played if name.startswith(f"{world}/{cost}/")]
        today = hours(played.get(f"{world}/{cost}/ours/0", {}))
        for name in sorted(
            inside, key=lambda name: (name.split("/")[2] != "ours", name.split("/")[2], int(name.split("/")[3]))
        ):
            yield row(name, played[name], today)


def row(name: str, hunts: dict[str, Facts], today: float) -> str:
    """One cell: means over its hunts."""
    _, _, rule, hosts = name.split("/")
    each = list(hunts.values())

    def among(judgement: Judgement) -> str:
        found = ShareInterval.of(sum(one["judgement"] == judgement for one in each), len(each))
        return f"{found.middle:.3f} ({found.low:.2f} to {found.high:.2f})"

    means = {key: mean(float(one[key]) for one in each) for key in ("builds", "unused", "ended", "runs")}
    spent = hours(hunts)
    return " | ".join((
        f"| {rule}", hosts, str(len(each)), among(Judgement.RIGHT), among(Judgement.WRONG), f"{spent:.2f}",
        f"{today / spent:.2f}×", f"{means['builds']:.1f}", f"{means['unused']:.1f}", f"{means['ended']:.1f}",
        f"{means['runs']:.0f} |",
    ))  # fmt: skip


def hours(hunts: dict[str, Facts]) -> float:
    """Mean wall time of a hunt; NaN without any."""
    return mean(float(one["hours"]) for one in hunts.values())


if __name__ == "__main__":
    main()
