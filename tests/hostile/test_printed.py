"""What builds, benchmarks, hosts, recipes and repositories print or are named never reaches a terminal as it is."""

import contextlib
import csv
import io
import json
import os
import pty
import re
import select
import shlex
import subprocess
import time
from pathlib import Path
from unittest import mock

import pytest

from attacks import ATTACKS
from perfbisect.ui.lines import decode
from perfbisect.wording.text import UNSAFE
from program import LIMIT, PROGRAM, Ended, run
from repos import Repo

EVIL = "".join(ATTACKS.values())

pytestmark = [pytest.mark.tools, pytest.mark.xdist_group("printed")]  # one world for all

# The real program, on a repository, a build, a benchmark and recipes that attack

SCRIPT = """\
printf '%s\\n' {evil} >&2
printf '%s\\n' {evil}
echo rate {rate}
exit {status}
"""


class World:
    """A repository with four commits: fast, one that does not build, one that crashes, slow; and a history."""

    def __init__(self, folder: Path) -> None:
        self.home, self.history = folder / "home", folder / f"history{ATTACKS['bidirectional']}.db"
        self.home.mkdir()
        self.env = {"HOME": str(self.home), "COLUMNS": "120", "PYTHONUNBUFFERED": "1"}
        self.git = Repo(folder / f"repo {ATTACKS['title']}")
        with mock.patch.dict(os.environ, GIT_AUTHOR_NAME=ATTACKS["conceal"]):
            for rate, status, builds in ((100, 0, 0), (100, 0, 1), (100, 3, 0), (50, 0, 0)):
                scripts = {
                    "run.sh": SCRIPT.format(evil=shlex.quote(EVIL), rate=rate, status=status),
                    "build.sh": SCRIPT.format(evil=shlex.quote(f"error: {EVIL}"), rate=0, status=builds),
                }
                self.git.commit(scripts, f"{rate} {EVIL}".replace("\n", " "))
        self.good, *_, self.crashing, self.bad = self.git("rev-list", "--reverse", "HEAD").split()
        self.tag = "v\u202e1\U000e0041"
        self.git("tag", self.tag, self.good)

    def hunt(self, history: Path, bad: str = "") -> list[str]:
        return [
            "run", self.tag, bad or self.bad, "--repo", str(self.git.path), "--build", "sh build.sh",
            "--run", "sh {prefix}/run.sh", "--rate", "rate (.*)", "--history", str(history),
        ]  # fmt: skip

    def bisect(self, *words: str, **more: str) -> Ended:
        """Run the program; fails where anything that it prints is unsafe."""
        with mock.patch.dict(os.environ, self.env | more), contextlib.chdir(self.home):
            done = run(*words)
        for text in (done.out, done.err):
            assert not UNSAFE.search(text), UNSAFE.findall(text)
        return done


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The same with a hunt in its history, whose lines are safe."""
    world = World(tmp_path_factory.mktemp("world"))
    done = world.bisect(*world.hunt(world.history), "--plain")
    assert done.status in (0, 2), done.err
    assert "EVIL" in done.out
    return world


def test_a_hunt_in_json_is_safe_and_complete(world: World) -> None:
    for line in world.bisect(*world.hunt(world.home / "again.db"), "--json", "--no-explain").out.splitlines():
        decode(line)


def test_reports_are_safe(world: World) -> None:
    of_commits = "select * from commits"
    for words in (
        ["show"], ["show", "1", "--markdown"], ["show", "1", "--json"], ["history"], ["replay"], ["query", of_commits, "--csv"],
        ["query", "select body as \x22\x1b[2J\x22 from events"], ["show", "c1"],
    ):  # fmt: skip
        done = world.bisect(*words, "--history", str(world.history))
        assert done.status in (0, 1, 2, 3)
        if "--json" in words:
            json.loads(done.out)


def test_what_a_query_prints_is_read_as_the_same_text_and_is_no_formula(world: World) -> None:
    history = ["--history", str(world.history)]
    sql = f"select subject from commits where commit_hash = '{world.good}'"
    [row] = json.loads(world.bisect("query", sql, "--json", *history).out)
    assert row["subject"].startswith(f"100 {ATTACKS['title']}")
    assert ATTACKS["bidirectional"] + ATTACKS["invisible"] + ATTACKS["tags"] in row["subject"]
    sql = "select '=cmd()' as a, '@sum' as b, '+1' as c, '-x' as d, -5 as e, 'a=b' as f, char(10) || '=x' as g"
    _, cells = csv.reader(io.StringIO(world.bisect("query", sql, "--csv", *history).out))
    assert cells == ["'=cmd()", "'@sum", "'+1", "'-x", "-5", "a=b", "'\n=x"]


def test_usage_errors_are_safe(world: World) -> None:
    for words in (
        ["EVIL\x1b]0;x\x07"], ["run", "--\x9bx"], ["hosts", "--show", EVIL], ["show", "--history", f"/{ATTACKS['title']}/x"],
        ["query", EVIL], ["run", "a", "b", "--builder", EVIL, "--workload", EVIL], ["simulate", "--policy", EVIL],
        ["run", "a", "b", "--repo", EVIL, "--build", EVIL, "--run", "x"], ["compare", f"x={EVIL}", "y=/none", "-b", "sqlite", "-w", "scan"],
    ):  # fmt: skip
        done = world.bisect(*words)
        assert done.status in (3, 4), done.err


def test_a_failed_hunt_is_safe(world: World) -> None:
    """An end that crashes: its output stands in the error, and in the history."""
    failed = world.home / "failed.db"
    done = world.bisect(*world.hunt(failed, world.crashing))
    assert done.status == 4
    assert "EVIL" in done.err
    for verb in ("history", "show"):
        world.bisect(verb, "--history", str(failed))


def test_recipes_and_hosts_are_safe(world: World) -> None:
    evil = json.dumps(EVIL)
    for path, text in (
        ("builders/evil/builder.toml", f"summary = {evil}\ndriver = 'evil'\n"),
        ("workloads/evil/suite.toml", f"summary = {evil}\ndriver = 'evil'\n[workloads.one]\nsummary = {evil}\n"),
        ("hosts.toml", f"[hosts.local]\nsummary = {evil}\n"),
    ):
        (world.home / path).parent.mkdir(parents=True, exist_ok=True)
        (world.home / path).write_text(text)
    for words in (["builders"], ["workloads"], ["hosts"], ["builders", "--show", "evil"], ["hosts", "--show", "local"]):
        world.bisect(*words)


def test_completion_offers_only_what_a_shell_takes_for_a_word(world: World) -> None:
    folder = world.home / "mine"
    for name in ("good-one", "größe", "evil$(touch x)", "evil;x", f"evil{ATTACKS['title']}", "evil\nnext", "evil`x`"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "builder.toml").write_text("summary = 'x'\ndriver = 'x'\n")
    words = f"bisect builders --builders {folder} --show "
    offered = world.bisect(_BISECT_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD="5").out
    assert "good-one" in offered
    assert "größe" in offered
    assert not {"$", ";", "`", "\\"} & set(offered)
    assert "next" not in offered


OWN = re.compile(r"\x1b\[(?:\?1049[hl]|\?25[hl]|H|2K|\d*A|K|(?P<style>[\d;]*)m)")
STYLES = {"", "0", "1", "2", "22", "31", "32", "33", "36", "39", "0;31"}


@pytest.mark.slow
def test_the_live_view_writes_only_its_own_sequences(world: World) -> None:
    """On a terminal, with colours, in a window of ordinary size."""
    ours, theirs = pty.openpty()
    argv = [*PROGRAM, *world.hunt(world.home / "live.db")]
    env = os.environ | world.env | {"TERM": "xterm-256color", "LINES": "40"}
    process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True)
    os.close(theirs)
    written = b""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline and (process.poll() is None or select.select([ours], [], [], 0)[0]):
        if select.select([ours], [], [], 0.2)[0]:
            try:
                written += os.read(ours, 1 << 16)
            except OSError:  # the end of the terminal
                break
    assert process.wait(timeout=LIMIT) in (0, 2)
    os.close(ours)
    text = written.decode()
    assert "EVIL" in text
    for code in OWN.finditer(text):
        assert set((code["style"] or "").split(";")) <= STYLES, code[0]
    left = OWN.sub("", text).replace("\r", "")
    assert not UNSAFE.search(left), UNSAFE.findall(left)


# What happens to the streams themselves


@pytest.mark.parametrize(
    ("words", "streams", "status"),
    [
        ("builders", ">&-", 4),
        ("--help", ">&-", 4),
        ("nonsense", "2>&-", 3),
        ("builders", "<&- 2>/dev/full", 0),
        ("builders", "<&- >&- 2>&-", 4),
        ("workloads", "", 0),  # a reader that has gone
    ],
)  # fmt: skip
def test_streams_that_are_closed_or_full(words: str, streams: str, status: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    argv = ["sh", "-c", f"exec {shlex.join(PROGRAM)} {words} {streams}"]
    try:
        done = subprocess.run(argv, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writing)
    assert done.returncode == status
    if "2>" not in streams:
        said = done.stderr.splitlines()[:1]
        assert said == (["Error: Standard output is closed."] if status else [])
