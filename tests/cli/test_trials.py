"""`bisect prove`, for a script that multiplies its rate in each line, and `bisect noise`; also on leased hosts."""

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
    """A script that prints a slightly random rate, multiplied by ``factors`` (percentages). ``ends`` is appended."""
    lines = [f"rate=$((rate * {factor} / 100))" for factor in factors]
    chance = "rate=$((100000 + $(date +%N | cut -c 6) * 10))"
    return f"{APART.join([chance, *lines])}{APART}echo rate $rate{ends}"


def test_prove_stores_and_shows_the_regained_part(script: Script, stored: Stored, seal: Path, tmp_path: Path) -> None:
    """The culprit halves the rate, a later commit takes 10 % of the rest: a revert regains ln(2) / ln(2/0.9) = 86.8 %.
    The skipped commit of the hunt has no effect, and `prove` does not change the clone.
    """
    good, broken = script(program(100, 100, 100)), script("exit 1")
    other = script(program(100, 100, 100, ends=" # as good"))
    culprit, bad = script(program(100, 50, 100)), script(program(100, 50, 90))
    stored([good, other, culprit, bad], [100, 100, 50, 45])
    with closing(History.open(None)) as history:
        history.update_settings(1, replace(history.settings(1), skips={broken: broken}))

    def kept() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (tmp_path / "repo" / ".git").rglob("*") if path.is_file()}

    before, output = kept(), exits(0, "prove", "--visits", "3", "--runs", "1")
    assert kept() == before
    pattern = rf"^Reverting {culprit[:10]} on {bad} regains (\d+) % \((\d+) to (\d+) %\) of what was lost\.$"
    sentence = re.search(pattern, output, re.MULTILINE)
    assert sentence and 85 <= int(sentence[2]) <= 87 <= int(sentence[3]) <= 89, output
    assert "The revert removes only a part of the difference" in output
    assert f"col-2 : {bad} without {culprit[:10]}\n" in output
    assert len(list((seal / ".cache" / "perfbisect" / "builds").iterdir())) == 3
    assert sentence[0] in exits(0, "show", "p2") and f"p2: {sentence[0]}" in exits(0, "show", "1")
    assert f"p2: Reverting {culprit[:10]} on {bad}" in exits(0, "show", "1", "--markdown")
    assert re.search(r"^ *p2 .* proved$", exits(0, "history"), re.MULTILINE)
    found = json.loads(exits(0, "show", "p2", "--json"))
    assert found["proof"]["outcome"] == "regains"
    assert found["proof"]["regained"]["middle"] == pytest.approx(0.868, abs=0.01)
    assert found["settings"]["reverts"] == {"hunt": 1, "commits": [culprit]}
    assert found["settings"]["subjects"][2]["commit"] not in ("", good, bad, culprit)


@pytest.mark.slow
def test_interrupted_proof_resumes_without_repeating_runs(script: Script, stored: Stored, seal: Path) -> None:
    good, bad = script(program(100)), script(program(50))
    stored([good, bad], [100, 50])
    cut = bisect_until(["prove", "--visits", "3", "--runs", "1"], "run 4 of 9", signal.SIGINT)
    assert cut.returncode == 130, cut.stderr
    assert f"Reverting {bad[:10]} on" in exits(0, "resume", "p2")
    [(count,)] = rows(seal / HISTORY, "select count(*) from runs where session_id = 2")
    assert 9 <= count <= 12


def test_prove_ignores_conflicts_in_text_files_that_no_build_reads(script: Script, stored: Stored, git: Repo) -> None:
    good, culprit, bad = (script(program(factor)) for factor in (100, 50, 51))
    stored([good, culprit, bad], [100, 50, 51])
    output = exits(2, "prove", "1")
    assert f"The revert of {culprit[:10]} has conflicts in run.sh." in output
    assert f"git revert {culprit[:10]}" in output and f" --repo {git.path} " in output
    assert f"compare: bisect compare {good} {bad} reverted --builder script --workload one " in output

    hashes = []
    for number, factor in enumerate((100, 50, 50)):
        git.write(dict.fromkeys(("CHANGELOG.md", "NEWS"), f"{number}\n"))
        hashes.append(script(program(factor, 100)))
    stored(hashes, [100, 50, 50])
    output = exits(0, "prove", "2", *QUICK)
    assert (
        "the revert has conflicts in files that no build reads; these files stay as in bad: CHANGELOG.md, NEWS"
        in output
    )
    assert f"Reverting {hashes[1][:10]} on {hashes[2]} regains" in output
    tree = SourceTree(frozenset({"NEWS", "a.md", "b.md"}), {"CMakeLists.txt": "file(READ NEWS v)\nfile(READ b.md t)"})
    unread = {(name, by): is_unread_prose(tree, name, by) for name in tree.paths for by in ("", "./bench a.md")}
    assert {place for place, is_prose in unread.items() if is_prose} == {("a.md", "")}


