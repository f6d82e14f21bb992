"""Real repositories with any given history, each written by one call of `git fast-import`."""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from histories import data
from perfbisect.repository.discovery import open_repository

EPOCH = 1_600_000_000  # 2020-09-13


# name → parents, whole tree (path → content), and seconds after the epoch (None: the commit's number)
Commits = Mapping[str, tuple[Sequence[str], Mapping[str, str], int | None]]
History = Callable[[Commits], tuple[object, dict[str, str]]]


def stream(commits: Commits) -> str:
    """A history in the format of git fast-import. All commits share one ref, because thousands of refs are slow."""
    marks = {name: number for number, name in enumerate(commits, 1)}
    parts = []
    for name, (parents, tree, after) in commits.items():
        seconds = EPOCH + (marks[name] if after is None else after)
        if not parents:
            parts.append("reset refs/heads/history\n\n")
        parts.append(f"commit refs/heads/history\nmark :{marks[name]}\n")
        parts.append(f"committer Ann Author <ann@example.org> {seconds} +0000\n{data(f'commit {name}')}")
        for verb, parent in zip(["from", *["merge"] * len(parents)], parents, strict=False):
            parts.append(f"{verb} :{marks[parent]}\n")
        parts.append("deleteall\n")
        parts += [f"M 100644 inline {path}\n{data(content)}" for path, content in tree.items()]
    return "".join(parts)


@pytest.fixture
def history(tmp_path: Path) -> History:
    """``history(commits)`` makes a bare repository. It returns the opened repository, and the hash of each name."""
    made = 0

    def make(commits: Commits) -> tuple[object, dict[str, str]]:
        nonlocal made
        made += 1
        folder = tmp_path / f"history-{made}.git"
        subprocess.run(["git", "init", "-q", "--bare", folder], check=True)
        marks = folder / "marks"
        subprocess.run(
            ["git", "fast-import", "--quiet", "--force", f"--export-marks={marks}"],
            cwd=folder,
            input=stream(commits).encode(),
            check=True,
        )
        by_mark = dict(line.split() for line in marks.read_text().splitlines())
        return open_repository(folder), {name: by_mark[f":{number}"] for number, name in enumerate(commits, 1)}

    return make
