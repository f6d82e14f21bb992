"""Submodules reach another machine: their trees without their history, and at the next commit only what differs."""

from pathlib import Path

import pytest

from machine import Machine
from perfbisect.host.protocol import Host
from perfbisect.host.registry import connect
from perfbisect.lab.build import checkout
from perfbisect.recipes.inventory import load_host
from perfbisect.repository.discovery import open_repository
from repos import Repo, git
from waiting import finish

pytestmark = pytest.mark.tools

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
    deep, lib, top = Repo(tmp_path / "deep").path, Repo(tmp_path / "lib").path, Repo(tmp_path / "top").path
    Repo(deep).commit({"d.c": "deep"})
    Repo(lib).commit({"history": "x"})
    old = git(lib, "rev-parse", "HEAD:history")
    git(lib, "rm", "-q", "history")
    Repo(lib).add_module(str(deep), "deep")
    one = Repo(lib).commit({"l.c": "1"})
    two = Repo(lib).commit({"l.c": "2"})
    Repo(top).add_module(str(lib), "m")  # has the inner one only at its address
    first = Repo(top).commit({}) and Repo(top).move_module("m", one)
    second = Repo(top).move_module("m", two)
    host = connect(load_host("far"))
    assert check_out(host, top, first) == ({"fetch", "send"}, "deep1")
    there = host.run(["sh", "-c", OBJECTS, "objects", str(host.root), "--batch-check=%(objectname)"]).stdout.split()
    assert git(lib, "rev-parse", f"{one}:l.c") in there
    assert not {old, one, two} & set(there)
    assert check_out(host, top, second) == ({"send"}, "deep2")
    assert check_out(host, top, first) == (set(), "deep1")
    host.release()
