"""`bisect prove` on a script whose rate is a product of the lines of its file, and `bisect noise`; also on leased hosts."""

import json
import re
import signal
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from perfbisect.core.domain.settings import Settings
from perfbisect.demo.history import write_history
from perfbisect.recipes.proposal import SourceTree, is_unread_prose
from perfbisect.store.history import History
from perfbisect.store.prior_data import read_run_noise
from program import SCRIPT, bisect_until, exits, printed, rows
from repos import Repo

pytestmark = pytest.mark.tools

Script = Callable[[str], str]
Stored = Callable[..., int]
HISTORY = ".local/state/perfbisect/history.db"
APART = "\n:\n:\n:\n:\n"
QUICK = ["--visits", "2", "--runs", "1"]


def program(*factors: int, ends: str = "") -> str:
    """A script with a little of chance in its rate, which each factor (a percentage) changes; and what follows it."""
    lines = [f"rate=$((rate * {factor} / 100))" for factor in factors]
    chance = "rate=$((100000 + $(date +%N | cut -c 6) * 10))"
    return f"{APART.join([chance, *lines])}{APART}echo rate $rate{ends}"


def test_what_a_revert_regains_is_kept_and_shown(script: Script, stored: Stored, seal: Path, tmp_path: Path) -> None:
    """The culprit loses a half, a later commit a tenth of the rest, and ln(2) of ln(2 / 0.9) is 86.8 %. What the hunt left
    out does not matter, and the clone stays as it was.
    """
    good, broken = script(program(100, 100, 100)), script("exit 1")
    other = script(program(100, 100, 100, ends=" # as good"))
    culprit, bad = script(program(100, 50, 100)), script(program(100, 50, 90))
    stored([good, other, culprit, bad], [100, 100, 50, 45])
    with closing(History.open(None)) as history:
        history.update_settings(1, replace(history.settings(1), skips={broken: broken}))

    def kept() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (tmp_path / "repo" / ".git").rglob("*") if path.is_file()}

    before, told = kept(), exits(0, "prove", "--visits", "3", "--runs", "1")
    assert kept() == before
    of = rf"^Reverting {culprit[:10]} on {bad} regains (\d+) % \((\d+) to (\d+) %\) of what was lost\.$"
    said = re.search(of, told, re.MULTILINE)
    assert said and 85 <= int(said[2]) <= 87 <= int(said[3]) <= 89, told
    assert "That is a part of the difference" in told
    assert f"col-2 : {bad} without {culprit[:10]}\n" in told
    assert len(list((seal / ".cache" / "perfbisect" / "builds").iterdir())) == 3
    assert said[0] in exits(0, "show", "p2") and f"p2: {said[0]}" in exits(0, "show", "1")
    assert f"p2: Reverting {culprit[:10]} on {bad}" in exits(0, "show", "1", "--markdown")
    assert re.search(r"^ *p2 .* proved$", exits(0, "history"), re.MULTILINE)
    found = json.loads(exits(0, "show", "p2", "--json"))
    assert found["proof"]["outcome"] == "regains"
    assert found["proof"]["regained"]["middle"] == pytest.approx(0.868, abs=0.01)
    assert found["settings"]["reverts"] == {"hunt": 1, "commits": [culprit]}
    assert found["settings"]["subjects"][2]["commit"] not in ("", good, bad, culprit)


@pytest.mark.slow
def test_a_proof_that_is_cut_short_goes_on(script: Script, stored: Stored, seal: Path) -> None:
    good, bad = script(program(100)), script(program(50))
    stored([good, bad], [100, 50])
    cut = bisect_until(["prove", "--visits", "3", "--runs", "1"], "run 4 of 9", signal.SIGINT)
    assert cut.returncode == 130, cut.stderr
    assert f"Reverting {bad[:10]} on" in exits(0, "resume", "p2")
    [(again,)] = rows(seal / HISTORY, "select count(*) from runs where session_id = 2")
    assert 9 <= again <= 12


