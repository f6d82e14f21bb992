"""Mistakes of the user: one clear sentence, the exit status of a mistake, and nothing started."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import sample_hunt
from perfbisect.cli.guard import private_text
from perfbisect.cli.main import HABITS, VERBS
from perfbisect.cli.options.param_types import ARG, MINUTES, UNSPLIT
from perfbisect.core.domain.settings import Policy, Settings
from perfbisect.errors import PerfBisectError, UsageError
from perfbisect.host.lock import hold_lock
from perfbisect.host.registry import connect
from perfbisect.hunt.resolve import resolve_settings
from perfbisect.hunt.setup import SessionSetup
from perfbisect.lab.building.log_parser import known_error
from perfbisect.recipes.inventory import load_host
from perfbisect.repository.discovery import open_repository
from perfbisect.store.history import History
from program import PROGRAM, exits, rows
from repos import Repo

pytestmark = pytest.mark.tools  # starts git, and checks all programs that a hunt needs

HERE = Path(__file__).parent
SHORT, *PARAGRAPHS = re.split(r"\n\n(?=\w|# )", (HERE / "mistakes.txt").read_text().split("\n\n", 1)[1].rstrip())
WORDS = dict(line.split(" = ") for line in SHORT.splitlines())
HUNT = shlex.split(WORDS["HUNT"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a repository (tags v1.0 to v1.2, v2.0.1 to v2.0.10), a shallow clone, recipes and a history."""
    folder = tmp_path_factory.mktemp("world")
    for name in ("recipes", "world"):
        shutil.copytree(HERE / name, folder, dirs_exist_ok=True)
    repo = Repo(folder / "repo")
    for number, name in enumerate([*(f"v1.{n}" for n in range(3)), *(f"v2.0.{n}" for n in range(1, 11))]):
        if name == "v2.0.10":
            repo.commit(title="only a text", tag="docs")
        repo.commit({"file.c": f"int x = {number};\n", "run.sh": f"echo rate 1\n: 0\n: {number}\n"}, tag=name)
    repo("clone", "-q", "--depth=1", f"file://{repo.path}", str(folder / "shallow"))
    for name in ("empty", "other", "installed"):
        (folder / name).mkdir()
    shutil.copy(folder / "patches/fits.patch", folder / "other")
    (folder / "installed/run.sh").touch()
    (folder / "text.tar.gz").write_text("no tarball")
    (folder / "long.patch").write_text("@" * (1 << 20) + "@")
    with closing(History.open(folder / "kept.db")) as history:
        sample_hunt.write(history)
        sample_hunt.write_trial(history, sample_hunt.comparison(2, ["scan"]))
    return folder


