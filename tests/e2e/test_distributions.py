"""Hunts in repositories of a distribution's source packages, built by the packages' rules, and of SQLite's releases."""

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from shutil import which

import pytest

from perfbisect.host.packages import how_to_install
from perfbisect.lab.building.toolchain import recipe_packages
from perfbisect.recipes.builder_reader import load_builder, required_build_section
from program import bisect, rows
from repos import Repo
from source_package import Absent, unpack

pytestmark = [pytest.mark.e2e, pytest.mark.dbms, pytest.mark.tools, pytest.mark.calibrate]


def unpacked(name: str, folder: Path, git: Repo) -> Repo:
    """The unpacked source package as the work tree of the empty repository ``git``, which moves into it."""
    try:
        unpack(name, folder)
    except Absent as absent:
        pytest.skip(str(absent))
    (git.path / ".git").rename(folder / ".git")
    return Repo(folder)


def commit_all(package: Repo, message: str) -> str:
    """Commit all changes, including files that the package's .gitignore names."""
    package("add", "--all", "--force")
    package("commit", "-q", "-m", message)
    return package.head


def cache_use(history: Path) -> list[tuple[int, int]]:
    """Hits and misses of the compiler's cache in each build, in order."""
    return rows(history, "select cache_hits, cache_misses from builds where not reused order by at")


# Builds take most of the time, so there are only two, which are not optimised.
RECIPE = """\
extends = "postgres-debian"
[variants.quick]
cflags = "-O0"
"""
EXECUTOR = "src/backend/executor/execMain.c"
STARTS = "\tAssert(queryDesc->estate == NULL);\n"  # executed for each statement
WAITS = "\tfor (volatile int turn = 0; turn < 400000; turn++);\n"


