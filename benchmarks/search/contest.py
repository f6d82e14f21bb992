"""The rules that are compared, and one hunt by one of them in one cell."""

import hashlib
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path

from bayesect import bayesect
from cells import Cell
from rules import git_bisect, ours

import perfbisect
from perfbisect.core.domain.settings import PriorKnowledge
from perfbisect.simulate.tally import JudgedHunt, SearchRule, judged_hunt_of_seed

ORACLE = (1, 2, 3, 5, 8, 12, 20, 30, 50, 75, 100)  # repeats of git bisect, of which the best is chosen afterwards
BEST = "git bisect, best R"
OURS, KNOWN = "ours", "ours, noise known"
RULES: Mapping[str, SearchRule] = {
    OURS: ours,
    KNOWN: ours,
    "git bisect R=1": git_bisect(1),
    "git bisect R=3": git_bisect(3),
    "git bisect R=5": git_bisect(5),
    "git_bayesect": bayesect,
    **{f"git bisect R={repeats}": git_bisect(repeats) for repeats in ORACLE},
}
PEER_FILES = {"git bisect": "../rules.py", "git_bayesect": "bayesect.py"}
MAIN = tuple(name for name in RULES if not name.startswith("git bisect R=") or name[-3:] in ("R=1", "R=3", "R=5"))


def is_ours(name: str) -> bool:
    """Whether it is `bisect run`."""
    return RULES.get(name) is ours


def takes_part(cell: Cell, name: str) -> bool:
    """Whether a rule plays a cell: the noise is known beforehand only where a goal needs that."""
    return name != KNOWN or (cell.group == "grid" and 1.5 <= cell.separation < 3.5)


def play(cell: Cell, name: str, seed: int) -> JudgedHunt:
    """One hunt. Only `bisect run` uses several hosts."""
    habits = cell.scenario.habits
    prior = PriorKnowledge(cell.build, habits.noise if name == KNOWN else None, exact=cell.exact)
    rule = partial(ours, hosts=cell.hosts, prior=prior) if is_ours(name) else RULES[name]
    return judged_hunt_of_seed(cell.scenario, seed, rule, cell.policy)


@cache
def version(name: str) -> str:
    """A fingerprint of the code that this rule's results depend on; computed once, as files may be edited meanwhile."""
    package, here = Path(perfbisect.__file__).parent, Path(__file__).parent
    files = [
        *sorted((package / "simulate").glob("*.py")),
        here.parent / "shapes.py",
        here / "cells.py",
        here / "credit.py",
    ]
    if is_ours(name):
        files += sorted((package / "core").rglob("*.py"))
    files += [here / file for start, file in PEER_FILES.items() if name.startswith(start)]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:12]
