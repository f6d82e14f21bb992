"""Commits travel to another machine by git's own push, here to another folder."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from socket import socket

import pytest
from paramiko import Channel

from machine import Machine
from perfbisect.errors import EnvironmentFailure
from perfbisect.host import ssh
from perfbisect.host.local import LocalHost
from perfbisect.host.ssh import SshHost
from perfbisect.lab.build.host_git import REFS, push
from perfbisect.repository.discovery import open_repository

pytestmark = pytest.mark.tools

Git = Callable[..., str]


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    root = tmp_path / "our 'root' $(x)"
    root.mkdir()
    return LocalHost("far", PurePosixPath(root))


@pytest.fixture
def bare(host: LocalHost) -> PurePosixPath:
    place = host.root / "a b.git"
    host.run(["git", "init", "-q", "--bare", str(place)])
    return place


def commit(tmp_path: Path, git: Git, name: str) -> str:
    (tmp_path / "repo" / name).write_text(name * 1000)
    git("add", ".")
    git("commit", "-q", "-m", "change")
    return git("rev-parse", "HEAD")


def there(bare: PurePosixPath) -> set[str]:
    show = ["git", f"--git-dir={bare}", "for-each-ref", "--format=%(refname)"]
    return set(subprocess.run(show, capture_output=True, text=True, check=True).stdout.split())


def objects(bare: PurePosixPath) -> int:
    return sum(1 for _ in Path(bare, "objects").glob("??/*"))


def test_only_what_is_missing_travels(tmp_path: Path, git: Git, host: LocalHost, bare: PurePosixPath) -> None:
    git("checkout", "-q", "-b", "$(touch${IFS}hit);'-odd-é")
    first = commit(tmp_path, git, "a")
    repository = open_repository(tmp_path / "repo")
    told = list(push(host, bare, repository, [first]))
    assert told[0] == (0, 0)
    assert told[-1] == (3, 3)
    assert there(bare) == {f"{REFS}/{first}"}
    assert objects(bare) == 3
    second, third = commit(tmp_path, git, "-b $(id)\n"), commit(tmp_path, git, "ü")
    list(push(host, bare, repository, [first, third, third]))
    assert there(bare) == {f"{REFS}/{first}", f"{REFS}/{third}"}
    assert objects(bare) == 9
    show = subprocess.run(["git", f"--git-dir={bare}", "show", f"{second}:-b $(id)\n"], capture_output=True, check=True)
    assert show.stdout.startswith(b"-b $(id)\n")
    (repository.git_dir / "HEAD").unlink()  # nothing is asked of a repository whose commits are all there
    assert list(push(host, bare, repository, [first, third])) == []


def test_an_incomplete_clone_is_refused(tmp_path: Path, git: Git, host: LocalHost, bare: PurePosixPath) -> None:
    last = commit(tmp_path, git, "a")
    git("config", "uploadpack.allowFilter", "true")
    git("clone", "-q", "--bare", "--filter=blob:none", "--", f"file://{tmp_path}/repo", str(tmp_path / "clone"))
    with pytest.raises(EnvironmentFailure, match="is a partial clone"):
        list(push(host, bare, open_repository(tmp_path / "clone"), [last]))
    assert there(bare) == set()


def test_what_git_says_is_reported(tmp_path: Path, git: Git, host: LocalHost, bare: PurePosixPath) -> None:
    commit(tmp_path, git, "a")
    with pytest.raises(EnvironmentFailure, match="cannot be pushed to host far"):
        list(push(host, bare, open_repository(tmp_path / "repo"), ["1234512345" * 4]))
    with pytest.raises(EnvironmentFailure, match=r"cannot be pushed to host far: fatal: '.*/nowhere' "):
        list(push(host, host.root / "nowhere", open_repository(tmp_path / "repo"), [git("rev-parse", "HEAD")]))


def test_a_push_goes_on_after_a_lost_link(
    tmp_path: Path, git: Git, far: tuple[SshHost, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More is on its way then than fits into the buffers, and git is not left waiting."""
    host, machine = far
    (tmp_path / "repo" / "much").write_bytes(os.urandom(10_000_000))
    last = commit(tmp_path, git, "a")
    bare = host.root / "a.git"
    host.run(["git", "init", "-q", "--bare", str(bare)])
    whole = ssh._forward

    def torn(source: socket, channel: Channel) -> None:
        monkeypatch.setattr(ssh, "_forward", whole)
        for _ in range(4):  # what is asked for comes first
            channel.sendall(source.recv(1 << 16))
        machine.kill_sshd()
        whole(source, channel)

    monkeypatch.setattr(ssh, "_forward", torn)
    list(push(host, bare, open_repository(tmp_path / "repo"), [last]))
    assert there(bare) == {f"{REFS}/{last}"}
