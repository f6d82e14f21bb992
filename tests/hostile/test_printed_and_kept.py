"""Hostile text of builds, benchmarks, hosts, recipes and repositories is escaped; no password is printed or kept;
errors name damaged rows of a history; endless answers and huge numbers are handled.
"""

import contextlib
import csv
import io
import json
import math
import os
import re
import shlex
import shutil
import sqlite3
import stat
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

import sample_hunt as sample
from attacks import ATTACKS
from json_events import decode
from perfbisect.core.domain.metrics import quotient
from perfbisect.core.domain.orders import LARGEST_LOG
from perfbisect.core.inference.analysis import Contrast
from perfbisect.core.stats.paired_comparison import paired_ratio
from perfbisect.hunt.lifecycle import known_failures
from perfbisect.hunt.session import with_prior_knowledge
from perfbisect.store.history import History
from perfbisect.wording.quantities import change, decimals, figure, low_to_high, ratio
from perfbisect.wording.text import UNSAFE
from program import LIMIT, PROGRAM, Ended, executable, run
from repos import Repo

EVIL = "".join(ATTACKS.values())

pytestmark = [pytest.mark.tools, pytest.mark.xdist_group("printed")]  # the tests share a world

TAG = "v\u202e1\U000e0041"

# The real program, on a hostile repository, build, benchmark and recipes

SCRIPT = """\
printf '%s\\n' {evil} >&2
printf '%s\\n' {evil}
echo rate {rate}
exit {status}
"""