def add_patch(package: Path) -> None:
    """Change the program as a distribution does: add a patch, and leave the source unchanged."""
    before = (package / EXECUTOR).read_text()
    assert before.count(STARTS) == 1
    after = before.replace(STARTS, STARTS + WAITS)
    lines = (text.splitlines(keepends=True) for text in (before, after))
    patches = package / "debian" / "patches"
    (patches / "idle.patch").write_text("".join(unified_diff(*lines, f"a/{EXECUTOR}", f"b/{EXECUTOR}")))
    with (patches / "series").open("a") as series:
        series.write("idle.patch\n")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A home folder with a short path, because the path of the server's socket is limited."""
    with tempfile.TemporaryDirectory(prefix="deb", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("HOME", folder)
        yield


@pytest.mark.usefixtures("home")
def test_a_patch_that_slows_statements_is_found(tmp_path: Path, git: Repo) -> None:
    """The first commit imports PostgreSQL's package, the second adds a patch that delays each statement."""
    build = required_build_section(load_builder("postgres-debian"))
    if lacks := [need for need in build.needs if which(need) is None]:
        pytest.skip(how_to_install(lacks, "debian", recipe_packages(build)))
    package = unpacked("postgresql-15", tmp_path / "package", git)
    good = commit_all(package, "import")
    add_patch(package.path)
    bad = commit_all(package, "patch")
    history, recipe = tmp_path / "history.db", tmp_path / "builders" / "debian" / "builder.toml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text(RECIPE)
    hunt = ["run", good, bad, "--repo", str(package.path), "--plain"]
    hunt += ["--builder", "debian", "--builders", str(tmp_path / "builders"), "--variant", "quick"]
    workload = ["--workload", "point-query.pre", "--set", "table-size=1000", "--time", "1", "--warmup", "0.2"]
    ended = bisect(*hunt, *workload, "--no-explain", "--history", str(history))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert rows(history, "select culprit from culprits") == [(bad,)]
    (hits, misses), (hits_later, misses_later) = cache_use(history)
    assert hits < misses, "the compiler cache was empty"
    assert hits_later > 20 * misses_later


GET = re.compile(r"^int getGenericCommand\(client \*c\) \{\n", re.MULTILINE)
IDLE = "    for (volatile int turn = 0; turn < 200000; turn++);\n"  # for each key that is read
# Starts a server without a port for the duration of the benchmark.
RUN = (Path(__file__).parent / "programs" / "redis.sh").read_text()


def test_a_slow_command_of_a_server_is_found_without_a_recipe(tmp_path: Path, git: Repo) -> None:
    """With `--run` alone: the build system is read from the tree of Redis. The third commit slows reads of a key."""
    package, history, commits = unpacked("redis", tmp_path / "package", git), tmp_path / "history.db", []
    for number, name in enumerate(("README.md", "src/t_hash.c", "src/t_string.c", "src/t_set.c", "src/t_list.c")):
        source = package.path / name
        text = source.read_text() + (f"\nint change_{number};\n" if number else "")
        if name == "src/t_string.c":
            text, places = GET.subn(lambda found: found[0] + IDLE, text)
            assert places == 1
        source.write_text(text)
        commits.append(commit_all(package, f"change {number}"))
    hunt = ["run", commits[0], commits[-1], "--repo", str(package.path), "--configure", "MALLOC=libc"]
    hunt += ["--plain", "--no-explain"]
    run = shlex.join(["sh", "-c", RUN, "{data}"])
    ended = bisect(*hunt, "--run", run, "--rate", r'"GET","([0-9.]+)"', "--history", str(history))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert rows(history, "select culprit from culprits") == [(commits[2],)]
    (hits, misses), *later = cache_use(history)
    assert hits < misses, "the compiler cache was empty"
    assert later
    assert all(hits > 5 * misses for hits, misses in later), later


HOME = os.environ.get("HOME", "")  # where cargo keeps its configuration; the tests' own home is empty
RELEASES = {"3.41.2": "0.26.0", "3.44.0": "0.27.0", "3.45.0": "0.28.0"}  # → version of the crate libsqlite3-sys


def amalgamation(crate: str, folder: Path) -> Path | None:
    """The folder with sqlite3.c of one version of the crate; None if the registry does not answer."""
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "lib.rs").touch()
    (folder / "Cargo.toml").write_text(
        '[package]\nname = "releases"\nversion = "0.1.0"\nedition = "2021"\n'
        f'[dependencies]\nlibsqlite3-sys = "={crate}"\n'
    )
    done = subprocess.run(
        ["cargo", "vendor", "-q"],
        cwd=folder, env=os.environ | {"HOME": HOME}, capture_output=True, timeout=600, check=False,
    )  # fmt: skip
    return folder / "vendor" / "libsqlite3-sys" / "sqlite3" if done.returncode == 0 else None


@pytest.fixture
def releases(git: Repo, tmp_path: Path) -> Path:
    """A repository with one commit and one tag for each release."""
    if which("cargo") is None:
        pytest.skip("cargo is not installed, and SQLite's releases are taken from a crate")
    for release, crate in RELEASES.items():
        source = amalgamation(crate, tmp_path / crate)
        if source is None:
            pytest.skip("the crate registry cannot be reached")
        for name in ("sqlite3.c", "sqlite3.h"):
            shutil.copy(source / name, git.path / name)
        git.commit({}, f"Release {release}", tag=f"version-{release}")
    return git.path


def test_hunt_through_sqlite_has_a_verdict(releases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The change of speed between the releases depends on the machine, so the test accepts each verdict."""
    monkeypatch.setenv("HOME", str(tmp_path))
    history = tmp_path / "history.db"
    hunt = ["run", "3.41.2", "3.45.0", "--builder", "sqlite-amalgamation", "--workload", "update-index"]
    limits = ["--time", "1", "--max-runs", "24", "--no-explain"]
    ended = bisect(*hunt, *limits, "--repo", str(releases), "--json", "--history", str(history))
    assert ended.returncode in (0, 1, 2), ended.stderr
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    assert events[-1]["event"] == "HuntEnded"
    shown = bisect("show", "--history", str(history))
    assert shown.returncode == 0
    assert "update-index" in shown.stdout
    query = "select (select count(distinct commit_hash) from builds), (select count(*) from runs)"
    [(commits, runs)] = rows(history, query)
    assert commits in (2, 3)
    assert runs >= 4
