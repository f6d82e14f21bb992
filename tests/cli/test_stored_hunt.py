"""What is asked of a hunt that has a verdict: its reason, by `bisect why`, and how it was decided, by `bisect replay`."""

import json
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from program import SCRIPT, bisect_until, exits, printed

pytestmark = pytest.mark.tools

RUN = [*SCRIPT, "--plain", "--no-layouts"]


def test_ctrl_c_in_the_reason_leaves_the_verdict_which_was_notified(ends: tuple[str, str], tmp_path: Path) -> None:
    good, bad = ends
    kept = tmp_path / "kept"
    words = ["run", good, bad, *RUN, "--notify", f"sh -c 'cat >>{kept}'"]
    ended = bisect_until(words, "counters: ", signal.SIGINT)
    assert ended.returncode == 0, "a culprit is named"
    said, _, reason = ended.stdout.partition("Its reason follows.")
    assert f"The culprit is {bad[:10]}" in said and "counters: " not in said
    assert "counters: " in reason
    assert "The verdict stands; what is left of the reason is measured by: bisect why 1\n" in ended.stderr
    got = json.loads(kept.read_text())
    assert (got["state"], got["id"]) == ("found", "1")
    assert "found" in exits(0, "history")

    first = ended.stdout.count("counters: ")
    out = exits(0, "why", "--plain")
    assert out.index("The culprit is") < out.index("counters: ") < out.index(f"Why {bad[:10]}")
    again = exits(0, "why", "1", "--plain")
    assert out.count("counters: ") >= first and "counters: " not in again, "what was measured is not measured again"
    assert f"The culprit is {bad[:10]}" in again and f"Why {bad[:10]}" in again
    assert "it was not measured" not in exits(0, "show")


def test_there_must_be_a_verdict_that_names_a_commit(
    script: Callable[[str], str], stored: Callable[..., int], seal: Path
) -> None:
    """A hunt that names a commit without a reason names the command for it."""
    good, same, slow = script("echo rate 100"), script("echo rate 100 # the same"), script("echo rate 10")
    stored([good, same], [100, 100])
    assert "The verdict of hunt 1 names no commit" in exits(3, "why")
    stored([same, slow], [100, 10], max_runs=3)
    beside = f"{slow[:10]} leads, and is not proven. To measure it beside its parent: bisect compare '{slow[:10]}^' {slow[:10]} "
    assert beside in exits(3, "why")
    stored([good, same, slow], [100, 100, 10])
    helps = "No function is known to be the reason (it was not measured): measure it with `bisect why 3`."
    assert helps in " ".join((shown := exits(0, "show")).split()) and "--variant" not in shown
    with closing(sqlite3.connect(seal / ".local/state/perfbisect/history.db")) as history, history:
        history.execute("delete from events where session_id = 3 and kind = 'HuntEnded'")
    assert "Hunt 3 has no verdict." in exits(3, "why") and "bisect resume 3" in exits(3, "why", "3")


def test_a_hunt_is_decided_again(script: Callable[[str], str], stored: Callable[..., int]) -> None:
    """A smaller budget, of runs or of time, ends it without a name; ends that are alike have no leader."""
    commits = [script(f"echo {number}") for number in range(5)]
    hunt = str(stored(commits, [100, 100, 100, 70, 70]))
    first, *_ = (said := printed("replay", hunt)).splitlines()
    assert first.split(maxsplit=2) == ["0", "runs", "the ends are compared"]
    assert f"{commits[3][:10]} leads with" in said
    assert f"The culprit is {commits[3][:10]} (2020-01-02, “change”)" in said
    assert printed("replay", hunt, "--max-runs", "2", status=2).splitlines()[1].split()[-1] == "verdict"
    assert "the budget of 30 s is used up" in printed("replay", hunt, "--max-time", "30s", status=2)
    said = printed("replay", str(stored(commits, [100] * 5)), status=1)
    assert "leads" not in said and "Not reproduced" in said
