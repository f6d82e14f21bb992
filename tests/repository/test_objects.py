"""Git objects that GitPython or, if GitPython cannot, git reads; and the environment and errors of git commands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfbisect.errors import EnvironmentFailure
from perfbisect.repository import objects
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.git import (
    PROTOCOLS,
    Repository,
    git_failure,
    isolated_environment,
    local_environment,
    remote_environment,
    temporary_folder,
)
from perfbisect.repository.library import GitProgress
from perfbisect.repository.objects import TreeFiles, small_file_texts, top_level_files, tree_files
from program import executable
from repos import Repo
from traps import FILE, FOLDER, LINK, MODULE, OddTrees, Trap

pytestmark = pytest.mark.tools


@pytest.fixture(params=["sha1", "sha256"])
def repo(request: pytest.FixtureRequest, tmp_path: Path) -> Repository:
    """A commit with a text file with an odd name, a binary file, a link and a submodule."""
    folder = tmp_path / request.param
    subprocess.run(["git", "init", "-q", f"--object-format={request.param}", folder], check=True)
    git = Repo(folder)
    (folder / "a b").mkdir()
    Path(os.fsdecode(bytes(folder / "a b") + b"/\xff\n.c")).write_bytes(b"one\r\ntwo\xff\n")
    (folder / "zero").write_bytes(b"a\0b")
    (folder / "link").symlink_to("zero")
    git("add", "-A")
    git("update-index", "--add", "--cacheinfo", f"160000,{'1' * (40 if request.param == 'sha1' else 64)},module")
    git("commit", "-q", "-m", "all")
    return open_repository(folder)


def test_files_and_submodules_of_a_tree_are_read(repo: Repository) -> None:
    assert top_level_files(repo, "HEAD") == top_level_files(repo, "HEAD^{tree}") == {"zero", "link"}
    found, odd = tree_files(repo, "HEAD"), "a b/\N{REPLACEMENT CHARACTER}\n.c"
    assert (set(found.files), found.submodules) == ({"zero", odd}, ("module",))
    assert small_file_texts(repo, found, ["zero", odd, "absent"]) == {odd: "one\ntwo\N{REPLACEMENT CHARACTER}\n"}


def test_headers_of_objects_are_read(repo: Repository) -> None:
    names = ["HEAD", "HEAD:zero", "HEAD:absent", "a b", "x\N{REPLACEMENT CHARACTER} 5", "", "-x", "HEAD^{tree}"]
    head, zero, *unknown, tree = objects.object_headers(repo, names)
    assert (head and head[1], zero and zero[1:], tree and tree[1]) == ("commit", ("blob", 3), "tree")
    assert unknown == [None] * 5
    assert objects.object_headers(repo, []) == []


def test_missing_object_is_reported(repo: Repository) -> None:
    absent = "12345" * 8
    asked = [(objects.file_texts, {"x": absent}), (objects.tree_entries, absent), (objects.tree_entries, "HEAD:zero")]
    for ask, what in asked:
        with pytest.raises(EnvironmentFailure, match=r"git (cat-file|ls-tree) failed in .*: fatal: "):
            ask(repo, what)  # type: ignore[operator]


def test_invalid_tree_is_read_by_git(git: Repo, tmp_path: Path) -> None:
    """GitPython does not know these modes, so perfbisect calls git."""
    git.commit(title="0")
    odd = OddTrees(tmp_path / "repo")
    opened = open_repository(tmp_path / "repo")
    blob = odd.blob()
    tree = odd.tree((b"100664", b"a", blob), (b"140000", b"b", blob), (LINK, b"c", blob), (FILE, b"..", blob))
    assert tree_files(opened, tree) == TreeFiles({"a": blob, "..": blob}, ("b",))
    assert tree_files(opened, odd.tree((FOLDER, b"d", tree), (MODULE, b"m", blob))).submodules == ("d/b", "m")
    broken = odd.write("tree", b"100644 name without an end")
    with pytest.raises(EnvironmentFailure, match="git ls-tree failed"):
        objects.tree_entries(opened, broken)
    with pytest.raises(EnvironmentFailure, match="git cat-file failed in"):
        objects.file_texts(opened, {"x": odd.damaged(), "y": blob})


def test_import_of_gitpython_ignores_the_environment(tmp_path: Path) -> None:
    """The import runs `git version`, but not the program that the environment names."""
    trap = Trap(tmp_path / "sprung")
    executable(tmp_path / "git", f"#!/bin/sh\n{trap.command('git')}\n")
    steering = {
        "PATH": f".:{os.environ['PATH']}", "GIT_PYTHON_GIT_EXECUTABLE": str(tmp_path / "git"), "GIT_PYTHON_TRACE": "full",
        "GIT_TRACE": str(tmp_path / "trace"), "GIT_PYTHON_REFRESH": "nonsense",
    }  # fmt: skip
    look = "import os; before = dict(os.environ); import perfbisect.repository.library; assert os.environ == before"
    argv, env = [sys.executable, "-c", look], os.environ | steering
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr, trap.sprung) == (0, "", "", [])
    assert not (tmp_path / "trace").exists()


def test_progress_lines_of_git_are_parsed() -> None:
    steps = GitProgress()
    assert steps.parsed_progress("Receiving objects:  50% (1/2), 3.00 KiB | 1.00 MiB/s\n") == (
        "Receiving objects",
        1,
        2,
    )
    assert steps.parsed_progress("remote: Counting objects: 100% (7/7), done.\n") == ("Counting objects", 7, 7)
    for line in ("remote: Enumerating objects: 5, done.\n", "fatal: Receiving objects:  50% (1/2)\n", "", "x\n"):
        assert steps.parsed_progress(line) is None


def test_environment_of_git_has_only_allowed_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert remote_environment()["GIT_ALLOW_PROTOCOL"] == PROTOCOLS
    wanted = dict.fromkeys(("SUDO_UID", "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "GIT_EXEC_PATH"), "1")
    reach = dict.fromkeys(("GIT_SSH_COMMAND", "SSH_AUTH_SOCK", "https_proxy", "GIT_ASKPASS", "GIT_ALLOW_PROTOCOL"), "x")
    unwanted = {"GIT_DIR": "/x", "GIT_GRAFT_FILE": "/x", "BASH_ENV": "/x", "LD_PRELOAD": "/x", "LC_ALL": "de_DE.UTF-8"}
    for name, value in (wanted | reach | unwanted).items():
        monkeypatch.setenv(name, value)
    ours = {"LC_ALL": "C", "GIT_GRAFT_FILE": "/dev/null", "GIT_ALLOW_PROTOCOL": "none"}
    for made, inherited in (
        (local_environment(), wanted),
        (remote_environment(), wanted | reach),
        (isolated_environment(), {}),
    ):
        told = {name: made.get(name) for name in wanted | reach | unwanted}
        assert told == dict.fromkeys(told) | ours | inherited
        assert made["PATH"]
    assert ("HOME" in local_environment(), "HOME" in isolated_environment()) == (True, False)


@pytest.mark.parametrize(
    ("stderr", "sentence", "advice"),
    [
        ("warning: x\nfatal: bad object\nerror: later\n", "fatal: bad object", ""),
        ("said nothing of note\n", "said nothing of note", ""),
        ("", "git printed no message", ""),
        ("fatal: No space left on device\n", "fatal: No space left on device", "Free space on that disk."),
    ],
)
def test_error_has_the_line_of_git_with_the_reason(stderr: str, sentence: str, advice: str) -> None:
    """hostile/test_git_configuration.py tests errors of unknown formats and of repositories of other users."""
    error = git_failure("it failed", stderr)
    assert (str(error), error.advice) == (f"it failed: {sentence}", advice)


def test_temporary_folder_of_a_killed_process_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process removes the folder. The folder of a running process stays."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code = "from perfbisect.repository.git import temporary_folder as made\nwith made() as f: print(f, flush=True); input()"
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    with both[0] as running, both[1] as killed:
        there, left = (Path(str(each.stdout and each.stdout.readline()).strip()) for each in (running, killed))
        assert there.is_dir() and left.is_dir()
        killed.kill()
        killed.wait()
        with temporary_folder() as own:
            assert own.is_dir() and there.is_dir() and not left.parent.exists()
        assert not own.parent.exists() and there.is_dir()
        running.communicate("\n")
    assert [each.name for each in there.parent.parent.iterdir()] == ["lock"]
