"""What a verdict says and which status it ends with."""

import math
from dataclasses import replace

import pytest

from perfbisect.core.domain.events import Commit
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import (
    CodePlacement,
    Effect,
    Found,
    Inconclusive,
    Interval,
    Layouts,
    MergeBase,
    NotReproduced,
    Reason,
    Several,
    Step,
    Unsettled,
    Verdict,
)
from perfbisect.core.domain.settings import Direction, Policy
from perfbisect.core.inference.observations import Skipped
from perfbisect.core.search.decide import decide
from perfbisect.wording.quantities import percent, ratio
from perfbisect.wording.verdicts import REASONS, exit_status, sentences, why

DROP = Interval(0.698, 0.712, 0.726)
SAME = Interval(0.991, 0.998, 1.005)
ADDED = "This commit adds 0.21 % instructions per operation; that it costs time is not shown: "


def commit_of(candidate: int) -> Commit:
    return Commit(f"{candidate:02d}" * 20, "2021-10-13", "A. Author", f"Change {candidate}")


def text(verdict: Verdict, metric: str = "qps") -> str:
    return "\n".join(sentences(verdict, commit_of, metric))


def test_found_names_culprit_change_and_proof() -> None:
    step = Step(7, 0.974, DROP, (6,))
    assert [exit_status(verdict) for verdict in (Found(step), Several((step,)))] == [0, 0]
    assert sentences(Found(step), commit_of, "qps") == (
        "The culprit is 0707070707 (2021-10-13, “Change 7”): 97 % sure.",
        "QPS after it is 0.712 (0.698–0.726) of what it was before it: a drop of 29 %.",
        "Proven against 0606060606, its parent, with runs taken in turns.",
    )


@pytest.mark.parametrize(("same", "said"), [(True, "executes the same"), (False, "does not execute"), (None, "")])
def test_code_placement_is_a_verdict_of_its_own(same: bool | None, said: str) -> None:
    step = Step(7, 0.974, DROP, (6,), layouts=Layouts(SAME, 7, 3))
    verdict = CodePlacement(step, SAME, 0.021, same)
    lines = text(verdict)
    assert lines.startswith(
        "Code placement: 0707070707 (2021-10-13, “Change 7”) changes QPS with the usual layout only"
    )
    assert "QPS was lower in 3 of 7 layouts: 0.998" in lines
    assert "A change of 2.1 % or more would have been detected." in lines
    assert said in lines
    assert ("instructions" in lines) is (same is not None)
    assert exit_status(verdict) == 1


@pytest.mark.parametrize(
    ("step", "part"),
    [
        (Step(7, 0.97, DROP, (5, 4, 3)), "against 0505050505, 0404040404 and 0303030303, its parents"),
        (Step(7, 0.97, DROP, ()), "not proven against them"),
        (Step(7, 0.97, DROP, (3,), (3,)), "against 0303030303, its nearest tested ancestor in place of"),
        (
            Step(7, 0.97, DROP, (5, 3), (3,)),
            "against 0505050505, its parent, and 0303030303, its nearest tested ancestor in place of a parent",
        ),
        (
            Step(7, 0.97, DROP, (6,), layouts=Layouts(DROP, 5, 5)),
            "QPS was lower in 5 of 5 layouts: 0.712 (0.698–0.726).",
        ),
        (
            Step(7, 0.97, DROP, (6,), prior=4.0),
            "Its prior probability was 4 times that of an ordinary commit",
        ),
    ],
)
def test_found_names_parents_stand_ins_and_the_prior(step: Step, part: str) -> None:
    assert part in text(Found(step))


def test_several_lists_every_change_and_its_effect_on_each_host_class() -> None:
    rise = Step(3, 0.99, Interval(1.04, 1.05, 1.06), (2,))
    step = Step(7, 0.96, DROP, (6,), effects=(Effect("x86", DROP, False), Effect("arm", SAME, True)))
    said = sentences(Several((rise, step)), commit_of, "cpu/o")
    assert said[0] == "2 changes of cpu/o in the range, oldest first:"
    assert said[1] == "  0303030303 (2021-10-13, “Change 3”): a rise of 5.0 %, 1.050 (1.040–1.060), 99.0 % sure."
    assert [line.split(":")[0] for line in said[3:]] == ["    On x86", "    On arm"]
    assert said[4].endswith("bad against good.")


def test_improvements_are_listed_apart_and_are_no_culprits() -> None:
    rise = Step(3, 0.99, Interval(1.04, 1.05, 1.06), (2,))
    said = sentences(Several((Step(7, 0.96, DROP, (6,)),), (rise,)), commit_of, "qps")
    assert said[0] == "One change of QPS in the range, oldest first:"
    assert said[2] == "One improvement:"
    only = Several((), (rise,))
    assert sentences(only, commit_of, "qps")[0] == "No change of QPS for the worse was found in the range."
    assert exit_status(only) == 1


