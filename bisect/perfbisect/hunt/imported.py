"""What is done with hunts of other people, which `bisect history import` has brought into a history."""

from perfbisect.errors import UsageError
from perfbisect.store.history import History
from perfbisect.wording.text import printable


def refuse_imported(history: History, hunt: int, what: str) -> None:
    """Raise UsageError for an imported hunt: its settings have commands, paths and hosts of someone else."""
    if whose := history.origin(hunt):
        raise UsageError(
            f"Hunt {hunt} was imported from {printable(whose)}: {what}, since its commands, its repository and its hosts"
            " are not yours.",
            "`bisect show` prints the command that began it; check it, and begin a hunt of your own with it.",
        )
