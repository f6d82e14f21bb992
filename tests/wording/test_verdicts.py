"""The sentences and the exit status of each kind of verdict.

Whole verdicts are compared with verdicts.txt. To accept changed sentences, delete the file and run the test twice.
"""

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import numpy as np

from perfbisect.core.domain.events import Commit, PairingChosen
from perfbisect.core.domain.facts import BuildFacts, SkipFacts
from perfbisect.core.domain.orders import (
    Belief,
    ClassEffect,
    CodePlacement,
    Found,
    Inconclusive,
    Interval,
    LayoutRatios,
    NotReproduced,
    Reason,
    Several,
    Step,
    UnsettledRange,
    Verdict,
)
from perfbisect.core.domain.settings import ChangeDirection
from perfbisect.wording.quantities import low_to_high, ratio, ratio_or_bound, stopped_run
from perfbisect.wording.verdicts import VerdictSentences, effect, exit_status
from pinned import pinned

if TYPE_CHECKING:
    from perfbisect.core.domain.session_state import SessionState

DROP = Interval(0.698, 0.712, 0.726)
SAME = Interval(0.991, 0.998, 1.005)
RISE = Interval(1.04, 1.05, 1.06)
TINY = Interval(1.00211, 1.00213, 1.00215)
STEP = Step(7, 0.974, DROP, (6,))
HOW = ((2, "cmake", "bench/b"), (4, "", ""), (5, "autotools", ""), (6, "make", "b"), (7, "cmake", "o/b"))
BUILDS = {  # candidate → how it was built, and the file that it runs; others by commands
    node: BuildFacts("", "", "", 0.0, 0, 0, False, "", system, programs={"bin/b": (path,)} if path else {})
    for node, system, path in HOW
}
NOT_SKIPPED = SimpleNamespace(skip=None)
UNBUILDABLE = Inconclusive((9, 10, 11), (0.4, 0.3, 0.28), DROP, Reason.UNBUILDABLE)
SPENT = Inconclusive((), (), SAME, Reason.BUILDS_SPENT)
UNKNOWN = Inconclusive((), (), Interval(0.0, 1.0, math.inf), Reason.BUILDS_SPENT)
TWO = Inconclusive((5, 6), (0.6, 0.38), DROP, Reason.BUILDS_SPENT, several=0.2)


@dataclass(frozen=True)
class Told:
    """A verdict with its exit status, and how it was reached."""

    status: int
    verdict: Verdict
    metric: str = "qps"
    built: bool = False
    qps: Interval | str | None = ""  # the step's ratio of QPS or of the usual metric; None: not measured
    usual: str = "qps"
    by_cpu: bool = False


def below(middle: float, least: float, way: ChangeDirection | None = None) -> NotReproduced:
    """A change that is too small to be hunted, or of the other direction."""
    usual = ChangeDirection.DROP if middle < 1 else ChangeDirection.RISE
    return NotReproduced(Interval(middle - 1e-6, middle, middle + 1e-6), 1e-5, least=least, direction=way or usual)


