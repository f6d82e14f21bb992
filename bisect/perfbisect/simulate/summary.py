"""What simulated hunts tell somebody who plans a real one, as lines of text."""

from collections.abc import Iterator

from perfbisect.simulate.judge import Account
from perfbisect.simulate.tally import Chance, Spent, Tally


def summary(tally: Tally) -> Iterator[str]:
    """A table of what hunts spend, and how they end."""
    yield f"{'':<22}{'a hunt':>10}{'9 in 10 need':>16}"
    yield _spent("builds", tally.builds)
    yield _spent("runs", tally.runs)
    yield _spent("hours", tally.hours)
    yield ""
    yield _chance("right", tally.right)
    yield _chance("inconclusive, honest", tally.honest)
    yield _chance("wrong", tally.wrong)
    yield ""
    named = tally.right_if_named
    if tally.steps is not None:
        yield from _of_all(tally.steps)
    elif tally.named.middle == 0:
        yield "No hunt named a commit."
    else:
        told = f" and was stated as {_percent(tally.stated)}" if tally.stated == tally.stated else ""
        yield f"A commit that is named is the right one in {_percent(named.middle)} of the hunts{told}."


def _of_all(steps: Account) -> Iterator[str]:
    """What became of every change."""
    not_named = steps.unsettled + steps.unseen + steps.missed
    if sum_of_them := steps.right + not_named:
        told = (steps.right, steps.unsettled, steps.unseen, steps.missed)
        named, unsettled, unseen, missed = (_percent(part / sum_of_them) for part in told)
        yield (
            f"Of the changes of --min-effect or more, {named} are named; {unsettled} lie in pieces told to be open,"
            f" {unseen} are smaller than what is told to be visible, {missed} are missed."
        )
    if accused := steps.right + steps.wrong:
        yield f"Of {accused} commits named, {steps.wrong} changed nothing that is worth a name."


def _spent(name: str, spent: Spent) -> str:
    return f"{name:<22}{_number(spent.mean):>10}{'up to ' + _number(spent.most):>16}"


def _chance(name: str, chance: Chance) -> str:
    return f"{name:<22}{_percent(chance.middle):>10}{f'{_percent(chance.low)} to {_percent(chance.high)}':>16}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _percent(share: float) -> str:
    """Without digits that a few hundred hunts cannot give."""
    return f"{100 * share:.0f} %"
