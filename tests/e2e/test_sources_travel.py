"""Sources reach another machine, whatever their names are, and none of them is executed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from machine import Machine
from perfbisect.host.registry import connect
from perfbisect.host.ssh import SshHost
from perfbisect.lab.build import checkout
from perfbisect.recipes.inventory import load_host
from perfbisect.repository.discovery import open_repository
from waiting import finish

pytestmark = pytest.mark.tools

ODD = ["a b.c", "$(touch hit)", "`touch hit`", "; touch hit", "-rf", "'\"", "line\nline", "é→", "\\n", "#x", "!x", "~"]


def test_odd_names(machine: Machine, git: Callable[..., str], tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    git("checkout", "-q", "-b", ";$(touch${IFS}hit)")
    for name in ODD:
        (repo / name).write_text(name)
        (repo / "left out").mkdir(exist_ok=True)
        (repo / "left out" / name).write_text(name)
    git("add", "-A")
    git("commit", "-q", "-m", "$(touch hit)")
    sha = git("rev-parse", "HEAD")
    host = connect(load_host("far"))
    assert isinstance(host, SshHost)
    sent, bare = finish(checkout.mirror(host, open_repository(repo), "odd", [sha]))
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
