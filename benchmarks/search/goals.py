"""The goals and the results, pooled over the cells of each goal."""

import math
from collections.abc import Callable, Iterator, Mapping

from bounds import lower_bound
from cells import Cell
from contest import BEST, KNOWN, OURS, is_ours
from figures import geometric, how_often, is_right, of_favourites
from meeting import Meeting
from oracle import GOAL
from results import Played

from perfbisect.simulate.tally import JudgedHunt, mean

FEW = 20  # names below which the share of a single cell means little
PEERS = {"git_bayesect": (1.4, 1.5), BEST: (1.4, 1.4)}  # how much cheaper than each, if a build costs 1 run, and 10
DEARER = 1.2  # than any rule that is right as often
Row = tuple[str, str, str, str]
Hunts = list[tuple[Cell, JudgedHunt]]


def bound(cell: Cell) -> float:
    """The information bound of a cell, in runs."""
    scenario = cell.scenario
    return lower_bound(len(scenario.graph.candidates), scenario.log_drop, scenario.habits.noise, cell.build)


def goals(cells: Mapping[str, Cell], played: Played) -> Iterator[Row]:
    """Goal, wanted value, result, and number of hunts."""
    mine = hunts(cells, played, OURS)
    if not mine:
        return
    yield from _accuracy(mine)
    yield from _calibration(mine)
    yield from _sets(mine)
    yield from _costs(mine, hunts(cells, played, KNOWN))
    yield from _hardly_visible(mine)
    yield from _nothing(mine)
    yield from _cheaper(cells, played)
    yield from _never_dearer(cells, played)


def hunts(cells: Mapping[str, Cell], played: Played, rule: str) -> Hunts:
    """All hunts by one rule, with their cells."""
    return [(cell, t) for name, cell in cells.items() for t in played.get((name, rule), {}).values()]


def _accuracy(mine: Hunts) -> Iterator[Row]:
    accused = [(c, t) for c, t in mine if t.named]
    yield "right, if named: pooled", "≥ .99", *_share(accused, is_right)
    by_class: dict[str, list[JudgedHunt]] = {}
    for cell, trial in accused:
        by_class.setdefault(_class(cell), []).append(trial)
    worst = sorted((how_often(of, is_right).middle, name) for name, of in by_class.items())
    for share, name in [(s, n) for s, n in worst if s < 0.95] or worst[:1]:
        few = "" if len(by_class[name]) >= FEW else ", hardly ever named"
        yield f"right, if named: {name}{few}", "≥ .95", f"{share:.3f}", str(len(by_class[name]))


def _class(cell: Cell) -> str:
    """Each world, and the four conditions of the grid."""
    return cell.name if cell.group == "world" else f"grid/…/{cell.name.rpartition('/')[2]}"


def _calibration(mine: Hunts) -> Iterator[Row]:
    worst = [(stated - right.middle, right, name, n) for name, n, stated, right in of_favourites(t for _, t in mine)]
    for gap, right, name, n in sorted(worst, reverse=True, key=lambda entry: entry[0])[:3]:
        seen = f"{100 * gap:+.1f} (right {right.middle:.3f}, {right.low:.3f} to {right.high:.3f})"
        yield f"points over-confident, stated {name}", "≤ 2", seen, str(n)


def has_culprit(cell: Cell) -> bool:
    """Whether a set can be right: not on a slope, which has no culprit."""
    return cell.scenario.changes != "slope"


def _sets(mine: Hunts) -> Iterator[Row]:
    """Sets of suspects, in each world with a budget and everywhere."""
    stated = [(c, t) for c, t in mine if t.together is not None and has_culprit(c)]
    budgets = dict.fromkeys(c.name for c, _ in mine if c.name.startswith("world/budget"))
    named = {name: [(c, t) for c, t in stated if c.name == name] for name in budgets}
    for name, some in [*named.items(), ("everywhere", stated)]:
        if some:
            stated = mean(t.together or 0.0 for _, t in some)
            title = f"undecided, the culprit is among the suspects: {name.removeprefix('world/')}"
            yield title, f"≥ {stated - 0.02:.3f} (stated {stated:.3f})", *_share(some, lambda t: t.held)


