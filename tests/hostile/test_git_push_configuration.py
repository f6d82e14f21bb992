"""What a user, a repository and the user of a host have configured for git takes no part when sources are sent."""

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from machine import PROJECT, Machine, why_not
from perfbisect.host.local import LocalHost
from perfbisect.host.registry import connect
from perfbisect.lab.build.checkout import checkout, mirror
from perfbisect.lab.build.host_git import REFS, push
from perfbisect.recipes.inventory import HostEntry
from perfbisect.repository.discovery import open_repository
from traps import HOOKS, Trap
from waiting import finish

pytestmark = pytest.mark.tools

Git = Callable[..., str]

# Beside the traps: what makes a push fail, hang or send something else.
STUBBORN = {
    "push.gpgSign": "true",
    "push.negotiate": "true",
    "push.pushOption": "anything",
    "push.default": "nothing",
    "push.recurseSubmodules": "only",
    "push.followTags": "true",
    "remote.pushDefault": "nowhere",
    "http.proxy": "http://nowhere.invalid",
    "transfer.fsckObjects": "true",
    "transfer.hideRefs": "refs/perfbisect",
    "receive.fsckObjects": "true",
    "receive.hideRefs": "refs",
    "receive.denyDeletes": "true",
    "receive.maxInputSize": "1",
    "receive.procReceiveRefs": "refs/perfbisect",
    "receive.certNonceSeed": "seed",
    "receive.shallowUpdate": "false",
    "protocol.allow": "never",
    "protocol.fd.allow": "never",
    "pack.packSizeLimit": "1",
    "pack.windowMemory": "1",
    "core.alternateRefsPrefixes": "refs/tags",
    "core.bigFileThreshold": "1",
    "core.compression": "0",
    "safe.directory": "/nowhere",
    "init.defaultObjectFormat": "sha256",
    "init.templateDir": "/nowhere",
}


@pytest.fixture
def commits(git: Git, tmp_path: Path) -> list[str]:
    hashes = []
    for number in range(3):
        (tmp_path / "repo" / "a.c").write_text(f"{number}\n")
        git("add", "-A")
        git("commit", "-q", "-m", f"change {number}")
        git("tag", "-a", "-m", "a tag", f"v{number}")
        hashes.append(git("rev-parse", "HEAD"))
    return hashes


def everything(trap: Trap, hooks: Path) -> dict[str, str]:
    """All of it, but for what makes a partial clone: that is refused."""
    settings = trap.settings(hooks) | STUBBORN
    return {
        name: value
        for name, value in settings.items()
        if name not in ("extensions.partialClone", "remote.evil.promisor")
    }


def configure(config: Path, settings: dict[str, str]) -> None:
    for name, value in settings.items():
        subprocess.run(["git", "config", "--file", config, name, value], check=True)


@pytest.mark.parametrize("whose", ["the repository", "the user", "the environment"])
def test_no_configuration_takes_part(
    commits: list[str], tmp_path: Path, host: LocalHost, trap: Trap, seal: Path, whose: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The user of the host is the same on this machine: what receives ignores it as what sends does."""
    settings = everything(trap, trap.hooks(tmp_path / "hooks"))
    bare = host.root / "n.git"
    host.run(["git", "init", "-q", "--bare", "--template=", str(bare)])
    opened = open_repository(tmp_path / "repo")
    if whose == "the repository":
        configure(opened.git_dir / "config", settings)
        trap.hooks(opened.git_dir / "hooks")
    elif whose == "the user":
        configure(seal / ".gitconfig", settings)
    else:
        monkeypatch.setenv("GIT_CONFIG_COUNT", str(len(settings)))
        for number, (name, value) in enumerate(settings.items()):
            monkeypatch.setenv(f"GIT_CONFIG_KEY_{number}", name)
            monkeypatch.setenv(f"GIT_CONFIG_VALUE_{number}", value)
    assert list(push(host, bare, opened, commits))[-1] == (9, 9)
    assert sorted(path.name for path in Path(bare / REFS).iterdir()) == sorted(commits)


def test_over_ssh_that_of_the_host_takes_no_part_either(
    commits: list[str], tmp_path: Path, trap: Trap, seal: Path
) -> None:
    if reason := why_not():
        pytest.skip(reason)
    configure(seal / ".gitconfig", everything(trap, trap.hooks(tmp_path / "hooks")))
    trap.hooks(tmp_path / "repo/.git/hooks")
    machine = Machine(seal / ".ssh", hidden=[PROJECT])
    try:
        machine.make_known()
        there = f"{machine.folder}/sprung"
        settings = {
            name: value.replace(str(trap.folder), there) for name, value in trap.settings(Path(there, "..")).items()
        }
        lines = "".join(
            f"git config --global {shlex.quote(name)} {shlex.quote(value)}\n"
            for name, value in (settings | STUBBORN).items()
        )
        hook = f"#!/bin/sh\ntouch {there}/hook\n"
        with connect(HostEntry(name="far", address=machine.address, root=machine.root)) as far:
            far.run(["sh", "-c", f"mkdir {there}; {lines}"])
            for name in HOOKS:
                far.run(["sh", "-c", 'cat >"$1" && chmod +x "$1"', "hook", f"{machine.folder}/{name}"], stdin=hook)
            assert far.run(["git", "config", "core.hooksPath"]).stdout
            [*_, last], bare = finish(mirror(far, open_repository(tmp_path / "repo"), "n", commits))
            assert last == (9, 9)
            source = far.root / "work" / "n" / "source"
            checkout(far, bare, commits[1], source, [])
            assert far.run(["cat", str(source / "a.c")]).stdout == "1\n"
            assert far.run(["ls", there]).stdout == ""
    finally:
        machine.remove()