def test_prove_and_narrow_refuse_a_hunt_without_culprit(script: Script, stored: Stored, git: Repo) -> None:
    """Also if the repository no longer contains the culprit."""
    for verb in ("prove", "narrow"):
        assert "No hunt in the history" in exits(3, verb)
    good = script(program(100))
    stored([good, script(program(100, ends=" # the same"))], [100, 100])
    assert "Hunt 1 named no culprit, so there is no commit to revert." in exits(3, "prove", "1")
    assert "has named a culprit" in exits(3, "prove")
    culprit = script(program(50))
    stored([good, culprit], [100, 50])
    git("reset", "-q", "--hard", good)
    git("reflog", "expire", "--expire=now", "--all")
    git("gc", "-q", "--prune=now")
    assert all(f"no longer has commit {culprit[:10]}" in exits(3, verb) for verb in ("prove", "narrow"))


@pytest.mark.slow
def test_noise_measures_the_noise_that_later_hunts_start_with(seal: Path, tmp_path: Path) -> None:
    write_history(tmp_path / "repo", 3)
    options = ["--builder", "demo", "--workload", "update-index", "--rev", "v1.0", "--repo", str(tmp_path / "repo")]
    result = json.loads(printed("noise", "local", *options, "--warmup", "0", "--visits", "2", "--runs", "3", "--json"))
    assert (result["noise"]["visits"], result["noise"]["runs"] + result["noise"]["outliers"]) == (2, 6)
    assert result["noise"]["run"] > 0
    drops = [row["drop"] for row in result["detectable"]]
    assert drops == sorted(drops, reverse=True)
    assert result["advice"]["runs"] == 1  # an embedded library is opened for each run
    rounds = rows(seal / HISTORY, "select round, count(*) from runs group by round order by round")
    assert rounds == [(0, 3), (1, 3), (2, 16)], "the last round has eight paired runs"
    assert result["pairs"]["time"] > 0
    assert "The ratio of two runs has a standard deviation of " in printed("show", "n1")
    with closing(History.open(None)) as history:
        wanted = Settings("v1.0", "v1.1", "", "demo", "update-index", "local", "o2nofp", overrides={"warmup": 0.0})
        assert read_run_noise(history, wanted) == pytest.approx(result["noise"]["run"])


@pytest.mark.slow
def test_interrupted_trial_on_a_leased_host_resumes_on_a_new_lease(script: Script, tmp_path: Path, seal: Path) -> None:
    """Each attempt leases and releases a machine. The second attempt has the runs and build of the first attempt."""
    hosts = Path(__file__).with_name("hosts") / "leased.toml"
    Path("hosts.toml").write_text(hosts.read_text().replace("ROOT", str(tmp_path)))
    words = ["noise", "pool:", *SCRIPT, "--rev", script("echo rate 100"), "--hosts", "hosts.toml"]
    cut = bisect_until(
        [*words, "--visits", "8", "--runs", "1", "--pairing", "interleaved"], "run 3 of 8", signal.SIGINT
    )
    assert cut.returncode == 130, cut.stderr
    assert "Interrupted. All measurements are kept. To continue: bisect resume n1" in cut.stderr
    assert "Smallest detectable drop" in cut.stdout
    exits(0, "resume", "n1")
    [(host, runs)] = rows(seal / HISTORY, "select host, count(*) from runs group by host")
    assert host == "pool:" and 8 <= runs <= 11
    assert rows(seal / HISTORY, "select host, count(*) from builds where not reused group by host") == [("made", 1)]
    asked, released = ((tmp_path / file).read_text().split() for file in ("asked", "released"))
    assert sorted(asked) == sorted(released) and len(set(asked)) == 2