@pytest.fixture
def world(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder ``made``, as the working directory."""
    monkeypatch.chdir(made)
    return made


@pytest.mark.parametrize("paragraph", PARAGRAPHS, ids=lambda paragraph: paragraph.splitlines()[0][2:])
def test_mistake_is_reported_as_mistakes_txt_lists(paragraph: str, world: Path, seal: Path) -> None:
    before = sorted(path.name for path in world.iterdir())
    commands = re.findall(r"^(?![# ])(.*)\n((?:    .*\n?)+)", paragraph, re.MULTILINE)
    assert len(commands) == len(re.findall("^(?![# ])", paragraph, re.MULTILINE))
    for command, expected in commands:
        words = re.sub(r"\b[A-Z]{4,}\b", lambda found: WORDS.get(found[0], found[0]), command)
        errors = exits(3, *shlex.split(words))
        assert [part for part in expected.splitlines() if part[4:] not in errors] == [], (command, errors)
    assert not any(rows(path, "select * from sessions") for path in seal.rglob("history.db"))
    assert sorted(path.name for path in world.iterdir()) == before


def test_history_that_is_a_fifo_is_refused(tmp_path: Path) -> None:
    """SQLite would wait for a writer of the FIFO, and no signal would end the wait."""
    fifo = tmp_path / "history.db"
    os.mkfifo(fifo)
    for words in ("history --history", "resume --history", "history import"):
        argv = [*PROGRAM, *words.split(), str(fifo)]
        refused = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
        assert refused.returncode == 3
        assert f"{fifo} cannot be opened: it is not a regular file" in refused.stderr


@pytest.mark.usefixtures("world")
def test_busy_host_and_missing_sysbench_are_errors(seal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The PATH has all programs except sysbench."""
    with hold_lock(connect(load_host("local")), "a hunt of another session"):
        assert "a hunt of another session" in exits(4, *HUNT)
    (tmp_path / "bin").mkdir()
    for program in (*Path("/bin").iterdir(), *Path("/usr/bin").iterdir()):
        link = tmp_path / "bin" / program.name
        if program.name != "sysbench" and not link.is_symlink():
            link.symlink_to(program)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    errors = exits(4, *HUNT)
    assert "sysbench" in errors and "apt-get install" in errors
    assert not list(seal.rglob("history.db"))


def pasted(command: str) -> list[str]:
    """The words of a command that is pasted into a shell."""
    argv = ["bash", "-c", f"printf '%s\\0' {command}"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split("\0")[:-1]


def hint_of(raises: Callable[[], object]) -> str:
    with pytest.raises((ValueError, PerfBisectError)) as caught:
        raises()
    return f"{caught.value} {getattr(caught.value, 'advice', '')}"


def test_command_in_a_hint_is_quoted_for_a_shell(tmp_path: Path) -> None:
    odd = "it's $HOME; `x`"
    folder, shallow, secret = tmp_path / odd, tmp_path / odd / "shallow", tmp_path / odd / "passwords"
    repo = Repo(folder / "whole")
    repo.history([{"a": "1"}, {"a": "2"}])
    repo("clone", "-q", "--depth=1", f"file://{repo.path}", str(shallow))
    secret.touch(0o644)
    known = known_error("a.cc:1:1: error: 'uint64_t' does not name a type")
    assert known
    for hint, before, words in (
        (hint_of(lambda: ARG.parse(f"time={odd}")), "the option ", ["--time", f"{odd}."]),
        (
            hint_of(lambda: open_repository(shallow)),
            "whole history: ",
            ["git", "-C", str(shallow), "fetch", "--unshallow"],
        ),
        (hint_of(lambda: private_text(secret)), "private: ", ["chmod", "600", str(secret)]),
        (f": {known.remedy}", ": ", ["--cxxflags", "-include cstdint"]),
    ):
        assert pasted(hint.rpartition(before)[2]) == words, hint


def test_command_with_shell_syntax_is_refused_with_a_correction() -> None:
    needs_one = r"^(?! )(.*)\n    (.*)\n    (.*)\n"
    _, table = (HERE / "shells.txt").read_text().split("\n\n")
    for command, of_shells, works in re.findall(needs_one, table, re.MULTILINE):
        hint = hint_of(lambda: UNSPLIT.parse(command))  # noqa: B023
        word = "pipe" if of_shells == "|" else "shell command"
        assert f"contains {of_shells}, which only a shell understands, but the command runs without a shell." in hint
        assert f"For a {word}: {works}. If {of_shells} is part of an argument of " in hint
        [again] = pasted(works)
        assert shlex.split(again) == ["sh", "-c", command]
        assert UNSPLIT.parse(again) == again
    for command in re.sub(needs_one, "", table, flags=re.MULTILINE).splitlines():
        assert UNSPLIT.parse(command) == command


@pytest.mark.usefixtures("world")
def test_ends_may_be_written_as_a_range_of_git() -> None:
    what = ["--builder", "demo", "--workload", "scan", "--repo", "repo", "--dry-run"]
    for between in ("..", "..."):
        assert "# good: v1.0" in exits(0, "run", f"v1.0{between}v1.1", *what)
        assert "rounds of 2 visits" in exits(0, "compare", f"v1.0{between}v1.1", *what)


def test_subcommands_of_git_bisect_lead_to_the_verb() -> None:
    for word, verb in HABITS.items():
        assert f"There is no command '{word}'. In place of 'git bisect {word}', use: bisect {verb}" in exits(3, word)
        assert verb.split()[0] in VERBS


def test_durations_are_read_in_common_notations() -> None:
    read = {"90s": 1.5, "35min": 35, "1h30m": 90, "90 s": 1.5, "2h": 120, "7": 7, "1d": 1440}
    assert {text: MINUTES.parse(text) for text in read} == pytest.approx(read)


@pytest.mark.usefixtures("world")
def test_suspect_pattern_without_a_commit_gets_a_warning() -> None:
    """And --slow-after is refused for a metric that has no bound."""
    asked = Settings("v1.0", "v1.2", "repo", "demo", "update-index", "local")
    suspicious = replace(asked, suspects={"storage/innodb/**": 4.0, "file.c": 2.0})
    warnings = SessionSetup.set_up([resolve_settings(suspicious)])[0].warnings
    texts = [warning.text for warning in warnings if "suspect" in warning.text]
    assert texts == [
        "--suspect storage/innodb/** has no effect: no commit of the range changes a file that matches storage/innodb/**."
    ]
    with pytest.raises(UsageError, match="--slow-after cannot be used with the metric p95 of workload update-index"):
        resolve_settings(replace(asked, metric="p95", policy=Policy(slow_after=5.0)))
