"""The recipes of MySQL and MariaDB."""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from labs import measure, runs, warnings, workload_of
from perfbisect.core.domain.orders import Share
from perfbisect.host.local import LocalHost
from perfbisect.lab.host_lab import HostLab
from perfbisect.recipes.builder import Builder, Server
from perfbisect.recipes.builder_reader import load_builder
from perfbisect.recipes.placeholders import fill
from program import executable

RECIPES = Path(__file__).parents[2] / "builders"

# Each program writes down what it is asked; $LACKS is what this release has not learnt yet.
PROGRAM = """\
#!/bin/sh
case "$*" in
    *--version) echo "$0  Ver $VERSION for Linux on x86_64 (Source distribution)"; exit ;;
    *--help) [ "$LACKS" = initialize-insecure ] || echo "  --initialize-insecure Create the default database"; exit ;;
esac
echo "${0##*/} $*" >>"$LOG"
case "$*" in *"$LACKS"*) exit 1 ;; esac
"""

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def mysql() -> Builder:
    return load_builder("mysql", RECIPES)


@pytest.fixture
def server(mysql: Builder) -> Server:
    assert mysql.server
    return mysql.server


@pytest.fixture
def ask(tmp_path: Path) -> Run:
    """``ask(command, lacks, version)``: the command's status and output, in a release of that kind."""
    for program in ("bin/mysqld", "bin/mysql", "bin/mysqlcheck", "scripts/mysql_install_db"):
        executable(tmp_path / "a b" / program, PROGRAM)

    def call(command: Sequence[str], lacks: str = "nothing", version: str = "9.7.0") -> tuple[int, str]:
        values = {"prefix": f"{tmp_path}/a b", "source": str(tmp_path), "config": "C", "data": "D", "socket": "S"}
        env = {"PATH": "/usr/bin:/bin", "LOG": f"{tmp_path}/calls", "LACKS": lacks, "VERSION": version}
        argv = fill(command, values)
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=600)
        return done.returncode, done.stdout.strip()

    return call


@pytest.fixture
def calls(tmp_path: Path) -> Callable[[], list[str]]:
    """The calls of the programs, in order, without their folder and the arguments that all get."""

    def lines() -> list[str]:
        text = (tmp_path / "calls").read_text().replace(f"{tmp_path}/a b", "PREFIX")
        return [line.replace("--no-defaults --socket=S --user=root ", "") for line in text.splitlines()]

    return lines


@pytest.mark.tools
@pytest.mark.parametrize(
    ("lacks", "asked"),
    [
        ("nothing", "mysqld --defaults-file=C --basedir=PREFIX --initialize-insecure"),
        ("initialize-insecure", "mysql_install_db --defaults-file=C --basedir=PREFIX --datadir=D"),
    ],
)
def test_each_era_makes_its_tables_in_its_own_way(
    server: Server, ask: Run, calls: Callable[[], list[str]], lacks: str, asked: str
) -> None:
    (command,) = server.initialise
    assert ask(command, lacks)[0] == 0
    assert calls() == [asked]


CHECKED, LOG, OLD_LOG, SHUTDOWN = (
    "mysqlcheck --analyze --databases bench",
    "mysql --execute=RESET BINARY LOGS AND GTIDS",
    "mysql --execute=RESET MASTER",
    "mysql --execute=SET GLOBAL innodb_fast_shutdown = 0",
)


@pytest.mark.tools
@pytest.mark.parametrize(
    ("lacks", "asked"),
    [
        ("nothing", [CHECKED, LOG, SHUTDOWN]),
        ("BINARY LOGS AND GTIDS", [CHECKED, LOG, OLD_LOG, SHUTDOWN]),  # before the statement got its new name
        ("--analyze", None),
        ("RESET", None),
        ("innodb_fast_shutdown", None),
    ],
)
def test_settling(
    server: Server, ask: Run, calls: Callable[[], list[str]], lacks: str, asked: list[str] | None
) -> None:
    """What cannot be settled is a failure."""
    (command,) = server.settle
    assert (ask(command, lacks)[0] == 0) == (asked is not None)
    assert asked is None or calls() == asked


@pytest.mark.tools
@pytest.mark.parametrize(("file", "version"), [("VERSION", "5.6.26"), ("MYSQL_VERSION", "9.7.0")])
def test_the_version_of_a_tree(mysql: Builder, ask: Run, tmp_path: Path, file: str, version: str) -> None:
    """In both files that trees have had it in, among what is no part of it."""
    parts = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
    lines = [f"MYSQL_VERSION_{part}={number}" for part, number in parts]
    (tmp_path / file).write_text("\n".join([*lines, "MYSQL_VERSION_EXTRA=", 'MYSQL_VERSION_MATURITY="LTS"', ""]))
    assert ask(mysql.version) == (0, version)


@pytest.mark.tools
@pytest.mark.parametrize("version", ["5.6.26", "8.0.28", "9.7.0"])
def test_the_version_of_what_is_installed_is_the_format_of_its_data(mysql: Builder, ask: Run, version: str) -> None:
    assert ask(mysql.dataset.format_command, version=version) == (0, version)
    status, printed = ask(mysql.installed_version, version=version)
    assert status == 0
    assert f"Ver {version} " in printed


RECIPE = """
extends = "mariadb"
[build]
needs = []
compile = [["true"]]
install = [["sh", "-c", '''
mkdir -p {prefix}/sbin && cp {source}/extra.conf {prefix} && ln -s /usr/bin /usr/share {prefix}
ln -s /usr/sbin/mariadbd {prefix}/sbin
''']]
artifacts = ["extra.conf"]
"""

WORKLOAD = workload_of(
    driver="mysql",
    prepare="create table t (id int primary key, k int);\ninsert into t select seq, seq from seq_1_to_20000;",
    check="select count(*), sum(k) from t",
    statement="update t set k = k + 1 where id = 777",
    operation="query",
    warmup=0.1,
    time=1.0,
)


@pytest.mark.dbms
@pytest.mark.skipif(not Path("/usr/sbin/mariadbd").exists(), reason="no MariaDB: apt-get install mariadb-server")
def test_a_visit_with_the_recipes_settings(
    open_lab: Callable[..., HostLab],
    commits: Callable[..., tuple[str, ...]],
    recipe: Callable[[str], None],
    host: LocalHost,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two sessions: the second finds the data, and asks whether it is what was loaded."""
    monkeypatch.setenv("MYSQL_PWD", "ours, for another server")
    recipe(RECIPE)
    hashes = commits("# 1\n", "# 2\n")
    lab = open_lab(WORKLOAD, hashes)
    events = measure(lab, Share(0, 2), Share(1, 1)) + measure(open_lab(WORKLOAD, hashes), Share(0, 1))
    assert len({run.dataset for run in runs(events)}) == 1
    assert all(run.counters["task-clock"] for run in runs(events))
    assert not warnings(events)
    (kept,) = Path(host.root, "datasets").iterdir()
    assert sum(file.stat().st_size for file in kept.glob("data/binlog.0*")) < 1000, "the log of the loading is gone"
    settings = Path(host.root, "visit", "config").read_text()
    assert "innodb_buffer_pool_size = 358M" in settings
