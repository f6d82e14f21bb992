"""The pages of a central history, from a real PostgreSQL: sessions of two origins, one of them still running."""

import re
from contextlib import closing
from html import unescape
from pathlib import Path

import pytest

import sample_hunt as sample
from central import Server
from installed_servers import POSTGRES
from perfbisect.store.history import History
from program import asked, bisect, exits, served

pytestmark = [
    pytest.mark.tools,
    pytest.mark.dbms,
    pytest.mark.skipif(not POSTGRES, reason="no PostgreSQL: apt-get install postgresql"),
]


@pytest.mark.slow
def test_pages_of_two_origins(server: Server, tmp_path: Path) -> None:
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
        assert (status, "1 session runs" in text) == (200, True), text
        assert "of the last 4 weeks" in text
        assert [*map(unescape, re.findall(r'class="watched"><p><a href="(.*?)"', text))] == ["desk3%3Ac2.html"] * 3
        links = set(re.findall(r'<a href="([^"]+\.html)"', asked(port, "/all")[1]))
        wanted = {
            "hunt-desk3%3A1.html": "The culprit is 6da84d17ef",
            "hunt-a.b%40c-4%3A2.html": "There is no verdict yet.",
        }
        wanted |= {"desk3%3Ac2.html": "1.0..1.19", "hunt-a.b%40c-4%3A1.html": "The culprit is 6da84d17ef"}
        assert links == set(wanted)
        for link, said in wanted.items():
            status, text = asked(port, f"/{link}")
            assert (status, said in text) == (200, True), link
        for name in ("desk3%3A7", "1"):
            status, text = asked(port, f"/hunt-{name}.html")
            assert (status, "127.0.0.1" in text) == (404, False), text
        server.control("-m", "immediate", "stop")
        assert asked(port, "/") == (503, "The central history cannot be reached at the moment.\n")
        server.control("start")
    assert "--sql is for a local history" in exits(3, "serve", "--sql", "--from", address)
    assert "cannot be reached" in exits(4, "serve", "--from", "postgresql://bench@127.0.0.1:1/none")
