"""Plays hunts in worlds drawn at random, in which several things go wrong at once. See benchmarks/README.md."""

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

for library in ("OPENBLAS", "OMP", "MKL"):  # matrices are small; must be set before numpy is imported
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

from worlds import draw

from perfbisect.core.domain.orders import all_steps
from perfbisect.simulate.hunt import simulate_hunt
from perfbisect.simulate.tally import (
    Judgement,
    ShareInterval,
    StepCounts,
    count_steps,
    judge_verdict,
    mean,
    suspect_set_and_probability,
)

CHUNK = 10  # hunts that a process plays in a row
EVERY = 30.0  # seconds between two lines of progress


@dataclass(frozen=True, slots=True)
class Played:
    """The result of one hunt."""

    features: tuple[str, ...]
    judgement: Judgement
    named: tuple[float, ...]  # the stated probabilities of all that were named
    together: float | None  # the stated probability of the set of an inconclusive hunt
    held: bool  # whether that set contains a culprit
    steps: StepCounts
    builds: int
    runs: int


def play(seed: int, *, every_change: bool) -> Played:
    """One hunt."""
    drawn = draw(seed, every_change=every_change)
    world = drawn.scenario.world(seed)
    outcome = simulate_hunt(world, drawn.policy, hosts=drawn.hosts)
    chosen, together = suspect_set_and_probability(outcome.verdict)
    return Played(
        drawn.features,
        judge_verdict(outcome.verdict, world, drawn.policy.min_effect),
        tuple(step.probability for step in all_steps(outcome.verdict)),
        together if world.right_culprits else None,
        not world.right_culprits.isdisjoint(chosen),
        count_steps(outcome.verdict, world, drawn.policy.min_effect),
        outcome.builds,
        outcome.runs,
    )


def rows(hunts: Sequence[Played], *, every_change: bool) -> Iterator[str]:
    """The table: all hunts, then those of each feature."""
    head: tuple[str, ...] = ("worlds", "hunts", "named", "right", "95 %", "stated")
    head += ("missed", "left open", "too small") if every_change else ("sets", "right", "stated", "wrong otherwise")
    head += ("builds", "runs")
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield row("all", hunts, every_change=every_change)
    for feature in sorted({feature for played in hunts for feature in played.features}):
        yield row(feature, [played for played in hunts if feature in played.features], every_change=every_change)


def row(name: str, hunts: Sequence[Played], *, every_change: bool) -> str:
    """One line of the table."""
    steps = sum((played.steps for played in hunts), StepCounts())
    stated = [probability for played in hunts for probability in played.named]
    if every_change:
        right = ShareInterval.of(steps.right, steps.right + steps.wrong)
        rest = [f"{steps.missed}", f"{steps.unsettled}", f"{steps.unseen}"]
    else:
        accused = [played for played in hunts if played.named]
        right = ShareInterval.of(sum(played.judgement is Judgement.RIGHT for played in accused), len(accused))
        sets = [played for played in hunts if played.together is not None]
        silent = [played for played in hunts if not played.named and played not in sets]
        wrong = sum(played.judgement is Judgement.WRONG for played in silent)
        shares = [mean(played.held for played in sets), mean(played.together or 0.0 for played in sets)]
        rest = [f"{len(sets)}", *(f"{value:.3f}" for value in shares), f"{wrong}"]
    cells = [name, f"{len(hunts)}", f"{len(stated)}", f"{right.middle:.3f}", f"{right.low:.3f} to {right.high:.3f}"]
    cells += [f"{mean(stated):.3f}", *rest]
    cells += [f"{mean(played.builds for played in hunts):.1f}", f"{mean(played.runs for played in hunts):.0f}"]
    return f"| {' | '.join(cells)} |"


def watched(hunts: Iterable[Played], total: int) -> Iterator[Played]:
    """The same hunts, with lines of progress."""
    began = last = time.monotonic()
    for number, played in enumerate(hunts, 1):
        yield played
        if time.monotonic() - last > EVERY:
            last = time.monotonic()
            left = (last - began) / number * (total - number) / 60
            print(f"{number} of {total} hunts, about {left:.0f} minutes left", file=sys.stderr, flush=True)


def main() -> None:
    """Play, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hunts", type=int, default=1000, help="how many, the first seeds first (default: 1000)")
    parser.add_argument("--all", action="store_true", help="hunts for every change, in ranges of up to 60 commits")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    args = parser.parse_args()
    with ProcessPoolExecutor(args.jobs) as pool:
        outcomes = pool.map(partial(play, every_change=args.all), range(args.hunts), chunksize=CHUNK)
        hunts = list(watched(outcomes, args.hunts))
    print("\n".join(rows(hunts, every_change=args.all)))


if __name__ == "__main__":
    main()
