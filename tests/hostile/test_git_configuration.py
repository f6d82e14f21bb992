"""git starts no program that the configuration of a hunted repository names, whoever owns the repository."""

import contextlib
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from machine import Machine
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.host.local import LocalHost
from perfbisect.host.registry import connect
from perfbisect.lab.building import checkout
from perfbisect.lab.building.checkout import REFS, push
from perfbisect.recipes.inventory import HostEntry
from perfbisect.repository.changed_functions import changed_functions
from perfbisect.repository.commits import (
    UnknownRevision,
    commits_of_names,
    commits_touching,
    describe_commit,
    resolve_commit,
    unified_diff,
)
from perfbisect.repository.derived import temporary_revert
from perfbisect.repository.discovery import has_uncommitted_changes, open_repository
from perfbisect.repository.git import Repository, temporary_bare_repository
from perfbisect.repository.range import read_range
from program import executable, run
from repos import Repo
from traps import HOOKS, Trap
from waiting import finish

pytestmark = pytest.mark.tools

NOBODY = 65534
FILES = ("a.c", "a.h", "a.i", "plain")


def configure(config: Path, settings: dict[str, str]) -> None:
    for name, value in settings.items():
        subprocess.run(["git", "config", "--file", config, "--add", name, value], check=True)


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[Trap]:
    """Programs that record their start. At the end of a test, none may have started."""
    trap = Trap(tmp_path / "sprung")
    yield trap
    assert trap.sprung == []


@pytest.fixture
def commits(git: Repo) -> list[str]:
    """Three commits of files with and without filters."""
    hashes = git.history((dict.fromkeys(FILES, f"{number}\n") for number in range(3)), tag="")
    for number, commit in enumerate(hashes):
        git("tag", "-a", "-m", "a tag", f"v{number}", commit)
    return hashes


@pytest.fixture
def hostile(git: Repo, commits: list[str], trap: Trap) -> Path:
    """A repository and a submodule whose configuration and hooks start the trap, with files that look changed."""
    repo = git.path
    module = repo / "module"
    git("clone", "-q", str(repo), str(module))
    git.move_module("module", commits[0])
    for git_dir in (repo / ".git", module / ".git"):
        trap.arm(git_dir)
    for name in FILES:
        os.utime(repo / name, (1, 1))
        (module / name).write_text("changed\n")
    return repo


def use(repo: Repository, host: LocalHost, commits: list[str]) -> None:
    """Do all operations of perfbisect on a repository."""
    assert resolve_commit(repo, "v0", []) == commits[0]
    with pytest.raises(UnknownRevision):
        resolve_commit(repo, "1234567890", [])
    assert commits_of_names(repo, ["1234512345" * 4, "v1"]) == [
        None,
        commits[1],
    ]  # git would fetch the first commit from a promisor
    assert read_range(repo, commits[0], commits[2], ["doc/**"]).candidates == tuple(commits)
    assert describe_commit(repo, commits[1]).subject == "change 1"
    assert commits_touching(repo, commits[0], commits[2], ["a.c"])["a.c"] == {*commits[1:]}
    assert "+1\n" in unified_diff(repo, commits[0], commits[1]).text
    assert changed_functions(repo, commits[0], commits[1]).files
    with temporary_revert(repo, commits[2], [commits[2]], []) as made:
        assert describe_commit(made.repository, made.commit).subject.startswith("Revert")
    has_uncommitted_changes(repo)
    bare = finish(checkout.bring_mirror(host, repo, "n", [commits[2]]))[1]
    source = host.root / "work" / "n" / "source"
    for commit in commits:
        checkout.checkout(host, bare, commit, source, [])
    assert Path(source, "a.c").read_text() == "2\n"
    for config in ("config", "more", "config.worktree"):  # a partial clone cannot be pushed
        for key in ("extensions.partialClone", "remote.evil.promisor"):
            subprocess.run(["git", "config", "--file", repo.git_dir / config, "--unset", key], check=False)
    sent = host.root / "sent.git"
    host.run(["git", "init", "-q", "--bare", "--template=", str(sent)])
    list(checkout.push(host, sent, repo, commits))
    assert len(host.run(["git", f"--git-dir={sent}", "for-each-ref"]).stdout.splitlines()) == 3


