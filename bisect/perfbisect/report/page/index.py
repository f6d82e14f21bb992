"""The page that lists a history: hunts, comparisons, proofs and A/As, the newest first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfbisect.report.page.pages import render
from perfbisect.store.listing import Listed, ListedTrial
from perfbisect.wording.quantities import MISSING, chance, count, decimals

KINDS = {"compare": "comparison", "prove": "proof", "noise": "A/A"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One row."""

    id: str
    started: float
    kind: str
    builder: str
    workload: str
    host: str
    range: str
    result: str
    sure: str
    ratio: str
    runs: int
    page: str  # address; empty without one


def index_page(hunts: Sequence[Listed], trials: Sequence[ListedTrial], pages: Mapping[int | str, str]) -> str:
    """The page; ``pages`` are the addresses of those that were written, by id."""
    entries = [*(of_hunt(one, pages) for one in hunts), *(of_trial(one, pages) for one in trials)]
    entries.sort(key=lambda one: one.started, reverse=True)
    return render("index.html", entries=entries)


def of_hunt(one: Listed, pages: Mapping[int | str, str]) -> Entry:
    """The row of a hunt."""
    return Entry(
        id=str(one.id),
        started=one.started,
        kind="hunt",
        builder=one.builder,
        workload=one.workload,
        host=one.host,
        range=f"{one.good}..{one.bad}",
        result=f"{one.state} {one.culprit[:10]}" if one.culprit else one.state,
        sure=MISSING if one.probability is None else chance(one.probability),
        ratio=MISSING if one.ratio is None else decimals(one.ratio, 3),
        runs=one.runs,
        page=pages.get(one.id, ""),
    )


def of_trial(one: ListedTrial, pages: Mapping[int | str, str]) -> Entry:
    """The row of a trial."""
    first, *others = one.workloads
    return Entry(
        id=one.id,
        started=one.started,
        kind=KINDS[one.kind],
        builder=one.builder,
        workload=count(len(one.workloads), "workload") if others else first,
        host=one.host,
        range=one.title,
        result=one.state,
        sure=MISSING,
        ratio=MISSING,
        runs=one.runs,
        page=pages.get(one.id, ""),
    )