class World:
    """A repository with four commits (fast, unbuildable, crashing, slow), and a history."""

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
        self.git("tag", TAG, "HEAD~3")

    def hunt(self, history: Path, *words: str, bad: str = "HEAD") -> Ended:
        """Hunt in the repository of this world."""
        commands = ["--build", "sh build.sh", "--run", "sh {prefix}/run.sh", "--rate", "rate (.*)", "--no-explain"]
        commands += ["--repo", str(self.git.path), "--history", str(history)]
        return self.bisect("run", TAG, bad, *commands, *words)

    def bisect(self, *words: str, **more: str) -> Ended:
        """Run the program, and assert that its output is safe."""
        with mock.patch.dict(os.environ, self.env | more), contextlib.chdir(self.home):
            done = run(*words)
        for text in (done.out, done.err):
            assert not UNSAFE.search(text), UNSAFE.findall(text)
        return done


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world with a hunt in its history."""
    world = World(tmp_path_factory.mktemp("world"))
    done = world.hunt(world.history, "--plain")
    assert done.status in (0, 2), done.err
    assert "EVIL" in done.out
    return world


def test_reports_are_safe(world: World) -> None:
    odd_name = "select body as \x22\x1b[2J\x22 from events"
    for words in (
        ["show"], ["show", "1", "--markdown"], ["show", "1", "--json"], ["show", "c1"], ["history"], ["replay"],
        ["query", "select * from commits", "--csv"], ["query", odd_name],
    ):  # fmt: skip
        done = world.bisect(*words, "--history", str(world.history))
        assert done.status in (0, 1, 2, 3)
        if "--json" in words:
            json.loads(done.out)


@pytest.mark.slow
def test_a_hunt_in_json_is_safe_and_complete(world: World) -> None:
    for line in world.hunt(world.home / "again.db", "--json").out.splitlines():
        decode(line)


def test_query_output_preserves_text_and_escapes_formulas(world: World) -> None:
    history = ["--history", str(world.history)]
    sql = f"select subject from commits where commit_hash = '{world.git('rev-parse', 'HEAD~3')}'"
    [row] = json.loads(world.bisect("query", sql, "--json", *history).out)
    assert row["subject"].startswith(f"100 {ATTACKS['title']}")
    assert ATTACKS["bidirectional"] + ATTACKS["invisible"] + ATTACKS["tags"] in row["subject"]
    sql = "select '=cmd()' as a, '@sum' as b, '+1' as c, '-x' as d, -5 as e, 'a=b' as f, char(10) || '=x' as g"
    _, cells = csv.reader(io.StringIO(world.bisect("query", sql, "--csv", *history).out))
    assert cells == ["'=cmd()", "'@sum", "'+1", "'-x", "-5", "a=b", "'\n=x"]


def test_usage_errors_and_a_failed_hunt_are_safe(world: World) -> None:
    """The error contains the output of an end that crashes, as does the history."""
    for words in (
        ["EVIL\x1b]0;x\x07"], ["run", "--\x9bx"], ["hosts", "--show", EVIL], ["show", "--history", f"/{ATTACKS['title']}/x"], ["query", EVIL],
        ["run", "a", "b", "--builder", EVIL, "--workload", EVIL], ["simulate", "--policy", EVIL],
        ["run", "a", "b", "--repo", EVIL, "--build", EVIL, "--run", "x"], ["compare", f"x={EVIL}", "y=/none", "-b", "sqlite", "-w", "scan"],
    ):  # fmt: skip
        done = world.bisect(*words)
        assert done.status in (3, 4), done.err
    failed = world.home / "failed.db"
    done = world.hunt(failed, bad="HEAD~1")
    assert done.status == 4
    assert "EVIL" in done.err
    for verb in ("history", "show"):
        world.bisect(verb, "--history", str(failed))


def test_recipes_and_hosts_are_safe(world: World) -> None:
    evil = json.dumps(EVIL)
    for path, text in {
        "builders/evil/builder.toml": f"summary = {evil}\ndriver = 'evil'\n",
        "workloads/evil/suite.toml": f"summary = {evil}\ndriver = 'evil'\n[workloads.one]\nsummary = {evil}\n",
        "hosts.toml": f"[hosts.local]\nsummary = {evil}\n",
    }.items():
        executable(world.home / path, text)
    for words in ("builders", "workloads", "hosts", "builders --show evil", "hosts --show local"):
        world.bisect(*words.split())


def test_completion_offers_only_names_that_are_safe_in_a_shell(world: World) -> None:
    folder = world.home / "mine"
    good, evil = ("good-one", "größe"), ("$(touch x)", ";x", ATTACKS["title"], "\nnext", "`x`")
    for name in (*good, *(f"evil{each}" for each in evil)):
        executable(folder / name / "builder.toml", "summary = 'x'\ndriver = 'x'\n")
    words = f"bisect builders --builders {folder} --show "
    offered = world.bisect(_BISECT_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD="5").out
    assert all(name in offered for name in good)
    assert not any(sign in offered for sign in ("$", ";", "`", "\\", "next"))


# Closed and full standard streams


STREAMS = [
    ("builders", ">&-", 4),
    ("--help", ">&-", 4),
    ("nonsense", "2>&-", 3),
    ("nonsense", "2>/dev/full", 3),
    ("builders", "<&- 2>/dev/full", 0),
    ("builders", "<&- >&- 2>&-", 4),
    ("workloads", "", 0),  # the reader has closed the pipe
]


@pytest.mark.parametrize(("words", "streams", "status"), STREAMS)
def test_program_handles_closed_or_full_streams(words: str, streams: str, status: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    argv = ["sh", "-c", f"exec {shlex.join(PROGRAM)} {words} {streams}"]
    with os.fdopen(writing, "wb") as out:
        done = subprocess.run(argv, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == status
    if "2>" not in streams:
        said = done.stderr.splitlines()[:1]
        assert said == (["Error: Standard output is closed."] if status else [])


# Passwords

GOOD, BAD, BROKEN = "echo rate 100", "echo rate 50", "echo cannot reach https://u:s3cret@h/x; exit 3"


def test_hunt_prints_and_keeps_no_password(git: Repo, tmp_path: Path) -> None:
    """A password of its own command is kept for `bisect resume`, in a history that only the user can read."""
    for number, (bench, build) in enumerate(((GOOD, "true"), (GOOD, BROKEN), (BAD, BROKEN), (BAD, "true"))):
        git.commit({"run.sh": f"{bench}\n", "build.sh": f"{build}\n"}, f"{number} https://u:s3cret@h/y")
    history = tmp_path / "history.db"
    hunt = ["run", "HEAD~3", "HEAD", "--repo", str(git.path), "--build", "sh build.sh", "--rate", "rate (.*)"]
    hunt += ["--run", "sh {prefix}/run.sh https://u:s3cret@h"]
    outputs = []

    def tell(*words: str) -> Ended:
        outputs.append(run(*words, "--history", str(history)))
        return outputs[-1]

    tell(*hunt, "--plain", "--no-explain")
    with closing(sqlite3.connect(history)) as connection:  # as if it had been killed before its verdict
        connection.executescript("DELETE FROM events WHERE kind = 'HuntEnded'; UPDATE sessions SET ended = NULL")
    assert "resumed" in tell("resume", "--plain").out
    for words in ("show", "show --json", "show --markdown", "history", "replay"):
        tell(*words.split())
    for what, form in (("*", []), ("settings", ["--json"]), ("settings", ["--csv"])):
        tell("query", f"select {what} from hunts", *form)
    tell(*hunt, "--dry-run")
    for output in outputs:
        assert output.status in (0, 2), output.err
        assert "s3cret" not in output.out + output.err
    assert any("https://***@h/x" in output.out for output in outputs)
    with closing(sqlite3.connect(history)) as connection:
        kept = [line for line in connection.iterdump() if "s3cret" in line]
    assert {line.partition("(")[0] for line in kept} == {'INSERT INTO "sessions" VALUES'}
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_addresses_of_recipes_and_hosts_are_shown_without_passwords(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.toml"
    executable(
        tmp_path / "builders" / "mine" / "builder.toml",
        'summary = "x"\ndriver = "mine"\nvariants.o2nofp = {}\nrepository = "https://u:s3cret@127.0.0.1:1/x.git"\n'
        '[build]\nartifacts = ["x"]\ncompile = [["true"]]\ninstall = [["true"]]\n',
    )
    redis = 'ccache_remote = "redis://u:s3cret@cache:6379"'
    wrong = 'ccache_remote = "nonsense://u:s3cret@cache" \nunknown = "https://s3cret@h"'
    for words, of_hosts, statuses in (
        (f"hosts --show local --hosts {hosts}", redis, (0,)),
        (f"builders --show mine --builders {tmp_path}/builders", redis, (0,)),
        (f"run a b --builder mine --workload x --builders {tmp_path}/builders", redis, (3, 4)),
        (f"hosts --hosts {hosts}", wrong, (3,)),
    ):
        hosts.write_text(f"[hosts.local]\n{of_hosts}\n")
        done = run(*words.split())
        assert done.status in statuses, done.err
        assert "s3cret" not in done.out + done.err
        assert words[:12] != "hosts --show" or "redis://***@cache" in done.out


# A damaged history

DAMAGE = {
    "truncated": "substr({column}, 1, length({column}) / 2)",
    "empty": "''",
    "number": "7",
    "null": "'null'",
    "binary": "x'00ff8081'",
    "no UTF-8": "CAST(x'7b22ff223a317d' AS TEXT)",
    "deep": "'" + "[" * 100_000 + "'",
    "other fields": "'{{\"a\": 1}}'",
    "wrong types": "replace({column}, ':', ':[') ",
}
PLACES = {
    "a run": ("events", "body", "id = (SELECT min(id) FROM events WHERE session_id = 1 AND kind = 'RunFinished')"),
    "the verdict": ("events", "body", "session_id = 1 AND kind = 'HuntEnded'"),
    "its kind": ("events", "kind", "session_id = 1 AND kind = 'HuntEnded'"),
    "its time": ("events", "at", "session_id = 1 AND kind = 'HuntEnded'"),
    "the settings": ("sessions", "settings", "id = 1"),
    "the range": ("ranges", "candidates", "session_id = 1"),
}
HOW = {
    "a run": DAMAGE,
    "the settings": DAMAGE,
    "the range": ("truncated", "number", "no UTF-8", "other fields"),
    "the verdict": ("other fields",),
    "its kind": ("number", "no UTF-8"),
    "its time": ("binary",),
}
CASES = [(place, how) for place, ways in HOW.items() for how in ways]
DAMAGED = r"is damaged: hunt 1, table {}(, row \d+)?(, column \w+)?, cannot be read"


@pytest.fixture(scope="module")
def two_hunts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history with two hunts; never changed."""
    path = tmp_path_factory.mktemp("two") / "history.db"
    with closing(History.open(path)) as opened:
        for _ in range(2):
            sample.write(opened)
        opened.connection.execute("UPDATE sessions SET settings = json_set(settings, '$.builder', 'demo')")
    return path


