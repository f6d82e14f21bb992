"""Which differences of a table are real: the rule on known p-values, and how often it is wrong."""

import random

import pytest

import sample_hunt as sample
from perfbisect.core.domain.trials import Trial, TrialBuild, TrialRequest, TrialRun, TrialType, TrialWorkload, order
from perfbisect.core.stats.false_discoveries import real, two_sided
from perfbisect.core.stats.paired_comparison import Compared, compared, tone

WORKS, BUILDS, ROUNDS = 12, 3, 5


@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    [(12.706, 1, 0.05), (4.303, 2, 0.05), (2.776, 4, 0.05), (2.571, 5, 0.05), (31.599, 2, 0.001), (8.610, 4, 0.001)],
)
def test_the_p_values_of_student_s_tables(t: float, freedom: int, p: float) -> None:
    assert two_sided(t, freedom) == two_sided(-t, freedom) == pytest.approx(p, rel=2e-3)


def test_no_difference_and_an_infinite_one() -> None:
    assert two_sided(0.0, 3) == two_sided(0.0, 4) == 1
    assert two_sided(float("inf"), 1) == 0
    assert 0 <= two_sided(1e9, 7) < 1e-12


def test_the_published_example_of_the_procedure() -> None:
    """Benjamini and Hochberg (1995), section 3.2: 15 p-values, of which four remain at 5 %."""
    published = [
        0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590,
        1.0,
    ]  # fmt: skip
    assert real(published) == [True] * 4 + [False] * 11
    assert real(published[::-1]) == [False] * 11 + [True] * 4


def test_no_cell_and_a_single_one() -> None:
    assert real([]) == []
    assert real([0.049]) == [True]
    assert real([0.051]) == [False]


def table(chance: random.Random, slow: frozenset[int] = frozenset(), noise: float = 0.06) -> list[Compared]:
    """A comparison measured by an unsteady machine; in ``slow`` workloads each further build has lost 20 %.

    All builds of a round share how fast the machine is then. The baseline is shared by the cells of a row.
    """
    names = tuple(TrialBuild(f"v{number}") for number in range(BUILDS + 1))
    works = tuple(TrialWorkload(f"w{number}", "all", 1.0, 10.0) for number in range(WORKS))
    request = TrialRequest(TrialType.COMPARE, "demo", "", "local", "qps", {}, names, works, ROUNDS, 1)
    made = Trial(1, request, sample.HOST, 0.0)
    for number in range(ROUNDS):
        machine = chance.gauss(0, 0.05)
        for work in range(WORKS):
            for subject in order(range(BUILDS + 1), number):
                speed = 1e5 * (0.8 if subject and work in slow else 1.0) * (1 + machine + chance.gauss(0, noise))
                made.runs.append(TrialRun(number, work, subject, 0.0, 1.0, sample.run(0, 0.0, qps=speed)))
    return compared(made, "qps")


def tones(rows: list[Compared]) -> dict[tuple[int, int], str]:
    """Workload and build → its colour."""
    return {
        (int(row.work[1:]), place): tone(ratio, "qps")
        for row in rows
        for place, ratio in enumerate(row.ratios)
        if ratio is not None
    }


@pytest.mark.slow
@pytest.mark.calibration
def test_of_100_tables_of_alike_builds_at_most_5_announce_a_drop() -> None:
    """They announce one where each cell is judged alone: the noise is large enough for ratios below 0.95."""
    chance = random.Random(22)
    tables = [table(chance) for _ in range(400)]
    assert sum("worse" in tones(rows).values() for rows in tables) / 4 <= 5
    alone = [any(ratio and ratio.certain and ratio.ratio <= 0.95 for row in rows for ratio in row.ratios) for rows in tables]  # fmt: skip
    assert sum(alone) / 4 > 20, "or this test could not fail"


@pytest.mark.slow
@pytest.mark.calibration
def test_of_the_differences_called_real_few_are_none_and_few_drops_are_missed() -> None:
    """Each cell that is not slow is judged, whatever its size: a colour also needs 5 %."""
    chance = random.Random(23)
    share = found = 0.0
    tables = 200
    for _ in range(tables):
        slow = frozenset(chance.sample(range(WORKS), 4))
        rows = table(chance, slow, noise=0.02)
        called = [int(row.work[1:]) for row in rows for ratio in row.ratios if ratio and ratio.real]
        false = sum(work not in slow for work in called)
        share += false / max(1, len(called))
        found += (len(called) - false) / (len(slow) * BUILDS)
    assert 0.01 < share / tables <= 0.05
    assert found / tables > 0.9
