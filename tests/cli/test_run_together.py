"""`bisect run` with several workloads: each commit is built once, and each workload has a verdict and a log of its own."""

from collections.abc import Callable
from pathlib import Path

import pytest

from program import rows

pytestmark = pytest.mark.tools

Exits = Callable[..., str]
Script = Callable[[str], str]

HUNT = ["--builder", "script", "--repo", "repo", "--plain", "--no-explain"]
HISTORY = Path(".local/state/perfbisect/history.db")
BUILT = "select commit_hash, count(*) from builds where not reused group by 1"

# What a run prints: the rate of each workload, which a commit may lower, and some noise that differs between runs.
RATES = """
one={one} two={two}
noise=$(($(date +%N | cut -c 7-9 | sed 's/^0*//;s/^$/0/') % 7))
case $1 in one) echo rate $((one + noise));; two) echo rate $((two + noise));; esac
"""


def history_of(script: Script, count: int, one: int, two: int) -> list[str]:
    """Commits of which number ``one`` makes workload one slower, and ``two`` the other; 0: none does."""
    return [
        script(
            RATES.format(one=700 if 0 < one <= number else 1000, two=600 if 0 < two <= number else 1000) + f"# {number}"
        )
        for number in range(count)
    ]


def test_each_commit_is_built_once_and_each_workload_has_its_culprit(exits: Exits, script: Script, seal: Path) -> None:
    commits = history_of(script, 40, one=13, two=30)
    exits(0, "run", commits[0], commits[-1], *HUNT, "--workload", "one,two")
    found = dict(rows(seal / HISTORY, "select workload, culprit from culprits"))
    assert found == {"one": commits[13], "two": commits[30]}
