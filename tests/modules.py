"""Repositories with submodules, made as people make them."""

import subprocess
from collections.abc import Mapping
from pathlib import Path


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    git(folder, "init", "-q")
    return folder


def commit(repo: Path, files: Mapping[str, str]) -> str:
    """Commit these files, and the submodules as they are checked out."""
    for name, content in files.items():
        path = repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "--allow-empty", "-m", "change")
    return git(repo, "rev-parse", "HEAD")


def add(repo: Path, url: str, path: str, at: str = "") -> None:
    """Make ``url`` a submodule, at a commit of it; not committed yet."""
    git(repo, "submodule", "--quiet", "add", url, path)
    if at:
        git(repo / path, "checkout", "-q", at)


def move(repo: Path, path: str, to: str) -> str:
    """Commit a submodule at another commit, whether it is present or not."""
    git(repo, "update-index", "--add", "--cacheinfo", f"160000,{to},{path}")
    git(repo, "commit", "-q", "-m", "move")
    return git(repo, "rev-parse", "HEAD")
