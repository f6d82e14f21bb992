"""The search in a diff with known builds and speeds: the named parts, their proof, and the number of builds."""

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.core.domain.facts import DiffPart
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.settings import Policy
from perfbisect.core.search.parts import CommitDiff, DiffPiece, FileDiff, Round, ordered_parts, part_rounds, singles
from perfbisect.hunt.patches import first_and_last_suspect, needs_from_error
from perfbisect.simulate.hunt import simulate_hunt
from perfbisect.simulate.world import HostModel, World

State = frozenset[int]
QUIET = HostModel(noise=0.005, layout=0.002, outliers=0.0)


def diff(files: Collection[tuple[str, int]], needs: dict[int, set[int]] | None = None) -> CommitDiff:
    """A diff of files, given as path and number of parts. A part calls the functions of the parts that it needs."""
    paths = [path for path, size in files for _ in range(size)]
    number = {path: place for place, (path, _) in enumerate(files)}
    calls = needs or {}
    pieces = [
        DiffPiece(number[path], DiffPart(path, at + 1, at + 1),
              added=f"void f{at}(int a) {{\n" + "".join(f"  f{each}(1);\n" for each in sorted(calls.get(at, ()))) + "}\n")
        for at, path in enumerate(paths)
    ]  # fmt: skip
    return CommitDiff(tuple(FileDiff(None, None, by_lines=True) for _ in files), tuple(pieces))


@dataclass
class Course:
    """A search in a diff. ``builds`` and ``slow`` are the truth on each state (a set of parts)."""

    made: CommitDiff
    builds: Callable[[State], bool]
    slow: Callable[[State], bool]
    tried: dict[State, bool] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)

    def end(self) -> Round:
        """The last round."""
        rounds = part_rounds(self.made, defaultdict(set))
        try:
            asked = next(rounds)
            while True:
                self.rounds.append(asked)
                asked = rounds.send(self.answer(asked))
        except StopIteration:
            return self.rounds[-1]

    def answer(self, asked: Round) -> tuple[int, int] | None:
        """The steps around the first slow state, found by halving the steps. States that do not build are skipped."""
        states = asked.states
        assert not self.slow(states[0]) and self.slow(states[-1])
        assert self.builds(states[0]) and self.builds(states[-1])
        fast, slow = 0, len(states) - 1
        while left := sorted(range(fast + 1, slow), key=lambda at: abs(2 * at - fast - slow)):
            found = next((at for at in left if self.tried.setdefault(states[at], self.builds(states[at]))), None)
            if found is None:
                break
            fast, slow = (fast, found) if self.slow(states[found]) else (found, slow)
        return fast + 1, slow


@st.composite
def diffs(draw: st.DrawFn) -> tuple[CommitDiff, dict[int, set[int]], int]:
    """A diff whose parts need earlier parts, these needs, and the guilty part."""
    size = draw(st.integers(1, 24))
    drawn = Random(draw(st.integers(0, 9999)))
    needs = {at: {drawn.randrange(at) for _ in range(drawn.choice([0, 0, 1, 2])) if at} for at in range(size)}
    files, left = [], size
    while left:
        files.append((f"src/{len(files)}.c", min(left, drawn.randint(1, 6))))
        left -= files[-1][1]
    return diff(files, needs), needs, draw(st.integers(0, size - 1))


def closed(needs: dict[int, set[int]]) -> Callable[[State], bool]:
    """Whether a state has all parts that its parts need."""
    return lambda state: all(needs.get(each, set()) <= state for each in state)


@given(diffs())
def test_the_part_is_named_and_proven_both_ways(given: tuple[CommitDiff, dict[int, set[int]], int]) -> None:
    made, needs, guilty = given
    search = Course(made, closed(needs), lambda state: guilty in state)
    last = search.end()
    proven = last.proven or last.steps[0]
    assert proven == {guilty}
    if len(made.pieces) > 1:
        assert {guilty} <= last.alone == made.all_parts or closed(needs)(last.alone)
        assert last.states[-2] == made.all_parts - {guilty} or not closed(needs)(made.all_parts - {guilty})


@given(diffs(), st.integers(0, 5))
def test_order_has_each_part_once_after_the_parts_that_it_needs(
    given: tuple[CommitDiff, dict[int, set[int]], int], turn: int
) -> None:
    made, needs, _ = given
    parts = ordered_parts(made, singles(made.all_parts), turn)
    assert sorted(each for part in parts for each in part) == sorted(made.all_parts)
    place = {each: at for at, part in enumerate(parts) for each in part}
    assert all(place[each] < place[own] for own, those in needs.items() for each in those)


def test_order_has_build_files_and_headers_first_and_cycles_together() -> None:
    made = diff([("a.c", 1), ("b.c", 1), ("Makefile", 1), ("z.h", 1)], {0: {1}, 1: {0}})
    assert ordered_parts(made, singles(made.all_parts), 0) == ({2}, {3}, {0, 1})
    assert {*ordered_parts(made, singles(made.all_parts), 1)} == {frozenset({each}) for each in range(4)}


