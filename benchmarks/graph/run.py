"""How long the next order takes on large histories, beside `git rev-list --bisect`. See benchmarks/README.md."""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

import numpy as np

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Decision, Measure
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.observations import Built, Observation, Reading
from perfbisect.core.search.decide import decide
from perfbisect.core.search.situation import Situation
from perfbisect.hunt import loop
from perfbisect.simulate.host_model import HostModel
from perfbisect.simulate.hunt import simulate_hunt
from perfbisect.simulate.scenario import random_merging_graph
from perfbisect.simulate.world import World

PATIENCE = 120  # seconds for git
GRAPHS: dict[str, Callable[[], Graph]] = {
    "line, 100,000 commits": lambda: Graph.straight_history(100_000),
    "100,000 commits, 14,000 merges": lambda: random_merging_graph(
        100_000, seed=1, merge_chance=0.2, branch_length=3.0
    ),
    # About one commit in thirteen is a merge, of a branch that left long ago.
    "1,300,000 commits, kernel shape": lambda: random_merging_graph(
        1_300_000, seed=1, merge_chance=0.5, branch_length=12.0, max_branch_age=400, back_merge_chance=0.01
    ),
}


def main() -> None:
    """One process for each graph, so that the memory is that of one graph."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", choices=GRAPHS, help="only this one, in this process")
    parser.add_argument("--orders", type=int, default=12, help="decisions timed (default: 12)")
    parser.add_argument(
        "--build-hosts", type=int, default=0, help="that build ahead, so that their builds are ordered, too"
    )
    parser.add_argument("--no-git", action="store_true", help="leave git out")
    args = parser.parse_args()
    if args.graph:
        print(measure(args.graph, args.orders, args.build_hosts, with_git=not args.no_git))
        return
    print("| graph | merges | first order | next orders, median | most | memory | git rev-list --bisect |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for name in GRAPHS:
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--graph", name], check=True)


def measure(name: str, orders: int, build_hosts: int, *, with_git: bool) -> str:
    """A row of the table."""
    graph = GRAPHS[name]()
    before = peak()
    times = list(ahead(graph, orders, build_hosts) if build_hosts else decisions(graph, orders))
    memory = f"{before:.0f} + {peak() - before:.0f} MB"
    merges = int((np.diff(graph.parent_offsets) > 1).sum())
    later = sorted(times[1:])
    git = git_bisect(graph) if with_git else ""
    return " | ".join((
        f"| {name}", f"{merges:,}", f"{times[0]:.3f} s", f"{later[len(later) // 2] * 1000:.0f} ms",
        f"{later[-1] * 1000:.0f} ms", memory, f"{git} |",
    ))  # fmt: skip


def ahead(graph: Graph, orders: int, build_hosts: int) -> Iterator[float]:
    """CPU seconds of each decision of a hunt with build hosts; a build costs 30 runs."""
    times: list[float] = []
    decided = loop.decide

    def timed(*args: Any) -> Decision:
        start = time.process_time()
        decision = decided(*args)
        times.append(time.process_time() - start)
        return decision

    loop.decide = timed
    world = World(graph, {graph.size // 3: -0.1}, HostModel(noise=0.01, build_seconds=1800.0), seed=1)
    with suppress(RuntimeError):  # after so many orders and builds
        simulate_hunt(world, Policy(), build_hosts=build_hosts, most_orders=orders)
    yield from times


def decisions(graph: Graph, orders: int) -> Iterator[float]:
    """CPU seconds of each decision of a hunt, from the first one that looks at the graph."""
    culprit = graph.size // 3
    world = World(graph, {culprit: -0.1}, HostModel(noise=0.01), seed=1)
    seen: list[Observation] = [Built(0, 600.0), Built(graph.size - 1, 600.0)]
    seen += [
        Reading(v, -0.1 * (v > 0) + 0.001 * (i % 3), 20.0 + i, i, 0, 60.0)
        for i, v in enumerate([0, graph.size - 1] * 3)
    ]
    for _ in range(orders):
        start = time.process_time()
        order = decide(Situation(graph, seen, Policy())).order
        yield time.process_time() - start
        if not isinstance(order, Measure):
            return
        seen += world.measure(order)


def peak() -> float:
    """Peak memory of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def git_bisect(graph: Graph) -> str:
    """CPU time that git takes to choose its first commit in the same graph, with a commit graph file."""
    with tempfile.TemporaryDirectory() as folder:
        git = ["git", "-C", folder]
        subprocess.run(["git", "init", "-q", "--bare", folder], check=True)
        with subprocess.Popen([*git, "fast-import", "--quiet"], stdin=subprocess.PIPE) as writer:
            assert writer.stdin is not None
            writer.stdin.writelines(stream(graph))
        subprocess.run([*git, "commit-graph", "write", "--reachable", "--no-progress"], check=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        try:
            choice = [*git, "rev-list", "--bisect", "bad", "^good"]
            subprocess.run(choice, check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            return f"not within {PATIENCE} s"
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return f"{after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime:.2f} s"


def stream(graph: Graph) -> Iterator[bytes]:
    """The graph as input of git fast-import: empty commits, "good" the first and "bad" the last."""
    yield b"commit refs/heads/good\nmark :1\ncommitter A <a@example.org> 1000000000 +0000\ndata 0\n"
    for v in range(1, graph.size):
        when = 10**9 + 60 * v
        yield b"commit refs/heads/bad\nmark :%d\ncommitter A <a@example.org> %d +0000\ndata 0\n" % (v + 1, when)
        for i, parent in enumerate(graph.parents_of(v)):
            yield b"%s :%d\n" % (b"merge" if i else b"from", parent + 1)
    yield b"done\n"


if __name__ == "__main__":
    main()
