"""Hunts whose sources include archives and submodules, and the transfer of sources to a host over SSH."""

import shutil
from pathlib import Path

import pytest

from machine import Machine
from perfbisect.host.protocol import Host
from perfbisect.host.registry import connect
from perfbisect.host.ssh import SshHost
from perfbisect.lab.building import checkout
from perfbisect.recipes.inventory import load_host
from perfbisect.repository.discovery import open_repository
from program import bisect, rows
from repos import Repo
from shelf import packed, shelf, sum_of
from waiting import finish

pytestmark = [pytest.mark.e2e, pytest.mark.tools, pytest.mark.slow]
UNITS = {v: packed({f"unit_{v}/unit.h": f"#define UNIT {loops}\n"}) for v, loops in (("1_0", 1000), ("1_1", 1700))}
BENCH = (Path(__file__).parent / "programs" / "unit.c").read_text()
RECIPE = (Path(__file__).parent / "programs" / "unit.toml").read_text()
CMAKE = (Path(__file__).parent / "programs" / "unit.cmake").read_text()


def test_culprit_that_needs_a_newer_archive_is_found(machine: Machine, seal: Path, tmp_path: Path) -> None:
    """The culprit needs a newer version of an archive, which is fetched here and sent to the host."""
    git = Repo(tmp_path / "repo")
    hashes = git.history(
        {
            "CMakeLists.txt": CMAKE,
            "cmake/unit.cmake": f'SET(UNIT_PACKAGE_NAME "unit_{"1_1" if number > 1 else "1_0"}")\n',
            "bench.c": BENCH % number,
        }
        for number in range(4)
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
        assert rows(tmp_path / "h.db", "select culprit from culprits") == [(hashes[2],)]
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
    assert (
        f"commit {unknown[:10]} cannot be checked out: the commit needs unit 9.9, but the recipe has no checksum of that version"
        in ended.stderr
    )
    assert 'Add "9.9" = "SHA256" to [archives.unit.sha256] of unit, or of a recipe that extends it.' in ended.stderr


COMMANDS = ["--build", "cp {source}/lib/speed .", "--run", "sh -c 'echo rate $(($(cat speed) + $(od -An -N1 -tu1 /dev/urandom) % 9))'",
            "--rate", r"rate (\d+)"]  # fmt: skip


def test_culprit_that_moves_a_submodule_is_found(tmp_path: Path) -> None:
    """If a commit of the submodule is missing, the hunt ends with the command that fetches it."""
    lib, git = Repo(tmp_path / "lib"), Repo(tmp_path / "repo")
    repo = git.path
    speeds = [lib.commit({"speed": f"{speed}\n"}) for speed in (1001, 1000, 700, 701)]
    git.add_module("../lib", "lib", speeds[0])
    git("config", "remote.origin.url", str(tmp_path / "repo"))
    hashes = [git.commit({"code": "1"})]
    hashes += [git.move_module("lib", speed) for speed in speeds[1:]]
    shutil.rmtree(repo / "lib")
    shutil.rmtree(repo / ".git/modules")
    hunt = ["run", hashes[0], hashes[-1], "--repo", str(repo), *COMMANDS]
    dry = bisect(*hunt, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert f"# lib at {speeds[3][:10]}: fetched from {lib.path}" in dry.stdout
    found = bisect(*hunt, "--no-explain", "--history", str(tmp_path / "h.db"), "--plain")
    assert found.returncode == 0, found.stdout + found.stderr
    assert rows(tmp_path / "h.db", "select culprit from culprits") == [(hashes[2],)]

    missing = git.move_module("lib", "1234512345" * 4)
    done = bisect("run", hashes[0], missing, "--repo", str(repo), *COMMANDS, "--history", str(tmp_path / "h.db"))
    assert done.returncode == 4
    said = done.stdout + done.stderr
    assert (
        f"because the bad revision, {missing[:10]}, cannot be built: commit {missing[:10]} cannot be checked out: submodule lib"
        in said
    )
    assert f"git -C {repo} submodule update --init lib" in said


ODD = ["a b.c", "$(touch hit)", "`touch hit`", "; touch hit", "-rf", "'\"", "line\nline", "é→", "\\n", "#x", "!x", "~"]


def test_files_with_unusual_names_reach_the_host(machine: Machine, git: Repo, tmp_path: Path) -> None:
    git("checkout", "-q", "-b", ";$(touch${IFS}hit)")
    sha = git.commit({place + name: name for name in ODD for place in ("", "left out/")}, "$(touch hit)")
    host = connect(load_host("far"))
    assert isinstance(host, SshHost)
    sent, bare = finish(checkout.bring_mirror(host, open_repository(git.path), "odd", [sha]))
    assert sent[-1][0] == sent[-1][1] > len(ODD)
    place = host.root / "work" / "odd" / "source"
    checkout.checkout(host, bare, sha, place, ["left out/**", *(f"left out/{name}" for name in ODD)])
    found = host.run(["find", str(place), "-type", "f", "-printf", "%P\\0"]).stdout.split("\0")
    assert set(found) == {*ODD, ""}
    assert checkout.present_paths(host, bare, sha, [*ODD, "hit"]) == set(ODD)
    assert len(checkout.filtered_tree(host, bare, sha, ODD)) == 64
    assert machine.inside(f"find {machine.folder} -name hit") == ""
    assert not list(tmp_path.rglob("hit"))
    host.close_connection()


# $1: the root folder; $2: the option that selects the output for each object
OBJECTS = 'for each in "$1"/git/n.git/modules/*; do git --git-dir="$each" cat-file --batch-all-objects "$2"; done'


def check_out(host: Host, repo: Path, sha: str) -> tuple[set[str], str]:
    """The stages of the transfer, and the content of two files."""
    opened, source = open_repository(repo), host.root / "work" / "n" / "source"
    _, bare = finish(checkout.bring_mirror(host, opened, "n", [sha]))
    steps, parts = finish(checkout.bring_submodules(host, "n", opened, sha, [], ""))
    checkout.checkout(host, bare, sha, source, [], parts)
    found = host.run(["sh", "-c", 'cd "$1" && cat m/deep/d.c m/l.c', "cat", str(source)])
    return {step.stage for step in steps}, found.stdout


def test_submodules_are_sent_without_their_history(machine: Machine, tmp_path: Path) -> None:
    """For the next commit, only the difference is sent."""
    deep, lib, top = (Repo(tmp_path / name) for name in ("deep", "lib", "top"))
    deep.commit({"d.c": "deep"})
    lib.commit({"history": "x"})
    old = lib("rev-parse", "HEAD:history")
    lib("rm", "-q", "history")
    lib.add_module(str(deep.path), "deep")
    one = lib.commit({"l.c": "1"})
    two = lib.commit({"l.c": "2"})
    top.add_module(str(lib.path), "m")  # has the inner submodule only at its address
    first = top.commit({}) and top.move_module("m", one)
    second = top.move_module("m", two)
    host = connect(load_host("far"))
    assert check_out(host, top.path, first) == ({"fetch", "send"}, "deep1")
    there = host.run(["sh", "-c", OBJECTS, "objects", str(host.root), "--batch-check=%(objectname)"]).stdout.split()
    assert lib("rev-parse", f"{one}:l.c") in there
    assert not {old, one, two} & set(there)
    assert check_out(host, top.path, second) == ({"send"}, "deep2")
    assert check_out(host, top.path, first) == (set(), "deep1")
    host.close_connection()
