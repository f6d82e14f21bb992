"""What goes on beside measured queries, and when it is too little."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sample_hunt
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.metrics import background, busiest, counters, share_held, value


def run(batch: float = 0.0, **roles: tuple[float, float]) -> RunFacts:
    """Ten seconds, with role → done and due, so many by one transaction of each client."""
    found: dict[str, float | None] = {}
    for role, (done, due) in roles.items():
        found |= counters(role, done, due, due / 10, batch, 1.0, 2.0)
    return replace(sample_hunt.run(0, 0.0), counters=found)


def test_the_role_that_is_furthest_behind_counts() -> None:
    found = background([run(query=(5000, 0), insert=(1000, 1000), delete=(900, 1000))])
    assert found
    assert (found.role, found.wanted, found.held, found.sustained) == ("delete", 100.0, 90.0, False)


def test_without_a_rate_nothing_can_be_missed() -> None:
    paceless = run(query=(5000, 0), insert=(0, 0))
    assert background([paceless]) is None
    assert share_held(paceless) is None
    assert value(paceless, "background") is None
    assert background([]) is None


@pytest.mark.parametrize(("done", "sustained"), [(989, False), (990, True), (1000, True)])
def test_one_percent_may_be_missing(done: float, sustained: bool) -> None:
    found = background([run(insert=(done, 1000))])
    assert found
    assert found.sustained is sustained


@pytest.mark.parametrize(("runs", "sustained"), [
    ([490], True), ([480], True), ([470], False),  # of 500: one, two and three transactions of 10
    ([470, 500], True), ([470, 480], False), ([480, 480, 480], True),
])  # fmt: skip
def test_two_transactions_of_each_run_may_be_cut_off(runs: list[float], sustained: bool) -> None:
    found = background([run(10, insert=(done, 500), delete=(500, 500)) for done in runs])
    assert found
    assert (found.role, found.sustained) == ("insert", sustained)


def test_of_many_transactions_one_percent_may_be_missing() -> None:
    levels = [background([run(10, insert=(done, 10_000))]) for done in (9_900, 9_890)]
    assert [level and level.sustained for level in levels] == [True, False]


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 10_000)), min_size=1, max_size=6))
def test_runs_count_together(runs: list[tuple[float, int]]) -> None:
    """The share of all that was due, whichever runs it is missing from."""
    facts = [run(insert=(share * due, due)) for share, due in runs]
    found = background(facts)
    assert found
    done, due = sum(share * due for share, due in runs), sum(due for _, due in runs)
    assert found.held / found.wanted == pytest.approx(done / due)
    shares = [share_held(one) or 0.0 for one in facts]
    assert min(shares) - 1e-9 <= found.held / found.wanted <= max(shares) + 1e-9


def test_the_busiest_client_counts() -> None:
    shares = [replace(run(), counters={"client-busy": share}) for share in (0.2, None, 0.4)]
    assert busiest(shares) == 0.4
    assert busiest([run()]) is None
