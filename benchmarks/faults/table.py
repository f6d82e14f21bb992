"""The summary of a campaign, in Markdown."""

from collections import Counter
from collections.abc import Sequence

from faults import FAULTS

from hunt import Outcome


def summary(outcomes: Sequence[Outcome], seconds: float, command: str) -> str:
    """What was done, and what held."""
    here, far = ([outcome for outcome in outcomes if outcome.far is far] for far in (False, True))
    wrong = [outcome for outcome in outcomes if outcome.troubles]
    total = sum(outcome.faults.total() for outcome in outcomes)
    held = f"{len(wrong)} hunts did not hold." if wrong else "All hunts held."
    flooded = [outcome.memory for outcome in outcomes if outcome.flooded]
    lines = [
        "# Faults: last results",
        "",
        f"`{command}`",
        "",
        (
            f"{total:,} faults in {len(outcomes):,} hunts, {len(here):,} here and {len(far):,} over SSH, in"
            f" {seconds / 60:.0f} minutes: {sum(outcome.sessions for outcome in outcomes):,} sessions,"
            f" {sum(outcome.runs for outcome in outcomes):,} whole runs,"
            f" {sum(outcome.entered for outcome in outcomes):,} of them entered. {held}"
        ),
        "",
        (
            f"The largest controller took {max((outcome.memory for outcome in outcomes), default=0) >> 20} MiB;"
            f" where output was flooded, {max(flooded, default=0) >> 20} MiB."
        ),
        "",
        "| fault | here | over SSH |",
        "|---|--:|--:|",
    ]
    counts = [sum((outcome.faults for outcome in some), Counter[str]()) for some in (here, far)]
    lines += [f"| {fault.name} | {counts[0][fault.name]:,} | {counts[1][fault.name]:,} |" for fault in FAULTS]
    lines += ["", "| moment | faults |", "|---|--:|"]
    moments = sum((outcome.moments for outcome in outcomes), Counter[str]())
    lines += [f"| {name} | {number:,} |" for name, number in moments.most_common()]
    if wrong:
        lines += ["", "## What did not hold", ""]
        lines += [f"- `{repeat(outcome)}`: {trouble}" for outcome in wrong for trouble in outcome.troubles]
    return "\n".join(lines) + "\n"


def repeat(outcome: Outcome) -> str:
    """The options that repeat a hunt."""
    seed, _, number = outcome.seed.partition("-")
    return f"--seed {seed} --hunt {number} --where {'far' if outcome.far else 'here'}"
