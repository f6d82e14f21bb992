"""How often series of releases announce steps that are none, and how often sizes and places of steps are right.

    python benchmarks/series/run.py [--tables N] [--part none|orders|sizes|nights] > benchmarks/series/results.md

Simulated are visits of releases in rounds, in the order of a series, and the line is made of them as `bisect compare
--each-release` makes it. Noise and layout are standard deviations of a visit and of a release.
"""

import argparse
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from perfbisect.core.domain.trials import visiting_order
from perfbisect.core.stats.release_series import RATE, LevelStep, SpeedLine, speed_line
from perfbisect.core.stats.watched_branch import ROUNDS, BranchLevels, line_with_jumps, tips_to_measure_again

LONG = 20  # releases, where a table does not say it
Steps = Sequence[tuple[int, float]]  # first release with it, its size as a logarithm


@dataclass(frozen=True, slots=True)
class World:
    """What disturbs the levels."""

    name: str
    noise: float
    layout: float
    rounds: int = 4
    odd: float = 0.0  # how many builds have four times the layout
    phase: float = 0.0  # the machine is slower by this in one of five quarters of a round

    def line(
        self, chance: random.Random, releases: int, rate: float, steps: Steps = (), *, shuffled: bool = True
    ) -> SpeedLine:
        """One workload of a series."""
        layouts = [chance.gauss(0, self.layout * (4 if chance.random() < self.odd else 1)) for _ in range(releases)]
        for release in range(releases):
            layouts[release] += sum(size for first, size in steps if first <= release)
        visits: dict[int, dict[int, float]] = {release: {} for release in range(releases)}
        for number in range(self.rounds):
            slow = [self.phase * (chance.random() < 0.2) for _ in range(4)]
            for place, release in enumerate(visiting_order(range(releases), number, shuffled=shuffled)):
                machine = 0.1 * math.sin(number) - slow[4 * place // releases]
                visits[release][number] = layouts[release] + machine + chance.gauss(0, self.noise)
        return speed_line("", visits, releases, rate)


WORLDS = (
    World("noise of 1 %", 0.01, 0.0),
    World("noise of 1 %, layout of 0.5 %", 0.01, 0.005),
    World("noise of 1 %, layout of 2 %", 0.01, 0.02),
    World("noise of 10 %, layout of 1 %", 0.10, 0.01),
    World("one round: noise of 1 %, layout of 1 %", 0.01, 0.01, rounds=1),
    World("exact counts: noise of 0.001 %, no layout", 1e-5, 0.0, rounds=2),
    World("noise of 1 %, layout of 0.5 %, one build of 50 odd", 0.01, 0.005, odd=0.02),
    World("noise of 1 %, layout of 0.5 %, phases of 2 %", 0.01, 0.005, phase=0.02),
)


def none(tables: int) -> None:
    """Tables without a change, of which any step announced is false."""
    print("## Tables without a change\n")
    print("Of 100 tables, those in which any workload announces a step.\n")
    shapes = [(10, 5), (20, 1), (20, 15), (40, 5)]
    print("| world | " + " | ".join(f"{releases} × {works}" for releases, works in shapes) + " |")
    print("|---|" + "--:|" * len(shapes))
    for world in WORLDS:
        found = [percent(false_alarms(world, releases, works, tables), tables) for releases, works in shapes]
        print(f"| {world.name} | {' | '.join(found)} |", flush=True)
    print("\nA column is releases × workloads.\n")


def false_alarms(world: World, releases: int, works: int, tables: int) -> int:
    """The number of tables with a step."""
    chance = random.Random(releases * 100 + works)
    return sum(any(world.line(chance, releases, RATE / works).steps for _ in range(works)) for _ in range(tables))


def orders(tables: int) -> None:
    """What the order of visits does where the machine is slow for some time."""
    print("## The order of a round\n")
    print(
        f"{LONG} releases without a change, 4 rounds, noise of 0.5 %; the machine is slower in one of five quarters of a round. Of"
        " 100 series, those that announce a step.\n"
    )
    print("| slower by | in the order of versions, and back | in random order, and back |")
    print("|--:|--:|--:|")
    for phase in (0.0, 0.02, 0.05, 0.20):
        found = []
        for shuffled in (False, True):
            chance, world = random.Random(11), World("", 0.005, 0.0, phase=phase)
            lines = (world.line(chance, LONG, RATE, shuffled=shuffled) for _ in range(tables))
            found.append(percent(sum(bool(line.steps) for line in lines), tables))
        print(f"| {100 * phase:.0f} % | {' | '.join(found)} |", flush=True)
    print()


def sizes(tables: int) -> None:
    """Series with steps: how many are found, and what is right of those announced."""
    print("## Series with steps\n")
    print(
        f"{LONG} releases, noise of 1 %, layout of 0.5 %, 4 rounds: levels scatter by 0.7 %. `one`: a step at a place drawn at"
        " random; `last`: in the newest release; `undone`: a step, and back after two to four releases. Found: of the true"
        " steps. The other columns are of the steps announced that are within two releases of a true one: at the place itself;"
        " place and size in the set and the interval of 95 %. False: steps announced elsewhere, in 100 series.\n"
    )
    print("| size | where | found | at the place | in the set | in the interval | false |")
    print("|--:|---|--:|--:|--:|--:|--:|")
    places: dict[str, Callable[[random.Random], Sequence[int]]] = {
        "one": lambda chance: [chance.randrange(1, LONG)],
        "last": lambda _: [LONG - 1],
        "undone": lambda chance: [first := chance.randrange(1, LONG - 5), first + chance.randrange(2, 5)],
    }
    for size in (0.02, 0.03, 0.05, 0.10, 0.30):
        for name, drawn in places.items():
            print(f"| {100 * size:.0f} % | {name} | {' | '.join(judged(size, drawn, tables))} |", flush=True)


def judged(size: float, drawn: Callable[[random.Random], Sequence[int]], tables: int) -> list[str]:
    """The columns for steps of one size."""
    chance, world = random.Random(round(1000 * size)), WORLDS[1]
    true = found = exact = inside = covered = announced = false = 0
    for _ in range(tables):
        steps = [(first, math.log(1 - size) * (-1) ** number) for number, first in enumerate(drawn(chance))]
        line = world.line(chance, LONG, RATE, steps)
        true += len(steps)
        found += sum(any(near(step, *each) for step in line.steps) for each in steps)
        for step in line.steps:
            meant = [each for each in steps if near(step, *each)]
            false += not meant
            for first, change in meant[:1]:
                announced += 1
                exact += step.after == first
                inside += step.first < first <= step.last
                covered += step.size.low <= math.exp(change) <= step.size.high
    return [
        percent(found, true),
        *(percent(each, announced) for each in (exact, inside, covered)),
        percent(false, tables),
    ]


def near(step: LevelStep, first: int, size: float) -> bool:
    """Whether an announced step is this true one."""
    return abs(step.after - first) <= 2 and (step.size.middle > 1) == (size > 0)


def percent(part: int, whole: int) -> str:
    """A share in per cent."""
    return f"{100 * part / whole:.1f}" if whole else "–"


NIGHTS = 60
LEAST = 0.02  # --min-effect


@dataclass(slots=True)
class Nights:
    """A branch that is watched: its levels, and what its nights have measured so far."""

    world: World
    chance: random.Random
    levels: list[float]
    visits: dict[int, dict[int, float]] = field(default_factory=dict)
    searched: set[tuple[int, int, int]] = field(default_factory=set)

    def measure(self) -> None:
        """A night: the next tip with earlier ones, in rounds."""
        tip = len(self.visits)
        self.visits[tip] = {}
        for number in range(self.world.rounds):
            machine = self.chance.gauss(0, 0.05)
            for each in (*tips_to_measure_again(range(tip)), tip):
                x = self.levels[each] + machine + self.chance.gauss(0, self.world.noise)
                self.visits[each][tip * ROUNDS + number] = x

    def hunts(self) -> list[tuple[int, int]]:
        """The ranges that are hunted after the last night, in none of which a commit is named."""
        line = line_with_jumps("", self.visits, len(self.visits), RATE)
        found = BranchLevels((), (line,)).drop_ranges("qps", LEAST, self.searched)
        self.searched |= {(0, each.first, each.last) for each in found}
        return [(each.first, each.last) for each in found]


def watched(world: World, chance: random.Random, steps: Steps = ()) -> Nights:
    """A branch of so many nights."""
    layouts = [chance.gauss(0, world.layout * (4 if chance.random() < world.odd else 1)) for _ in range(NIGHTS)]
    return Nights(world, chance, [x + sum(s for first, s in steps if first <= at) for at, x in enumerate(layouts)])


def nights(tables: int) -> None:
    """A branch that is watched: hunts for nothing, and how soon drops are hunted."""
    print("## Watched branches\n")
    print(
        f"Lines of {NIGHTS} nights of 5 rounds, in which nothing changes: hunts that are begun in 1,000 nights for drops of"
        f" {100 * LEAST:.0f} %. The line is looked at after each night.\n"
    )
    print("| world | hunts |")
    print("|---|--:|")
    for world in (replace(world, rounds=5) for world in WORLDS if world.rounds == 4 and not world.phase):
        chance, begun = random.Random(7), 0
        for _ in range(tables):
            branch = watched(world, chance)
            for _ in range(NIGHTS):
                branch.measure()
                begun += len(branch.hunts())
        print(f"| {world.name} | {1000 * begun / tables / NIGHTS:.1f} |", flush=True)
    print("\nDrops in night 41, with noise of 1 %: of 100, those hunted by then, and some nights later.\n")
    after = (0, 1, 2, 4, 8)
    print(f"| layout | size | {' | '.join(f'+{each}' if each else 'at once' for each in after)} |")
    print("|--:|--:|" + "--:|" * len(after))
    for layout in (0.005, 0.01):
        for size in (0.02, 0.03, 0.05, 0.10):
            chance, soon = random.Random(9), dict.fromkeys(after, 0)
            for _ in range(tables):
                branch = watched(World("", 0.01, layout, rounds=5), chance, [(40, math.log(1 - size))])
                for _ in range(40):
                    branch.measure()
                seen = False
                for later in range(max(after) + 1):
                    branch.measure()
                    seen = seen or any(first < 40 <= last for first, last in branch.hunts())
                    if later in soon:
                        soon[later] += seen
            cells = " | ".join(percent(soon[each], tables) for each in after)
            print(f"| {100 * layout:.1f} % | {100 * size:.0f} % | {cells} |", flush=True)
    print()


PARTS = {"none": none, "orders": orders, "sizes": sizes, "nights": nights}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tables", type=int, default=300, help="simulated tables of each cell")
    parser.add_argument("--part", choices=PARTS)
    arguments = parser.parse_args()
    print(f"# Series of releases\n\n`python benchmarks/series/run.py --tables {arguments.tables}`\n")
    for name, part in PARTS.items():
        if arguments.part in (None, name):
            part(arguments.tables)


if __name__ == "__main__":
    main()