@pytest.mark.parametrize(
    ("verdict", "parts", "not_said"),
    [
        pytest.param(
            NotReproduced(SAME, 0.021),
            ("0.998 (0.991–1.005)", "A change of 2.1 % or more would have been detected", "longer runs",
             "the change is older: bisect run OLDER 0000000000"),
            (),
            id="alike",
        ),
        pytest.param(
            NotReproduced(Interval(1.0, 1.0, 1.0), 0.0),
            ("good and bad are the same binary",), ("longer runs",), id="the same binary",
        ),
        pytest.param(
            NotReproduced(Interval(1.05, 1.10, 1.15), 0.02, least=0.02, direction=Direction.DROP),
            ("a rise of 10 %", "swapped", "use --direction rise"),
            ("not shown to differ", "layout", "--min-effect"),
            id="the other way",
        ),
        pytest.param(
            NotReproduced(Interval(0.95, 0.97, 0.99), 0.02, least=0.02, direction=Direction.DROP),
            ("no more than noise or code layout can cause.",), (), id="layout",
        ),
        pytest.param(
            Inconclusive((1, 2), (0.5, 0.5), Interval(0.0, 1.0, math.inf), Reason.BAD_UNMEASURABLE),
            ("The ratio of bad to good is not known.",), ("inf",), id="ends that were not measured",
        ),
    ],
)  # fmt: skip
def test_what_is_said_without_a_culprit(verdict: Verdict, parts: tuple[str, ...], not_said: tuple[str, ...]) -> None:
    said = text(verdict)
    assert not [part for part in parts if part not in said]
    assert not [part for part in not_said if part in said]
    assert exit_status(verdict) == (2 if isinstance(verdict, Inconclusive) else 1)


@pytest.mark.parametrize(
    ("middle", "least", "option"),
    [
        (1.0119, 0.02, "0.8%"),
        (0.98001, 0.02, "1%"),
        (1.0005, 0.002, "0.03%"),
        (0.85, 0.2, "10%"),
        (1.0019, 0.002, "0.1%"),
    ],
)
def test_a_change_below_the_threshold_comes_with_the_option_that_hunts_it(
    middle: float, least: float, option: str
) -> None:
    way = Direction.DROP if middle < 1 else Direction.RISE
    said = text(NotReproduced(Interval(middle - 1e-6, middle, middle + 1e-6), 1e-5, least=least, direction=way))
    assert f"less than the smallest change of interest, {percent(least)} (--min-effect)" in said
    assert said.endswith(f"to hunt it, use --min-effect {option}.")
    assert not [word for word in ("--direction", "layout", "swapped") if word in said]


def test_a_small_change_of_the_other_direction_needs_both_options() -> None:
    other = NotReproduced(Interval(1.00049, 1.0005, 1.00051), 1e-5, least=0.002, direction=Direction.DROP)
    said = text(other)
    assert "less than the smallest change of interest" in said and said.endswith("--direction rise --min-effect 0.03%.")
    tiny = replace(other, ratio=Interval(0.99995, 0.99996, 0.99997))
    assert text(tiny).endswith("(--min-effect), and too small to be hunted.") and "use" not in text(tiny)


@pytest.mark.parametrize(
    ("reason", "detail", "sentence"),
    [
        (Reason.RUNS_SPENT, 8.0, "the budget of 8 runs is used up"),
        (Reason.MINUTES_SPENT, 1.5, "the budget of 1.5 minutes is used up"),
        (
            Reason.MERGE_BASE,
            MergeBase("ab", "cd", Inconclusive((), (), SAME, Reason.RUNS_SPENT, detail=9.0)),
            (
                "the merge base ab is not shown to be as fast as good cd: QPS of good is 0.998 (0.991–1.005) of that of the"
                " merge base, and the budget of 9 runs is used up"
            ),
        ),
    ],
)
def test_inconclusive_gives_the_set_and_the_reason(
    reason: Reason, detail: float | MergeBase | str, sentence: str
) -> None:
    said = sentences(Inconclusive((5, 6), (0.6, 0.38), DROP, reason, detail=detail), commit_of, "qps")
    assert said[0] == f"Inconclusive: {sentence}."
    assert said[2:] == (
        "The culprit is one of these 2 commits, 98 % sure:",
        "    60 %  0505050505 (2021-10-13, “Change 5”)",
        "    38 %  0606060606 (2021-10-13, “Change 6”)",
    )


def test_every_reason_has_a_sentence() -> None:
    for reason in Reason:
        detail = {
            Reason.MERGE_BASE: MergeBase("ab", "cd", Inconclusive((), (), SAME, Reason.TOO_NOISY)),
        }
        assert why(Inconclusive((), (), SAME, reason, detail=detail.get(reason)), "qps")


def test_without_a_measured_end_there_are_no_suspects() -> None:
    order = decide(Graph.line(9), [Skipped(9, 5.0)], Policy()).order
    assert isinstance(order, Inconclusive)
    assert sentences(order, commit_of, "qps") == (
        "Inconclusive: the bad end cannot be measured.",
        "The ratio of bad to good is not known.",
        "No commit can be named.",
    )


