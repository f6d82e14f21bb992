"""`bisect resume` of hunts of which something has changed, or has failed."""

from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.tools

Invoke = Callable[..., tuple[int, str, str]]
HUNT = ["--builder", "script", "--workload", "one", "--repo", "repo", "--plain"]


def test_a_hunt_that_has_failed_goes_on_only_with_the_same_runs(invoke: Invoke, script: Callable[[str], str]) -> None:
    good = script("echo rate 100")
    bad = script("echo rate 10 # does not build")
    status, _, said = invoke("run", good, bad, *HUNT)
    assert status == 4
    assert "the bad end" in said and "bisect resume 1" in said
    status, listed, _ = invoke("history")
    assert "failed: nothing can be compared, because the bad end," in listed
    assert "Its last session has failed: nothing can be compared" in invoke("show")[1]

    suite = Path("workloads/script/suite.toml")
    before = suite.read_text()
    suite.write_text(before.replace('"one", "{threads}"]', '"one", "{threads}", "more"]'))
    status, _, said = invoke("resume", "--plain")
    assert status == 3
    assert "Hunt 1 cannot go on: its runs would be made in another way" in said
    assert "undo that, or begin a new hunt" in said

    suite.write_text(before)
    status, _, said = invoke("resume", "--plain")
    assert status == 4
    assert "the bad end" in said
