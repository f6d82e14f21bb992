"""`bisect replay` as users meet it: a range in a real repository, its hunt read back from the history."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import sample_hunt as sample
from perfbisect.core.domain.events import BuildFinished, Decided, HuntStarted, RunFinished
from perfbisect.core.domain.facts import BuildFacts, HostFacts, RunFacts
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Measure, interleave
from perfbisect.core.domain.settings import Policy, Settings
from perfbisect.core.inference.observations import observations
from perfbisect.core.search.decide import decide
from perfbisect.store.history import History
from program import printed

pytestmark = pytest.mark.tools

HOST = HostFacts("local", "a CPU", 2, 1024, "6.1", "gcc 12")
BEGAN = 1000.0


def hunted(path: Path, repository: Path, commits: tuple[str, ...], speeds: tuple[int, ...]) -> None:
    """Write a hunt in which the commits have these QPS, and runs scatter by half a per cent."""
    settings = Settings(
        "v1", "v2", str(repository), "demo", "update-index", "local", good_commit=commits[0], bad_commit=commits[-1]
    )
    started = HuntStarted(
        1, "demo", "update-index", HOST, "v1", "v2", len(commits) - 1, commits, merges=0, resumed=False
    )
    node = {commit: index for index, commit in enumerate(commits)}
    with closing(History.open(path)) as history:
        number = history.begin(settings, HOST, started, BEGAN)
        at = BEGAN
        while True:
            seen = observations(sample.logged(history, number), node, "qps", BEGAN)
            decision = decide(Graph.line(len(commits) - 1), seen, Policy())
            history.append(number, Decided(decision), at)
            if not isinstance(decision.order, Measure):
                return
            built = {
                event.facts.commit for _, event in sample.logged(history, number) if isinstance(event, BuildFinished)
            }
            for share in decision.order.plan:
                commit = commits[share.candidate]
                if commit not in built:
                    facts = BuildFacts(commit, commit, commit, 5.0, 1, 1, reused=False, log="")
                    history.append(number, BuildFinished(share.candidate, facts, None), at := at + 5)
            for candidate in interleave(decision.order.plan):
                at += 10
                operations = speeds[candidate] + int(at * 7) % 11 * speeds[candidate] // 1000
                run = RunFacts(
                    commits[candidate], commits[candidate], f"{at}", "local", at - 9, 1.0, operations, {}, (), {}, {}
                )
                history.append(number, RunFinished(candidate, run), at)


@pytest.fixture
def commits(git: Callable[..., str], tmp_path: Path) -> tuple[str, ...]:
    hashes = []
    for number in range(5):
        (tmp_path / "repo" / "engine.c").write_text(f"int version = {number};\n")
        git("add", ".")
        git("commit", "-q", "-m", f"Change {number}")
        hashes.append(git("rev-parse", "HEAD"))
    return tuple(hashes)


@pytest.fixture
def replay(tmp_path: Path, commits: tuple[str, ...]) -> Callable[..., str]:
    """``replay(status, speeds, *arguments)`` of a hunt through the five commits: what is printed."""

    def run(status: int, speeds: tuple[int, ...], *arguments: str) -> str:
        path = tmp_path / "history.db"
        hunted(path, tmp_path / "repo", commits, speeds)
        return printed("replay", "--history", str(path), *arguments, status=status)

    return run


SLOWER = (10_000, 10_000, 10_000, 7_000, 7_000)


def test_a_culprit_is_named_again(replay: Callable[..., str], commits: tuple[str, ...]) -> None:
    said = replay(0, SLOWER)
    first, *_ = said.splitlines()
    assert first.split(maxsplit=2) == ["0", "runs", "the ends are compared"]
    assert f"{commits[3][:10]} leads with" in said
    assert f"The culprit is {commits[3][:10]} (2020-01-02, “Change 3”)" in said


def test_ends_that_are_alike_have_no_leader(replay: Callable[..., str]) -> None:
    said = replay(1, (10_000,) * 5)
    assert "leads" not in said
    assert "Not reproduced" in said


def test_a_smaller_budget_ends_it_without_a_name(replay: Callable[..., str]) -> None:
    assert replay(2, SLOWER, "--max-runs", "2").splitlines()[1].split()[-1] == "verdict"


def test_less_time_ends_it_too(replay: Callable[..., str]) -> None:
    assert "the budget of 30 s is used up" in replay(2, SLOWER, "--max-time", "30s")
