"""Hostile repositories: a configuration that runs programs, which leave a trace, and trees that `git add` never writes."""

import re
import subprocess
import zlib
from collections.abc import Callable, Mapping
from hashlib import sha1
from pathlib import Path

HOOKS = ("post-checkout", "post-index-change", "pre-auto-gc", "pre-push", "push-to-checkout", "reference-transaction",
         "pre-receive", "update", "post-receive", "post-update", "proc-receive", "fsmonitor-watchman",
         "post-merge", "pre-commit", "prepare-commit-msg", "commit-msg")  # fmt: skip


class Trap:
    """Programs that leave their name in a folder which should stay empty."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        folder.chmod(0o777)

    def command(self, name: str) -> str:
        """A command line that leaves ``name``, and does nothing else."""
        return f"touch {self.folder}/{name}; :"

    @property
    def sprung(self) -> list[str]:
        """The names of the programs that ran."""
        return sorted(path.name for path in self.folder.iterdir())

    def hooks(self, folder: Path) -> Path:
        """All hooks, in a folder."""
        folder.mkdir(exist_ok=True, parents=True)
        for name in HOOKS:
            hook = folder / name
            hook.write_text(f"#!/bin/sh\n{self.command(f'hook-{name}')}\n")
            hook.chmod(0o755)
        return folder

    def settings(self, hooks: Path) -> dict[str, str]:
        """Every setting that makes a git command run a program (a name after @), and what makes git use the setting."""
        text = (Path(__file__).parent / "given" / "settings.txt").read_text()
        text = re.sub(r"@([\w-]+)", lambda found: self.command(found[1]), text)
        text = text.replace("FOLDER", str(self.folder)).replace("HOOKS", str(hooks))
        return {name: value for name, _, value in (line.partition(" = ") for line in text.splitlines())}

    def arm(self, git_dir: Path) -> None:
        """Write all settings into a repository's configuration, half of the settings through an included file."""
        included = git_dir / "more"
        for number, (name, value) in enumerate(self.settings(self.hooks(git_dir / "hooks")).items()):
            config = included if number % 2 else git_dir / "config"
            subprocess.run(["git", "config", "--file", config, name, value], check=True)
        subprocess.run(["git", "config", "--file", git_dir / "config", "include.path", included], check=True)
        (git_dir / "info").mkdir(exist_ok=True)
        (git_dir / "info" / "attributes").write_text(
            '*.c filter=evil diff=evil merge=evil\n*.h filter=a.b\n*.i filter="e vil"\n'
        )


FILE, LINK, FOLDER, MODULE = b"100644", b"120000", b"40000", b"160000"
Entry = tuple[bytes, bytes, str]  # mode, name, hash


class OddTrees:
    """Writes loose objects into a repository."""

    def __init__(self, repo: Path) -> None:
        self.repo = repo

    def write(self, kind: str, content: bytes) -> str:
        """Write an object without the checks of git."""
        data = b"%s %d\0%s" % (kind.encode(), len(content), content)
        sha = sha1(data).hexdigest()
        path = self.path(sha)
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            path.write_bytes(zlib.compress(data))
        return sha

    def path(self, sha: str) -> Path:
        """The file of an object."""
        return self.repo / ".git" / "objects" / sha[:2] / sha[2:]

    def blob(self, content: bytes = b"content\n") -> str:
        """A file's content."""
        return self.write("blob", content)

    def tree(self, *entries: Entry) -> str:
        """A folder, its entries in the order given."""
        return self.write(
            "tree", b"".join(b"%s %s\0%s" % (mode, name, bytes.fromhex(sha)) for mode, name, sha in entries)
        )

    def below(self, names: list[bytes]) -> str:
        """A file in nested folders."""
        tree = self.tree((FILE, names[-1], self.blob()))
        for name in reversed(names[:-1]):
            tree = self.tree((FOLDER, name, tree))
        return tree

    def gone(self) -> str:
        """A file's content that the repository does not have."""
        sha = self.blob(b"not here\n")
        self.path(sha).unlink()
        return sha

    def damaged(self) -> str:
        """A file's content, whose object is cut in half."""
        sha = self.blob(bytes(range(256)) * 20)
        whole = self.path(sha).read_bytes()
        self.path(sha).write_bytes(whole[: len(whole) // 2])
        return sha


def forbidden(odd: OddTrees) -> Mapping[str, Callable[[], list[Entry]]]:
    """Entries of a root folder that cannot be checked out, by the problem; callers add an intact file."""
    blob, below, tree = odd.blob, odd.below, odd.tree
    return {
        "a folder .git": lambda: [(FOLDER, b".git", below([b"config"]))],
        "a file .git": lambda: [(FILE, b".git", blob(b"gitdir: /\n"))],
        "a link .git": lambda: [(LINK, b".git", blob(b"/"))],
        ".GIT": lambda: [(FOLDER, b".GIT", below([b"hooks", b"post-checkout"]))],
        "git~1": lambda: [(FOLDER, b"git~1", below([b"config"]))],
        ".git deep inside": lambda: [(FOLDER, b"z", below([b"a", b".git", b"config"]))],
        "..": lambda: [(FOLDER, b"..", below([b"outside"]))],
        ".": lambda: [(FOLDER, b".", below([b"outside"]))],
        "z/..": lambda: [(FOLDER, b"z", tree((FOLDER, b"..", below([b"outside"]))))],
        "a slash in a name": lambda: [(FILE, b"../outside", blob())],
        "an absolute name": lambda: [(FILE, b"/tmp/outside", blob())],
        "a name too long": lambda: [(FILE, b"n" * 256, blob())],
        "a folder's name too long": lambda: [(FOLDER, b"n" * 300, below([b"a"]))],
        "a path too long": lambda: [(FOLDER, b"z", below([b"n" * 250] * 18))],
        "a link too long": lambda: [(LINK, b"z", blob(b"l" * 5000))],
        "a link to nothing": lambda: [(LINK, b"z", blob(b""))],
        "a link .gitmodules": lambda: [(LINK, b".gitmodules", blob(b"/etc/passwd"))],
        "a missing file": lambda: [(FILE, b"z", odd.gone())],
        "a missing link": lambda: [(LINK, b"z", odd.gone())],
        "a damaged file": lambda: [(FILE, b"z", odd.damaged())],
        "a file that is a folder": lambda: [(FILE, b"z", below([b"a"]))],
        "a folder that is a file": lambda: [(FOLDER, b"z", blob())],
        "a missing folder": lambda: [(FOLDER, b"z", "1234512345" * 4)],
        "file and folder of one name": lambda: [(FILE, b"z", blob()), (FOLDER, b"z", below([b"outside"]))],
        "twice the same name": lambda: [(FILE, b"z", blob(b"1")), (FILE, b"z", blob(b"2"))],
        "link and folder of one name": lambda: [(LINK, b"z", blob(b"../../../outside")), (FOLDER, b"z", below([b"x"]))],
        "folder and link of one name": lambda: [(FOLDER, b"z", below([b"x"])), (LINK, b"z", blob(b"../../../outside"))],
        "no name": lambda: [(FILE, b"", blob())],
        "an unknown mode": lambda: [(b"000000", b"z", blob())],
        "a mode that is no number": lambda: [(b"10x644", b"z", blob())],
        "a file of a submodule": lambda: [(MODULE, b"z", "1234512345" * 4), (FOLDER, b"z", below([b"x"]))],
        "names in no order": lambda: [(FILE, b"y", blob()), (FILE, b"x", blob())],
    }
