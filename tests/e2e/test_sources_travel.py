"""Sources reach another machine, whatever their names are, and none of them is executed; and so do submodules."""

from pathlib import Path

import pytest

from machine import Machine
from perfbisect.host.protocol import Host
from perfbisect.host.registry import connect
from perfbisect.host.ssh import SshHost
from perfbisect.lab.build import checkout
from perfbisect.recipes.inventory import load_host
from perfbisect.repository.discovery import open_repository
from repos import Repo
from waiting import finish

pytestmark = pytest.mark.tools

ODD = ["a b.c", "$(touch hit)", "`touch hit`", "; touch hit", "-rf", "'\"", "line\nline", "é→", "\\n", "#x", "!x", "~"]


def test_odd_names(machine: Machine, git: Repo, tmp_path: Path) -> None:
    git("checkout", "-q", "-b", ";$(touch${IFS}hit)")
    sha = git.commit({place + name: name for name in ODD for place in ("", "left out/")}, "$(touch hit)")
    host = connect(load_host("far"))
    assert isinstance(host, SshHost)
    sent, bare = finish(checkout.mirror(host, open_repository(git.path), "odd", [sha]))
    assert sent[-1][0] == sent[-1][1] > len(ODD)
    place = host.root / "work" / "odd" / "source"
    checkout.checkout(host, bare, sha, place, ["left out/**", *(f"left out/{name}" for name in ODD)])
    found = host.run(["find", str(place), "-type", "f", "-printf", "%P\\0"]).stdout.split("\0")
    assert set(found) == {*ODD, ""}
    assert checkout.present(host, bare, sha, [*ODD, "hit"]) == set(ODD)
    assert len(checkout.filtered_tree(host, bare, sha, ODD)) == 64
    assert machine.inside(f"find {machine.folder} -name hit") == ""
    assert not list(tmp_path.rglob("hit"))
    host.release()


# $1 the root, $2 what is printed of each object
OBJECTS = 'for each in "$1"/git/n.git/modules/*; do git --git-dir="$each" cat-file --batch-all-objects "$2"; done'


def check_out(host: Host, repo: Path, sha: str) -> tuple[set[str], str]:
    """What was brought, by stages, and the content of a file."""
    opened, source = open_repository(repo), host.root / "work" / "n" / "source"
    _, bare = finish(checkout.mirror(host, opened, "n", [sha]))
    steps, parts = finish(checkout.bring_submodules(host, "n", opened, sha, [], ""))
    checkout.checkout(host, bare, sha, source, [], parts)
    found = host.run(["sh", "-c", 'cd "$1" && cat m/deep/d.c m/l.c', "cat", str(source)])
    return {step.stage for step in steps}, found.stdout


def test_submodules_travel(machine: Machine, tmp_path: Path) -> None:
    """Their trees without their history, and at the next commit only what differs."""
    deep, lib, top = (Repo(tmp_path / name) for name in ("deep", "lib", "top"))
    deep.commit({"d.c": "deep"})
    lib.commit({"history": "x"})
    old = lib("rev-parse", "HEAD:history")
    lib("rm", "-q", "history")
    lib.add_module(str(deep.path), "deep")
    one = lib.commit({"l.c": "1"})
    two = lib.commit({"l.c": "2"})
    top.add_module(str(lib.path), "m")  # has the inner one only at its address
    first = top.commit({}) and top.move_module("m", one)
    second = top.move_module("m", two)
    host = connect(load_host("far"))
    assert check_out(host, top.path, first) == ({"fetch", "send"}, "deep1")
    there = host.run(["sh", "-c", OBJECTS, "objects", str(host.root), "--batch-check=%(objectname)"]).stdout.split()
    assert lib("rev-parse", f"{one}:l.c") in there
    assert not {old, one, two} & set(there)
    assert check_out(host, top.path, second) == ({"send"}, "deep2")
    assert check_out(host, top.path, first) == (set(), "deep1")
    host.release()
