"""Commands for stored hunts: `history`, `show`, `query`, `report`, `why`, `replay` and `resume`."""

import csv
import io
import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from html import escape
from pathlib import Path
from signal import SIGINT
from typing import Any
from unittest.mock import Mock

import pytest

import sample_hunt as sample
from explained_hunt import PROFILES
from perfbisect.core.domain.settings import Settings
from perfbisect.host.lock import HostLock
from perfbisect.hunt.driver import SessionDriver
from perfbisect.hunt.resolve import resolve_settings
from perfbisect.hunt.session_hosts import lock_hosts
from perfbisect.hunt.setup import SessionSetup
from perfbisect.process import CLOCK, user_at_machine_and_secret
from perfbisect.report.profiles import folded_text, speedscope_json
from perfbisect.store.batches import begin_batch, end_batch
from perfbisect.store.history import History
from program import HUNT, PROGRAM, SCRIPT, Ended, bisect_until, exits, printed, rows, run, run_first
from repos import Repo

pytestmark = pytest.mark.tools  # starts the program many times

Script = Callable[[str], str]
Stored = Callable[..., int]
HISTORY = Path(".local/state/perfbisect/history.db")


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history with the sample hunt and an interrupted hunt. Tests must not change it."""
    path = tmp_path_factory.mktemp("written") / "history.db"
    with closing(History.open(path)) as history:
        sample.write(history)
        hunt = sample.begin(history, at=sample.BEGAN + 3600)
        assert history.writer is not None
        ended = f"{user_at_machine_and_secret()} elsewhere 0 1 1"
        history.writer.execute("update attempts set process = ? where session_id = ?", [ended, hunt])
    return path


@pytest.fixture
def asked(two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """``asked(verb, *args)`` runs a command on this history, in an empty folder."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return lambda *args: run(*args, "--history", str(two))


def test_history_lists_hunts_and_show_prints_a_hunt(asked: Callable[..., Ended], two: Path) -> None:
    """`show` prints the latest hunt, or the hunt with the given number."""
    hunt = "engine update-index local 1.0..1.1"
    assert [" ".join(line.split()) for line in asked("history").out.splitlines()] == [
        "id when builder workload host range builds runs culprit prob. state subject",
        f"1 2023-11-14 22:13 {hunt} 6 16 6da84d17ef 97 % found Check the key order of a page after each update",
        f"2 2023-11-14 23:13 {hunt} 0 0 – – interrupted",
    ]
    found = [(hunt["id"], hunt["state"], hunt["culprit"]) for hunt in json.loads(asked("history", "--json").out)]
    assert found == [(1, "found", sample.CANDIDATES[sample.CULPRIT]), (2, "interrupted", None)]
    assert asked("show").out.startswith("Hunt 2, ")
    shown = asked("show", "1").out
    assert "The culprit is 6da84d17ef" in shown
    commands = [line for line in shown.splitlines() if re.match("To [a-z ]+: +bisect ", line)]
    assert len(commands) == 3 and all(f" --history {two}" in line for line in commands), "repeat, narrow, prove"
    markdown = asked("show", "1", "--markdown")
    assert markdown.out.startswith("## engine update-index")
    assert asked("report", "1", "--markdown") == markdown and not [*Path().iterdir()]
    assert json.loads(asked("show", "1", "--json").out)["hunt"]["id"] == 1


def test_query_prints_text_json_and_csv(asked: Callable[..., Ended]) -> None:
    """The printed examples work. The history has one hunt with a verdict, and a later hunt without runs."""
    commands = [shlex.split(line) for line in printed("query", "--examples").splitlines() if line[0] != "#"]
    assert all(words[:2] == ["bisect", "query"] for words in commands)
    assert [len(asked(*words[1:]).out.splitlines()) for words in commands] == [2, 1, 1]
    sql = "select id, good as 'g', null as n, 0.5 as half from hunts union all select 10, 'ä,\"b', x'ff', 2"
    assert asked("query", sql).out.splitlines() == [
        "id  g     n   half",
        " 1  1.0        0.5",
        " 2  1.0        0.5",
        '10  ä,"b  ff     2',
    ]
    assert json.loads(asked("query", sql, "--json").out)[2] == {"id": 10, "g": 'ä,"b', "n": "ff", "half": 2}
    assert list(csv.reader(io.StringIO(asked("query", sql, "--csv").out)))[-1] == ["10", 'ä,"b', "ff", "2"]
    for form, empty in ((), "a\n"), (("--json",), "[]\n"), (("--csv",), "a\n"):
        assert asked("query", "select 1 as a where 0", *form).out == empty


