"""What recipes of servers ask of programs, without the servers: MySQL by programs that write down their words, MyRocks'
settling, Debian's PostgreSQL."""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from perfbisect.lab.servers import configuration, sizes
from perfbisect.recipes.builder import Builder, Server
from perfbisect.recipes.builder_reader import load_builder
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.placeholders import fill
from perfbisect.recipes.when import TreeFacts, applied
from program import executable

pytestmark = pytest.mark.tools

RECIPES = Path(__file__).parents[2] / "builders"

# Each program writes down what it is asked; $LACKS is what this release has not learnt yet.
PROGRAM = (Path(__file__).parent / "given" / "mysql.sh").read_text()

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


@pytest.mark.parametrize(("file", "version"), [("VERSION", "5.6.26"), ("MYSQL_VERSION", "9.7.0")])
def test_the_version_of_a_tree(mysql: Builder, ask: Run, tmp_path: Path, file: str, version: str) -> None:
    """In both files that trees have had it in, among what is no part of it."""
    parts = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
    lines = [f"MYSQL_VERSION_{part}={number}" for part, number in parts]
    (tmp_path / file).write_text("\n".join([*lines, "MYSQL_VERSION_EXTRA=", 'MYSQL_VERSION_MATURITY="LTS"', ""]))
    assert ask(mysql.version) == (0, version)


@pytest.mark.parametrize("version", ["5.6.26", "8.0.28", "9.7.0"])
def test_the_version_of_what_is_installed_is_the_format_of_its_data(mysql: Builder, ask: Run, version: str) -> None:
    assert ask(mysql.dataset.format_command, version=version) == (0, version)
    status, printed = ask(mysql.installed_version, version=version)
    assert status == 0
    assert f"Ver {version} " in printed


SETTLE = RECIPES / "myrocks" / "settle"
FLUSH, COMPACT, RESET = "rocksdb_force_flush_memtable_now", "rocksdb_compact_lzero_now", "RESET MASTER"

# Answers 1 as often as $BUSY says after each change, then 0.
CLIENT = (Path(__file__).parent / "given" / "client.sh").read_text()

Settle = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def settle(tmp_path: Path) -> Settle:
    """``settle(busy, *unknown)``: the script's status and what it asks; nothing takes time."""
    programs = {"mysql": CLIENT, "mysqlcheck": "#!/bin/sh\necho analysed >>$LOG\n", "sleep": "#!/bin/sh\n"}
    for name, text in programs.items():
        executable(tmp_path / "bin" / name, text)

    def call(busy: int, *unknown: str, patience: int = 1200) -> tuple[int, list[str]]:
        statements, text = tmp_path / "statements", SETTLE.read_text()
        script = executable(tmp_path / "settle", text.replace("PATIENCE=1200", f"PATIENCE={patience}"))
        env = {
            "PATH": f"{tmp_path}/bin:/usr/bin:/bin",
            "LOG": str(statements),
            "BUSY": str(busy),
            "UNKNOWN": " ".join(unknown),
        }
        done = subprocess.run(
            [script, tmp_path, "/s"], env=env, capture_output=True, text=True, check=False, timeout=600
        )
        return done.returncode, [line for line in statements.read_text().splitlines() if not line.startswith(" ")]

    return call


def changes(statements: list[str]) -> list[str]:
    return [
        line.removeprefix("SET GLOBAL ").removesuffix(" = 1")
        for line in statements
        if not line.startswith(("SELECT", "SHOW"))
    ]


@pytest.mark.parametrize("busy", [0, 7])
def test_compactions_are_waited_for_after_each_change(settle: Settle, busy: int) -> None:
    status, statements = settle(busy)
    assert (status, changes(statements)) == (0, ["analysed", FLUSH, COMPACT, RESET])
    after = statements[statements.index(f"SET GLOBAL {FLUSH} = 1") : statements.index(f"SET GLOBAL {COMPACT} = 1")]
    asked = [line for line in after if line.startswith("SELECT")]
    assert len(asked) == busy + 2 * 5 + busy % 2, "five calm seconds, both questions in each"


