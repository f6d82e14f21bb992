"""The hunts for the drops of a stored comparison."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import pytest

from perfbisect.core.domain.trials import DropHunt
from perfbisect.core.stats.drops import Drop, DropRange
from perfbisect.errors import CannotGoOn
from perfbisect.hunt import session
from perfbisect.hunt.trials import drop_hunts
from perfbisect.hunt.trials.drop_hunts import Comparison, hunt_range
from perfbisect.store.history import History


@dataclass
class Drops:
    """What is asked of a comparison whose drops are all hunted already."""

    def hunt_of(self, drop: Drop) -> DropHunt:
        """Its number is that of its workload."""
        return DropHunt(drop.work, 0, 1, drop.work, ("found", "failed", "failed")[drop.work], "", "")


def test_in_place_of_a_hunt_that_cannot_go_on_another_begins(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    resumed: list[int] = []
    begun: list[Drop] = []

    def resume(hunt: int, *_: object) -> tuple[()]:
        resumed.append(hunt)
        if hunt == 2:
            raise CannotGoOn("Hunt 2 cannot go on")
        return ()

    monkeypatch.setattr(session, "resume", resume)
    monkeypatch.setattr(drop_hunts, "begin", lambda _history, _found, drops, *_: begun.extend(drops))
    drops = [cast("Drop", SimpleNamespace(work=work)) for work in range(3)]
    span = cast("DropRange", SimpleNamespace(drops=drops))
    hunt_range(history, cast("Comparison", Drops()), span, lambda _: pytest.fail("shown"), None)
    assert resumed == [1, 2]
    assert begun == [drops[2]]