@pytest.fixture
def history(two_hunts: Path, tmp_path: Path) -> Path:
    """A copy of ``two_hunts``."""
    return Path(shutil.copy(two_hunts, tmp_path / "history.db"))


def damage(history: Path, place: str, how: str) -> str:
    """Damage a row of a history; returns its table."""
    table, column, where = PLACES[place]
    with closing(sqlite3.connect(history)) as connection, connection:
        changed = connection.execute(f"UPDATE {table} SET {column} = {DAMAGE[how].format(column=column)} WHERE {where}")
        assert changed.rowcount == 1
    return table


def test_a_damaged_row_is_named(two_hunts: Path, tmp_path: Path) -> None:
    for place, how in CASES:
        history = Path(shutil.copy(two_hunts, tmp_path / f"{place}, {how}"))
        table = damage(history, place, how)
        status, _, said = run("show", "1", "--history", str(history))
        assert status == 4, (place, how, said)
        assert re.search(DAMAGED.format(table), said), (place, how, said)


@pytest.mark.parametrize(("place", "how"), [("a run", "deep"), ("the settings", "no UTF-8"), ("its kind", "number")])
def test_damaged_hunt_is_refused_and_other_hunts_stay_readable(history: Path, place: str, how: str) -> None:
    """Also, a new hunt can read the data of earlier hunts."""
    table = damage(history, place, how)
    words = ["--history", str(history)]
    for verb in ("replay", "resume"):
        status, _, said = run(verb, "1", *words)
        assert status == 4, said
        assert re.search(DAMAGED.format(table), said), said
    for told in (["show", "2"], ["history"], ["history", "--json"], ["query", f"select * from {table}", "--csv"]):
        assert run(*told, *words).status == 0
    json.loads(run("query", f"select * from {table}", "--json", *words).out)
    with closing(History.open(history)) as opened:
        settings = replace(sample.SETTINGS, builder="demo")
        assert with_prior_knowledge(opened, settings).prior.build_cost
        known_failures(opened, settings, sample.BEGAN)


