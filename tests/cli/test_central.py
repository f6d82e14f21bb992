"""A central history that is configured: sessions push by themselves, and all verbs that read can read it."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from central import Server
from installed_servers import POSTGRES
from perfbisect.errors import ENVIRONMENT, USAGE
from perfbisect.hunt.pushing import origin_of
from program import HUNT, bisect, exits, run

pytestmark = [
    pytest.mark.tools,
    pytest.mark.dbms,
    pytest.mark.skipif(not POSTGRES, reason="no PostgreSQL: apt-get install postgresql"),
]


def configure(seal: Path, address: str) -> None:
    place = seal / ".config/perfbisect/config.toml"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f'[central]\naddress = "{address}"\norigin = "desk3"\n')


@pytest.mark.slow
def test_hunts_push_by_themselves_and_are_read_there(
    script: Callable[[str], str], ends: tuple[str, str], server: Server, seal: Path, tmp_path: Path
) -> None:
    good, bad = ends
    address = server.create("whole")
    configure(seal, address)
    exits(0, "run", good, bad, *HUNT, "--name", "its hunt")
    exits(0, "prove", "--visits", "2", "--runs", "1")
    assert "Nothing new for" in exits(0, "push")
    elsewhere = ["--from", "central"]
    listed = exits(0, "history", *elsewhere)
    assert re.search(rf"^ *desk3:1 .* {bad[:10]} .* found", listed, re.MULTILINE), listed
    assert re.search(r"^ *desk3:p2 .* proof", listed, re.MULTILINE), listed
    assert [one["origin"] for one in json.loads(exits(0, "history", "--json", *elsewhere))] == ["desk3", "desk3"]

    def lines_of(*words: str) -> list[str]:
        return [
            line for line in exits(0, *words).splitlines() if not re.match(r"(Hunt|To |  from |started|Why )", line)
        ]

    # without the commands that only its owner can execute
    there, here = lines_of("show", "desk3:1", *elsewhere), lines_of("show", "1")
    assert f"{bad[:10]}" in "\n".join(there)
    assert [line for line in there if line not in here] == []
    assert "Reverting" in exits(0, "show", "desk3:p2")  # its id says where it is
    assert json.loads(exits(0, "show", "--json", *elsewhere))["cases"]
    assert "culprit" in exits(0, "show", "desk3:1", "--markdown", *elsewhere)
    for words in (["desk3:1"], ["its hunt"], []):
        assert exits(0, "report", *words, *elsewhere) == "hunt-desk3:1.html\n"
    assert "Hunt 1 of desk3" in Path("hunt-desk3:1.html").read_text()
    assert not Path("hunt-1.html").exists()
    assert bad in exits(
        0, "query", "select culprit from culprits where hunt_id = 'desk3:1'", "--csv", "--from", address
    )

    for name in ("desk3:7", "desk3:c1", "desk3:2"):  # the second is a hunt, the third a proof
        missing = run("show", name, *elsewhere)
        assert (missing.status, f"There is no {name} in the central history" in missing.err) == (USAGE, True)
    for name in ("7", "desk3", "desk3:", ":1", "desk3:x", "desk3:1:1"):
        assert "Write ORIGIN:NUMBER" in run("show", name, *elsewhere).err, name
    assert "ORIGIN:12 of a team" in run("show", "desk3:x").err
    for verb in ("resume", "prove", "why", "replay", "watch"):
        assert "works on your own history only" in run(verb, "desk3:1").err, verb
    assert "bisect serve --from" in run("report", "--all", "pages", *elsewhere).err


@pytest.mark.slow
def test_a_server_that_is_gone_keeps_no_hunt_from_its_verdict(
    ends: tuple[str, str], server: Server, seal: Path
) -> None:
    configure(seal, "postgresql://bench:hunter2@127.0.0.1:1/none")
    ended = bisect("run", *ends, *HUNT)
    assert ended.returncode == 0, ended.stderr
    assert "Not all is in the central history yet" in ended.stderr
    assert "Push it later: bisect push" in ended.stderr
    failed = run("push")
    assert (failed.status, "cannot be reached" in failed.err) == (ENVIRONMENT, True)
    assert "hunter2" not in ended.stderr + failed.err
    assert "Nothing is lost" in failed.err
    configure(seal, server.create("later"))
    exits(0, "run", *ends, *HUNT)  # carries what is missing of the other, too
    assert "Nothing new" in exits(0, "push")
    assert {"desk3:1", "desk3:2"} <= set(exits(0, "history", "--from", "central").split())


def test_without_one(seal: Path) -> None:
    wrong = run("push")
    assert (wrong.status, "names no central history" in wrong.err) == (USAGE, True)
    assert "names no central history" in run("show", "desk3:7").err
    assert "CREATE TABLE sessions" in exits(0, "push", "--sql")


def test_a_user_without_a_name_pushes_too(seal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container, where the number of the user has no entry in /etc/passwd."""

    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("getpass.getuser", unknown)
    assert origin_of(None).startswith("user@")
