"""The environment and the errors of git commands."""

import pytest

from perfbisect.repository.git import PROTOCOLS, environment, failure, sealed, to_remotes

DUBIOUS = "detected dubious ownership in repository at '/a b'"
ADD = "git config --global --add safe.directory '/a b'"


def test_the_environment_is_a_list_of_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {
        "SUDO_UID": "1000",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_EXEC_PATH": "/git",
    }
    reach = {
        "GIT_SSH_COMMAND": "ssh -v",
        "SSH_AUTH_SOCK": "/agent",
        "https_proxy": "http://proxy",
        "GIT_ASKPASS": "ask",
    }
    unwanted = {"GIT_DIR": "/x", "GIT_GRAFT_FILE": "/x", "BASH_ENV": "/x", "LD_PRELOAD": "/x", "LC_ALL": "de_DE.UTF-8"}
    for name, value in (wanted | reach | unwanted).items():
        monkeypatch.setenv(name, value)
    for made, inherited in ((environment(), wanted), (to_remotes(), wanted | reach), (sealed(), {})):
        assert {name: made.get(name) for name in inherited} == inherited
        absent = set(wanted | reach | unwanted) - set(inherited) - {"LC_ALL", "GIT_GRAFT_FILE"}
        assert not absent & set(made)
        assert (made["LC_ALL"], made["GIT_GRAFT_FILE"]) == ("C", "/dev/null")
        assert made["PATH"]
    assert "HOME" in environment()
    assert "HOME" not in sealed()


def test_protocols_are_chosen_by_the_user_or_few(monkeypatch: pytest.MonkeyPatch) -> None:
    assert to_remotes()["GIT_ALLOW_PROTOCOL"] == PROTOCOLS
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "codecommit")
    assert to_remotes()["GIT_ALLOW_PROTOCOL"] == "codecommit"
    assert {made["GIT_ALLOW_PROTOCOL"] for made in (environment(), sealed())} == {"none"}


@pytest.mark.parametrize(
    ("stderr", "sentence", "advice"),
    [
        ("warning: x\nfatal: bad object\nerror: later\n", "it failed: fatal: bad object", ""),
        ("fatal: unknown repository extension found:\n\tnoop-v2\n", "it failed: fatal: unknown repository extension found: noop-v2", ""),
        ("said nothing of note\n", "it failed: said nothing of note", ""),
        ("", "it failed: it printed no message", ""),
        ("fatal: write error: No space left on device\n", "it failed: fatal: write error: No space left on device", "Free some space there."),
        (
            f"fatal: {DUBIOUS}\nTo add an exception for this directory, call:\n\n\t{ADD}\n",
            f"it failed: fatal: {DUBIOUS}",
            f"It belongs to another user, whose configuration could start programs. If you trust it: {ADD}",
        ),
    ],
)  # fmt: skip
def test_the_line_that_gives_the_reason(stderr: str, sentence: str, advice: str) -> None:
    error = failure("it failed", stderr)
    assert (str(error), error.advice) == (sentence, advice)
