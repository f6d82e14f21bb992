"""Fixtures for tests of commands. The measured system is a shell script, which is built and run in milliseconds."""

import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from computed import ComputedLab, hunt, measured_by, started
from perfbisect.core.domain.events import BuildStarted, LabEvent, RunFinished
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Measure
from perfbisect.core.domain.settings import Policy, Settings
from perfbisect.hunt.resolve import resolve_settings
from perfbisect.hunt.search_problem import SavedLog, SearchProblem
from perfbisect.store.history import History
from repos import Repo, git

if TYPE_CHECKING:
    from central import Server

Commit = Callable[[str], str]


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to ``tmp_path``, with recipes of a script and of a server."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(Path(__file__).with_name("recipes"), tmp_path, dirs_exist_ok=True)


@pytest.fixture
def script(recipes: None, git: Repo) -> Commit:
    """``script(text)`` commits the script, which prints a rate, and returns the hash. Recipes: see ``recipes``."""
    return lambda text: git.commit({"run.sh": f"{text}\n"})


@pytest.fixture
def ends(script: Commit) -> tuple[str, str]:
    """Two commits: good with a rate of 100, bad with a rate of 10."""
    return script("echo rate 100"), script("echo rate 10")


class RatedLab(ComputedLab):
    """A lab with computed runs, which reports each rate as if the script of the repository had printed the rate."""

    def measure(self, order: Measure) -> Generator[LabEvent]:
        for event in ComputedLab.measure(self, order):
            if isinstance(event, BuildStarted):
                subject = git(Path("repo"), "show", "-s", "--format=%s", event.commit.sha)
                event = replace(event, commit=replace(event.commit, subject=subject))
            if isinstance(event, RunFinished):
                event = replace(event, facts=replace(event.facts, reported=float(event.facts.operations)))
            yield event


@pytest.fixture
def stored(seal: Path) -> Callable[..., int]:
    """``stored(commits, rates, …)`` stores an ended hunt with computed runs, and returns its number."""
    assert seal

    def write(commits: Sequence[str], rates: Sequence[float], **policy: Any) -> int:
        asked = Settings(
            commits[0], commits[-1], str(Path("repo").absolute()), "script", "one", "local",
            metric="rate", builders_path="builders", workloads_path="workloads", explain=False, policy=Policy(**policy),
        )  # fmt: skip
        settings, names = resolve_settings(asked), tuple(commits)
        ends = {"good": names[0], "bad": names[-1]}
        begun = replace(started(names), builder="script", workload="one", metric=settings.metric, **ends)
        problem = SearchProblem(Graph.straight_history(len(names) - 1), names, settings.policy, settings.metric)
        lab = RatedLab(names, dict(zip(names, rates, strict=True)))
        with closing(History.open(None)) as history:
            log = SavedLog(history, history.begin_session(settings, begun, lab.clock))
            assert [*hunt(problem, begun, log, measured_by(lab, settings.metric))]
            return log.hunt

    return write


@pytest.fixture(scope="module")
def server() -> Iterator["Server"]:
    """A real PostgreSQL for central histories."""
    from central import served  # imported here, because only these tests need the client library

    with served() as started:
        yield started