OF_METRICS = {
    "qps": {
        "QPS confirms": Interval(0.93, 0.95, 0.97),
        "QPS varies": Interval(0.93, 0.99, 1.05),
        "QPS varies wildly": Interval(0.498, 1.767, 6.283),
        "QPS does not confirm": Interval(0.999, 1.001, 1.003),
        "QPS gets better": Interval(1.03, 1.05, 1.07),
    },
    "latency": {
        "latency confirms": Interval(1.02, 1.05, 1.08),
        "latency does not confirm": Interval(0.999, 1.001, 1.002),
        "latency gets better": Interval(0.92, 0.95, 0.98),
    },
}
SMALL = {"1.2 %": (1.0119, 0.02), "2 %": (0.98001, 0.02), "0.05 %": (1.0005, 0.002), "15 %": (0.85, 0.2)}
EFFECTS = (ClassEffect("x86", DROP, False), ClassEffect("arm", SAME, True))
OPEN = (UnsettledRange(8, 11, UNBUILDABLE), UnsettledRange(11, 20, SPENT), UnsettledRange(20, 30, UNKNOWN))
VERDICTS = {
    "found": Told(0, Found(STEP)),
    "in all layouts": Told(0, Found(replace(STEP, layouts=LayoutRatios(DROP, 5, 5)))),
    "in most layouts": Told(0, Found(replace(STEP, layouts=LayoutRatios(DROP, 19, 15, 36)))),
    "by CPU time": Told(0, Found(replace(STEP, layouts=LayoutRatios(DROP, 5, 5), together=True)), by_cpu=True),
    "against three parents": Told(0, Found(replace(STEP, parents=(5, 4, 3)))),
    "against none": Told(0, Found(replace(STEP, parents=()))),
    "against a stand-in": Told(0, Found(replace(STEP, parents=(3,), stand_ins=(3,)))),
    "against a parent and a stand-in": Told(0, Found(replace(STEP, parents=(5, 3), stand_ins=(3,)))),
    "suspected path": Told(0, Found(replace(STEP, prior=4.0))),
    **{
        name: Told(0, Found(replace(STEP, ratio=TINY)), "instructions/o", qps=ratio, usual=usual)
        for usual, ratios in OF_METRICS.items()
        for name, ratio in ratios.items()
    },
    "QPS unknown": Told(0, Found(replace(STEP, ratio=TINY)), "instructions/o", qps=None),
    "of QPS itself": Told(0, Found(STEP), qps=SAME),
    "the build changed": Told(0, Found(STEP), built=True),
    "another file of the build is run": Told(0, Found(replace(STEP, parents=(2,))), built=True),
    "the build changed from two": Told(0, Found(replace(STEP, parents=(5, 6))), built=True),
    "the parent was built by commands": Told(0, Found(replace(STEP, parents=(4,))), built=True),
    "the build changed at one of several": Told(0, Several((STEP,)), built=True),
    "code placement, same counts": Told(1, CodePlacement(STEP, SAME, 0.021, True)),
    "code placement, other counts": Told(1, CodePlacement(STEP, SAME, 0.021, False)),
    "several": Told(0, Several((Step(3, 0.99, RISE, (2,)), replace(STEP, effects=EFFECTS))), "cpu/o"),
    "one and an improvement": Told(0, Several((STEP,), (Step(3, 0.99, RISE, (2,)),))),
    "parts left open": Told(2, Several((STEP,), (), OPEN, 0.034)),
    "the same binary": Told(1, NotReproduced(Interval(1.0, 1.0, 1.0), 0.0)),
    "the other way": Told(
        1, NotReproduced(Interval(1.05, 1.10, 1.15), 0.02, least=0.02, direction=ChangeDirection.DROP)
    ),
    "no more than layout": Told(
        1, replace(below(0.97, 0.02, ChangeDirection.DROP), ratio=Interval(0.95, 0.97, 0.99), detectable=0.02)
    ),
    **{f"small, {name}": Told(1, below(*of)) for name, of in SMALL.items()},
    "small and the other way": Told(1, below(1.0005, 0.002, ChangeDirection.DROP)),
    "too small": Told(1, below(0.99996, 0.002, ChangeDirection.DROP)),
    "ends that were not measured": Told(2, replace(TWO, ratio=UNKNOWN.ratio, reason=Reason.BAD_UNMEASURABLE)),
    "probably several": Told(2, replace(TWO, several=0.9)),
    "many suspects": Told(2, replace(TWO, candidates=tuple(range(1, 41)), probabilities=(0.025,) * 40)),
}


def commit_of(candidate: int) -> Commit:
    return Commit(f"{candidate:02d}" * 20, "2021-10-13", "A. Author", f"Change {candidate}")


def teller_of(metric: str = "qps", usual: str = "qps", **known: Any) -> VerdictSentences:
    """The sentences about a hunt whose state has only the values ``known``."""
    state = {
        "id": 7,
        "pairing": None,
        "belief": None,
        "started": None,
        "hosts_if_several": (),
        "latest_build": lambda _: None,
    }
    state |= {
        "commits": ("",) * 1000,
        "runs_of_equal_binaries": lambda *_: [],
        "runs_of_step": lambda *_, counted: ([], []),
    }  # nothing is counted
    known = (
        state | {"facts_of": lambda _: NOT_SKIPPED, "chosen": SimpleNamespace(usual=usual), "metric": metric} | known
    )
    return VerdictSentences(cast("SessionState", SimpleNamespace(**known)), commit_of)


