"""The hunts for the drops of a comparison, and for the steps of a watched branch as its line grows."""

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import sample_hunt as sample
from perfbisect.core.domain.settings import TrialBuild
from perfbisect.core.domain.trials import DropHunt, Trial
from perfbisect.core.stats.drops import Drop, DropRange
from perfbisect.core.stats.paired_comparison import Ratio
from perfbisect.core.stats.watched_branch import Branch
from perfbisect.errors import CannotGoOn
from perfbisect.hunt import session
from perfbisect.hunt.nightly import Watched
from perfbisect.hunt.trials import drop_hunts
from perfbisect.hunt.trials.drop_hunts import Comparison, hunt_range
from perfbisect.store.history import History
from repos import Repo


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


SIZE = Ratio(0.8, None, 0)


@pytest.fixture
def line(tmp_path: Path) -> tuple[Trial, list[str], Path]:
    """A line of five tips, each the second commit after the one before it; and all commits."""
    repo = Repo(tmp_path / "repo")
    commits = [repo.commit({"file": f"{number}"}) for number in range(9)]
    tips = tuple(TrialBuild(f"tip {number}", commit) for number, commit in enumerate(commits[::2]))
    trial = sample.night(4)
    return replace(trial, request=replace(trial.request, subjects=tips)), commits, repo.path


def todo(line: tuple[Trial, list[str], Path], drops: list[tuple[int, int]], *hunts: DropHunt) -> list[tuple[int, int]]:
    """The ranges that are hunted, of those of these drops."""
    trial, _, path = line
    spans = tuple(DropRange(*ends, (Drop(0, *ends, SIZE),)) for ends in drops)
    settings = replace(sample.SETTINGS, repository=str(path))
    watched = Watched(replace(trial, hunts=hunts), settings, Branch((), ()), spans, trial)
    return [(span.first, span.last) for span in watched.ranges()]


@pytest.mark.tools
def test_a_step_that_moves_is_hunted_once(line: tuple[Trial, list[str], Path]) -> None:
    """Commit 3 is between the tips 1 and 2."""
    commits = line[1]
    found = DropHunt(0, 1, 2, 7, "found", commits[3])
    assert todo(line, [(1, 2)]) == [(1, 2)]
    assert todo(line, [(1, 2), (0, 2), (1, 3), (2, 3)], found) == [(2, 3)]
    last = DropHunt(0, 1, 2, 7, "found", commits[4])
    assert todo(line, [(1, 2), (2, 3)], last) == [(2, 3)], "the last tip of a range belongs to it, the first does not"
    other = replace(found, work=1)
    assert todo(line, [(1, 2)], other) == [(1, 2)], "of another workload"


@pytest.mark.tools
def test_what_has_begun_goes_on_before_the_others(line: tuple[Trial, list[str], Path]) -> None:
    begun = DropHunt(0, 0, 1, 7, "interrupted")
    assert todo(line, [(2, 3)], begun, DropHunt(0, 1, 2, 8, "code placement")) == [(0, 1), (2, 3)]
