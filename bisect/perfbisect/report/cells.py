"""The tables of a report, cell by cell, as every format of it shows them."""

from collections.abc import Iterator, Sequence

from perfbisect.core.domain.explanation import FunctionRow
from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.explain.profiles import short
from perfbisect.core.inference.classification import Classification
from perfbisect.report.content import Candidate, Case, Story
from perfbisect.wording.functions import UNITS as UNITS_OF_COST
from perfbisect.wording.functions import beyond, notes, waits_of
from perfbisect.wording.quantities import (
    MISSING,
    between,
    chance,
    count,
    decimals,
    duration,
    figure,
    middle,
    share,
    signed,
)
from perfbisect.wording.table import cut
from perfbisect.wording.text import metric_title, patched, printable
from perfbisect.wording.verdicts import classification_name

Row = tuple[str, ...]

UNITS = {"time/o": "time/o, µs", "cpu/o": "cpu/o, µs", "ipc": "instructions/cycle", "time/cpu": "time/CPU time"}
DISPENSABLE: Row = ("ccache", "date", "build", "runs")  # columns that are left out on a narrow terminal
COUNTERS: Row = ("counter", "parent", "culprit", "ratio", "95 %")
FUNCTIONS: Row = ("function", "binary", "parent", "culprit", "difference", "share", "")
LEAST, LISTED = 3, 10  # functions: the first of them anyway, the others where they differ beyond noise
NUMBERS: Row = ("runs", "build", "ccache")  # columns that are aligned at the right, as the ratio


def counters(case: Case) -> list[Row]:
    """What was counted for a culprit and its parent; what moved furthest beyond its noise comes first.

    Where perf has counted for a part of the time and extrapolated, the share of the time is beside the name.
    """
    return [
        (
            UNITS.get(each.name, each.name) + (f" ({share(each.share)} counted)" if each.share < 1 else ""),
            figure(each.parent),
            figure(each.culprit),
            f"×{decimals(each.ratio.middle, 2)}",
            between(each.ratio if each.rounds > 1 else None),
        )
        for each in case.explanation.counters
    ]


def function_tables(case: Case) -> Iterator[tuple[str, list[Row]]]:
    """The functions whose costs differ most, with what the costs are: of waiting where that is a reason, and of work."""
    found = case.explanation
    unit = UNITS_OF_COST.get(found.unit, found.unit)
    for what, rows in (
        ("Waiting of each function per operation, µs", functions(waits_of(found), found.changed)),
        (f"Own cost of each function per operation, {unit}", functions(found.functions, found.changed)),
    ):
        if rows:
            yield f"{what}; share of the whole difference", rows


def functions(rows: Sequence[FunctionRow], by_commit: Sequence[str]) -> list[Row]:
    """Functions in order; ``by_commit`` are all that the commit changes."""
    return [
        (
            cut(printable(short(row.function)), 48),
            printable(row.binary),
            figure(row.parent),
            figure(row.culprit),
            signed(row.difference),
            share(row.part) if row.part else MISSING,
            printable("; ".join(notes(row, by_commit))),
        )
        for place, row in enumerate(rows)
        if place < LEAST or (place < LISTED and beyond(row))
    ]


def not_counted(case: Case) -> str:
    """The metrics that the host could not count, in one line; empty when there is none."""
    known = {row.name for row in case.explanation.counters}
    absent = (each.metric for each in case.counters if each.parent is None and each.culprit is None)
    return ", ".join(name for name in absent if name not in known and not find_metric(name).of_some)


def suspects(story: Story) -> list[Row]:
    """Probability, commit, date and subject of each suspect."""
    return [
        (chance(each.probability), each.commit.short, each.commit.date, each.commit.subject) for each in story.suspects
    ]


def relative_name(story: Story) -> str:
    """The name of the ratio to the baseline: rQPS, rp95, …"""
    return f"r{metric_title(story.settings.metric)}"


def candidates_head(story: Story) -> Row:
    """The titles of the table of candidates."""
    return ("commit", "date", relative_name(story), "95 %", "runs", "build", "ccache", "state", "subject")


def candidates(story: Story) -> list[Row]:
    """What was built, measured or skipped, oldest first."""
    return [
        (
            each.commit.short,
            each.commit.date or MISSING,
            *ratio_cells(each),
            str(each.runs) if each.runs else MISSING,
            build(each),
            share(each.hit_rate),
            classification_name(each.state),
            each.commit.subject,
        )
        for each in story.candidates
        if not each.left_out
    ]


def patches(story: Story) -> list[str]:
    """The patches of the hunt, each with the number of builds that have it."""
    built = [each for each in story.candidates if each.patches]
    names = dict.fromkeys(name for each in built for name in each.patches)
    return [
        f"{name}, in {sum(each.patches.get(name, False) for each in built)} of {count(len(built), 'build')}"
        for name in names
    ]


def left_out(story: Story) -> str:
    """How many candidates were left out, and by what; empty if none was. They have no row of their own."""
    size = sum(each.left_out for each in story.candidates)
    return (
        f"{count(size, 'candidate')}, by {' '.join(f'--skip {text}' for text in story.settings.skips)}" if size else ""
    )


def ratio_cells(each: Candidate) -> Row:
    """The ratio to the good end, and its interval."""
    if each.state is Classification.BASELINE:
        return "1.000", "baseline"
    return MISSING if each.ratio is None else middle(each.ratio), between(each.ratio)


def build(each: Candidate) -> str:
    """How long its builds took."""
    if not each.build_seconds:
        return "kept" if each.reused else MISSING
    times = "shared: " if each.shared else f"{each.builds}× " if each.builds > 1 else ""
    return f"{times}{duration(each.build_seconds)}"


def remarks(story: Story) -> Iterator[str]:
    """What the table has no column for."""
    for each in story.candidates:
        if each.skipped and not each.left_out:
            yield f"{each.commit.short} was skipped, {each.skipped}"
        if each.stopped:
            yield f"{each.commit.short} is {each.stopped}"
        if each.further:
            how = "timed" if story.settings.prior.exact else "counted exactly"
            yield f"{each.commit.short} was also {how}, in {count(each.further, 'run')}"
        if each.patches:
            yield f"{each.commit.short} was built {patched(each.patches)}"
        if each.same_as:
            yield f"{each.commit.short} is the same binary as {each.same_as.short}"
