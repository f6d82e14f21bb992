"""What the hunts for the drops of a comparison have found, for its tables and the lines below them."""

from collections.abc import Iterator, Mapping
from typing import Any

from perfbisect.core.domain.trials import DropHunt, Trial

Place = tuple[str, int]  # a workload, and the number of the build after a drop


def in_cells(trial: Trial) -> Mapping[Place, DropHunt]:
    """The hunt that the cell of a workload and build shows: the latest that ends at this build."""
    works = trial.request.works
    return {(works[each.work].name, each.last): each for each in sorted(trial.hunts, key=lambda each: each.hunt)}


def brief(hunt: DropHunt) -> str:
    """The commit that a hunt names, or else what has become of it, as it stands behind a ratio."""
    return hunt.culprit[:10] or (f"hunt {hunt.hunt}" if hunt.state in ("running", "interrupted") else hunt.state)


def sentences(trial: Trial) -> Iterator[str]:
    """A line for each hunt: which drop, between which builds, and the commit."""
    builds, works = trial.request.subjects, trial.request.works
    for each in trial.hunts:
        found = f"{each.culprit[:10]} {each.subject}".strip() or each.state
        ends = f"{builds[each.first].name} to {builds[each.last].name}"
        yield f"{works[each.work].name}, {ends}: {found} (hunt {each.hunt})"


def objects(trial: Trial) -> list[dict[str, Any]]:
    """The hunts for JSON, with the names of workloads and builds."""
    builds, works = trial.request.subjects, trial.request.works
    return [
        {
            "workload": works[each.work].name,
            "first": builds[each.first].name,
            "last": builds[each.last].name,
            "hunt": each.hunt,
            "state": each.state,
            "culprit": each.culprit or None,
            "subject": each.subject or None,
        }
        for each in trial.hunts
    ]
