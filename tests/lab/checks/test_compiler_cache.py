"""Whether a host's ccache reaches the store that it shares, tried with real servers."""

import os
import shutil
import socket
from pathlib import Path, PurePosixPath

import pytest

from object_server import object_server
from perfbisect.host.local import LocalHost
from perfbisect.lab.build import ccache
from perfbisect.lab.checks.compiler_cache import compiler_cache
from perfbisect.lab.checks.finding import CheckRequest, Finding, Inspection, Level
from perfbisect.recipes.inventory import HostEntry

pytestmark = [pytest.mark.tools, pytest.mark.skipif(not shutil.which("ccache"), reason="no ccache")]


def checked(folder: Path, **entry: object) -> list[Finding]:
    host = LocalHost("here", PurePosixPath(folder))
    made = HostEntry(name="here", **entry)  # type: ignore[arg-type]
    return list(compiler_cache(Inspection(CheckRequest(host, made), {}, "")))  # type: ignore[arg-type]


def test_a_store_that_works(tmp_path: Path) -> None:
    with object_server() as server:
        (found,) = checked(tmp_path, ccache_remote=server.address)
        assert found.level is Level.OK
        assert "secret" not in found.text
        assert {"PUT", "GET"} <= set(server.asked)
        (again,) = checked(tmp_path, ccache_remote=server.address)
        assert again.level is Level.OK
    assert not list(tmp_path.iterdir()), "nothing of it stays on the host"


def test_a_store_that_takes_nothing(tmp_path: Path) -> None:
    with object_server() as server:
        server.fails = lambda method: 403 if method == "PUT" else 0
        (found,) = checked(tmp_path, ccache_remote=server.address)
    assert found.level is Level.WARNING
    assert "ccache" in found.text


def test_a_store_that_does_not_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    (found,) = checked(tmp_path, ccache_remote=f"http://user:secret@127.0.0.1:{port}")
    assert found.level is Level.WARNING
    assert "cannot reach it" in found.text
    assert "secret" not in found.text


def test_where_nothing_is_shared_or_built_nothing_is_tried(tmp_path: Path) -> None:
    assert not checked(tmp_path)
    assert not checked(tmp_path, ccache_remote="none")
    assert not checked(tmp_path, ccache_remote="http://127.0.0.1:1", build_hosts=["other"])


@pytest.mark.parametrize(
    ("version", "remote", "reason"),
    [
        ((4, 4), "http://x", "too old for a remote store: 4.4"),
        ((4, 5), "redis://x", ""),
        ((4, 7), "https://x", "no https://, before 4.13: 4.7"),
        ((4, 13), "https://x", ""),
    ],
)
def test_which_versions_can_use_which_store(version: tuple[int, int], remote: str, reason: str) -> None:
    found = ccache.unfit(version, remote)
    assert reason in found
    assert bool(found) is bool(reason)


# A ccache of another version, as far as its first line goes.
OLD = """#!/bin/sh
[ "$1" != --version ] || { echo 'ccache version 4.4.1'; exit; }
exit 1
"""


def test_a_ccache_that_is_too_old_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "ccache"
    program.parent.mkdir()
    program.write_text(OLD)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    (found,) = checked(tmp_path, ccache_remote="http://127.0.0.1:1")
    assert found.level is Level.WARNING
    assert "is too old for a remote store: 4.4" in found.text
