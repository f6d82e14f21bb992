"""A hunt in a history of Debian's own source package of PostgreSQL: built by its rules, with its patches."""

import tempfile
from collections.abc import Callable, Iterator
from difflib import unified_diff
from pathlib import Path
from shutil import which

import pytest

from perfbisect.host.packages import how_to_install
from perfbisect.lab.build.toolchain import own_packages
from perfbisect.recipes.builder_reader import build_of, load_builder
from program import bisect, rows
from source_package import Absent, unpack

pytestmark = [pytest.mark.e2e, pytest.mark.dbms, pytest.mark.tools, pytest.mark.calibrate]

PACKAGE = "postgresql-15"
# What takes the time is builds, so there are two, and these are not optimised.
RECIPE = """\
extends = "postgres-debian"
[variants.quick]
cflags = "-O0"
"""
EXECUTOR = "src/backend/executor/execMain.c"
STARTS = "\tAssert(queryDesc->estate == NULL);\n"  # for each statement
IDLE = "\tfor (volatile int turn = 0; turn < 400000; turn++);\n"


@pytest.fixture
def package(tmp_path: Path, git: Callable[..., str]) -> Path:
    """The unpacked source package in the work tree of an empty repository."""
    build = build_of(load_builder("postgres-debian"))
    if lacks := [need for need in build.needs if which(need) is None]:
        pytest.skip(how_to_install(lacks, "debian", own_packages(build)))
    folder = tmp_path / "package"
    try:
        unpack(PACKAGE, folder)
    except Absent as absent:
        pytest.skip(str(absent))
    (tmp_path / "repo" / ".git").rename(folder / ".git")
    return folder


@pytest.fixture
def commits(package: Path, git: Callable[..., str]) -> list[str]:
    """The import, then a commit that adds a patch, which keeps each statement waiting."""
    hashes = []
    for number in range(2):
        if number:
            add_patch(package)
        git("add", "--all", "--force", cwd=package)
        git("commit", "-q", "-m", f"change {number}", cwd=package)
        hashes.append(git("rev-parse", "HEAD", cwd=package))
    return hashes


def add_patch(package: Path) -> None:
    """As a distribution changes a program: the source stays, and gets a patch."""
    before = (package / EXECUTOR).read_text()
    assert before.count(STARTS) == 1
    after = before.replace(STARTS, STARTS + IDLE)
    lines = (text.splitlines(keepends=True) for text in (before, after))
    patches = package / "debian" / "patches"
    (patches / "idle.patch").write_text("".join(unified_diff(*lines, f"a/{EXECUTOR}", f"b/{EXECUTOR}")))
    with (patches / "series").open("a") as series:
        series.write("idle.patch\n")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A home of a short name, for the sake of the server's socket."""
    with tempfile.TemporaryDirectory(prefix="deb", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("HOME", folder)
        yield


@pytest.mark.usefixtures("home")
def test_a_patch_that_slows_statements_is_found(tmp_path: Path, package: Path, commits: list[str]) -> None:
    history, recipe = tmp_path / "history.db", tmp_path / "builders" / "debian" / "builder.toml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text(RECIPE)
    hunt = ["run", commits[0], commits[-1], "--repo", str(package), "--plain"]
    hunt += ["--builder", "debian", "--builders", str(tmp_path / "builders"), "--variant", "quick"]
    workload = ["--workload", "point-query.pre", "--set", "table-size=1000", "--time", "1", "--warmup", "0.2"]
    ended = bisect(*hunt, *workload, "--no-explain", "--history", str(history))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert rows(history, "select culprit from culprits") == [(commits[-1],)]
    builds = rows(history, "select cache_hits, cache_misses from builds where not reused order by at")
    (hits, misses), (hits_later, misses_later) = builds
    assert hits < misses, "nothing was known to the compiler's cache"
    assert hits_later > 20 * misses_later
