"""Recipes of servers, tested without the servers: MySQL by programs that record their arguments, the wait for the
compactions of MyRocks, and Debian's PostgreSQL."""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from perfbisect.lab.servers import configuration_text, size_placeholders
from perfbisect.recipes.builder_reader import TreeFacts, load_builder, recipe_for_tree
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.placeholders import fill_command
from program import executable

pytestmark = pytest.mark.tools

RECIPES = Path(__file__).parents[2] / "builders"
MYSQL = load_builder("mysql", RECIPES)

# Each program records its arguments. $LACKS: a word that this release does not know.
PROGRAM = (Path(__file__).parent / "given" / "mysql.sh").read_text()


@dataclass
class Programs:
    """A release of MySQL whose programs record their arguments."""

    folder: Path

    def __post_init__(self) -> None:
        for program in ("bin/mysqld", "bin/mysql", "bin/mysqlcheck"):
            executable(self.folder / "a b" / program, PROGRAM)
        (self.folder / "a b" / "share").mkdir()
        for part in ("", "_data"):
            (self.folder / "a b" / "share" / f"mysql_system_tables{part}.sql").touch()

    def ask(self, command: Sequence[str], lacks: str = "nothing", version: str = "9.7.0") -> tuple[int, str]:
        """The status and the output of a command of the recipe."""
        values = {"prefix": f"{self.folder}/a b", "source": str(self.folder), "config": "C", "data": "D", "socket": "S"}
        values["recipe"] = str(RECIPES / "mysql")
        env = {"PATH": "/usr/bin:/bin", "LOG": f"{self.folder}/calls", "LACKS": lacks, "VERSION": version}
        done = subprocess.run(
            fill_command(command, values), env=env, capture_output=True, text=True, check=False, timeout=600
        )
        return done.returncode, done.stdout.strip()

    @property
    def calls(self) -> list[str]:
        """The recorded calls in order, without the folder and the arguments of all calls."""
        text = (self.folder / "calls").read_text().replace(f"{self.folder}/a b", "PREFIX")
        return text.replace("--no-defaults --loose-skip-ssl --socket=S --user=root ", "").splitlines()


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


CHECKED, LOG, OLD_LOG, SHUTDOWN = (
    "mysqlcheck --analyze --databases bench",
    "mysql --execute=RESET BINARY LOGS AND GTIDS",
    "mysql --execute=RESET MASTER",
    "mysql --execute=SET GLOBAL innodb_fast_shutdown = 0",
)
MADE = "--defaults-file=C --basedir=PREFIX"


@pytest.mark.parametrize(
    ("step", "lacks", "asked"),
    [
        ("initialise", "nothing", [f"mysqld {MADE} --initialize-insecure"]),
        ("initialise", "initialize-insecure", [f"mysqld {MADE} --bootstrap"]),
        ("settle", "nothing", [CHECKED, LOG, SHUTDOWN]),
        ("settle", "BINARY LOGS AND GTIDS", [CHECKED, LOG, OLD_LOG, SHUTDOWN]),  # before the statement got its new name
        ("settle", "--analyze", None),
        ("settle", "RESET", None),
        ("settle", "innodb_fast_shutdown", None),
    ],
)
def test_each_release_gets_known_commands(programs: Programs, step: str, lacks: str, asked: list[str] | None) -> None:
    """A server that cannot be settled is a failure."""
    (command,) = getattr(MYSQL.server, step)
    assert (programs.ask(command, lacks)[0] == 0) == (asked is not None)
    assert asked is None or programs.calls == asked


@pytest.mark.parametrize(("file", "version"), [("VERSION", "5.6.26"), ("MYSQL_VERSION", "9.7.0")])
def test_version_is_read_from_each_file_of_a_tree(programs: Programs, tmp_path: Path, file: str, version: str) -> None:
    """The files also have lines that are no part of the version."""
    parts = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
    lines = [f"MYSQL_VERSION_{part}={number}" for part, number in parts]
    (tmp_path / file).write_text("\n".join([*lines, "MYSQL_VERSION_EXTRA=", 'MYSQL_VERSION_MATURITY="LTS"', ""]))
    assert programs.ask(MYSQL.version) == (0, version)


def test_data_format_is_the_version_of_the_installed_server(programs: Programs) -> None:
    for version in ("5.6.26", "9.7.0"):
        assert programs.ask(MYSQL.dataset.format_command, version=version) == (0, version)
        status, printed = programs.ask(MYSQL.installed_version, version=version)
        assert status == 0
        assert f"Ver {version} " in printed


SETTLE = RECIPES / "mysql" / "settle-rocksdb"
FLUSH, COMPACT, RESET = "rocksdb_force_flush_memtable_now", "rocksdb_compact_lzero_now", "RESET MASTER"

# After each change, answers 1 for $BUSY times, then 0.
CLIENT = (Path(__file__).parent / "given" / "client.sh").read_text()

Settle = Callable[..., tuple[int, list[str]]]


