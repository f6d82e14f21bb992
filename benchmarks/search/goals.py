"""What we have set ourselves, and where we are: pooled over the cells that a goal speaks of."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from bounds import lower_bound
from cells import Cell
from results import Played

from perfbisect.simulate.judge import Judgement
from perfbisect.simulate.tally import Chance, Trial

OURS, KNOWN = "ours", "ours, noise known"
BINS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.95, 0.97, 0.98, 0.99, 1.0)
FEW = 20  # accusations below which a cell of its own says little
PEERS = {"git_bayesect": 1.4, "Pinpoint": 6.2, "asv find R=10": 3.5}  # how much cheaper
Row = tuple[str, str, str, str]
Hunts = list[tuple[Cell, Trial]]


def bound(cell: Cell) -> float:
    """The information bound of a cell, in runs."""
    scenario = cell.scenario
    return lower_bound(scenario.graph.size - 1, scenario.drop, scenario.habits.noise, cell.build)


def bins(trials: Sequence[Trial]) -> Iterator[tuple[str, int, float, Chance]]:
    """Stated probabilities bin by bin: its name, hunts, mean stated, and how often the favourite is a culprit."""
    for low, high in pairwise(BINS):
        inside = [t for t in trials if low <= t.stated < high or t.stated == high == 1]
        if inside:
            stated = sum(t.stated for t in inside) / len(inside)
            yield f"{low:g} to {high:g}", len(inside), stated, Chance.of(sum(t.favoured for t in inside), len(inside))


def goals(cells: Mapping[str, Cell], played: Played) -> Iterator[Row]:
    """Goal, what was asked, what was seen, and in how many hunts."""
    mine = hunts(cells, played, OURS)
    known = hunts(cells, played, KNOWN)
    if not mine:
        return
    yield from _accuracy(mine)
    yield from _calibration(mine)
    for low, high, limits in ((3.5, math.inf, (1.25, 1.6)), (1.5, 3.5, (1.7, 2.7))):
        for build, limit in zip((10.0, 1.0), limits, strict=True):
            for title, of in (("", mine), (", noise known", known if high < math.inf else [])):
                plain = [(c, t) for c, t in of if c.group == "grid" and low <= c.separation < high and c.build == build]
                steady = [(c, t) for c, t in plain if c.name.endswith("steady,plain")]
                for kind, some in (("", plain), (", one change on a steady host", steady)):
                    if some:
                        span = f"D/s ≥ {low:g}" if high == math.inf else f"D/s {low:g} to {high:g}"
                        name = f"cost/LB, {span}, B = {build:g}{title}{kind}"
                        yield name, f"≤ {limit:g}", f"{_cost(some):.2f}", str(len(some))
    yield from _hardly_visible(mine)
    yield from _nothing(mine)
    yield from _peers(cells, played)


def hunts(cells: Mapping[str, Cell], played: Played, rule: str) -> Hunts:
    """All hunts by one rule, with their cells."""
    return [(cell, t) for name, cell in cells.items() for t in played.get((name, rule), {}).values()]


def _accuracy(mine: Hunts) -> Iterator[Row]:
    accused = [(c, t) for c, t in mine if t.named]
    yield "right, if named: pooled", "≥ .99", *_share(accused, _is_right)
    by_cell: dict[str, Hunts] = {}
    for cell, trial in accused:
        by_cell.setdefault(cell.name if cell.group == "world" else "grid", []).append((cell, trial))
    worst = sorted((Chance.of(sum(_is_right(t) for _, t in of), len(of)).middle, name) for name, of in by_cell.items())
    for share, name in [(s, n) for s, n in worst if s < 0.95] or worst[:1]:
        few = "" if len(by_cell[name]) >= FEW else ", hardly ever named"
        yield f"right, if named: {name}{few}", "≥ .95", f"{share:.3f}", str(len(by_cell[name]))


def _calibration(mine: Hunts) -> Iterator[Row]:
    worst = [(stated - right.middle, right, name, n)
             for name, n, stated, right in bins([t for _, t in mine if not math.isnan(t.stated)])]  # fmt: skip
    for gap, right, name, n in sorted(worst, reverse=True, key=lambda entry: entry[0])[:3]:
        seen = f"{100 * gap:+.1f} (right {right.middle:.3f}, {right.low:.3f} to {right.high:.3f})"
        yield f"points over-confident, stated {name}", "≤ 2", seen, str(n)


def _hardly_visible(mine: Hunts) -> Iterator[Row]:
    weak = [(c, t) for c, t in mine if 0.9 <= c.separation < 1.2 and c.scenario.changes != "nothing"]
    if weak:
        yield "D/s = 1: named", "≥ .85", *_share(weak, lambda t: t.named)
        yield "D/s = 1: right, if named", "≥ .95", *_share([(c, t) for c, t in weak if t.named], _is_right)


def _nothing(mine: Hunts) -> Iterator[Row]:
    for name in dict.fromkeys(c.name for c, _ in mine if c.scenario.changes == "nothing"):
        empty = [(c, t) for c, t in mine if c.name == name]
        title = name.removeprefix("world/")
        yield f"{title}: named", "≤ .01", *_share(empty, lambda t: t.named)
        yield f"{title}: mean runs", "≤ 30", f"{sum(t.runs for _, t in empty) / len(empty):.0f}", str(len(empty))


def _peers(cells: Mapping[str, Cell], played: Played) -> Iterator[Row]:
    """Cost in cells where a peer took part too, with the same seeds; geometric mean of the ratios of the means."""
    for peer, wanted in PEERS.items():
        both: list[tuple[float, float, float]] = []
        for name, cell in cells.items():
            ours, theirs = played.get((name, OURS), {}), played.get((name, peer), {})
            seeds = ours.keys() & theirs.keys()
            if seeds and cell.group == "grid":
                cost = [sum(of[s].cost for s in seeds) for of in (ours, theirs)]
                right = [sum(_is_right(of[s]) for s in seeds) / len(seeds) for of in (ours, theirs)]
                both.append((math.log(cost[1] / cost[0]), *right))
        if both:
            ratio, own, other = (sum(column) / len(both) for column in zip(*both, strict=True))
            seen = f"{math.exp(ratio):.1f}× ({own:.3f} right, they {other:.3f})"
            yield f"cheaper than {peer}", f"≥ {wanted:g}×", seen, f"{len(both)} cells"


def _is_right(trial: Trial) -> bool:
    return trial.judgement is Judgement.RIGHT


def _share(of: Hunts, what: Callable[[Trial], bool]) -> tuple[str, str]:
    chance = Chance.of(sum(what(t) for _, t in of), len(of))
    return f"{chance.middle:.3f} ({chance.low:.3f} to {chance.high:.3f})", str(len(of))


def _cost(of: Hunts) -> float:
    """Geometric mean over cells of mean cost by bound."""
    by_cell: dict[str, tuple[Cell, list[float]]] = {}
    for cell, trial in of:
        by_cell.setdefault(cell.name, (cell, []))[1].append(trial.cost)
    ratios = [sum(costs) / len(costs) / bound(cell) for cell, costs in by_cell.values()]
    return math.exp(sum(math.log(ratio) for ratio in ratios) / len(ratios))
