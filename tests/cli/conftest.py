"""A system that is a shell script, which is built and run in no time."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from central import Server

BUILDER = """
summary = "a script"
driver = "script"
variants.o2nofp = {}
[build]
compile = [["sh", "-c", "! grep -l 'does not build' {source}/run.sh"]]
install = [["install", "-D", "-m", "755", "{source}/run.sh", "{prefix}/run.sh"]]
artifacts = ["run.sh"]
"""

SUITE = """
summary = "the script, run with different arguments"
driver = "script"
[defaults]
group = "all"
summary = "prints a rate"
rate = 'rate (\\d+)'
warmup = 0
[workloads]
one.command = ["sh", "{prefix}/run.sh", "one", "{threads}"]
two.command = ["sh", "{prefix}/run.sh", "two", "{threads}"]
"""

Commit = Callable[[str], str]


@pytest.fixture
def script(tmp_path: Path, git: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Commit:
    """``script(text)`` commits a system's script, which prints its rate; returns the hash. Recipes lie where we then are."""
    monkeypatch.chdir(tmp_path)
    for path, text in (("builders/script/builder.toml", BUILDER), ("workloads/script/suite.toml", SUITE)):
        Path(path).parent.mkdir(parents=True)
        Path(path).write_text(text)

    def commit(text: str) -> str:
        (tmp_path / "repo" / "run.sh").write_text(f"{text}\n")
        git("add", ".")
        git("commit", "-qm", "change")
        return git("rev-parse", "HEAD")

    return commit


@pytest.fixture
def ends(script: Commit) -> tuple[str, str]:
    """A commit with a rate of 100, and one after it with a rate of 10."""
    return script("echo rate 100"), script("echo rate 10")


@pytest.fixture(scope="module")
def server() -> Iterator["Server"]:
    """A real PostgreSQL for central histories."""
    from central import served  # whose client library only these tests need

    with served() as started:
        yield started
