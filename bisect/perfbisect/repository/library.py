"""Reads git objects by the library GitPython. The git processes that GitPython starts get only the environment
variables and options that ``repository.git`` defines.

By default GitPython would pass on the whole environment of this process, search for the repository again, and run git
on import. So GitPython is imported with an isolated environment, is given the path of the repository, and starts its
commands by ``IsolatedGit.execute``. perfbisect reads only objects by GitPython. References, the commit graph, and all
operations that can run other programs use git commands. If GitPython cannot read a tree, a git command reads the tree.

Other modules import this module inside of functions, not at their top, because the import takes a tenth of a second.
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
    """Starts git commands in a repository for GitPython. The stderr of git is written to a file, so that git never
    waits for a reader of its stderr."""

    def __init__(self, repository: Repository, stderr_file: IO[bytes]) -> None:
        super().__init__()
        self._repository = repository
        self._said = stderr_file

    def execute(  # type: ignore[override]
        self, command: Sequence[str], istream: int | None = None, **_: Any
    ) -> "Git.AutoInterrupt":
        """Start a git command as a process. GitPython calls this method to read objects."""
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
    """Reads the objects of a repository."""

    def __init__(self, repository: Repository, stderr_file: IO[bytes]) -> None:
        # Not GitPython's __init__, which would search for the repository by different rules, and read its configuration.
        self.git_dir = str(repository.git_dir)
        self.git: Git = IsolatedGit(repository, stderr_file)
        self.odb = GitCmdObjectDB(str(repository.objects), self.git)

    def object_header(self, name: str) -> Header | None:
        """The header of an object; ``name`` is any name that git resolves. None if the name is unknown or ambiguous."""
        try:
            sha, kind, size = self.git.get_object_header(name)
        except ValueError:
            return None
        return _text(sha), _text(kind), size

    def object_content(self, name: str) -> bytes:
        """The content of an object. Raises ValueError if the object does not exist."""
        return self.git.get_object_data(name)[3]

    def tree(self, name: str) -> Tree:  # type: ignore[override]
        """The tree of the commit ``name``, or the tree ``name`` itself. Raises ValueError if no commit or tree has this
        name.
        """
        sha, _, _ = self.git.get_object_header(f"{name}^{{tree}}")
        return Tree(self, bytes.fromhex(_text(sha)), Tree.tree_id << 12, "")

    def tree_entries(self, name: str, *, recursive: bool) -> Iterator[IndexObject]:
        """The entries of a tree. If ``recursive`` is true, also the entries of all its subfolders, but not the
        subfolders themselves. Raises ValueError or TypeError if the object is not a tree.
        """
        top = self.tree(name)
        items = top.traverse() if recursive else top
        return (item for item in items if isinstance(item, IndexObject) and not (recursive and isinstance(item, Tree)))


def _text(value: str | bytes) -> str:
    """``value`` as str. The function is necessary because headers in GitPython are bytes, although their declared type
    is str."""
    return value if isinstance(value, str) else value.decode()


@contextmanager
def object_reader(repository: Repository) -> Iterator[ObjectReader]:
    """During the ``with`` block, an ObjectReader for a repository that uses SHA-1. Raises EnvironmentFailure at the end
    of the block if git failed.
    """
    with TemporaryFile() as said:
        opened = ObjectReader(repository, said)
        try:
            with suppress(BrokenPipeError):
                yield opened
        finally:
            processes = (opened.git.cat_file_header, opened.git.cat_file_all)
            statuses = [_close_and_wait(process) for process in processes if process]
            opened.close()
        if any(statuses):
            said.seek(0)
            raise git_failure(f"git cat-file failed in {repository.git_dir}", said.read().decode(errors="replace"))


def _close_and_wait(process: "Git.AutoInterrupt") -> int:
    """Close the pipes of a git process without reading its remaining output, and return its exit status."""
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
        """From a line in which git reports its progress: the activity, the number of finished steps, and the number of
        all steps; None for any other line."""
        self._step = None
        self.new_message_handler()(line)
        return self._step

    def update(
        self, op_code: int, cur_count: str | float, max_count: str | float | None = None, message: str = ""
    ) -> None:
        """GitPython calls this method for each line of progress."""
        if max_count:
            activity = (self._cur_line or "").removeprefix("remote: ").partition(":")[0]
            self._step = activity, int(cur_count), int(max_count)
