"""Reads git objects by GitPython. The git processes of GitPython get only the environment variables and options of
``repository.git``.

By default GitPython would pass on the whole environment of this process, search for the repository again, and run git
on import. So GitPython is imported with an isolated environment, gets the repository that git has found, and starts its
commands by ``IsolatedGit.execute``. perfbisect uses GitPython only to read objects. References, the commit graph, and
operations that can run other programs are left to git commands. If GitPython finds an error in a tree, a git command
reads the tree.

Modules import this module only inside of functions, because the import takes a tenth of a second.
"""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile
from typing import IO, Any

from perfbisect.errors import EnvironmentFailure
from perfbisect.repository.git import (
    OPTIONS,
    Repository,
    git_failure,
    isolated_environment,
    repository_arguments,
    repository_environment,
)

_environment, os.environ = os.environ, isolated_environment()  # type: ignore[assignment]
try:
    from git import Git, IndexObject, RemoteProgress, Repo, Tree
    from git.db import GitCmdObjectDB
except ImportError as _error:
    raise EnvironmentFailure(
        f"GitPython cannot be used: {_error}", "Check whether git is installed. To install it: apt-get install git"
    ) from _error
finally:
    os.environ = _environment  # noqa: B003

Header = tuple[str, str, int]  # hash, type and size in bytes of an object


class IsolatedGit(Git):
    """git in a repository. The stderr of git goes to a file, so that git never waits until its stderr is read."""

    def __init__(self, repository: Repository, stderr_file: IO[bytes]) -> None:
        super().__init__()
        self._repository = repository
        self._said = stderr_file

    def execute(  # type: ignore[override]
        self, command: Sequence[str], istream: int | None = None, **_: Any
    ) -> "Git.AutoInterrupt":
        """Start a git command as a process; GitPython reads objects only by such processes."""
        process = subprocess.Popen(
            ["git", *OPTIONS, *repository_arguments(self._repository), *command[1:]],
            cwd=self._repository.git_dir,
            env=repository_environment(self._repository),
            stdin=istream or subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._said,
        )
        return self.AutoInterrupt(process, command)


class ObjectReader(Repo):
    """Reads the objects of a repository that git has found."""

    def __init__(self, repository: Repository, stderr_file: IO[bytes]) -> None:
        # Not GitPython's __init__, which would search for the repository by different rules, and read its configuration.
        self.git_dir = str(repository.git_dir)
        self.git: Git = IsolatedGit(repository, stderr_file)
        self.odb = GitCmdObjectDB(str(repository.objects), self.git)

    def object_header(self, name: str) -> Header | None:
        """The header of an object, given by any name that git understands; None if the name is unknown or ambiguous."""
        try:
            sha, kind, size = self.git.get_object_header(name)
        except ValueError:
            return None
        return _text(sha), _text(kind), size

    def object_content(self, name: str) -> bytes:
        """The content of an object. Raises ValueError if the object does not exist."""
        return self.git.get_object_data(name)[3]

    def tree(self, name: str) -> Tree:  # type: ignore[override]
        """The tree of a commit; for the name of a tree, this tree. Raises ValueError if there is no such commit or
        tree.
        """
        sha, _, _ = self.git.get_object_header(f"{name}^{{tree}}")
        return Tree(self, bytes.fromhex(_text(sha)), Tree.tree_id << 12, "")

    def tree_entries(self, name: str, *, recursive: bool) -> Iterator[IndexObject]:
        """The entries of a tree; with ``recursive``, all entries of its subfolders, without the subfolders themselves.
        Raises ValueError or TypeError if the object is not a tree.
        """
        top = self.tree(name)
        items = top.traverse() if recursive else top
        return (item for item in items if isinstance(item, IndexObject) and not (recursive and isinstance(item, Tree)))


def _text(value: str | bytes) -> str:
    """The value as text, because headers in GitPython are bytes although their declared type is str."""
    return value if isinstance(value, str) else value.decode()


@contextmanager
def object_reader(repository: Repository) -> Iterator[ObjectReader]:
    """An ObjectReader; the repository must use SHA-1. Raises EnvironmentFailure at the end of the ``with`` block if git
    failed.
    """
    with TemporaryFile() as said:
        opened = ObjectReader(repository, said)
        try:
            with suppress(BrokenPipeError):
                yield opened
        finally:
            processes = (opened.git.cat_file_header, opened.git.cat_file_all)
            statuses = [_exit_status(process) for process in processes if process]
            opened.close()
        if any(statuses):
            said.seek(0)
            raise git_failure(f"git cat-file failed in {repository.git_dir}", said.read().decode(errors="replace"))


def _exit_status(process: "Git.AutoInterrupt") -> int:
    """Close the pipes of a git process, and return its exit status; its remaining output is not read."""
    with suppress(BrokenPipeError):
        process.stdin.close()
    process.stdout.close()
    status: int = process.proc.wait() if process.proc else 0
    return max(status, 0)  # below 0: a signal ended git, because its output was closed


class GitProgress(RemoteProgress):
    """The progress that git reports, line by line."""

    def __init__(self) -> None:
        super().__init__()
        self._step: tuple[str, int, int] | None = None

    def parsed_progress(self, line: str) -> tuple[str, int, int] | None:
        """From a line that reports git's progress: the activity, the finished steps, and all steps; None for any other
        line."""
        self._step = None
        self.new_message_handler()(line)
        return self._step

    def update(
        self, op_code: int, cur_count: str | float, max_count: str | float | None = None, message: str = ""
    ) -> None:
        """Called by GitPython for a line of progress."""
        if max_count:
            activity = (self._cur_line or "").removeprefix("remote: ").partition(":")[0]
            self._step = activity, int(cur_count), int(max_count)
