"""The report of a proof: what a revert of the culprit regains, and the builds relative to good."""

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from perfbisect.core.domain.trials import Trial
from perfbisect.core.stats.regained_share import outcome, regained
from perfbisect.report import comparison
from perfbisect.wording.proofs import sentences


def as_object(trial: Trial) -> str:
    """The whole report as JSON."""
    return comparison.encoded(contents(trial))


def contents(trial: Trial) -> dict[str, Any]:
    """The whole report: that of the comparison, and the proof."""
    found = regained(trial)
    proof = {
        "outcome": outcome(found),
        "regained": found.share if found else None,
        "rounds": found.rounds if found else 0,
        "sentences": list(sentences(trial)),
    }
    return {**comparison.contents(trial), "proof": proof}


def lines(trial: Trial, *, counters: bool = False) -> Iterator[str | Text]:
    """The sentences, then the table of a comparison."""
    yield from sentences(trial)
    yield ""
    yield from comparison.lines(trial, counters=counters)
