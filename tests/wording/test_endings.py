"""The texts of every kind of verdict that names no culprit, and of every kind of trial, from simulated sessions.

endings.txt has the texts, to be read as prose. Its numbers are not compared: the last digits of a hunt differ between
processors. To accept another wording, delete the file and run the test twice.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest
from shapes import older_branches

import sample_hunt as sample
from perfbisect.core.domain.events import Commit, SessionStarted
from perfbisect.core.domain.facts import SkipFacts, TrialRun, TrialSkip
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import UNKNOWN, Fleet, Found, Inconclusive, MergeBaseComparison, Reason, Verdict
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import (
    NOTHING_KNOWN,
    Policy,
    PriorKnowledge,
    RevertedCommits,
    TrialBuild,
    TrialRequest,
    TrialType,
    TrialWorkload,
)
from perfbisect.core.inference.observations import Observation, Skipped
from perfbisect.report.trial import document
from perfbisect.simulate.hunt import simulate_hunt
from perfbisect.simulate.scenario import Scenario
from perfbisect.simulate.world import HostModel, World
from perfbisect.wording.trials import proof_exit_status
from perfbisect.wording.verdicts import VerdictSentences
from pinned import pinned
from simulated_worlds import ImpatientWorld, decide

pytestmark = pytest.mark.calibration  # simulates whole hunts

LINE = Graph.straight_history(30)
QUIET, NOISY = HostModel(noise=0.005, layout=0.002, outliers=0.0), HostModel(noise=0.1, layout=0.005)
EXACT = PriorKnowledge(exact=True)
COUNTS = HostModel(noise=1e-5, layout=0.0, outliers=0.0)
OLDER = Graph.from_parents([(), (), (1,), *((v,) for v in range(2, 20))], branch_points=1)  # a branch older than good
TWO = older_branches(100, 2)
HOLE = range(11, 16)
IMPATIENT = ImpatientWorld(
    Graph.straight_history(20), {6: math.log(0.3), 14: -3.0}, HostModel(0.01, layout=0.002), seed=4
)
NO_HOST = {"prior": PriorKnowledge(host_classes=("old", "new")), "fleet": Fleet(gone=(0, 1), hosts=2)}

Ended = tuple[Verdict, int]  # a verdict, and the size of the range


def ended(world: World, policy: Policy = Policy(), prior: PriorKnowledge = NOTHING_KNOWN) -> Ended:  # noqa: B008
    return simulate_hunt(world, policy, prior).verdict, len(world.graph.candidates)


def on_line(
    steps: dict[int, float],
    habits: HostModel = QUIET,
    policy: Policy = Policy(),  # noqa: B008
    graph: Graph = LINE,
    broken: Iterable[int] = (),
    **more: Any,
) -> Ended:
    """The verdict of a hunt for ``steps``, on a straight history unless ``graph`` is another graph."""
    return ended(World(graph, steps, habits, unbuildable=frozenset(broken), **more), policy)


def drop(size: float, habits: HostModel, seed: int, commits: int = 30, **policy: Any) -> Ended:
    return on_line({min(7, commits): -size}, habits, Policy(**policy), Graph.straight_history(commits), seed=seed)


def left_out() -> Ended:
    """A hunt in which the user left out the commits that do not build."""
    outcome = simulate_hunt(World(LINE, {12: -0.1}, QUIET, unbuildable=frozenset(HOLE)), Policy())
    seen = (replace(each, left_out=True) if isinstance(each, Skipped) else each for each in outcome.observations)
    return decided([*seen])


def decided(seen: Sequence[Observation], **more: Any) -> Ended:
    order = decide(LINE, seen, Policy(), **more).order
    assert isinstance(order, Inconclusive)
    return order, 30


def merge_base() -> Ended:
    known, _ = drop(0.03, NOISY, 1, commits=1, max_runs=6)
    assert isinstance(known, Inconclusive)
    detail = MergeBaseComparison("0a0a0a0a0a", "0b0b0b0b0b", known)
    return Inconclusive((), (), UNKNOWN, Reason.MERGE_BASE, detail=detail), 30


def every(steps: dict[int, float], budget: int = 0, broken: Iterable[int] = ()) -> Ended:
    """A hunt for all changes, by exact counts of instructions."""
    world = World(LINE, steps, COUNTS, seed=1, unbuildable=frozenset(broken))
    return ended(world, Policy(all_steps=True, max_builds=budget), EXACT)


FEW = Policy(min_effect=0.001)
HUNTS: dict[str, Callable[[], Ended]] = {
    "alike": lambda: on_line({}, seed=3),
    "alike, exact counts": lambda: ended(World(LINE, {}, COUNTS, seed=3), FEW, EXACT),
    "the same binary": lambda: on_line({}, graph=Graph.straight_history(1), binaries={1: 0}),
    "the other way": lambda: on_line({20: 0.2}, seed=3),
    "smaller than asked for": lambda: drop(0.02, QUIET, 2, min_effect=0.05),
    "code placement": lambda: on_line(
        {}, policy=Policy(layouts=True), mode_gap=0.15, slow_modes=frozenset(range(17, 31)), seed=1
    ),
    "an improvement only": lambda: every({9: 0.15}),
    "several, and a subrange left open": lambda: every({5: -0.1, 12: -0.1}, broken=HOLE),
    "several, and the budget": lambda: every({5: -0.1, 12: -0.2, 20: -0.1}, 12),
    "nothing named, and a subrange left open": lambda: every({12: -0.1}, broken=HOLE),
    "commits that do not build": lambda: on_line({12: -0.1}, broken=HOLE),
    "one parent that does not build": lambda: on_line(
        {7: -0.1}, HostModel(noise=0.005, layout=0.01), broken={6}, seed=5
    ),
    "commits left out": left_out,
    "not confirmed": lambda: drop(0.15, HostModel(noise=0.3, layout=0.005), 3),
    "too noisy": lambda: drop(0.05, NOISY, 6),
    "by chance": lambda: drop(0.03, HostModel(noise=0.01, layout=0.01), 0, commits=1),
    "layout tie": lambda: drop(0.04, HostModel(noise=0.005, layout=0.02), 2),
    "many steps": lambda: ended(Scenario(LINE, changes="slope", habits=COUNTS).world(3), FEW, EXACT),
    "an unknown branch point": lambda: on_line(
        {3: -0.06}, graph=TWO, older_branch_changes={1: -0.05, 2: 0.04}, broken={1, 2}
    ),
    "what bad does not contain": lambda: on_line({}, graph=OLDER, older_branch_changes={1: -0.05}),
    "good does not build": lambda: on_line({}, broken={0}),
    "bad does not build": lambda: on_line({}, broken={30}),
    "no host": lambda: decided([], **NO_HOST),
    "stopped runs": lambda: ended(IMPATIENT, Policy(slow_after=5.0)),
    "runs spent": lambda: drop(0.2, QUIET, 5, max_runs=12),
    "runs spent at the ends": lambda: drop(0.05, HostModel(noise=0.05), 0, commits=15, max_runs=6),
    "nothing measured": lambda: drop(0.2, QUIET, 5, max_runs=1),
    "builds spent": lambda: drop(0.2, QUIET, 5, max_builds=4),
    "builds spent, several changes": lambda: on_line({7: -0.1, 20: -0.1}, policy=Policy(max_builds=5), seed=1),
    "minutes spent": lambda: drop(0.2, QUIET, 5, max_minutes=60.0),
    "merge base": merge_base,
}


def commit_of(candidate: int) -> Commit:
    return Commit(f"{candidate:02d}" * 20, "2021-10-13", "A. Author", f"Change {candidate}")


def of_size(size: int) -> SessionState:
    commits = tuple(commit_of(node).sha for node in range(size + 1))
    begun = SessionStarted(1, sample.HOST, resumed=False, candidates=commits)
    return SessionState(started=begun, commits=(*commits, "of a branch", "of another"))


def trial(kind: TrialType, *rates: Sequence[float], state: str = "done", failure: str = "") -> SessionState:
    """A trial with one run of each build in each round. The builds of a proof: good, bad, the revert."""
    names = ["1.0", "1.1", "1.1 without cc"][: {TrialType.NOISE: 1, TrialType.COMPARE: 2}.get(kind, 3)]
    request = TrialRequest(
        kind, "demo", "o2nofp", "local", "qps", {}, tuple(TrialBuild(name, name * 10, key=name) for name in names),
        (TrialWorkload("scan", "scan", 1.0, 10.0),), len(rates), 1, RevertedCommits(7, ("c" * 40,)),
    )  # fmt: skip
    runs = [
        TrialRun(number, 0, build, 1.0, 1.0, sample.run(0, 1.0, qps=rate))
        for number, round_ in enumerate(rates)
        for build, rate in enumerate(round_)
    ]
    return SessionState.of_trial(5, request, sample.HOST, 0.0, state, runs=runs, failure=failure)


def near(*levels: float) -> SessionState:
    """A trial of four rounds with a noise of about 1 %. ``levels``: the true rate of each build."""
    noise = (0.99, 1.012, 1.0, 1.003)
    kind = list(TrialType)[len(levels) - 1]
    each = [noise, (*noise[1:], noise[0]), (*noise[2:], *noise[:2])]
    return trial(kind, *([level * each[place][n] for place, level in enumerate(levels)] for n in range(4)))


def broken(session: SessionState, *, built: bool) -> SessionState:
    if built:
        session.skips.append(TrialSkip(0, 1, 1.0, SkipFacts("1.1", "run", "it crashed", "/log", 1.0)))
        return session
    first, second, *others = session.request.subjects
    request = replace(session.request, subjects=(first, replace(second, trouble="a.c:1: error"), *others))
    return replace(session, request=request, runs=[run for run in session.runs if run.subject != 1])


def costs() -> SessionState:
    """A proof in which the culprit doubles CPU time, a metric of which less is better."""
    session = trial(TrialType.PROVE, *[(1, 1, 1)] * 3)
    for run, milliseconds in zip(session.runs, (1000.0, 2000.0, 1000.0) * 3, strict=True):
        run.facts.counters["task-clock"] = milliseconds + run.round
    return replace(session, request=replace(session.request, metric="cpu/o"))


FAILED = {"state": "failed", "failure": "no room on /"}
PROOFS: dict[str, tuple[int, SessionState]] = {  # exit status, trial
    "a part is regained": (0, near(1000, 500, 900)),
    "all is regained": (0, near(1000, 500, 1000)),
    "more is regained": (0, near(1000, 500, 2000)),
    "nothing is regained": (1, near(1000, 500, 500)),
    "it makes things worse": (1, near(1000, 500, 300)),
    "nothing was lost": (1, near(1000, 1001, 900)),
    "a gain is taken back": (0, near(500, 1000, 500)),
    "a rise is lost": (0, costs()),
    "an unclear proof": (2, trial(TrialType.PROVE, (1000, 900, 800), (1000, 905, 1100))),
    "too few rounds": (2, trial(TrialType.PROVE, (1000, 500, 1000))),
    "a proof without bad": (2, broken(near(1000, 500, 900), built=False)),
    "a proof of a crash": (2, broken(trial(TrialType.PROVE, (1000, 500, 900)), built=True)),
    "a proof that failed": (2, trial(TrialType.PROVE, **FAILED)),
}
OTHERS = {
    "slower": near(1000, 900),
    "no difference": near(1000, 1001),
    "a build that cannot be compared": broken(near(1000, 900), built=False),
    "a comparison that failed": trial(TrialType.COMPARE, **FAILED),
    "an A/A": near(1000),
    "an A/A of one run": trial(TrialType.NOISE, (1000,)),
    "an A/A that failed": trial(TrialType.NOISE, **FAILED),
}


def test_texts_of_all_endings_equal_endings_txt() -> None:
    ends = {name: end() for name, end in HUNTS.items()}
    assert {type(verdict) for verdict, _ in ends.values()} == {*get_args(Verdict)} - {Found}
    assert {outcome.reason for outcome, _ in ends.values() if isinstance(outcome, Inconclusive)} == set(Reason)
    rendered = {
        name: VerdictSentences(of_size(size), commit_of).sentences(verdict) for name, (verdict, size) in ends.items()
    }
    assert [name for name, lines in rendered.items() if not lines[-1].startswith("Try next: ")] == []
    trials = {name: made for name, (_, made) in PROOFS.items()} | OTHERS
    rendered |= {name: document(made).summary for name, made in trials.items()}
    blocks = (f"{name}\n{''.join(f'  {line}{chr(10)}' for line in lines)}" for name, lines in rendered.items())
    pinned("wording/endings.txt", "\n".join(blocks), lambda text: re.sub(r"\d[\d.,]*", "#", re.sub(" +", " ", text)))


def test_exit_status_of_a_proof_follows_from_its_outcome() -> None:
    assert {name: proof_exit_status(made) for name, (_, made) in PROOFS.items()} == {
        name: status for name, (status, _) in PROOFS.items()
    }
