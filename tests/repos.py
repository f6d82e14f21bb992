"""Git repositories for tests.

The fixture ``git`` is a ``Repo`` at ``tmp_path/repo``: ``git("tag", "x")`` runs git in it and returns what it prints;
``git.commit({"a/b.c": "1\\n", "old.c": None}, tag="v1")`` commits files and returns the hash; ``git.history(trees)``
commits each of several trees. ``Repo(folder)`` is another repository. Dates are fixed unless GIT_COMMITTER_DATE is set.
"""

import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

WHO = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER")
       for key, value in (("NAME", "Test"), ("EMAIL", "test@example.org"), ("DATE", "2020-01-02T03:04:05Z"))}  # fmt: skip
Files = Mapping[str, str | None]  # path → text; None removes the file


def files_of(folder: Path) -> dict[str, str]:
    """The files below a folder that a test keeps beside it: path → text."""
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def git(folder: Path, *words: str) -> str:
    """The output of git in a folder. Submodules may be clones of local repositories."""
    command = ["git", "-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main", *words]
    env = WHO | {"GIT_CONFIG_NOSYSTEM": "1"} | os.environ
    return subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True, text=True).stdout.strip()


class Repo:
    """A repository, made if there is none."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        if not (folder / ".git").exists():
            folder.mkdir(parents=True, exist_ok=True)
            self("init", "-q")

    def __call__(self, *words: str, cwd: Path | None = None) -> str:
        return git(cwd or self.path, *words)

    @property
    def head(self) -> str:
        """The hash of the commit that is checked out."""
        return self("rev-parse", "HEAD")

    def write(self, files: Files) -> None:
        """Write files, and commit nothing."""
        for name, text in files.items():
            path = self.path / name
            if text is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)

    def commit(self, files: Files | None = None, title: str = "change", tag: str = "") -> str:
        """Commit ``files``, all other changes, and submodules as they are checked out."""
        self.write(files or {})
        self("add", "-A")
        self("commit", "-q", "--allow-empty", "-m", title)
        if tag:
            self("tag", tag)
        return self.head

    def history(self, trees: Iterable[Files], tag: str = "v{}") -> list[str]:
        """The hashes of a commit for each tree, with tags v0, v1 …"""
        return [self.commit(files, f"change {number}", tag.format(number)) for number, files in enumerate(trees)]

    def add_module(self, url: str, path: str, at: str = "") -> None:
        """Make ``url`` a submodule, at a commit of it; not committed yet."""
        self("submodule", "--quiet", "add", url, path)
        if at:
            self("checkout", "-q", at, cwd=self.path / path)

    def move_module(self, path: str, to: str) -> str:
        """Commit a submodule at another commit, whether the submodule is checked out or not."""
        self("update-index", "--add", "--cacheinfo", f"160000,{to},{path}")
        self("commit", "-q", "-m", "move")
        return self.head
