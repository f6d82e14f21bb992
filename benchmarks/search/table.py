"""The table of the benchmark, as Markdown and as JSON."""

import datetime
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from cells import Cell
from contest import BEST, MAIN
from figures import Bin, geometric, of_favourites, of_sets
from goals import bound, goals, has_culprit
from oracle import GOAL, with_oracle
from results import Played

from perfbisect.simulate.tally import JudgedHunt, Tally, mean

Tallies = dict[tuple[str, str], Tally]
Rows = Iterable[Sequence[str]]


def write(file: Path, cells: Mapping[str, Cell], played: Played, rules: Sequence[str], command: str) -> None:
    """``file`` and, beside it, the same numbers as JSON."""
    mine = {key: trials for key, trials in with_oracle(cells, played).items() if key[0] in cells}
    tallies = {key: Tally.of(trials.values()) for key, trials in mine.items() if trials}
    if any(rule == BEST for _, rule in mine):
        # the other numbers of repeats were only needed for the best one
        rules = [*(rule for rule in rules if rule in MAIN), BEST]
    hunts = [tally.hunts for tally in tallies.values()]
    # in worlds with a culprit, or without any change
    findable = {key: trials for key, trials in mine.items() if has_culprit(cells[key[0]])}
    sections = [
        "# Simulated hunts: results\n",
        f"Written by `{command}` on {datetime.datetime.now(datetime.UTC).date()};",
        f"{min(hunts)} to {max(hunts)} hunts for each cell and rule. What the columns mean: [README](../README.md).\n",
        "## Goals\n",
        *markdown(("goal", "wanted", "seen", "hunts"), goals(cells, mine)),
        "",
        *overview(cells, tallies, rules),
        *by_effect(cells, tallies, rules),
        *by_world(cells, tallies, rules),
        *calibration("the candidate most suspected at the end", of_favourites, mine, rules),
        *calibration("the suspects of an undecided hunt", of_sets, findable, rules),
    ]
    file.write_text("\n".join(sections) + "\n")
    rows = [json.dumps(as_row(cells[cell], rule, tally)) for (cell, rule), tally in tallies.items()]
    file.with_suffix(".json").write_text("[\n" + ",\n".join(rows) + "\n]\n")


def overview(cells: Mapping[str, Cell], tallies: Tallies, rules: Sequence[str]) -> Iterator[str]:
    """Each rule over the whole grid."""
    rows = []
    for rule in rules:
        both = [(c, tallies[n, rule]) for n, c in cells.items() if c.group == "grid" and (n, rule) in tallies]
        if not both:
            continue
        every = [tally for _, tally in both]
        core = [(c, tally) for c, tally in both if c.core]
        rows.append((
            rule, str(len(both)), share(mean(t.right.middle for t in every)), share(min(t.right.middle for t in every)),
            share(mean(t.right.middle >= GOAL for t in every)), share(named_right(every)),
            share(mean(t.named.middle for t in every)), f"{mean(t.builds.mean for t in every):.1f}",
            f"{mean(t.runs.mean for t in every):.0f}", f"{geometric(t.cost.mean / bound(c) for c, t in both):.2f}",
            share(mean(t.right.middle for _, t in core)), f"{geometric(t.cost.mean / bound(c) for c, t in core):.2f}",
        ))  # fmt: skip
    if rows:
        yield "## The grid\n"
        head = ("rule", "cells", "P", "worst", "cells ≥ .95", "P if named", "named", "builds", "runs", "cost/LB",
                "P core", "core cost/LB")  # fmt: skip
        yield from markdown(head, rows)


def named_right(tallies: Iterable[Tally]) -> float:
    """The share of right names, over all hunts that named a commit."""
    named = right = 0.0
    for tally in tallies:
        count = tally.named.middle * tally.hunts
        named += count
        right += tally.right_if_named.middle * count if count else 0.0
    return right / named if named else math.nan


