"""`--notify COMMAND`: the input of the command when a session ends, and the warning if the command fails."""

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import sample_hunt as sample
from perfbisect.errors import Interrupted
from perfbisect.hunt.notification import command_failure, notifying
from perfbisect.report.published import session_end_json
from perfbisect.store.history import History
from program import SCRIPT, executable, exits
from waiting import processes, until

pytestmark = pytest.mark.tools

Stored = Callable[..., int]
RUN = [*SCRIPT, "--plain", "--no-layouts", "--no-explain"]


@pytest.fixture
def keeps(tmp_path: Path) -> Callable[[], Any]:
    """Writes a program ``keep`` that stores its input, and returns a function that reads this input."""
    kept = tmp_path / "kept"
    executable(tmp_path / "keep", f'#!/bin/sh\n[ "$1" = "two words" ] && cat >>{kept} && echo printed\n')

    def read() -> Any:
        text = kept.read_text()
        kept.unlink()
        return json.loads(text)

    return read


def told(hunt: int, *command: str, history: Path | None = None, ends: Exception | None = None) -> list[str]:
    """The warnings after a command is notified of a hunt, which has ended or ends with the exception ``ends``."""
    warnings: list[str] = []
    with notifying(command, history, warnings.append) as begun:
        begun(str(hunt))
        if ends:
            raise ends
    return warnings


def test_verdicts_of_hunts_and_proofs_are_sent(ends: tuple[str, str], stored: Stored, keeps: Callable[[], Any]) -> None:
    good, bad = ends
    stored(ends, [100, 10])
    assert not told(1, "./keep", "two words")
    got = keeps()
    assert (got["kind"], got["id"], got["state"], got["show"]) == ("hunt", "1", "found", "bisect show 1")
    assert got["title"] == f"bisect 1: script one {good}..{bad}: found"
    assert f"The culprit is {bad[:10]}" in got["text"]
    assert json.loads(exits(0, "show", "--json")) == got["report"]
    assert "printed" not in exits(0, "prove", "--visits", "2", "--runs", "1", "--notify", "./keep 'two words'")
    got = keeps()
    assert (got["kind"], got["id"], got["show"]) == ("prove", "p2", "bisect show p2") and bad[:10] in got["text"]


def test_failure_of_a_hunt_is_sent(script: Callable[[str], str], keeps: Callable[[], Any]) -> None:
    exits(4, "run", script("echo rate 100"), script("exit 7"), *RUN, "--notify", "./keep 'two words'")
    got = keeps()
    assert got["state"] == "failed" and "the bad revision" in got["text"]


def test_configured_command_is_notified_of_comparison_and_noise_trial(
    script: Callable[[str], str], seal: Path, keeps: Callable[[], Any], tmp_path: Path
) -> None:
    file = seal / ".config" / "perfbisect" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f"notify = \"{tmp_path}/keep 'two words'\"\n")
    builds = [script(f"echo rate $(({rate} + $(date +%N | cut -c 6)))") for rate in (10000, 5000)]
    how = [*SCRIPT, "--visits", "2", "--runs", "1", "--pairing", "interleaved"]
    for kind, words in (("compare", builds), ("noise", ["local", "--rev", builds[0]])):
        exits(0, kind, *words, *how)
        got = keeps()
        assert (got["kind"], got["state"]) == (kind, "done")
        assert kind == "noise" or "rate relative to" in got["text"]
    exits(0, "compare", *builds, *how, "--notify", "")
    assert not (tmp_path / "kept").exists()
    for text, said in {
        "notify = 'no-such-program now'\n": "`notify` is not a command: the program no-such-program does not exist.",
        "notifi = 'true'\n": "`notifi` is an unknown key.",
    }.items():
        file.write_text(text)
        assert f"config.toml: {said}" in exits(3, "compare", *builds, *how)


def test_interruption_is_not_notified_and_failed_command_is_reported(tmp_path: Path) -> None:
    """An interrupted hunt can continue later, but a hunt that failed with an error has ended."""
    path, kept = tmp_path / "history.db", tmp_path / "kept"
    keep = ["sh", "-c", f"cat >{kept}"]
    with closing(History.open(path)) as history:
        hunt, whole = sample.begin(history), sample.write(history)
        assert session_end_json(history, str(hunt)) is None
    with pytest.raises(Interrupted):
        told(hunt, *keep, history=path, ends=Interrupted("Interrupted."))
    assert not kept.exists()
    with pytest.raises(RuntimeError):
        told(hunt, *keep, history=path, ends=RuntimeError("a bug"))
    got = json.loads(kept.read_text())
    assert (got["state"], got["text"]) == ("failed", "a bug")
    warnings = told(whole, "sh", "-c", "echo first >&2; echo no such relay >&2; exit 3", history=path)
    assert warnings == ["warning: the command of --notify ended with status 3: no such relay"]
    assert command_failure(["true"], "x" * 1_000_000) == "", "a command that does not read has not failed"


def test_command_that_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    begun, mark = tmp_path / "begun", f"{5_000_000 + os.getpid()}"
    for limit in (0.2, 2, 20):  # on a busy machine, a limit may pass before the child has begun
        reason = command_failure(["sh", "-c", f"sleep {mark} & touch {begun}; wait"], "{}", limit)
        assert reason == f"has not ended in {limit:.0f} s and was killed"
        if begun.exists():
            break
    assert begun.exists()
    until(lambda: not processes(f"sleep\0{mark}"))


@pytest.fixture
def example(tmp_path: Path) -> Callable[[str], str]:
    """``example(using)``: the path of the script in the docs that contains ``using``."""
    docs = (Path(__file__).parents[2] / "docs/commands.md").read_text()

    def write(using: str) -> str:
        [text] = [block for block in re.findall(r"```sh\n(#!/bin/sh\n.*?)```", docs, re.DOTALL) if using in block]
        return str(executable(tmp_path / "notifier", text))

    return write


@pytest.mark.skipif(shutil.which("jq") is None, reason="no jq on this machine: apt-get install jq")
def test_mail_of_the_docs_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, example: Callable[[str], str]) -> None:
    """A replacement for ``mail`` stores the message."""
    sent = shlex.quote(str(tmp_path / "sent"))
    executable(tmp_path / "bin" / "mail", f'#!/bin/sh\nprintf "%s|" "$@" >{sent}\ncat >>{sent}\n')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=":")
    with closing(History.open(tmp_path / "h.db")) as history:
        hunt = sample.write(history)
    assert not told(hunt, example("mail -s"), "me@example.org", history=tmp_path / "h.db")
    mail = (tmp_path / "sent").read_text()
    title = "-s|bisect 1: engine update-index 1.0..1.1: found|me@example.org|"
    assert mail.startswith(f"{title}The culprit is 6da84d17ef")
    assert "bisect show 1" in mail.splitlines()[-1]
