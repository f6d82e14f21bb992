"""The nights of a watched branch in the history, and the hunts that were begun for steps of their line."""

import json
from collections.abc import Collection, Iterator

from perfbisect.core.domain.session_state import SessionState
from perfbisect.store.history import History


def read_nights(history: History, branch: str) -> Iterator[SessionState]:
    """Our own nights of a branch, the newest first, as they are wanted."""
    its_branch = "iif(json_valid(request), json_extract(request, '$.branch'), NULL)"
    return history.intact_trials(f"kind = 'compare' AND origin IS NULL AND {its_branch} = ?", [branch])


def hunts_about(history: History, nights: Collection[int]) -> list[int]:
    """The hunts that were begun after these nights, oldest first."""
    about = "SELECT id FROM sessions WHERE kind = 'hunt' AND about IN (SELECT value FROM json_each(?)) ORDER BY id"
    return [hunt for (hunt,) in history.select(about, [json.dumps([*nights])])]