def test_armed_repository_of_the_user_starts_no_program(hostile: Path, host: LocalHost, commits: list[str]) -> None:
    for place in (hostile, hostile / ".git"):
        use(open_repository(place), host, commits)


def test_plain_git_commands_start_the_trap(hostile: Path, trap: Trap, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the other tests would notice a started program."""
    monkeypatch.setenv("GIT_TERMINAL_PROMPT", "0")
    for command in ("status", "diff", f"cat-file -e {'1234512345' * 4}", "rev-list --objects v0", "commit -qam1"):
        asked = ["git", "-c", "maintenance.auto=0", *command.split()]
        subprocess.run(asked, cwd=hostile, capture_output=True, check=False)
    found = set(trap.sprung)
    assert {"fsmonitor", "filter-process", "remote", "hook-post-index-change"} <= found
    for name in found:
        (trap.folder / name).unlink()


def test_worktree_configuration_and_split_index_start_no_program(
    hostile: Path, host: LocalHost, commits: list[str], trap: Trap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index was written with a file system monitor, and has two parts."""
    git_dir = hostile / ".git"
    for name in ("config", "more"):
        (git_dir / name).rename(git_dir / f"{name}.aside")
    subprocess.run(["git", "config", "core.fsmonitor", "true"], cwd=hostile, check=True)
    (git_dir / "info/attributes").rename(git_dir / "info/aside")
    for option in ("--split-index", "--fsmonitor", "--untracked-cache"):
        subprocess.run(["git", "-c", "core.hooksPath=/dev/null", "update-index", option], cwd=hostile, check=True)
    (git_dir / "info/aside").rename(git_dir / "info/attributes")
    (git_dir / "config.aside").rename(git_dir / "config.worktree")
    (git_dir / "more.aside").rename(git_dir / "more")
    (git_dir / "config").write_text("[core]\n\trepositoryFormatVersion = 1\n[extensions]\n\tworktreeConfig = true\n")
    assert list(git_dir.glob("sharedindex.*"))
    use(open_repository(hostile), host, commits)


PROMISORS = (
    "url=ext::touch\t%",
    "url=ssh://nowhere.invalid/x",
    "url=https://127.0.0.1:1/x proxy=https://127.0.0.1:2",
    "url=/nowhere uploadpack=touch\t%",
    "url=anything vcs=ext",
    "url=helper::x vcs=trap",
)


@pytest.mark.parametrize("promisor", PROMISORS)
def test_missing_object_is_not_fetched_from_a_promisor(
    git: Repo, tmp_path: Path, commits: list[str], trap: Trap, promisor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """git fetches the missing objects of a partial clone from its promisor, by any protocol."""
    for name in ("git-remote-trap", "git-remote-helper", "ssh"):
        executable(tmp_path / "programs" / name, f"#!/bin/sh\n{trap.command(name)}\n")
    monkeypatch.setenv("PATH", str(tmp_path / "programs"), prepend=":")
    tree = git("rev-parse", "v1^{tree}")
    (git.path / ".git/objects" / tree[:2] / tree[2:]).unlink()
    partial = {"extensions.partialClone": "origin", "remote.origin.promisor": "true", "protocol.allow": "always"}
    for setting in promisor.replace("%", f"{trap.folder}/promisor").split(" "):
        name, value = setting.split("=")
        partial[f"remote.origin.{name}"] = value.replace("\t", " ")
    configure(git.path / ".git/config", partial | {"core.sshCommand": trap.command("ssh")})
    opened = open_repository(git.path)
    assert commits_of_names(opened, ["1234512345" * 4, "v1"]) == [None, commits[1]]
    with pytest.raises(EnvironmentFailure, match="git rev-list failed"):
        read_range(opened, commits[0], commits[2], ["doc/**"])
    assert not has_uncommitted_changes(opened)


def test_file_with_a_filter_is_not_checked_for_changes(hostile: Path, trap: Trap) -> None:
    opened = open_repository(hostile)
    assert not has_uncommitted_changes(opened)
    for name, text, dirty in (("a.c", "changed\n", False), ("plain", "changed\n", True), ("plain", "2\n", False)):
        (hostile / name).write_text(text)
        assert has_uncommitted_changes(opened) == dirty
    (hostile / "plain").unlink()
    assert has_uncommitted_changes(opened)
    configure(hostile / ".git/config", {"filter.a=b.clean": trap.command("equals")})
    (hostile / ".git/info/attributes").write_text("* filter=a=b\n")
    assert not has_uncommitted_changes(opened)


def test_work_tree_that_core_worktree_names_is_ignored(hostile: Path, tmp_path: Path, commits: list[str]) -> None:
    """``core.worktree`` may name any folder, even another repository."""
    for place in (Repo(tmp_path / "other").path, tmp_path / "nowhere", Path("/"), Path("/proc/self/root")):
        configure(hostile / ".git/config", {"core.worktree": str(place)})
        opened = open_repository(hostile / ".git")
        assert (opened.git_dir, opened.work_tree, has_uncommitted_changes(opened)) == (hostile / ".git", None, False)
        assert resolve_commit(opened, "v0", []) == commits[0]


@pytest.fixture
def foreign(hostile: Path) -> Path:
    """The hostile repository, owned by another user."""
    if os.getuid() != 0:
        pytest.skip("only root can give files to another user")
    subprocess.run(["chown", "-R", str(NOBODY), hostile], check=True)
    return hostile


def test_repository_of_another_user_is_refused(foreign: Path, tmp_path: Path) -> None:
    """Also through a gitfile or a link, as a bare clone, and if its own configuration declares it safe."""
    (foreign / "deep" / "er").mkdir(parents=True)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / ".git").write_text(f"gitdir: {foreign}/.git\n")
    (tmp_path / "link").symlink_to(foreign)
    bare = tmp_path / "bare"
    subprocess.run(["cp", "-r", foreign / ".git", bare], check=True)
    configure(bare / "config", {"core.bare": "true"})
    subprocess.run(["chown", "-R", str(NOBODY), bare], check=True)
    for value in ("*", str(foreign)):
        configure(foreign / ".git/config", {"safe.directory": value})
    inside = ("repo", "repo/module/..", "repo/.git", "repo/.git/objects", "repo/deep/er")
    for place in (*inside, "own", "link", "bare"):
        with pytest.raises(EnvironmentFailure, match="detected dubious ownership in repository at") as caught:
            open_repository(tmp_path / place)
        if place in inside:
            trust = r"If you trust this user: git config --global --add safe\.directory \S*/repo\S*$"
            assert re.search(trust, caught.value.advice)
    with contextlib.chdir(foreign / "deep" / "er"):  # the refusal starts no program either
        done = run("run", "v0", "v2", "--build", "true", "--run", "true")
    assert done.status == 4, done.err
    assert "dubious ownership" in done.err


@pytest.mark.parametrize("trusted", ["by the user", "with sudo"])
def test_trusted_repository_of_another_user_can_be_used(
    foreign: Path, host: LocalHost, commits: list[str], seal: Path, trusted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trusted == "with sudo":
        monkeypatch.setenv("SUDO_UID", str(NOBODY))
    else:
        (seal / ".gitconfig").write_text(f"[safe]\n\tdirectory = {foreign}\n")
    use(open_repository(foreign), host, commits)


@pytest.mark.parametrize("folders", [":{}", "/nowhere:../repo:{}:.:bin"])
def test_programs_are_not_searched_in_the_working_directory(
    folders: str, tmp_path: Path, commits: list[str], host: LocalHost, trap: Trap, git: Repo
) -> None:
    """An empty or relative entry of PATH or LD_LIBRARY_PATH is the folder in which git runs: repository or checkout."""
    repo = git.path
    for folder in (repo, repo / ".git", repo / "bin"):
        for name in ("git", "sh", "sha256sum", "env"):
            executable(folder / name, f"#!/bin/sh\n{trap.command(name)}\nexit 1\n")
        for name in ("libz.so.1", "libpcre2-8.so.0", "libc.so.6"):
            (folder / name).write_text("no library\n")  # a program that loads this file does not start
    armed = git.commit(title="programs and libraries")
    for variable, usual in (("PATH", os.environ["PATH"]), ("LD_LIBRARY_PATH", "/usr/lib")):
        with mock.patch.dict(os.environ, {variable: folders.format(usual)}), contextlib.chdir(tmp_path):
            opened = open_repository(repo)
            assert read_range(opened, commits[0], commits[2], []).candidates == tuple(commits)
            assert has_uncommitted_changes(opened) is False
            bare = finish(checkout.bring_mirror(host, opened, "n", []))[1]
            for commit in (armed, commits[2]):
                checkout.checkout(host, bare, commit, host.root / "source", [])
                assert checkout.filtered_tree(host, bare, commit, [])


def test_temporary_repository_works_in_a_folder_with_an_odd_name(
    git: Repo, commits: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "a b;touch x\n-x")
    with temporary_bare_repository(open_repository(git.path)) as lender:
        assert subprocess.run(["git", f"--git-dir={lender}", "cat-file", "-e", commits[0]], check=False).returncode == 0
        assert lender.is_absolute()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with (
        pytest.raises(EnvironmentFailure, match="Not a directory"),
        temporary_bare_repository(open_repository(git.path)),
    ):
        pass


@pytest.mark.parametrize("extension", ["noop-v2", "unknown", "refstorage"])
def test_unknown_extension_is_refused_by_name(git: Repo, commits: list[str], extension: str, trap: Trap) -> None:
    configure(git.path / ".git/config", {"core.repositoryFormatVersion": "1", f"extensions.{extension}": "x"})
    with pytest.raises((EnvironmentFailure, UsageError), match=extension):
        open_repository(git.path)


# Settings that make a push fail, hang or send other data; they start no program.
STUBBORN = dict(line.split("=") for line in Path(__file__).with_name("stubborn.txt").read_text().splitlines())


@pytest.fixture
def everything(trap: Trap, tmp_path: Path) -> dict[str, str]:
    """All hostile settings except the settings of a partial clone, which cannot be pushed."""
    settings = trap.settings(trap.hooks(tmp_path / "hooks")) | STUBBORN
    del settings["extensions.partialClone"], settings["remote.evil.promisor"]
    return settings


@pytest.mark.parametrize("whose", ["the repository", "the user", "the environment"])
def test_push_ignores_the_git_configuration_of_any_source(
    commits: list[str], tmp_path: Path, host: LocalHost, trap: Trap, seal: Path, whose: str,
    everything: dict[str, str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The receiving git runs as the same user on this machine, and ignores the configuration, too."""
    bare = host.root / "n.git"
    host.run(["git", "init", "-q", "--bare", "--template=", str(bare)])
    opened = open_repository(tmp_path / "repo")
    if whose == "the repository":
        configure(opened.git_dir / "config", everything)
        trap.hooks(opened.git_dir / "hooks")
    elif whose == "the user":
        configure(seal / ".gitconfig", everything)
    else:
        monkeypatch.setenv("GIT_CONFIG_COUNT", str(len(everything)))
        for number, setting in enumerate(everything.items()):
            for key, text in zip(("KEY", "VALUE"), setting, strict=True):
                monkeypatch.setenv(f"GIT_CONFIG_{key}_{number}", text)
    assert list(push(host, bare, opened, commits))[-1] == (9, 9)
    assert sorted(path.name for path in Path(bare / REFS).iterdir()) == sorted(commits)


def test_push_over_ssh_ignores_the_git_configuration_of_the_host(
    commits: list[str], tmp_path: Path, trap: Trap, seal: Path, machine: Machine, everything: dict[str, str]
) -> None:
    configure(seal / ".gitconfig", everything)
    trap.hooks(tmp_path / "repo/.git/hooks")
    there = f"{machine.folder}/sprung"
    lines = "".join(
        f"git config --global {shlex.quote(name)} {shlex.quote(value.replace(str(trap.folder), there))}\n"
        for name, value in (trap.settings(Path(there, "..")) | STUBBORN).items()
    )
    with connect(HostEntry(name="far", address=machine.address, root=machine.root)) as far:
        far.run(["sh", "-c", f"mkdir {there}; {lines}"])
        hooks = ["sh", "-c", 'tee "$@" && chmod +x "$@"', "hooks", *(f"{machine.folder}/{name}" for name in HOOKS)]
        far.run(hooks, stdin=f"#!/bin/sh\ntouch {there}/hook\n")
        assert far.run(["git", "config", "core.hooksPath"]).stdout
        [*_, last], bare = finish(checkout.bring_mirror(far, open_repository(tmp_path / "repo"), "n", commits))
        assert last == (9, 9)
        source = far.root / "work" / "n" / "source"
        checkout.checkout(far, bare, commits[1], source, [])
        assert far.run(["cat", str(source / "a.c")]).stdout == "1\n"
        assert far.run(["ls", there]).stdout == ""
