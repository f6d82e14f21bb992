"""A hunt over real SQLite releases: each commit is one release's amalgamation, as a crate carries it."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from program import bisect, rows

pytestmark = [pytest.mark.e2e, pytest.mark.tools, pytest.mark.calibrate]

HOME = os.environ.get("HOME", "")  # where cargo keeps its configuration; the tests' own home is empty
RELEASES = {"3.41.2": "0.26.0", "3.44.0": "0.27.0", "3.45.0": "0.28.0"}  # of SQLite → of the crate libsqlite3-sys


def amalgamation(crate: str, folder: Path) -> Path | None:
    """The folder with sqlite3.c of one version of the crate; None where the registry does not answer."""
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "lib.rs").touch()
    (folder / "Cargo.toml").write_text(
        '[package]\nname = "releases"\nversion = "0.1.0"\nedition = "2021"\n'
        f'[dependencies]\nlibsqlite3-sys = "={crate}"\n'
    )
    done = subprocess.run(
        ["cargo", "vendor", "-q"],
        cwd=folder, env=os.environ | {"HOME": HOME}, capture_output=True, timeout=600, check=False,
    )  # fmt: skip
    return folder / "vendor" / "libsqlite3-sys" / "sqlite3" if done.returncode == 0 else None


@pytest.fixture
def releases(git: Callable[..., str], tmp_path: Path) -> Path:
    """A repository with one commit and one tag for each release."""
    if shutil.which("cargo") is None:
        pytest.skip("cargo is not installed, and SQLite's releases are taken from a crate")
    repository = tmp_path / "repo"
    for release, crate in RELEASES.items():
        source = amalgamation(crate, tmp_path / crate)
        if source is None:
            pytest.skip("the crate registry cannot be reached")
        for name in ("sqlite3.c", "sqlite3.h"):
            shutil.copy(source / name, repository / name)
        git("add", "-A")
        git("commit", "-qm", f"Release {release}")
        git("tag", f"version-{release}")
    return repository


def test_update_index_between_releases_ends_honestly(
    releases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the machine shows, the hunt ends with a verdict, a story, and builds that are SQLite itself."""
    monkeypatch.setenv("HOME", str(tmp_path))
    history = tmp_path / "history.db"
    hunt = ["run", "3.41.2", "3.45.0", "--builder", "sqlite-amalgamation", "--workload", "update-index"]
    limits = ["--time", "1", "--max-runs", "24", "--no-explain"]
    ended = bisect(*hunt, *limits, "--repo", str(releases), "--json", "--history", str(history))
    assert ended.returncode in (0, 1, 2), ended.stderr
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    assert events[-1]["event"] == "HuntEnded"
    shown = bisect("show", "--history", str(history))
    assert shown.returncode == 0
    assert "update-index" in shown.stdout
    query = "select (select count(distinct commit_hash) from builds), (select count(*) from runs)"
    [(commits, runs)] = rows(history, query)
    assert commits in (2, 3)
    assert runs >= 4

    together = tmp_path / "together.db"
    words = [*limits, "--pairing", "together", "--repo", str(releases), "--json", "--history", str(together)]
    ended = bisect(*hunt, *words)
    assert ended.returncode in (0, 1, 2), ended.stderr
    query = "select count(*) from events where kind = 'RunFinished' group by json_extract(body, '$.facts.round')"
    assert (2,) in rows(together, query)