def test_closed_reader_of_the_output_is_no_error(two: Path) -> None:
    """As in `bisect … | head`, but the reader is closed before the first line."""
    reading, writing = os.pipe()
    os.close(reading)
    words = ["query", "select a.* from counters a, counters b", "--csv", "--history", str(two)]
    done = subprocess.run([*PROGRAM, *words], stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_program_starts_without_slow_imports_and_in_any_encoding(two: Path) -> None:
    """The encoding has no typographic quotes. `show` and `history` do not import modules that load slowly."""
    env = os.environ | {"PYTHONIOENCODING": "latin-1"}
    look = f"import sys, atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); {PROGRAM[-1]}"
    slow = {"perfbisect.core.search", "markupsafe", "tomllib", "http", "secrets", "rich.console", "sqlite_utils", "git"}
    listed = slow | {"numpy", "msgspec"}
    for verb, said, unused in (["show", "1"], b"'Check the key", slow), (["history"], b"update-index", listed):
        words = [sys.executable, "-c", look, *verb, "--history", str(two)]
        done = subprocess.run(words, env=env, capture_output=True, check=True)
        assert said in done.stdout
        assert not unused & set(done.stderr.decode().split())


# `bisect report`.


def test_report_is_written_to_the_given_file_or_folder(asked: Callable[..., Ended]) -> None:
    assert asked("report", "1") == (0, "hunt-1.html\n", "")
    assert "The culprit is 6da84d17ef" in Path("hunt-1.html").read_text()
    assert asked("report", "1", "-o", "a/b/why.html") == (0, "a/b/why.html\n", "")
    assert Path("a/b/why.html").read_text() == Path("hunt-1.html").read_text()
    assert asked("report").out == "hunt-2.html\n"  # the latest
    assert asked("report", "1", "-o", "/dev/full") == (
        4,
        "",
        "Error: /dev/full cannot be used: No space left on device\n",
    )
    assert asked("report", "--all", "pages") == (0, "pages/index.html\n", "")
    pages = {path.name: path.read_text() for path in Path("pages").iterdir()}
    assert [*sorted(pages)] == ["hunt-1.html", "hunt-2.html", "index.html"]
    assert 'href="hunt-1.html"' in pages["index.html"] and "found 6da84d17ef" in pages["index.html"]
    assert 'href="index.html"' in pages["hunt-1.html"]


def test_damaged_hunt_is_reported_and_other_pages_are_written(two: Path, tmp_path: Path) -> None:
    kept = shutil.copy(two, tmp_path / "h.db")
    with closing(sqlite3.connect(kept)) as connection, connection:
        connection.execute("update events set body = '{' where session_id = 2 or (session_id = 1 and id = 3)")
    status, _, err = run("report", "--all", str(tmp_path / "pages"), "--history", str(kept))
    assert (status, "Session 1 has no page, because it cannot be read" in err) == (0, True)
    assert sorted(path.name for path in (tmp_path / "pages").iterdir()) == ["hunt-2.html", "index.html"]
    assert 'href="hunt-1.html"' not in (tmp_path / "pages/index.html").read_text()


def test_json_of_speedscope_follows_its_schema() -> None:
    made = json.loads(speedscope_json(PROFILES, "hunt 1"))
    names = [frame["name"] for frame in made["shared"]["frames"]]
    assert len(names) == len(set(names))
    for found, costs in zip(made["profiles"], (PROFILES.culprit, PROFILES.parent), strict=True):
        assert found["type"] == "sampled" and found["endValue"] == pytest.approx(sum(costs.values()))
        assert len(found["samples"]) == len(found["weights"]) == len(costs)
        assert {";".join(names[number] for number in sample) for sample in found["samples"]} == set(costs)
    lines = folded_text(PROFILES.parent).splitlines()
    assert "engine;main;run_workload 600000" in lines and len(lines) == len(PROFILES.parent)


def test_every_format_has_the_link_and_the_text_for_a_mail(ends: tuple[str, str], stored: Stored, git: Repo) -> None:
    """The subject contains special characters of shells, terminals, Markdown and HTML."""
    odd = "Read `rm x` $(rm y); @user <b>'\"|\\\x1b]0;\x07 \u202e```"
    git("commit", "--amend", "-qm", odd)
    git("remote", "add", "origin", "git@gitlab.gnome.org:GNOME/kv.git")
    good, culprit = ends[0], git.head
    stored([good, culprit], [100, 10], min_effect=0.03, max_minutes=60.0)
    [case] = json.loads(exits(0, "show", "--json"))["cases"]
    link, issue = f"https://gitlab.gnome.org/GNOME/kv/-/commit/{culprit}", case["issue"]
    assert case["link"] == link and link in issue[1]
    assert [line.partition(": ")[0] for line in issue] == [
        "rate",
        "Commit",
        "Effect",
        "Probability that this commit is the culprit",
        "Why",
        "Reproduce",
    ]
    exits(0, "report", "-o", "page.html")
    shown, markdown, page = exits(0, "show"), exits(0, "show", "--markdown"), Path("page.html").read_text()
    assert f"\n  link     {link}\n" in shown and f"\n- link: {link}\n" in markdown and f'<a href="{link}">' in page
    assert "".join(f"  {line}\n" for line in issue) in shown
    assert "\n````\n" + "".join(f"{line}\n" for line in issue) + "````" in markdown
    assert str(escape("\n".join(issue))).replace("&quot;", "&#34;").replace("&#x27;", "&#39;") in page
    words = shlex.split(issue[-1].removeprefix("Reproduce: "))
    assert words[:4] == ["bisect", "compare", good[:10], culprit[:10]] and "--max-time" not in words
    assert f"2 builds: {words[2]}, {words[3]}" in exits(0, *words[1:], "--dry-run")
    git("remote", "set-url", "origin", "/srv/kv.git")
    assert "gitlab" not in exits(0, "show")


# `bisect why`, and `bisect replay`.


def test_ctrl_c_during_the_reason_keeps_the_notified_verdict(
    ends: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_first("from perfbisect.lab.measure import profiles; profiles.LONGEST = 1", monkeypatch)
    kept, words = tmp_path / "kept", ["run", *ends, *SCRIPT, "--plain", "--no-layouts"]
    ended = bisect_until([*words, "--notify", f"sh -c 'cat >>{kept}'"], "counters: ", SIGINT)
    assert ended.returncode == 0, "a culprit is named"
    said, _, reason = ended.stdout.partition("Now its reason is measured")
    culprit = f"The culprit is {ends[1][:10]}"
    assert culprit in said and "counters: " not in said and "counters: " in reason
    assert "The verdict is final. To measure the rest of the reason: bisect why 1\n" in ended.stderr
    got = json.loads(kept.read_text())
    assert (got["state"], got["id"]) == ("found", "1")
    out = exits(0, "why", "--plain", "--max-time", "2s")
    assert out.index(culprit) < out.index(f"Why {ends[1][:10]}")
    assert "it was not measured" not in exits(0, "show")


def test_why_requires_a_verdict_that_names_a_commit(script: Script, stored: Stored, seal: Path) -> None:
    """If the reason was not measured, `show` prints the command that measures the reason."""
    good, same, slow = script("echo rate 100"), script("echo rate 100 # the same"), script("echo rate 10")
    stored([good, same], [100, 100])
    assert "The verdict of hunt 1 names no commit" in exits(3, "why")
    stored([same, slow], [100, 10], max_runs=3)
    leads = f"The most probable commit is {slow[:10]}, without a proof. To compare this commit with its parent: "
    assert f"{leads}bisect compare '{slow[:10]}^' {slow[:10]} " in exits(3, "why")
    stored([good, same, slow], [100, 100, 10])
    helps = "The functions of the program were not profiled. To find the cause in the code: `bisect why 3`."
    assert helps in " ".join((shown := exits(0, "show")).split()) and "--variant" not in shown
    with closing(sqlite3.connect(seal / HISTORY)) as history, history:
        history.execute("delete from events where session_id = 3 and kind = 'HuntEnded'")
    assert "Hunt 3 has no verdict, so there is no commit to explain." in exits(3, "why") and "bisect resume 3" in exits(
        3, "why", "3"
    )


def test_replay_decides_a_hunt_again(script: Script, stored: Stored) -> None:
    """A replay with a smaller budget names no commit. If the ends are equal, no commit is most probable."""
    commits = [script(f"echo {number}") for number in range(5)]
    hunt = str(stored(commits, [100, 100, 100, 70, 70]))
    said = printed("replay", hunt)
    assert said.splitlines()[0].split(maxsplit=3) == ["after", "0", "runs:", "comparison of good and bad"]
    assert f"most probable: {commits[3][:10]} with " in said
    assert f"The culprit is {commits[3][:10]} (2020-01-02, “change”)" in said
    assert printed("replay", hunt, "--max-runs", "2", status=2).splitlines()[1].split()[-1] == "verdict"
    assert "the limit of 30 s (--max-time) is reached" in printed("replay", hunt, "--max-time", "30s", status=2)
    said = printed("replay", str(stored(commits, [100] * 5)), status=1)
    assert "most probable" not in said and "Not reproduced" in said


# `bisect resume` of a failed hunt, with and without a change of the recipe.


def test_failed_hunt_resumes_only_with_its_original_settings(script: Script, seal: Path, tmp_path: Path) -> None:
    """The bad end fails until a file exists. Both ends write their number of CPUs to a file."""
    assert exits(3, "resume").startswith("Error: ")
    fixed, seen, suite = tmp_path / "fixed", tmp_path / "seen", Path("workloads/script/suite.toml")
    before = suite.read_text().replace('"{threads}"', '"{cores}"')
    suite.write_text(before)
    good = script(f"echo $2 >>{seen}; echo rate 100")
    bad = script(f"[ -e {fixed} ] || exit 7; echo $2 >>{seen}; echo rate 10")
    said = exits(4, "run", good, bad, *HUNT)
    assert "the bad revision" in said and "bisect resume 1" in said
    assert "failed: nothing can be compared, because the bad revision," in exits(0, "history")
    assert "The last attempt failed: nothing can be compared" in exits(0, "show")
    suite.write_text(before.replace('"one", "{cores}"]', '"one", "{cores}", "more"]'))
    said = exits(3, "resume", "--plain")
    assert "Hunt 1 cannot continue, because new runs would be made in another way" in said
    assert "Undo the change, or begin a new hunt" in said
    suite.write_text(before)
    fixed.touch()
    seen.unlink(missing_ok=True)
    with closing(sqlite3.connect(seal / HISTORY)) as history, history:
        history.execute("update events set body = json_set(body, '$.host.cores', 77) where kind = 'HuntStarted'")
    assert "The culprit is" in exits(0, "resume", "--plain")
    assert set(seen.read_text().split()) == {"77"}


@pytest.mark.parametrize(("limit", "more"), [("--max-runs=4", "60"), ("--max-builds=2", "5"), ("--max-time=1s", "10m")])
def test_hunt_with_a_spent_budget_resumes_with_a_larger_budget(
    script: Script, limit: str, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a larger budget, the verdict stays. Each commit of a set has its date and subject, even if not built. An
    hour in which the hunt waits for its host does not count.
    """
    commits, option = [script(f"echo rate {rate} # {rate}") for rate in (100, 101, 51, 50)], limit.partition("=")[0]
    tries = f"Try next: bisect resume 1 {option} MORE"
    assert tries in (said := exits(2, "run", commits[0], commits[-1], limit, *HUNT))
    assert said.count("(2020-01-02, “change”)") == 3 or "time" in limit  # the time may end before a commit is suspected
    assert tries in exits(2, "resume", "1", "--plain")

    def waits(*args: Any) -> AbstractContextManager[dict[str, HostLock]]:
        CLOCK.advance_to(CLOCK.now() + 3600)
        return lock_hosts(*args)

    monkeypatch.setattr("perfbisect.hunt.session.lock_hosts", waits)
    assert f"The culprit is {commits[2][:10]}" in exits(0, "resume", "1", option, more, "--plain")


def test_commands_in_messages_name_the_history(ends: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The hunt resumes after its recipe was fixed, and stores the new hash of the recipe."""
    recipe, history = Path("builders/script/builder.toml"), Path("of mine.db")
    option, whole = ["--history", str(history)], recipe.read_text()
    recipe.write_text(whole.replace("[build]", '[build]\nconfigure = [["false"]]'))
    goes_on = "continue: bisect resume 1 --history 'of mine.db'\n"
    assert f"To {goes_on}" in exits(4, "run", *ends, *HUNT, *option)
    with monkeypatch.context() as patch:
        patch.setattr(SessionDriver, "events", Mock(side_effect=KeyboardInterrupt))
        assert f"To {goes_on}" in exits(130, "resume", *option)
    with closing(History.open(history)) as opened:
        numbers = [begin_batch(opened, file, [], 1.0) for file in (Path("/b 1.toml"), "")]
        end_batch(opened, numbers[1], 2.0)
    for verb, batch, said in (
        ("resume", "b1", "To continue: bisect batch '/b 1.toml'"),
        ("resume", "b2", "To see the hunts: bisect show b2"),
        ("watch", "b1", "To see the hunts: bisect show b1"),
    ):
        assert f"{said} --history 'of mine.db'\n" in exits(3, verb, batch, *option)
    assert "There is no comparison c1 in the history" in exits(3, "watch", "c1", *option), "number 1 is a hunt"

    recipe.write_text(whole)
    assert "Full report: bisect show 1 --history 'of mine.db'\n" in exits(0, "resume", *option)
    new = Settings(*ends, "repo", "script", "one", "local", builders_path="builders", workloads_path="workloads")
    [setup] = SessionSetup.set_up([resolve_settings(new)])
    assert rows(history, "select json_extract(settings, '$.build_hash') from hunts") == [(setup.build_hash(),)]
    said = exits(0, "compare", *ends, *SCRIPT, "--visits", "1", "--runs", "1", *option)
    assert "bisect show c2 --history 'of mine.db'\n" in said
