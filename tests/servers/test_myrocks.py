"""The recipe for MyRocks, without a MyRocks: what it would run, and how its settle step waits."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.lab.servers import configuration, sizes
from perfbisect.recipes.builder_reader import load_builder
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.when import TreeFacts, applied
from program import executable

pytestmark = pytest.mark.tools

SETTLE = Path(__file__).parents[2] / "builders" / "myrocks" / "settle"
FLUSH, COMPACT, RESET = "rocksdb_force_flush_memtable_now", "rocksdb_compact_lzero_now", "RESET MASTER"

# Answers 1 as often as $BUSY says after each change, then 0.
CLIENT = """\
#!/bin/sh
for statement do :; done
statement=${statement#--execute=}
printf '%s\\n' "$statement" >>"$LOG"
for word in $UNKNOWN; do case $statement in SHOW*"$word"*) exit 0;; *"$word"*) exit 1;; esac; done
case $statement in
    SHOW*rocksdb_compact_lzero_now*) echo rocksdb_compact_lzero_now OFF ;;
    SET*) echo "$BUSY" >"$LOG.left" ;;
    SELECT*)
        left=$(cat "$LOG.left" 2>/dev/null || echo 0)
        if [ "$left" -gt 0 ]; then echo $((left - 1)) >"$LOG.left"; echo 1; else echo 0; fi
        ;;
esac
"""


@pytest.fixture
def settle(tmp_path: Path) -> Callable[..., tuple[int, list[str]]]:
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
def test_compactions_are_waited_for_after_each_change(settle: Callable[..., tuple[int, list[str]]], busy: int) -> None:
    status, statements = settle(busy)
    assert (status, changes(statements)) == (0, ["analysed", FLUSH, COMPACT, RESET])
    after = statements[statements.index(f"SET GLOBAL {FLUSH} = 1") : statements.index(f"SET GLOBAL {COMPACT} = 1")]
    asked = [line for line in after if line.startswith("SELECT")]
    assert len(asked) == busy + 2 * 5 + busy % 2, "five calm seconds, both questions in each"


def test_older_builds_lack_some_of_it(settle: Callable[..., tuple[int, list[str]]]) -> None:
    status, statements = settle(2, COMPACT, "rocksdb_active_compaction_stats")
    assert (status, changes(statements)) == (0, ["analysed", FLUSH, RESET])


def test_a_build_without_the_engine_is_none(settle: Callable[..., tuple[int, list[str]]]) -> None:
    assert settle(0, "rocksdb_cfstats") == (
        1,
        ["analysed", "SELECT coalesce(sum(value), 0) FROM information_schema.rocksdb_cfstats"],
    )


def test_what_never_ends_is_given_up(settle: Callable[..., tuple[int, list[str]]], tmp_path: Path) -> None:
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
    builder = applied(load_builder("myrocks", SETTLE.parents[1]), TreeFacts(version, lambda _: False, "gcc", "12"))
    files = dict.fromkeys(("data", "socket", "pidfile", "log", "port"), "x")
    written = configuration(builder, {**sizes(HostEntry(), 1024, 2), **files})
    shared = ["rocksdb\n", "default_storage_engine = ROCKSDB\n", "rocksdb_default_cf_options = write_buffer_size=32m;"]
    for line in (*shared, "{cache_index_and_filter_blocks=1;", *own):
        assert line in written, line
    assert ("innodb = OFF\n" in written) == (version < "8")
    assert builder.server and "{recipe}/settle" in builder.server.settle[0]
