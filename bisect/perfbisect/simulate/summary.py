"""The results of simulated hunts as lines of text."""

from collections.abc import Iterator

from perfbisect.simulate.judge import Account
from perfbisect.simulate.tally import Chance, Spent, Tally


def summary(tally: Tally, *, ahead: bool = False) -> Iterator[str]:
    """A table of the costs of hunts and of their verdicts; ``ahead``: with the builds that were made ahead in vain."""
    yield f"{'':<22}{'a hunt':>10}{'9 in 10 need':>16}"
    yield _spent("builds", tally.builds)
    if ahead and tally.unused and tally.cancelled:
        yield _spent("  never measured", tally.unused)
        yield _spent("builds ended early", tally.cancelled)
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
        stated = f" and was stated as {_percent(tally.stated)}" if tally.stated == tally.stated else ""
        yield f"A commit that is named is the right one in {_percent(named.middle)} of the hunts{stated}."


def _of_all(steps: Account) -> Iterator[str]:
    """How many changes were named, left open, or missed."""
    not_named = steps.unsettled + steps.unseen + steps.missed
    if total := steps.right + not_named:
        counts = (steps.right, steps.unsettled, steps.unseen, steps.missed)
        named, unsettled, unseen, missed = (_percent(count / total) for count in counts)
        yield (
            f"Of the changes of --min-effect or more, {named} are named; {unsettled} lie in subranges that are left open,"
            f" {unseen} are smaller than the verdict says would have been seen, {missed} are missed."
        )
    if named_in_all := steps.right + steps.wrong:
        yield f"Of {named_in_all} named commits, {steps.wrong} changed too little or nothing."


def _spent(name: str, spent: Spent) -> str:
    return f"{name:<22}{_number(spent.mean):>10}{'up to ' + _number(spent.most):>16}"


def _chance(name: str, chance: Chance) -> str:
    return f"{name:<22}{_percent(chance.middle):>10}{f'{_percent(chance.low)} to {_percent(chance.high)}':>16}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _percent(share: float) -> str:
    """A share without digits that a few hundred hunts cannot show."""
    return f"{100 * share:.0f} %"