def test_conflicts_are_left_to_the_user_except_in_prose_of_no_build(script: Script, stored: Stored, git: Repo) -> None:
    good, culprit, bad = (script(program(factor)) for factor in (100, 50, 51))
    stored([good, culprit, bad], [100, 50, 51])
    told = exits(2, "prove", "1")
    assert f"The revert of {culprit[:10]} has conflicts in run.sh." in told
    assert f"git revert {culprit[:10]}" in told and f" --repo {git.path} " in told
    assert f"compare: bisect compare {good} {bad} reverted --builder script --workload one " in told

    made = []
    for number, factor in enumerate((100, 50, 50)):
        git.write(dict.fromkeys(("CHANGELOG.md", "NEWS"), f"{number}\n"))
        made.append(script(program(factor, 100)))
    stored(made, [100, 50, 50])
    told = exits(0, "prove", "2", *QUICK)
    assert "these files have conflicts and stay as in bad, as no build reads them: CHANGELOG.md, NEWS" in told
    assert f"Reverting {made[1][:10]} on {made[2]} regains" in told
    read = SourceTree(frozenset({"NEWS", "a.md", "b.md"}), {"CMakeLists.txt": "file(READ NEWS v)\nfile(READ b.md t)"})
    unread = {(name, by): is_unread_prose(read, name, by) for name in read.paths for by in ("", "./bench a.md")}
    assert {place for place, is_prose in unread.items() if is_prose} == {("a.md", "")}


def test_without_a_culprit_there_is_nothing_to_revert(script: Script, stored: Stored, git: Repo) -> None:
    """Neither in the history, nor in a repository that has lost it."""
    for verb in ("prove", "narrow"):
        assert "No hunt in the history" in exits(3, verb)
    good = script(program(100))
    stored([good, script(program(100, ends=" # the same"))], [100, 100])
    assert "Hunt 1 named no culprit, so that nothing can be reverted." in exits(3, "prove", "1")
    assert "has named a culprit" in exits(3, "prove")
    culprit = script(program(50))
    stored([good, culprit], [100, 50])
    git("reset", "-q", "--hard", good)
    git("reflog", "expire", "--expire=now", "--all")
    git("gc", "-q", "--prune=now")
    assert all(f"has no commit {culprit[:10]}" in exits(3, verb) for verb in ("prove", "narrow"))


@pytest.mark.slow
def test_an_aa_tells_the_noise_and_hunts_begin_with_it(seal: Path, tmp_path: Path) -> None:
    write_history(tmp_path / "repo", 3)
    asked = ["--builder", "demo", "--workload", "update-index", "--rev", "v1.0", "--repo", str(tmp_path / "repo")]
    told = json.loads(printed("noise", "local", *asked, "--warmup", "0", "--visits", "2", "--runs", "3", "--json"))
    assert (told["noise"]["visits"], told["noise"]["runs"] + told["noise"]["wild"]) == (2, 6)
    assert told["noise"]["run"] > 0
    drops = [row["drop"] for row in told["detectable"]]
    assert drops == sorted(drops, reverse=True)
    assert told["advice"]["runs"] == 1  # an embedded library is opened for each run
    rounds = rows(seal / HISTORY, "select round, count(*) from runs group by round order by round")
    assert rounds == [(0, 3), (1, 3), (2, 16)], "the last are eight pairs at the same time"
    assert told["pairs"]["time"] > 0
    assert "The ratio of two runs has a standard deviation of " in printed("show", "n1")
    with closing(History.open(None)) as history:
        wanted = Settings("v1.0", "v1.1", "", "demo", "update-index", "local", "o2nofp", overrides={"warmup": 0.0})
        assert read_run_noise(history, wanted) == pytest.approx(told["noise"]["run"])


@pytest.mark.slow
def test_a_trial_on_a_leased_host_is_built_elsewhere_and_goes_on(script: Script, tmp_path: Path, seal: Path) -> None:
    """Each attempt leases the machine anew, and releases it; what one has built and measured the next one has."""
    hosts = Path(__file__).with_name("hosts") / "leased.toml"
    Path("hosts.toml").write_text(hosts.read_text().replace("ROOT", str(tmp_path)))
    words = ["noise", "pool:", *SCRIPT, "--rev", script("echo rate 100"), "--hosts", "hosts.toml"]
    cut = bisect_until(
        [*words, "--visits", "8", "--runs", "1", "--pairing", "interleaved"], "run 3 of 8", signal.SIGINT
    )
    assert cut.returncode == 130, cut.stderr
    assert "Interrupted. All measurements are kept; to continue: bisect resume n1" in cut.stderr
    assert "Smallest detectable drop" in cut.stdout
    exits(0, "resume", "n1")
    [(host, runs)] = rows(seal / HISTORY, "select host, count(*) from runs group by host")
    assert host == "pool:" and 8 <= runs <= 11
    assert rows(seal / HISTORY, "select host, count(*) from builds where not reused group by host") == [("made", 1)]
    asked, released = ((tmp_path / file).read_text().split() for file in ("asked", "released"))
    assert sorted(asked) == sorted(released) and len(set(asked)) == 2
