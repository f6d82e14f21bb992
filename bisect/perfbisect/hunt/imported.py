"""What is done with hunts of other people, which `bisect history import` has brought into a history."""

from perfbisect.errors import UsageError
from perfbisect.store.history import History
from perfbisect.wording.text import printable


def refuse_imported(history: History, session: int, what: str, name: str = "") -> None:
    """Raise UsageError for an imported hunt, or trial of that ``name``: its settings have commands and paths of someone else."""
    if whose := history.origin(session):
        raise UsageError(
            f"{name or f'Hunt {session}'} was imported from {printable(whose)}: {what}, since its commands, its repository and its hosts"
            " are not yours.",
            f"`bisect show {name or session}` says how it was begun; check that, and begin one of your own.",
        )
