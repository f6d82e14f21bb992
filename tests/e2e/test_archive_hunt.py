"""The culprit is the commit that wants a newer version of what is beside git: it is fetched here, and sent to the host."""

from pathlib import Path

import pytest

from machine import Machine
from program import bisect, rows
from repos import Repo
from shelf import packed, shelf, sum_of

UNITS = {v: packed({f"unit_{v}/unit.h": f"#define UNIT {loops}\n"}) for v, loops in (("1_0", 1000), ("1_1", 1700))}
RECIPE = """
summary = "a benchmark with a header that is not in git"
driver = "none"
programs = ["bin/bench"]
[build]
system = "cmake"
options = ["-DWITH_UNIT={archives.unit}"]
[archives.unit]
address = "%s/{version}/unit_{version:_}.tar.gz"
file = "cmake/unit.cmake"
pattern = 'UNIT_PACKAGE_NAME "unit_([0-9_]+)"'
unless = "extra/unit"
sha256 = {"1.0" = "%s", "1.1" = "%s"}
"""
CMAKE = """
cmake_minimum_required(VERSION 3.5)
project(bench C)
include(cmake/unit.cmake)
if(NOT EXISTS "${WITH_UNIT}/unit.h")
  message(FATAL_ERROR "no ${UNIT_PACKAGE_NAME}")
endif()
add_executable(bench bench.c)
target_include_directories(bench PRIVATE ${WITH_UNIT})
install(TARGETS bench DESTINATION bin)
"""
BENCH = """
#include <stdio.h>
#include <time.h>
#include <unit.h>
int main(void) {
    volatile unsigned long sum = 1;
    clock_t from = clock();
    for (long i = 0; i < 20000; i++)
        for (long j = 0; j < UNIT; j++) sum = sum * 31 + j;
    printf("rate %%.1f\\n", 20000.0 * CLOCKS_PER_SEC / (clock() - from));
    return 0; /* %d */
}
"""


@pytest.mark.e2e
@pytest.mark.tools
@pytest.mark.slow
def test_another_version_made_it_slower(machine: Machine, seal: Path, tmp_path: Path) -> None:
    git = Repo(tmp_path / "repo")
    hashes = git.history(
        {
            "CMakeLists.txt": CMAKE,
            "cmake/unit.cmake": f'SET(UNIT_PACKAGE_NAME "unit_{"1_1" if number > 3 else "1_0"}")\n',
            "bench.c": BENCH % number,
        }
        for number in range(8)
    )
    recipe = seal / ".config/perfbisect/builders/unit/builder.toml"
    recipe.parent.mkdir(parents=True)
    hunt = ["--builder", "unit", "--repo", str(git.path), "--run", "{prefix}/bin/bench", "--rate", r"rate ([\d.]+)"]
    hunt += ["--history", str(tmp_path / "h.db"), "--no-explain", "--no-layouts"]
    with shelf({"/1.1/unit_1_1.tar.gz": UNITS["1_1"]}) as server:
        recipe.write_text(RECIPE % (server.address, *(sum_of(each) for each in UNITS.values())))
        address = f"{server.address}/1.0/unit_1_0.tar.gz"
        began = bisect("run", hashes[0], hashes[-1], *hunt, "--host", "far", "--plain")
        assert began.returncode == 4, began.stdout + began.stderr
        cache = seal / ".cache/perfbisect/archives"
        assert f"unit 1.0 cannot be fetched from {address}: Not Found" in began.stderr
        assert f"`cp unit_1_0.tar.gz {cache}/`" in began.stderr
        (cache / "unit_1_0.tar.gz").write_bytes(UNITS["1_0"])
        found = bisect("resume", "--history", str(tmp_path / "h.db"), "--plain")
        assert found.returncode == 0, found.stdout + found.stderr
        assert rows(tmp_path / "h.db", "select culprit from culprits") == [(hashes[4],)]
        assert sorted(path for path, _ in server.asked) == ["/1.0/unit_1_0.tar.gz", "/1.1/unit_1_1.tar.gz"]
    on_host = Path(machine.root) / "builds"
    assert {(on_host / sum_of(each)[:32] / "prefix/unit.h").exists() for each in UNITS.values()} == {True}

    def listed(*more: str, good: str = hashes[0]) -> str:
        done = bisect("run", good, git.head, *hunt, "--dry-run", *more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert f"# unit 1.1 from {server.address}/1.1/unit_1_1.tar.gz" in listed()
    assert f"/builds/{sum_of(UNITS['1_1'])[:32]}/prefix" in listed()
    assert "-DWITH_UNIT=/own" in (own := listed("--configure", "-DWITH_UNIT=/own"))
    assert "unit_1_1" not in own
    has_it = git.commit({"extra/unit/unit.h": ""})
    git.commit({"bench.c": ""})
    assert "WITH_UNIT" not in listed(good=has_it)

    unknown = git.commit(
        {"bench.c": BENCH % 9, "cmake/unit.cmake": 'SET(UNIT_PACKAGE_NAME "unit_9_9")\n', "extra/unit/unit.h": None}
    )
    ended = bisect("run", hashes[0], unknown, *hunt, "--host", "far")
    assert ended.returncode == 4
    assert f"{unknown[:10]} cannot be checked out: it needs unit 9.9, of which the recipe has no sum" in ended.stderr
    assert 'Add "9.9" = "SHA256" to [archives.unit.sha256] of unit, or of a recipe that extends it.' in ended.stderr
