"""Reasons in words: plans, and what a revert of the culprit shows."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sample_hunt as sample
from perfbisect.core.domain.facts import SkipFacts
from perfbisect.core.domain.settings import Reverts, TrialBuild, TrialRequest, TrialType, TrialWorkload
from perfbisect.core.domain.trials import Trial, TrialRun, TrialSkip
from perfbisect.wording.reasons import LONG, abridged, proof_sentences, proof_status


@pytest.mark.parametrize(
    ("plan", "shown"),
    [
        ("Filter: (id = ANY ('{11,12,13,14,15,16,17,18,19,20}'::integer[]))", "Filter: (id = ANY ('{11,12,13, … 7 more}'::integer[]))"),
        ("  where id in (1, 2, 3, 4, 5, 6, 7, 8) and k > 5", "  where id in (1, 2, 3, … 5 more) and k > 5"),
        (
            "a IN ('x, y', 'b''c', '3', '4', '5', '6', '7', '8', '9')",
            "a IN ('x, y', 'b''c', '3', … 6 more)",
        ),
        (
            "ANY (ARRAY[$1, $2, $3, $4, $5, $6, $7, $8, $9])",
            "ANY (ARRAY[$1, $2, $3, … 6 more])",
        ),
        ("id in (1, 2, 3, 4, 5, 6, 7)", "id in (1, 2, 3, 4, 5, 6, 7)"),
        ("Output: t1.a, t2.b, t3.c, t4.d, t5.e, t6.f, t7.g, t8.h, t9.i", "Output: t1.a, t2.b, t3.c, t4.d, t5.e, t6.f, t7.g, t8.h, t9.i"),
    ],
)  # fmt: skip
def test_long_lists_of_values_are_shortened(plan: str, shown: str) -> None:
    assert abridged(plan) == shown


@given(st.lists(st.integers(), min_size=LONG, max_size=60), st.lists(st.integers(), min_size=LONG, max_size=60))
def test_every_list_of_a_line_is_shortened(one: list[int], other: list[int]) -> None:
    line = "a IN ({}) OR b IN ({})"
    shown = line.format(*(", ".join(map(str, [*each[:3]])) + f", … {len(each) - 3} more" for each in (one, other)))
    assert abridged(line.format(*(", ".join(map(str, each)) for each in (one, other)))) == shown
    assert abridged(shown) == shown


CULPRIT = "c" * 40


def trial(*rates: tuple[float, float, float], metric: str = "qps") -> Trial:
    """A proof with one run of good, bad and the revert in each round."""
    builds = tuple(TrialBuild(name, name * 10, key=name) for name in ("1.0", "1.1", "1.1 without cccccccccc"))
    request = TrialRequest(
        TrialType.PROVE, "demo", "o2nofp", "local", metric, {}, builds, (TrialWorkload("scan", "scan", 1.0, 10.0),),
        len(rates), 1, Reverts(7, (CULPRIT,)),
    )  # fmt: skip
    runs = [
        TrialRun(number, 0, build, 1.0, 1.0, sample.run(0, 1.0, qps=rate))
        for number, round_ in enumerate(rates)
        for build, rate in enumerate(round_)
    ]
    return Trial(5, request, sample.HOST, 0.0, runs=runs)


def near(good: float, bad: float, reverted: float) -> Trial:
    """Four rounds with a noise of about 1 %."""
    noise = (0.99, 1.012, 1.0, 1.003)
    return trial(*((good * a, bad * b, reverted * a * b) for a, b in zip(noise, noise[1:] + noise[:1], strict=True)))


@pytest.mark.parametrize(
    ("made", "status", "words"),
    [
        (near(1000, 500, 900), 0, ("regains 85 % (8", "of what was lost.", "That is a part: ")),
        (near(1000, 500, 1000), 0, ("regains 100 % (9", "Nothing of it is shown to be due to other changes.")),
        (near(1000, 500, 2000), 0, ("regains 200 % (1", "more than the whole")),
        (near(1000, 500, 500), 1, ("regains 0 % (-", "The interval includes 0 %: the verdict of hunt 7 is in doubt")),
        (near(1000, 500, 300), 1, ("It makes things worse: the verdict of hunt 7 is in doubt.",)),
        (near(1000, 1001, 900), 1, ("Nothing can be regained: in these 4 rounds 1.0 and 1.1 are not shown to differ",)),
        (near(500, 1000, 500), 0, ("takes back 100 % (9", "of what was gained.")),
        (trial((1000, 900, 800), (1000, 905, 1100)), 2, ("The interval includes nothing and all",)),
        (trial((1000, 500, 1000)), 2, ("Not proven: it takes two rounds",)),
    ],
)
def test_the_sentences_and_the_status(made: Trial, status: int, words: tuple[str, ...]) -> None:
    said = "\n".join(proof_sentences(made))
    for each in words:
        assert each in said
    assert proof_status(made) == status
    assert ("Reverting cccccccccc on 1.1 " in said) == ("%" in said)


def test_of_a_metric_of_which_less_is_better_a_rise_is_lost() -> None:
    cost = trial((1, 1, 1), (1, 1, 1), (1, 1, 1), metric="cpu/o")
    cost.runs[:] = [
        replace(run, facts=replace(run.facts, operations=1000 + run.round, counters={"task-clock": milliseconds}))
        for run, milliseconds in zip(cost.runs, (1000.0, 2000.0, 1000.0) * 3, strict=True)
    ]
    assert next(proof_sentences(cost)) == "Reverting cccccccccc on 1.1 regains 100 % (100 to 100 %) of what was lost."
    assert proof_status(cost) == 0


@pytest.mark.parametrize("fails", ["build", "run"])
def test_a_build_that_fails_ends_the_proof(fails: str) -> None:
    made = trial((1000, 500, 900))
    assert len(made.pairs()) == 3
    if fails == "build":
        *others, last = made.request.subjects
        request = replace(made.request, subjects=(*others, replace(last, trouble="a.c:1: error")))
        made = replace(made, request=request)
    else:
        made.skips.append(TrialSkip(0, 2, 1.0, SkipFacts("1.1", "run", "a.c:1: error", "/log", 1.0)))
    assert made.pairs() == []
    assert [*proof_sentences(made)] == ["Not proven: 1.1 without cccccccccc cannot be measured: a.c:1: error."]
    assert proof_status(made) == 2