def test_query_names_the_row_that_is_no_json(history: Path) -> None:
    damage(history, "a run", "truncated")
    for sql in ("json_extract(body, '$.candidate') from events", "json_extract('{', '$.a')"):  # the damage comes first
        status, _, said = run("query", f"select {sql}", "--history", str(history))
        assert status == 4
        assert re.search(r"is damaged: hunt 1, table events, row \d+, is not JSON", said)


def test_hunt_number_outside_the_range_of_sqlite_is_refused(two_hunts: Path) -> None:
    for number in (2**63 - 1, 2**63, "9" * 400, -1):
        for verb in ("show", "replay", "resume"):
            status, _, said = run(verb, "--history", str(two_hunts), "--", str(number))
            assert status == 3, said
            assert "Error: " in said


# Endless answers and huge numbers

FORMS = ([], ["--csv"], ["--json"])
COUNT = "with recursive n(i) as (select 1 union all select i + 1 from n {limit}) select i, 'text ' || i as t from n"


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_rows_of_an_endless_query_appear(history: Path, form: list[str]) -> None:
    """The reader closes the pipe after some rows, which ends the query."""
    argv = [*PROGRAM, "query", COUNT.format(limit=""), *form, "--history", str(history)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = [process.stdout.readline() for _ in range(5000)]
        process.stdout.close()
        said = process.stderr.read()
        assert (process.wait(timeout=LIMIT), said) == (0, "")
    assert "text 4000" in "".join(lines)


def test_huge_values_are_shown_or_refused(history: Path) -> None:
    """A wide cell after the first rows is shown completely; infinity in JSON is the largest number."""
    words = ["--history", str(history)]
    for sql in ("select zeroblob(900000000)", "select hex(zeroblob(60000000))"):
        done = run("query", sql, "--csv", *words)
        assert (done.status, done.out) == (3, "")
        assert done.err.startswith("Error: The query failed: string or blob too big.")
    sql = f"select iif(i = 1500, '{'w' * 50}', 'x') as a, i from ({COUNT.format(limit='where i < 2000')})"
    lines = run("query", sql, *words).out.splitlines()
    assert len(lines) == 2001
    assert f"{'w' * 50}  1500" in lines
    assert "x  2000" in lines
    out = run("query", "select 9e999 as a, -9e999 as b, null as c", "--json", *words).out
    [row] = json.loads(out, parse_constant=pytest.fail)
    assert row == {"a": 1.7976931348623157e308, "b": -1.7976931348623157e308, "c": None}


@pytest.mark.parametrize("log", [0.0, 1e-300, 700.0, 710.0, 1480.0, -710.0, -1480.0, 1e308])
def test_ratios_of_extreme_readings_are_finite(log: float) -> None:
    found = paired_ratio({0: 0.0, 1: 0.0}, {0: log, 1: log / 2})
    assert found is not None
    assert found.interval is not None
    contrast = Contrast(log, 1.0, 3.0, 4.0, 0.1)
    intervals = (found.interval, contrast.ratio(1.0), contrast.ratio(-1.0))
    for value in (found.ratio, *(value for each in intervals for value in (each.low, each.middle, each.high))):
        assert math.exp(-LARGEST_LOG) <= value <= math.exp(LARGEST_LOG)
        assert len(figure(value)) < 20
    for words in (ratio(found.interval), low_to_high(found.interval), change(found.ratio), decimals(found.ratio, 2)):
        assert len(words) < 60
    assert (quotient(1e300, 1e-300), quotient(1.0, 4.0)) == (None, 0.25)


def test_hunt_with_extreme_rates_is_reported(git: Repo) -> None:
    git.history({"run.sh": f"echo rate {rate}\n"} for rate in ("1e308", "1e-308"))
    command = ["--repo", str(git.path), "--build", "true", "--rate", "rate (.*)"]
    hunt = run("run", "HEAD~1", "HEAD", *command, "--run", "sh {prefix}/run.sh", "--plain", "--no-explain")
    assert hunt.status == 0, hunt.err
    assert hunt.err.count("\n") == 1, "the expected costs"
    for words in (["show"], ["show", "--markdown"], ["history"], ["replay"], ["query", "select * from culprits"]):
        done = run(*words)
        assert done.status == 0, done.err
        assert max(map(len, done.out.splitlines())) < 300
    for words in (["show"], ["history"], ["query", "select * from culprits"], ["query", "select * from candidates"]):
        done = run(*words, "--json")
        json.loads(done.out, parse_constant=pytest.fail)
