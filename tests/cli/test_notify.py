"""`--notify COMMAND`: what the command gets when a hunt or a comparison ends, and that its failure spoils nothing."""

import json
import os
import re
import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import sample_hunt as sample
from perfbisect.errors import Interrupted
from perfbisect.hunt.notification import notifying, run
from perfbisect.report.published import notice
from perfbisect.store.history import History
from program import SCRIPT, exits
from waiting import processes, until

pytestmark = pytest.mark.tools

Stored = Callable[..., int]
RUN = [*SCRIPT, "--plain", "--no-layouts", "--no-explain"]


@pytest.fixture
def keeps(tmp_path: Path) -> Callable[[], dict[str, object]]:
    """A program ``keep`` that keeps what it gets; the fixture reads that."""
    program = tmp_path / "keep"
    program.write_text(f'#!/bin/sh\n[ "$1" = "two words" ] && cat >>{tmp_path}/kept && echo printed\n')
    program.chmod(0o755)
    kept = tmp_path / "kept"

    def read() -> dict[str, object]:
        found = json.loads(kept.read_text())
        kept.unlink()
        assert isinstance(found, dict)
        return found

    return read


def told(hunt: int, *command: str) -> list[str]:
    """What is warned of when a command is told of a hunt that has ended."""
    warnings: list[str] = []
    with notifying(command, None, warnings.append) as begun:
        begun(str(hunt))
    return warnings


def test_the_verdict_of_a_hunt(ends: tuple[str, str], keeps: Callable[[], dict[str, object]]) -> None:
    good, bad = ends
    out = exits(0, "run", good, bad, *RUN, "--notify", "./keep 'two words'")
    assert "printed" not in out and "warning: the command" not in out
    got = keeps()
    assert (got["kind"], got["id"], got["state"], got["show"]) == ("hunt", "1", "found", "bisect show 1")
    assert got["title"] == f"bisect 1: script one {good}..{bad}: found"
    assert f"The culprit is {bad[:10]}" in str(got["text"])
    assert json.loads(exits(0, "show", "--json")) == got["report"]


def test_of_an_aa_and_of_a_proof(
    script: Callable[[str], str], stored: Stored, keeps: Callable[[], dict[str, object]]
) -> None:
    apart = "\n:\n:\n:\n"
    good, bad = (
        script(f"rate={rate}{apart}jitter=$(date +%N | cut -c 6){apart}echo rate $((rate + jitter))")
        for rate in (10000, 5000)
    )
    how = ["--visits", "2", "--runs", "2", "--notify", "./keep 'two words'"]
    exits(0, "noise", "local", "--rev", good, *SCRIPT, *how)
    got = keeps()
    assert (got["kind"], got["id"], got["state"]) == ("noise", "n1", "done")
    stored([good, bad], [10000, 5000])
    exits(0, "prove", *how)
    got = keeps()
    assert (got["kind"], got["id"], got["show"]) == ("prove", "p3", "bisect show p3")
    assert f"Reverting {bad[:10]}" in str(got["text"])


def test_of_a_failure(script: Callable[[str], str], keeps: Callable[[], dict[str, object]]) -> None:
    good, bad = script("echo rate 100"), script("exit 7")
    exits(4, "run", good, bad, *RUN, "--notify", "./keep 'two words'")
    got = keeps()
    assert got["state"] == "failed" and "the bad end" in str(got["text"])


def test_of_a_comparison_by_the_configured_command(
    ends: tuple[str, str], seal: Path, keeps: Callable[[], dict[str, object]], tmp_path: Path
) -> None:
    good, bad = ends
    file = seal / ".config" / "perfbisect" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f"notify = \"{tmp_path}/keep 'two words'\"\n")
    builds = [good, bad, *SCRIPT, "--visits", "2", "--runs", "1"]
    exits(0, "compare", *builds)
    got = keeps()
    assert (got["kind"], got["id"], got["state"]) == ("compare", "c1", "done")
    assert "rate relative to" in str(got["text"])
    exits(0, "compare", *builds, "--notify", "")
    assert not (tmp_path / "kept").exists()

    file.write_text("notify = 'no-such-program now'\n")
    assert "config.toml: `notify` cannot be run: there is no program no-such-program." in exits(3, "compare", *builds)
    file.write_text("notifi = 'true'\n")
    assert "`notifi` is an unknown key." in exits(3, "compare", *builds)


def test_a_failure_of_the_command_is_a_warning(ends: tuple[str, str], stored: Stored) -> None:
    warnings = told(stored(ends, [100, 10]), "sh", "-c", "echo first >&2; echo no such relay >&2; exit 3")
    assert warnings == ["warning: the command of --notify ended with status 3: no such relay"]


