"""`bisect prove` on a system that is a shell script, whose rate is a product of the lines of its file."""

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.core.domain.settings import Pairing
from perfbisect.recipes.proposal import Tree, is_unread
from program import HUNT, bisect_until, exits, rows

pytestmark = pytest.mark.tools

Script = Callable[[str], str]
Git = Callable[..., str]
Stored = Callable[..., int]
APART = "\n:\n:\n:\n:\n"


def program(*factors: str, ends: str = "") -> str:
    """A script with a little of chance in its rate, which each factor (a percentage) changes; and what follows it."""
    lines = [f"rate=$((rate * {factor} / 100))" for factor in factors]
    chance = "rate=$((100000 + $(date +%N | cut -c 6) * 10))"
    return f"{APART.join([chance, *lines])}{APART}echo rate $rate{ends}"


def test_what_a_revert_regains_is_measured_kept_and_shown(script: Script, seal: Path, tmp_path: Path) -> None:
    """The culprit loses a half, a later commit a tenth of the rest, and ln(2) of ln(2 / 0.9) is 86.8 %. What the hunt left
    out does not matter.
    """
    good = script(program("100", "100", "100"))
    broken = script("exit 1")
    script(program("100", "100", "100", ends=" # as good"))
    culprit = script(program("100", "50", "100"))
    bad = script(program("100", "50", "90"))
    assert culprit[:10] in exits(0, "run", good, bad, *HUNT, "--skip", broken)
    before = {path: path.read_bytes() for path in (tmp_path / "repo" / ".git").rglob("*") if path.is_file()}
    told = exits(0, "prove", "--visits", "3", "--runs", "1")
    assert {path: path.read_bytes() for path in before} == before
    assert {path for path in (tmp_path / "repo" / ".git").rglob("*") if path.is_file()} == {*before}
    said = re.search(
        rf"^Reverting {culprit[:10]} on {bad} regains (\d+) % \((\d+) to (\d+) %\) of what was lost\.$",
        told,
        re.MULTILINE,
    )
    assert said, told
    low, high = int(said[2]), int(said[3])
    assert 85 <= low <= 87 <= high <= 89
    assert "That is a part: the rest is due to other changes" in told
    assert f"col-2 : {bad} without {culprit[:10]}\n" in told
    assert len(list((seal / ".cache" / "perfbisect" / "builds").iterdir())) == 5, "good and bad are those of the hunt"

    shown = exits(0, "show", "p2")
    assert said[0] in shown
    assert f"p2: {said[0]}" in exits(0, "show", "1")
    assert f"p2: Reverting {culprit[:10]} on {bad}" in exits(0, "show", "1", "--markdown")
    assert re.search(r"^ *p2 .* proof$", exits(0, "history"), re.MULTILINE)
    found = json.loads(exits(0, "show", "p2", "--json"))
    assert found["proof"]["outcome"] == "regains"
    assert found["proof"]["regained"]["middle"] == pytest.approx(0.868, abs=0.01)
    assert found["settings"]["reverts"] == {"hunt": 1, "commits": [culprit]}
    assert found["settings"]["subjects"][2]["commit"] not in ("", good, bad, culprit)


def test_a_proof_that_is_cut_short_goes_on(script: Script, stored: Stored, seal: Path) -> None:
    good, bad = script(program("100")), script(program("50"))
    stored([good, bad], [100, 50], pairing=Pairing.TURNS)
    cut = bisect_until(["prove", "--visits", "3", "--runs", "1"], "run 4 of 9", signal.SIGINT)
    assert cut.returncode == 130, cut.stderr
    assert f"Reverting {bad[:10]} on" in exits(0, "resume", "p2")
    [again] = rows(seal / ".local/state/perfbisect/history.db", "select count(*) from runs where session_id = 2")
    assert 9 <= again[0] <= 12


def test_a_culprit_that_conflicts_is_left_to_the_user(script: Script, stored: Stored, tmp_path: Path) -> None:
    good = script(program("100"))
    culprit = script(program("50"))
    bad = script(program("51"))
    stored([good, culprit, bad], [100, 50, 51])
    told = exits(2, "prove", "1")
    assert f"{culprit[:10]} does not revert cleanly: conflicts in run.sh." in told
    assert f"git revert {culprit[:10]}" in told
    assert f"compare: bisect compare {good} {bad} reverted --builder script --workload one " in told
    assert f" --repo {tmp_path / 'repo'} " in told


def test_a_conflict_in_prose_that_no_build_reads_prevents_nothing(
    script: Script, stored: Stored, tmp_path: Path
) -> None:
    def commit(factor: str, news: str) -> str:
        for name in ("CHANGELOG.md", "NEWS"):
            (tmp_path / "repo" / name).write_text(f"{news}\n")
        return script(program(factor, "100"))

    good, culprit, bad = commit("100", "1"), commit("50", "2"), commit("50", "3")
    stored([good, culprit, bad], [100, 50, 50])
    told = exits(0, "prove", "1", "--visits", "3", "--runs", "1")
    assert "whose conflicts are left as bad has them: CHANGELOG.md, NEWS" in told
    read = Tree(frozenset({"NEWS", "a.md", "b.md"}), {"CMakeLists.txt": "file(READ NEWS v)\nfile(READ b.md t)"})
    assert not is_unread(read, "NEWS", "") and not is_unread(read, "b.md", "")
    assert is_unread(read, "a.md", "./bench") and not is_unread(read, "a.md", "./bench a.md")
    assert f"Reverting {culprit[:10]} on {bad} regains" in told


def test_hunts_without_a_culprit_have_nothing_to_revert(script: Script, stored: Stored) -> None:
    assert "No hunt in the history" in exits(3, "prove")
    stored([script(program("100")), script(program("100", ends=" # the same"))], [100, 100])
    assert "Hunt 1 named no culprit, so that nothing can be reverted." in exits(3, "prove", "1")
    assert "has named a culprit" in exits(3, "prove")
    assert "There is no hunt 7" in exits(3, "prove", "7")


def test_a_repository_that_has_lost_the_culprit(script: Script, stored: Stored, git: Git) -> None:
    good, culprit = script(program("100")), script(program("50"))
    stored([good, culprit], [100, 50])
    git("reset", "-q", "--hard", good)
    git("reflog", "expire", "--expire=now", "--all")
    git("gc", "-q", "--prune=now")
    assert f"has no commit {culprit[:10]}" in exits(3, "prove")