def said(told: Told) -> tuple[str, ...]:
    built = BUILDS.get if told.built else dict[int, BuildFacts]().get
    with patch("perfbisect.wording.verdicts.step_ratio_in_metric", lambda *_: told.qps or None):
        teller = teller_of(told.metric, told.usual, latest_build=built, pairing=PairingChosen(True, "", told.by_cpu))
        return teller.sentences(told.verdict)


def test_sentences_and_status_of_every_verdict() -> None:
    blocks = (f"{name}\n{''.join(f'  {line}{chr(10)}' for line in said(told))}" for name, told in VERDICTS.items())
    pinned("wording/verdicts.txt", "\n".join(blocks))
    statuses = {name: told.status for name, told in VERDICTS.items()}
    assert {name: exit_status(told.verdict) for name, told in VERDICTS.items()} == statuses


def test_sentence_says_if_other_commits_undo_most_of_the_change() -> None:
    told = []
    for each in ((1.12, 1.14, 1.16), (0.86, 0.88, 0.9), (1.7, 1.9, 2.1), (3.2, 3.3, 3.4), (1.1, 1.14, math.inf)):
        ends = Interval(*each)
        teller = teller_of("latency", belief=Belief(np.empty(0), 1.0, 0.01, ends))
        sentence = f"Other commits undo most of this change: latency of bad is {ratio(ends)} of latency of good."
        lines = teller.sentences(Found(replace(STEP, ratio=Interval(3.2, 3.3, 3.4))))
        told.append(sentence in lines)
        assert told[-1] or not [line for line in lines if "undo most" in line]
    assert told == [True, True, False, False, False]


def test_advice_depends_on_why_the_commits_were_skipped() -> None:
    for stages, why, next_ in (
        (("compile", "install"), "do not build.", "the failing commits build, with --patch"),
        (("run", "start"), "build, but fail when they run.", "the failing commits run, with --patch"),
        (("compile", "run"), "do not build, or fail when they run.", "the failing commits build and run, with --patch"),
    ):
        skips = {node: SkipFacts("", stage, "", "", 0.0) for node, stage in zip((9, 10), stages, strict=True)}
        skips[3] = SkipFacts("", "install", "", "", 0.0)  # of no candidate of the set
        rows = {commit_of(node).sha: SimpleNamespace(skip=skip) for node, skip in skips.items()}
        first, *_, last = teller_of(facts_of=lambda sha, rows=rows: rows.get(sha, NOT_SKIPPED)).sentences(UNBUILDABLE)
        assert why in first and next_ in last


# Ratios of which only one end is known: runs that were stopped.


def test_ratios_with_one_or_two_known_ends_are_formatted() -> None:
    less, more, known = Interval(0.0, 0.2, 0.204), Interval(4.92, 5.0, math.inf), Interval(0.7, 0.71, 0.72)
    for interval, short in ((less, "<0.204"), (more, ">4.920")):
        assert ratio(interval) == low_to_high(interval) == ratio_or_bound(interval) == short
    assert [effect(each, "qps") for each in (less, more)] == [
        "at least 4.90 times slower",
        "at least 4.92 times faster",
    ]
    assert effect(less, "latency") == "at least 4.90 times faster"
    assert effect(more, "latency") == "at least 4.92 times slower"
    assert (ratio(known), ratio_or_bound(known), effect(known, "qps")) == (
        "0.710 (0.700–0.720)",
        "0.710",
        "a drop of 29 %",
    )
    wild = Interval(3.54e-07, 0.56, 261_663_739.84)
    assert (low_to_high(wild), ratio(wild), low_to_high(Interval(0.0, 1.0, math.inf))) == ("–", "0.560 (–)", "–")
    assert ratio(Interval(98.0, 2160.4, 47_600.2)) == "2,160 (98.000–47,600)"
    assert stopped_run(5.0, 12.0) == "slower than 5 × good (stopped after 12 s)"