@pytest.fixture(params=[("mysql", "mysqlcheck"), ("mariadb", "mariadb-check")])
def settle(request: pytest.FixtureRequest, tmp_path: Path) -> Settle:
    """``settle(busy, *unknown)``: the script's status and statements, with clients of either name, without sleeps."""
    client, check = request.param
    programs = {client: CLIENT, check: "#!/bin/sh\necho analysed >>$LOG\n", "sleep": "#!/bin/sh\n"}
    for name, text in programs.items():
        executable(tmp_path / "bin" / name, text)
    shutil.copy(SETTLE.parent / "client", tmp_path)

    def call(busy: int, *unknown: str, patience: int = 1200) -> tuple[int, list[str]]:
        text = SETTLE.read_text().replace("PATIENCE=1200", f"PATIENCE={patience}")
        script, log = executable(tmp_path / "settle", text), tmp_path / "statements"
        env = {
            "PATH": f"{tmp_path}/bin:/usr/bin:/bin",
            "LOG": str(log),
            "BUSY": str(busy),
            "UNKNOWN": " ".join(unknown),
        }
        done = subprocess.run([script, tmp_path, "/s"], env=env, capture_output=True, check=False, timeout=600)
        return done.returncode, [line for line in log.read_text().splitlines() if not line.startswith(" ")]

    return call


def changes(statements: list[str]) -> list[str]:
    """The statements that change something."""
    made = [line for line in statements if not line.startswith(("SELECT", "SHOW"))]
    return [line.removeprefix("SET GLOBAL ").removesuffix(" = 1") for line in made]


@pytest.mark.parametrize("busy", [0, 7])
def test_settling_waits_for_compactions_after_each_change(settle: Settle, busy: int) -> None:
    status, statements = settle(busy)
    assert (status, changes(statements)) == (0, ["analysed", FLUSH, COMPACT, RESET])
    after = statements[statements.index(f"SET GLOBAL {FLUSH} = 1") : statements.index(f"SET GLOBAL {COMPACT} = 1")]
    asked = [line for line in after if line.startswith("SELECT")]
    assert len(asked) == busy + 2 * 5 + busy % 2, "five calm seconds with two queries each"


@pytest.mark.parametrize(
    ("busy", "unknown", "patience", "status", "made"),
    [
        (2, (COMPACT, "rocksdb_active_compaction_stats"), 1200, 0, ["analysed", FLUSH, RESET]),  # of older builds
        (0, ("rocksdb_cfstats",), 1200, 1, ["analysed"]),  # without the engine
        (10**6, (), 20, 1, ["analysed", FLUSH]),  # compactions that never end
    ],
)
def test_settling_of_older_builds_other_engines_and_endless_compactions(
    settle: Settle, busy: int, unknown: tuple[str, ...], patience: int, status: int, made: list[str]
) -> None:
    found, statements = settle(busy, *unknown, patience=patience)
    assert (found, changes(statements)) == (status, made)


@pytest.mark.parametrize(
    ("version", "own"),
    [
        ("8.0.32", ["collation_server = latin1_swedish_ci\n"]),
        ("5.6.35", ["innodb = OFF\n", "collation_server = latin1_bin\n", "rocksdb_max_subcompactions = 2\n"]),
    ],
)
def test_settings_of_myrocks_by_version(version: str, own: list[str]) -> None:
    builder = recipe_for_tree(load_builder("myrocks", RECIPES), TreeFacts(version, lambda _: False, "gcc", "12"))
    files = dict.fromkeys(("data", "socket", "pidfile", "log", "port"), "x")
    written = configuration_text(builder, {**size_placeholders(HostEntry(), 1024, 2), **files})
    shared = [
        "rocksdb = ON\n",
        "default_storage_engine = ROCKSDB\n",
        "rocksdb_default_cf_options = write_buffer_size=32m;",
    ]
    for line in (*shared, "{cache_index_and_filter_blocks=1;", *own):
        assert line in written, line
    assert ("innodb = OFF\n" in written) == (version < "8")
    assert builder.server and "{recipe}/settle-rocksdb" in builder.server.settle[0]


CONFIGURE = RECIPES / "postgres-debian" / "configure"


def configure(source: Path) -> str:
    """The error that the script of the recipe prints."""
    argv = [CONFIGURE, source, source.parent / "prefix"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode
    return done.stderr


def test_tree_that_is_no_source_package_is_refused(tmp_path: Path) -> None:
    executable(tmp_path / "source" / "configure", f"#!/bin/sh\ntouch {tmp_path}/configured\n")
    assert configure(tmp_path / "source") == "error: this is no source package of Debian: there is no debian/rules\n"
    assert not (tmp_path / "configured").exists()


@pytest.mark.skipif(
    not (shutil.which("dpkg-source") and shutil.which("dh_autoreconf")),
    reason="Debian's tools are not here: apt-get install dpkg-dev dh-autoreconf",
)
def test_debian_rules_that_ignore_the_flags_are_refused(tmp_path: Path) -> None:
    """For example, rules of another package, or of a release whose rules have variables of other names."""
    source = shutil.copytree(Path(__file__).parent / "given" / "package", tmp_path / "source")
    for folder in ("src", "build/src"):
        (source / folder).mkdir(parents=True)
    assert "error: debian/rules does not configure with CONFIGURE_FLAGS" in configure(source)
