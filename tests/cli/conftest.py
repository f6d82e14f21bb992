"""The program in this process; and a system that is a shell script, which is built and run in no time."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.cli.main import main
from perfbisect.errors import USAGE

Ended = tuple[int, str, str]  # exit status, standard output, standard error
Invoke = Callable[..., Ended]
Exits = Callable[..., str]


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """``invoke(*args)`` runs the program; nothing that a user gets wrong may end in a traceback."""
    time.tzset()

    def run(*args: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["bisect", *args])
        with pytest.raises(SystemExit) as leave:
            main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert isinstance(leave.value.code, int)
        return leave.value.code, out, err

    return run


@pytest.fixture
def exits(invoke: Invoke) -> Exits:
    """``exits(status, *args)`` runs the program, which ends with that status; returns what it prints, of mistakes on stderr."""

    def run(status: int, *args: str) -> str:
        ended, out, err = invoke(*args)
        assert ended == status, err
        return err if status == USAGE else out + err

    return run


BUILDER = """
summary = "a script"
driver = "script"
variants.o2nofp = {}
[build]
compile = [["sh", "-c", "! grep -l 'does not build' {source}/run.sh"]]
install = [["install", "-D", "-m", "755", "{source}/run.sh", "{prefix}/run.sh"]]
artifacts = ["run.sh"]
"""

SUITE = """
summary = "the script, run with different arguments"
driver = "script"
[defaults]
group = "all"
summary = "prints a rate"
rate = 'rate (\\d+)'
warmup = 0
[workloads]
one.command = ["sh", "{prefix}/run.sh", "one", "{threads}"]
two.command = ["sh", "{prefix}/run.sh", "two", "{threads}"]
"""

Commit = Callable[[str], str]


@pytest.fixture
def script(tmp_path: Path, git: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Commit:
    """``script(text)`` commits a system's script, which prints its rate; returns the hash. Recipes lie where we then are."""
    monkeypatch.chdir(tmp_path)
    for path, text in (("builders/script/builder.toml", BUILDER), ("workloads/script/suite.toml", SUITE)):
        Path(path).parent.mkdir(parents=True)
        Path(path).write_text(text)

    def commit(text: str) -> str:
        (tmp_path / "repo" / "run.sh").write_text(f"{text}\n")
        git("add", ".")
        git("commit", "-qm", "change")
        return git("rev-parse", "HEAD")

    return commit
