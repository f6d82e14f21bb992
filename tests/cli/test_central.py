"""The central history: automatic pushes of sessions, the verbs that read the central history, and its pages."""

import json
import re
from contextlib import closing
from html import unescape
from pathlib import Path
from unittest.mock import Mock

import pytest

import sample_hunt as sample
from central import Server
from installed_servers import POSTGRES
from perfbisect.errors import ENVIRONMENT, USAGE
from perfbisect.hunt.notification import history_origin
from perfbisect.store.history import History
from program import HUNT, asked, bisect, exits, run, served

pytestmark = [
    pytest.mark.tools,
    pytest.mark.dbms,
    pytest.mark.skipif(not POSTGRES, reason="no PostgreSQL: apt-get install postgresql"),
]
ELSEWHERE = ["--from", "central"]


def configure(seal: Path, address: str) -> None:
    place = seal / ".config/perfbisect/config.toml"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f'[central]\naddress = "{address}"\norigin = "desk3"\n')


def lines_of(*words: str) -> list[str]:
    """The lines of the output, without the commands that only the owner of a session can execute."""
    return [line for line in exits(0, *words).splitlines() if not re.match(r"(Hunt|To |  from |started|Why )", line)]


@pytest.mark.slow
def test_hunts_are_pushed_automatically_and_read(ends: tuple[str, str], server: Server, seal: Path) -> None:
    good, bad = ends
    address = server.create("whole")
    configure(seal, address)
    exits(0, "run", good, bad, *HUNT, "--name", "its hunt")
    exits(0, "prove", "--visits", "2", "--runs", "1")
    assert "already has all sessions" in exits(0, "push")
    listed = exits(0, "history", *ELSEWHERE)
    for line in (rf"desk3:1 .* {bad[:10]} .* found", "desk3:p2 .* proved"):
        assert re.search(rf"^ *{line}", listed, re.MULTILINE), listed
    assert [one["origin"] for one in json.loads(exits(0, "history", "--json", *ELSEWHERE))] == ["desk3", "desk3"]
    there, here = lines_of("show", "desk3:1", *ELSEWHERE), lines_of("show", "1")
    assert f"{bad[:10]}" in "\n".join(there) and set(there) <= set(here)
    assert "Reverting" in exits(0, "show", "desk3:p2")  # the id names the origin
    assert json.loads(exits(0, "show", "--json", *ELSEWHERE))["cases"]
    assert "culprit" in exits(0, "show", "desk3:1", "--markdown", *ELSEWHERE)
    for words in (["desk3:1"], ["its hunt"], []):
        assert exits(0, "report", *words, *ELSEWHERE) == "hunt-desk3:1.html\n"
    assert "Hunt 1 of desk3" in Path("hunt-desk3:1.html").read_text()
    culprits = "select culprit from culprits where hunt_id = 'desk3:1'"
    assert bad in exits(0, "query", culprits, "--csv", "--from", address)

    for name in ("desk3:7", "desk3:c1", "desk3:2"):  # the second is a hunt, the third a proof
        assert f"There is no {name} in the central history" in exits(USAGE, "show", name, *ELSEWHERE)
    for name in ("7", "desk3", "desk3:", ":1", "desk3:x", "desk3:1:1"):
        assert "Write ORIGIN:NUMBER" in run("show", name, *ELSEWHERE).err, name
    assert "ORIGIN:12 for a hunt in a team's central history" in run("show", "desk3:x").err
    for verb in ("resume", "prove", "narrow", "why", "replay", "watch"):
        assert "works only on your own history" in run(verb, "desk3:1").err, verb
    assert "bisect serve --from" in run("report", "--all", "pages", *ELSEWHERE).err


@pytest.mark.slow
def test_hunt_has_a_verdict_without_the_central_server(ends: tuple[str, str], server: Server, seal: Path) -> None:
    configure(seal, "postgresql://bench:hunter2@127.0.0.1:1/none")
    ended = bisect("run", *ends, *HUNT)
    assert ended.returncode == 0, ended.stderr
    assert "Some events are not in the central history yet" in ended.stderr
    assert "Push them later: bisect push" in ended.stderr
    failed = exits(ENVIRONMENT, "push")
    assert (
        "cannot be reached" in failed
        and "The local history has all sessions" in failed
        and "hunter2" not in ended.stderr + failed
    )
    configure(seal, server.create("later"))
    exits(0, "run", *ends, *HUNT)  # also pushes the missing events of the first hunt
    assert "already has all sessions" in exits(0, "push")
    assert {"desk3:1", "desk3:2"} <= set(exits(0, "history", *ELSEWHERE).split())


def test_push_without_central_history_or_user_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container, /etc/passwd may have no entry for the user."""
    assert "CREATE TABLE sessions" in exits(0, "push", "--sql")
    monkeypatch.setattr("getpass.getuser", Mock(side_effect=KeyError("getpwuid(): uid not found: 12345")))
    assert history_origin(None).startswith("user@")


@pytest.mark.slow
def test_pages_show_sessions_of_two_origins(server: Server, tmp_path: Path) -> None:
    """One of the sessions is running."""
    address = server.create("team")
    for origin in ("desk3", "a.b@c-4"):
        with closing(History.open(tmp_path / origin)) as history:
            sample.write(history)
            if origin == "desk3":
                sample.write_trial(history, sample.series({"scan": ((8, -0.1),)}, rounds=2))
            else:
                sample.begin(history)
            done = bisect("push", "--history", str(history.path), "--to", address, "--as", origin)  # not this process
            assert "event" in done.stdout, done.stderr
    with served("--from", address) as port:
        status, text = asked(port, "/")
        assert (status, "1 session runs" in text, "of the last 4 weeks" in text) == (200, True, True), text
        assert [*map(unescape, re.findall(r'class="watched"><p><a href="(.*?)"', text))] == ["desk3%3Ac2.html"] * 3
        wanted = {
            "hunt-desk3%3A1.html": "The culprit is 6da84d17ef",
            "hunt-a.b%40c-4%3A2.html": "There is no verdict yet.",
            "desk3%3Ac2.html": "1.0..1.19",
            "hunt-a.b%40c-4%3A1.html": "The culprit is 6da84d17ef",
        }
        assert set(re.findall(r'<a href="([^"]+\.html)"', asked(port, "/all")[1])) == set(wanted)
        for link, said in wanted.items():
            status, text = asked(port, f"/{link}")
            assert (status, said in text) == (200, True), link
        for name in ("desk3%3A7", "1"):
            status, text = asked(port, f"/hunt-{name}.html")
            assert (status, "127.0.0.1" in text) == (404, False), text
        server.control("-m", "immediate", "stop")
        assert asked(port, "/") == (503, "The central history cannot be reached now.\n")
        server.control("start")
    assert "--sql and --from exclude each other" in exits(3, "serve", "--sql", "--from", address)
    assert "cannot be reached" in exits(4, "serve", "--from", "postgresql://bench@127.0.0.1:1/none")