def by_effect(cells: Mapping[str, Cell], tallies: Tallies, rules: Sequence[str]) -> Iterator[str]:
    """Cost over bound, and accuracy, by effect and noise."""
    conditions = sorted(
        {(c.scenario.effect, c.scenario.habits.noise, c.build) for c in cells.values() if c.group == "grid"}
    )
    rows = []
    for effect, noise, build in reversed(conditions):
        names = [
            n for n, c in cells.items()
            if c.group == "grid" and (c.scenario.effect, c.scenario.habits.noise, c.build) == (effect, noise, build)
        ]  # fmt: skip
        row = [f"{effect:.0%} @ {noise:.0%}", f"{cells[names[0]].separation:.1f}", f"{build:g}"]
        for rule in rules:
            known = [(n, tallies[n, rule]) for n in names if (n, rule) in tallies]
            ratio = geometric(t.cost.mean / bound(cells[n]) for n, t in known)
            row.append(f"{share(mean(t.right.middle for _, t in known))} · {ratio:.2f}" if known else "")
        rows.append(row)
    if rows:
        yield "\n## By effect and noise: P(right) · cost/LB\n"
        yield from markdown(("effect", "D/s", "B", *rules), rows)


def by_world(cells: Mapping[str, Cell], tallies: Tallies, rules: Sequence[str]) -> Iterator[str]:
    """A row for each world."""
    rows = []
    for name, cell in cells.items():
        if cell.group == "world":
            known = [tallies.get((name, rule)) for rule in rules]
            rows.append([name.removeprefix("world/"), *(in_world(tally) if tally else "" for tally in known)])
    if rows:
        yield "\n## Worlds: P(right) / P(wrong) · runs + builds\n"
        yield from markdown(("world", *rules), rows)


def in_world(tally: Tally) -> str:
    """One cell of the table of worlds."""
    spent = f"{tally.runs.mean:.0f} + {tally.builds.mean:.0f}"
    return f"{share(tally.right.middle)} / {share(tally.wrong.middle)} · {spent}"


def calibration(
    title: str, of: Callable[[Iterable[JudgedHunt]], Iterator[Bin]], played: Played, rules: Sequence[str]
) -> Iterator[str]:
    """How often a culprit is in the set that is stated to contain it, by the stated probability."""
    rows = []
    for rule in rules:
        trials = (t for (_, r), by_seed in played.items() if r == rule for t in by_seed.values())
        rows += [
            (rule, name, str(n), f"{stated:.3f}", f"{true.middle:.3f}", f"{true.low:.3f} to {true.high:.3f}")
            for name, n, stated, true in of(trials)
        ]
    if rows:
        yield f"\n## Calibration: {title}\n"
        yield from markdown(("rule", "stated", "hunts", "mean stated", "true", "95 % interval"), rows)


def as_row(cell: Cell, rule: str, tally: Tally) -> dict[str, object]:
    """The figures as JSON."""
    scenario = cell.scenario
    ratio = tally.cost.mean / bound(cell) if scenario.graph.size > 2 else None
    numbers = {
        "hunts": tally.hunts, "right": tally.right.middle, "honest": tally.honest.middle, "wrong": tally.wrong.middle,
        "named": tally.named.middle, "right_if_named": tally.right_if_named.middle, "stated": tally.stated,
        "builds": tally.builds.mean, "runs": tally.runs.mean, "cost": tally.cost.mean, "cost_error": tally.cost.error,
        "hours": tally.hours.mean, "cost_over_bound": ratio,
    }  # fmt: skip
    known = {key: None if v is None or math.isnan(v) else round(v, 3) for key, v in numbers.items()}
    return {"cell": cell.name, "rule": rule, "effect": scenario.effect, "noise": scenario.habits.noise} | known


def share(value: float) -> str:
    """.983, 1.00, or nothing for NaN."""
    if math.isnan(value):
        return ""
    return f"{value:.2f}" if value in (0.0, 1.0) else f"{value:.3f}".lstrip("0")


def markdown(head: Sequence[str], rows: Rows) -> Iterator[str]:
    """A Markdown table."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)
