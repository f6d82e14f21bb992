"""How hunts that were carried out together have ended, for `run` and `resume`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perfbisect.report.command_line import command_on
from perfbisect.ui.stream import note
from perfbisect.wording.text import printable

if TYPE_CHECKING:
    from perfbisect.hunt.session import Outcome


def say_failures(outcomes: "Sequence[Outcome]", history: Path | None) -> int:
    """Say on standard error which hunts have no verdict, and why; returns the highest exit status."""
    for each in outcomes:
        if each.failure:
            note(f"Hunt {each.hunt} has failed: {printable(str(each.failure))}")
            again = command_on("resume", str(each.hunt), history)  # all of its batch that have no verdict
            note("\n".join(filter(None, (printable(each.failure.advice), f"Go on with: {again}"))))
    return max(each.status for each in outcomes)