def _costs(mine: Hunts, known: Hunts) -> Iterator[Row]:
    """Against the bound; where noise matters, the goal is for hosts whose noise is known."""
    for low, high, limits, of_known in ((3.5, math.inf, (1.25, 1.6), False), (1.5, 3.5, (1.7, 2.7), True)):
        for build, limit in zip((10.0, 1.0), limits, strict=True):
            for title, of, wanted in (("", mine, not of_known), (", noise known", known if of_known else [], True)):
                plain = [(c, t) for c, t in of if c.group == "grid" and low <= c.separation < high and c.build == build]
                steady = [(c, t) for c, t in plain if c.name.endswith("steady,plain")]
                for what, some in (("", plain), (", one change on a steady host", steady)):
                    if some:
                        span = f"D/s ≥ {low:g}" if high == math.inf else f"D/s {low:g} to {high:g}"
                        name = f"cost/LB, {span}, B = {build:g}{title}{what}"
                        yield name, f"≤ {limit:g}" if wanted else "", f"{_over_bound(some):.2f}", str(len(some))


def _over_bound(of: Hunts) -> float:
    """Geometric mean over cells of mean cost by bound."""
    by_cell: dict[Cell, list[float]] = {}
    for cell, trial in of:
        by_cell.setdefault(cell, []).append(trial.cost)
    return geometric(mean(costs) / bound(cell) for cell, costs in by_cell.items())


def _hardly_visible(mine: Hunts) -> Iterator[Row]:
    weak = [(c, t) for c, t in mine if 0.9 <= c.separation < 1.2 and c.scenario.changes != "nothing"]
    if weak:
        yield "D/s = 1: named", "≥ .85", *_share(weak, lambda t: t.named)
        yield "D/s = 1: right, if named", "≥ .95", *_share([(c, t) for c, t in weak if t.named], is_right)


def _nothing(mine: Hunts) -> Iterator[Row]:
    for name in dict.fromkeys(c.name for c, _ in mine if c.scenario.changes == "nothing"):
        empty = [(c, t) for c, t in mine if c.name == name]
        title = name.removeprefix("world/")
        yield f"{title}: named", "≤ .01", *_share(empty, lambda t: t.named)
        yield f"{title}: mean runs", "≤ 30", f"{mean(t.runs for _, t in empty):.0f}", str(len(empty))


def _cheaper(cells: Mapping[str, Cell], played: Played) -> Iterator[Row]:
    """Cost over the core of the grid; geometric mean of the ratios of the means.

    Cells where no number of repeats is right are left out, as the choice of the oracle is arbitrary there.
    """
    core = [cell for cell in cells.values() if cell.group == "grid" and cell.core]
    for peer, factors in PEERS.items():
        for build, wanted in zip((1.0, 10.0), factors, strict=True):
            met = [m for cell in core if cell.build == build and (m := Meeting.of(cell, played, peer))]
            some = [m for m in met if peer != BEST or m.theirs >= GOAL]
            if some:
                ours, theirs = mean(m.ours for m in some), mean(m.theirs for m in some)
                seen = f"{geometric(m.ratio for m in some):.1f}× ({ours:.3f} right, they {theirs:.3f})"
                name = f"cheaper than {peer}, B = {build:g}{', where it is right' if peer == BEST else ''}"
                yield name, f"≥ {wanted:g}×", seen, f"{len(some)} cells"


def _never_dearer(cells: Mapping[str, Cell], played: Played) -> Iterator[Row]:
    """Each rule where it is right in 95 % of the hunts; without several hosts, and ranges of one commit."""
    rules = dict.fromkeys(rule for _, rule in played if not is_ours(rule))
    if BEST in rules:
        rules = {rule: None for rule in rules if not rule.startswith("git bisect R=")}
    fair = [cell for cell in cells.values() if cell.hosts == 1 and cell.scenario.graph.size > 2]
    for peer in rules:
        met = [m for cell in fair if (m := Meeting.of(cell, played, peer))]
        if fit := [m for m in met if m.theirs >= GOAL]:
            worst = min(fit, key=lambda m: m.ratio)
            above = sum(1 / m.ratio > DEARER for m in fit)
            seen = f"{1 / worst.ratio:.2f}× in {worst.cell.name}; above in {above} of {len(fit)}"
            yield f"never dearer than {peer}, where it is right", f"≤ {DEARER:g}×", seen, f"{len(fit)} cells"


def _share(of: Hunts, what: Callable[[JudgedHunt], bool]) -> tuple[str, str]:
    chance = how_often([t for _, t in of], what)
    return f"{chance.middle:.3f} ({chance.low:.3f} to {chance.high:.3f})", str(len(of))