def test_what_cannot_be_run_is_refused_before_the_hunt(ends: tuple[str, str]) -> None:
    good, bad = ends
    assert "there is no program no-such-program" in exits(3, "run", good, bad, *RUN, "--notify", "no-such-program")
    assert "No closing quotation" in exits(3, "run", good, bad, *RUN, "--notify", "mail 'me")


def test_nothing_is_sent_when_a_hunt_is_interrupted(tmp_path: Path) -> None:
    """It can go on later; what failed in another way is over."""
    path, kept = tmp_path / "history.db", tmp_path / "kept"
    warnings: list[str] = []
    with closing(History.open(path)) as history:
        hunt = str(sample.begin(history))
        assert notice(history, hunt) is None

    def ends(failure: Exception) -> None:
        with notifying(["sh", "-c", f"cat >{kept}"], path, warnings.append) as begun:
            begun(hunt)
            raise failure

    with pytest.raises(Interrupted):
        ends(Interrupted("Interrupted."))
    assert not kept.exists()
    with pytest.raises(RuntimeError):
        ends(RuntimeError("a bug"))
    assert (json.loads(kept.read_text())["state"], json.loads(kept.read_text())["text"]) == ("failed", "a bug")
    assert not warnings


def test_a_command_that_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    begun, mark = tmp_path / "begun", f"{5_000_000 + os.getpid()}"
    for limit in (0.2, 2, 20):  # on a busy machine, the first may be over before its child has begun
        reason = run(["sh", "-c", f"sleep {mark} & touch {begun}; wait"], "{}", limit)
        assert reason == f"has not ended in {limit:.0f} s and was killed"
        if begun.exists():
            break
    assert begun.exists()
    until(lambda: not processes(f"sleep\0{mark}"))


def test_a_command_that_does_not_read_has_not_failed() -> None:
    assert run(["true"], "x" * 1_000_000) == ""


DOCS = Path(__file__).parents[2] / "docs" / "commands.md"


def example(using: str, folder: Path) -> Path:
    """The script of the docs that runs that program, as a file."""
    (text,) = (
        block for block in re.findall(r"```sh\n(#!/bin/sh\n.*?)```", DOCS.read_text(), re.DOTALL) if using in block
    )
    program = folder / "notifier"
    program.write_text(text)
    program.chmod(0o755)
    return program


@pytest.mark.skipif(shutil.which("jq") is None, reason="no jq on this machine: apt-get install jq")
def test_the_example_of_docs_for_mail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: tuple[str, str], stored: Stored
) -> None:
    """Only ``mail`` itself is another program here, which keeps what it is to send."""
    mail = tmp_path / "bin" / "mail"
    mail.parent.mkdir()
    mail.write_text(f'#!/bin/sh\nprintf "%s|" "$@" >{tmp_path}/sent\ncat >>{tmp_path}/sent\n')
    mail.chmod(0o755)
    monkeypatch.setenv("PATH", f"{mail.parent}:{os.environ['PATH']}")
    good, bad = ends
    assert not told(stored(ends, [100, 10]), str(example("mail -s", tmp_path)), "me@example.org")
    sent = (tmp_path / "sent").read_text()
    assert sent.startswith(f"-s|bisect 1: script one {good}..{bad}: found|me@example.org|The culprit is {bad[:10]}")
    assert sent.endswith("bisect show 1\n")


@pytest.mark.skipif(not all(map(shutil.which, ("jq", "curl"))), reason="no jq or curl: apt-get install jq curl")
def test_the_example_of_docs_for_a_webhook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: tuple[str, str], stored: Stored, seal: Path
) -> None:
    hunt, (good, bad), state = stored(ends, [100, 10]), ends, seal / ".local/state/perfbisect"
    got: list[dict[str, str]] = []

    class Chat(BaseHTTPRequestHandler):
        """Keeps what it is sent, and has it."""

        def do_POST(self) -> None:
            """As a chat program."""
            assert self.headers["Content-Type"] == "application/json"
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    with HTTPServer(("127.0.0.1", 0), Chat) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        secret = tmp_path / "home" / ".config" / "perfbisect" / "webhook"
        secret.parent.mkdir(parents=True)
        secret.write_text(f'url = "http://127.0.0.1:{server.server_port}/hooks/secret"\nnoproxy = "*"\n')
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        with closing(History.open(state / "history.db", read_only=True)) as history:
            data = notice(history, str(hunt))
        assert data is not None and run([str(example("curl", tmp_path))], data) == ""
        server.shutdown()
    (message,) = got
    assert message["text"].startswith(f"bisect 1: script one {good}..{bad}: found\nThe culprit is {bad[:10]}")
