"""The rounds of a search in a diff: where a budget ends them, and where they go on."""

from pathlib import Path

import pytest

from perfbisect.core.domain.orders import Found, Inconclusive, Interval, Reason, Step, Verdict
from perfbisect.hunt.patches import PartSearch
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.range import in_parts
from repos import Repo

SLOW = Interval(0.5, 0.4, 0.6)


def named(step: int) -> Verdict:
    """That this step makes it slow."""
    return Found(Step(step, 0.99, SLOW, (step - 1,)))


@pytest.mark.tools
def test_what_is_named_is_shown_where_a_budget_ends_its_proof_which_is_made_later(tmp_path: Path) -> None:
    made = Repo(tmp_path / "repo")
    parent = made.commit({f"{name}.c": "int z;\n" for name in "abc"})
    culprit = made.commit({f"{name}.c": f"int {name};\n" for name in "abc"})
    spent = Inconclusive((1, 2), (0.5, 0.5), SLOW, Reason.MINUTES_SPENT)
    with in_parts(open_repository(made.path), parent, culprit, []) as commits:
        search = PartSearch.begin(commits)
        first = search.present
        assert not search.next(spent, {}), "nothing is named: the session ends"
        assert search.present is first
        assert search.next(named(2), {})
        proof = search.present
        assert proof.proven == {1} and proof.states[1] == {1}
        assert search.next(spent, {}), "what is named is shown"
        assert search.present.states == first.states and search.present.proven == {1}
        assert not search.next(named(2), {}), "the session ends"
        assert search.present == proof, "and goes on with the proof"
        assert search.next(named(1), {})
        assert search.present.without == {0, 2}