def test_older_builds_lack_some_of_it(settle: Settle) -> None:
    status, statements = settle(2, COMPACT, "rocksdb_active_compaction_stats")
    assert (status, changes(statements)) == (0, ["analysed", FLUSH, RESET])


def test_a_build_without_the_engine_is_none(settle: Settle) -> None:
    assert settle(0, "rocksdb_cfstats") == (
        1,
        ["analysed", "SELECT coalesce(sum(value), 0) FROM information_schema.rocksdb_cfstats"],
    )


def test_what_never_ends_is_given_up(settle: Settle, tmp_path: Path) -> None:
    status, statements = settle(10**6, patience=20)
    assert (status, changes(statements)) == (1, ["analysed", FLUSH])


@pytest.mark.parametrize(
    ("version", "own"),
    [
        ("8.0.32", ["collation_server = latin1_swedish_ci\n"]),
        ("5.6.35", ["innodb = OFF\n", "collation_server = latin1_bin\n", "rocksdb_max_subcompactions = 2\n"]),
    ],
)
def test_the_engines_settings(version: str, own: list[str]) -> None:
    builder = applied(load_builder("myrocks", RECIPES), TreeFacts(version, lambda _: False, "gcc", "12"))
    files = dict.fromkeys(("data", "socket", "pidfile", "log", "port"), "x")
    written = configuration(builder, {**sizes(HostEntry(), 1024, 2), **files})
    shared = ["rocksdb\n", "default_storage_engine = ROCKSDB\n", "rocksdb_default_cf_options = write_buffer_size=32m;"]
    for line in (*shared, "{cache_index_and_filter_blocks=1;", *own):
        assert line in written, line
    assert ("innodb = OFF\n" in written) == (version < "8")
    assert builder.server and "{recipe}/settle" in builder.server.settle[0]


CONFIGURE = RECIPES / "postgres-debian" / "configure"


def configure(source: Path) -> str:
    """What the recipe says when it fails."""
    done = subprocess.run(
        [CONFIGURE, source, source.parent / "prefix"], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode
    return done.stderr


def test_a_tree_that_is_no_source_package_is_not_built(tmp_path: Path) -> None:
    executable(tmp_path / "source" / "configure", f"#!/bin/sh\ntouch {tmp_path}/configured\n")
    assert configure(tmp_path / "source") == "error: this is no source package of Debian: there is no debian/rules\n"
    assert not (tmp_path / "configured").exists()


@pytest.mark.skipif(
    not (shutil.which("dpkg-source") and shutil.which("dh_autoreconf")),
    reason="Debian's tools are not here: apt-get install dpkg-dev dh-autoreconf",
)
def test_rules_that_would_install_elsewhere_are_not_followed(tmp_path: Path) -> None:
    """As those of another package, or of a release whose rules name their variables otherwise."""
    source = tmp_path / "source"
    for folder in ("debian/source", "src", "build/src"):
        (source / folder).mkdir(parents=True)
    (source / "debian/source/format").write_text("3.0 (quilt)\n")
    (source / "debian/control").write_text(
        "Source: other\nMaintainer: Test <test@example.org>\nBuild-Depends: debhelper-compat (= 13)\n\n"
        "Package: other\nArchitecture: any\nDescription: other\n"
    )
    (source / "debian/changelog").write_text(
        "other (1-1) unstable; urgency=low\n\n  * All.\n\n -- Test <test@example.org>  Sun, 02 Jan 2022 03:04:05 +0000\n"
    )
    (source / "debian/rules").write_text(
        "override_dh_auto_configure:\n\techo 'prefix := /usr' >build/src/Makefile.global\n"
    )
    assert "error: debian/rules does not configure with CONFIGURE_FLAGS" in configure(source)
