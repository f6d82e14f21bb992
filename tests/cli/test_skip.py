"""`--skip`: commits that are known to be broken are left out, and what cannot be left out is said."""

import json
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.tools

Exits = Callable[..., str]
HUNT = ["--builder", "script", "--workload", "one", "--repo", "repo", "--plain", "--no-explain"]
RATE = "chance=$(date +%N | cut -c 6); echo rate {}0$chance"


@pytest.fixture
def commits(script: Callable[[str], str], git: Callable[..., str]) -> list[str]:
    """Twelve commits; from the eighth on it is slow, and the fifth and sixth would hang."""
    made = []
    for number in range(12):
        text = "sleep 3600" if number in (5, 6) else RATE.format(500 if number >= 8 else 1000)
        made.append(script(f"{text} # {number}"))
        git("tag", f"v{number}")
    return made


def test_what_is_left_out_is_not_built_and_stays_so(exits: Exits, commits: list[str]) -> None:
    asked = ["run", "v0", "v11", *HUNT, "--skip", "v4..v6", "--skip", commits[2]]
    out = exits(0, *asked)
    left = [commits[2], commits[5], commits[6]]
    for commit in left:
        assert f"skipped   {commit[:10]}  left out: by --skip {commit if commit == commits[2] else 'v4..v6'}" in out
    assert not [commit for commit in left if f"building  {commit[:10]}" in out]
    assert f"The culprit is {commits[8][:10]}" in out

    shown = exits(0, "show")
    assert f"  left out  3 candidates, by --skip v4..v6 --skip {commits[2]}" in shown
    assert f"--skip v4..v6 --skip {commits[2]}" in shown.partition("To repeat:")[2]
    assert not [line for line in shown.splitlines() if line.strip().startswith(commits[5][:10])]
    assert "- left out: 3 candidates, by --skip v4..v6" in exits(0, "show", "--markdown")
    told = json.loads(exits(0, "show", "--json"))
    assert [each["commit"]["sha"] for each in told["candidates"] if each["left_out"]] == left
    assert f"The culprit is {commits[8][:10]}" in exits(0, "replay")
    assert "left out: by --skip" not in exits(0, "resume", "--plain"), "its log has them"


def test_a_culprit_among_what_is_left_out_is_one_of_several(exits: Exits, commits: list[str]) -> None:
    out = exits(2, "run", "v0", "v11", *HUNT, "--skip", "v4..v8")
    assert "Inconclusive: commits that would separate the candidates were left out by --skip." in out
    assert "The culprit is one of these 5 commits" in out
    assert "What would help: fewer commits in --skip" in out
    for commit in commits[5:10]:
        assert f"%  {commit[:10]}" in out


MISTAKES = [
    ("v11", "--skip v11 leaves out the bad end, "),
    ("v1..v11", "--skip v1..v11 leaves out the bad end, "),
    ("v1", "--skip v1 leaves out the good end, "),
    ("v0..v4", "--skip v0..v4 leaves out the good end, "),
    ("v1..v10", "--skip leaves out every candidate between v1 and v11"),
    ("v0", "--skip v0 leaves out nothing: none of its commits is a candidate of v1..v11."),
    ("v4..v4", "--skip v4..v4 leaves out nothing"),
    ("v77", "'v77' is neither a release nor a revision"),
    ("v2...v3", "'v2...v3' is neither a revision nor a range of two."),
    ("--all", "'--all' is neither a release nor a revision"),
]


@pytest.mark.usefixtures("commits")
def test_what_cannot_be_left_out_is_said(exits: Exits, git: Callable[..., str]) -> None:
    """A commit of the range that changes nothing that is built is no candidate."""
    for skip, sentence in MISTAKES:
        assert sentence in exits(3, "run", "v1", "v11", *HUNT, "--skip", skip)
    git("commit", "-q", "--allow-empty", "-m", "docs")
    git("tag", "docs")
    git("tag", "-f", "v11", git("commit-tree", "v11^{tree}", "-p", "docs", "-m", "last"))
    assert "--skip docs leaves out nothing" in exits(3, "run", "v1", "v11", *HUNT, "--skip", "docs")
