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
            note("\n".join(filter(None, (printable(each.failure.advice), f"Go on with: {again(each, history)}"))))
    return max(each.status for each in outcomes)


def again(outcome: "Outcome", history: Path | None) -> str:
    """The command that goes on with a hunt, and with all others of its batch that have no verdict."""
    return command_on("resume", str(outcome.hunt), history)