def test_inconclusive_sums_up_a_long_list() -> None:
    said = sentences(Inconclusive(tuple(range(1, 41)), (0.025,) * 40, DROP, Reason.BUILDS_SPENT), commit_of, "qps")
    assert len(said) == 3 + 10 + 1
    assert said[-1] == "    75 %  the 30 others together"


def test_undecided_subranges_are_listed_and_are_no_success() -> None:
    step = Step(7, 0.96, DROP, (6,))
    stretch = Unsettled(8, 11, Inconclusive((9, 10, 11), (0.4, 0.3, 0.28), DROP, Reason.UNBUILDABLE))
    spent = Unsettled(11, 20, Inconclusive((), (), SAME, Reason.BUILDS_SPENT))
    unknown = Unsettled(20, 30, Inconclusive((), (), Interval(0.0, 1.0, math.inf), Reason.BUILDS_SPENT))
    verdict = Several((step,), (), (stretch, spent, unknown), 0.034)
    assert exit_status(verdict) == 2
    why = f"a drop of 29 %, {ratio(DROP)}; {REASONS[Reason.UNBUILDABLE]}"
    assert sentences(verdict, commit_of, "qps")[2:] == (
        "3 subranges could not be searched completely and may contain more changes:",
        f"  after 0808080808, up to 1111111111: {why}; if it is one change, one of these 3, 98 % sure:",
        "      40 %  0909090909 (2021-10-13, “Change 9”)",
        "      30 %  1010101010 (2021-10-13, “Change 10”)",
        "      28 %  1111111111 (2021-10-13, “Change 11”)",
        "  after 1111111111, up to 2020202020: no change shown, 0.998 (0.991–1.005); the budget of builds is used up.",
        "  after 2020202020, up to 3030303030: not measured; the budget of builds is used up.",
        "Elsewhere, a change of 3.4 % or more would have been detected.",
        "What would help: a recipe or a --patch with which these commits build; --retry-failed, if the host was the cause.",
    )
    assert exit_status(Several((), (), (spent,))) == 2


def test_a_single_culprit_is_conditional_where_more_than_one_change_is_likely() -> None:
    one = Inconclusive((5, 6), (0.6, 0.38), DROP, Reason.BUILDS_SPENT, several=0.2)
    assert "The culprit is one of these 2 commits, 98 % sure:" in text(one)
    more = text(replace(one, several=0.9))
    assert "Probably more than one commit made the difference." in more
    assert "If it is a single commit, it is one of these 2 commits, 98 % sure:" in more
    assert "The culprit is" not in more


def test_a_culprit_at_which_the_build_system_changes_says_so() -> None:
    systems = {5: "autotools", 6: "make", 7: "cmake"}

    def said(verdict: Verdict) -> str:
        return "\n".join(sentences(verdict, commit_of, "qps", lambda candidate: systems.get(candidate, "")))

    changed = (
        "The build changed at this commit too, from {} to cmake: a part of the change may come from other compiler"
    )
    assert changed.format("make") in said(Found(Step(7, 0.97, DROP, (6,))))
    assert changed.format("autotools and make") in said(Found(Step(7, 0.97, DROP, (5, 6))))
    assert changed.format("make") in said(Several((Step(7, 0.97, DROP, (6,)),)))
    assert "The build changed" not in said(Found(Step(7, 0.97, DROP, (4,)))), "that parent was built by commands"
    assert "The build changed" not in said(Found(Step(7, 0.97, DROP, ())))
    systems[6] = "cmake"
    assert "The build changed" not in said(Found(Step(7, 0.97, DROP, (6,))))


@pytest.mark.parametrize(
    ("qps", "begins"),
    [
        (
            Interval(0.93, 0.95, 0.97),
            "QPS confirms it: after it QPS is 0.950 (0.930–0.970) of what it was before it, a drop",
        ),
        (
            Interval(0.93, 0.99, 1.05),
            f"{ADDED}QPS after it is 0.990 (0.930–1.050) of what it was before it, and varies too much.",
        ),
        (Interval(0.498, 1.767, 6.283), f"{ADDED}QPS after it is 1.767"),
        (Interval(0.999, 1.001, 1.003), "QPS does not confirm it: after it QPS is 1.001"),
        (Interval(1.03, 1.05, 1.07), "QPS gets better nevertheless: after it QPS is 1.050"),
        (None, f"{ADDED}its effect on QPS was not measured; `bisect compare`"),
    ],
)
def test_what_the_culprit_does_to_qps(qps: Interval | None, begins: str) -> None:
    rise = Interval(1.00211, 1.00213, 1.00215)
    said = sentences(Found(Step(7, 0.97, rise, (6,))), commit_of, "instructions/o", speed_of=lambda _: qps)
    assert said[1].startswith(
        "instructions/o after it is 1.00213 (1.00211–1.00215) of what it was before it: a rise of 0.21"
    )
    assert said[2].startswith(begins)
    assert len(sentences(Found(Step(7, 0.97, DROP, (6,))), commit_of, "qps", speed_of=lambda _: qps)) == 3