def test_parts_that_need_each_other_follow_the_parts_they_need() -> None:
    made = diff([("a.c", 2), ("b.c", 1), ("c.c", 1)], {0: {1}, 1: {0, 2, 3}})
    assert ordered_parts(made, singles(made.all_parts), 0) == ({2}, {3}, {0, 1})


def test_parts_that_are_slow_only_together_are_named_together() -> None:
    made = diff([(f"{at}.c", 2) for at in range(6)])
    last = Course(made, lambda _: True, lambda state: {3, 8} <= state).end()
    assert last.proven == {3, 8} and last.steps == (made.all_parts - {3, 8}, {3, 8})


def test_one_of_two_parts_that_are_each_slow_alone_is_named() -> None:
    """The last rounds show that the commit without the named part is slow, too."""
    made = diff([(f"{at}.c", 2) for at in range(6)])
    search = Course(made, lambda _: True, lambda state: bool({3, 8} & state))
    last = search.end()
    assert last.proven in ({3}, {8}) and last.steps[-1] == last.proven
    assert search.rounds[-2].steps == (made.all_parts - last.proven, last.proven)


def test_parts_that_build_only_together_are_named_together() -> None:
    made = diff([("a.c", 3), ("b.c", 3)])
    search = Course(made, lambda state: len(state & {1, 3, 4}) in (0, 3), lambda state: 4 in state)
    assert search.end().proven == {1, 3, 4}


def test_missing_part_is_derived_from_the_compiler_error() -> None:
    """By the words in quotes, or by other words and names of files."""
    made = diff([("a.c", 2), ("b.c", 2), ("new.h", 1)], {3: {0}})
    assert needs_from_error(
        made, frozenset({1, 3}), "b.c:7: error: implicit declaration of function 'f0'; did you mean 'f1'"
    ) == {(3, 0)}
    assert needs_from_error(made, frozenset({3}), "undefined: f0") == {(3, 0)}
    assert needs_from_error(made, frozenset({3}), "undefined: f9") == set()
    learnt = defaultdict[int, set[int]](set)
    rounds = part_rounds(diff([("a.c", 3), ("b.c", 3)]), learnt)
    assert next(rounds).steps == ({0, 1, 2}, {3, 4, 5})
    learnt[2].add(4)
    assert rounds.send((1, 2)).steps == ({3, 4, 5}, {0, 1, 2}), "the needed part comes first"


def diff_of(size: int, seed: int) -> tuple[CommitDiff, dict[int, set[int]], int]:
    """A diff of ``size`` parts, their needs, of which 90 % are visible in their text, and the guilty part."""
    drawn = Random(seed)
    needs = {
        at: {drawn.randrange(max(0, at - 60), at) for _ in range(drawn.choice([0, 1, 1, 2])) if at}
        for at in range(size)
    }
    seen = {at: {each for each in those if drawn.random() < 0.9} for at, those in needs.items()}
    files, left = [], size
    while left:
        files.append((f"src/{len(files)}.{drawn.choice(['c', 'c', 'h'])}", min(left, drawn.randint(2, 30))))
        left -= files[-1][1]
    return diff(files, seen), needs, drawn.randrange(size)


def simulated(size: int, seed: int) -> tuple[int, bool]:
    """The number of builds of a search, and whether the search names the guilty part."""
    made, needs, guilty = diff_of(size, seed)
    builds = set[State]()

    def measured(asked: Round) -> tuple[int, int] | None:
        broken = frozenset(at for at, state in enumerate(asked.states) if not closed(needs)(state))
        slow = next(at for at, state in enumerate(asked.states) if guilty in state)
        world = World(Graph.straight_history(len(asked.steps)), {slow: -0.15}, QUIET, unbuildable=broken, seed=seed)
        verdict = simulate_hunt(world, Policy()).verdict
        builds.update(asked.states[at] for at in world.build_seconds)
        return first_and_last_suspect(verdict)

    search = Course(made, closed(needs), lambda state: guilty in state)
    search.answer = measured  # type: ignore[method-assign]
    proven = search.end().proven
    return len(builds - {frozenset(), made.all_parts}), proven == {guilty}


@pytest.mark.calibration
@pytest.mark.parametrize(("size", "most"), [(50, 14), (500, 14)])
def test_builds_of_a_search_grow_with_the_logarithm_of_the_parts(size: int, most: int) -> None:
    """In simulated hunts with noise. A tenth of the needs of parts is not visible in their text."""
    found = [simulated(size, seed) for seed in range(6)]
    spent, named = zip(*found, strict=True)
    assert median(spent) <= most
    assert max(spent) <= 40 and all(named)
