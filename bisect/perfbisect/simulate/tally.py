"""Statistics of many simulated hunts: their costs, and how often they were right; and the same as lines of text."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from perfbisect.simulate.judge import Account, Judgement

Z = 1.96  # 95 %


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean; NaN without values."""
    known = list(values)
    return sum(known) / len(known) if known else math.nan


@dataclass(frozen=True, slots=True)
class Trial:
    """One hunt."""

    judgement: Judgement
    named: bool  # whether a culprit was named
    stated: float  # probability of the most probable candidate; NaN if none was stated
    favoured: bool  # whether that candidate is a culprit
    builds: int
    runs: int
    minutes: float
    cost: float  # in runs, without the builds of the two ends
    together: float | None = None  # stated probability of the set of an inconclusive hunt
    held: bool = False  # whether a culprit is in that set
    steps: Account | None = None  # of a hunt for every change
    unused: int = 0  # builds that were never measured
    cancelled: int = 0  # builds that were ended before they were finished; not among ``builds``


@dataclass(frozen=True, slots=True)
class Chance:
    """How often something happened, with its 95 % interval."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, times: int, trials: int) -> "Chance":
        """Wilson's interval for ``times`` in ``trials``; 0 to 1 without any."""
        if not trials:
            return cls(0.0, math.nan, 1.0)
        share, z = times / trials, Z * Z / trials
        middle = (share + z / 2) / (1 + z)
        half = math.sqrt(z * share * (1 - share) + z * z / 4) / (1 + z)
        return cls(min(max(0.0, middle - half), share), share, max(min(1.0, middle + half), share))


@dataclass(frozen=True, slots=True)
class Spent:
    """A quantity over all hunts: its mean, the standard error of that, and the most of nine hunts in ten."""

    mean: float
    error: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spent":
        """Of at least one value."""
        middle = mean(values)
        variance = sum((v - middle) ** 2 for v in values) / max(len(values) - 1, 1)
        return cls(middle, math.sqrt(variance / len(values)), sorted(values)[math.ceil(0.9 * len(values)) - 1])


@dataclass(frozen=True, slots=True)
class Tally:
    """Hunts of one scenario by one rule."""

    hunts: int
    right: Chance
    honest: Chance
    wrong: Chance
    named: Chance  # a culprit was named
    right_if_named: Chance
    stated: float  # mean stated probability of named culprits; NaN without any
    builds: Spent
    runs: Spent
    hours: Spent
    cost: Spent
    steps: Account | None = None  # of hunts for every change
    unused: Spent | None = None  # builds that were never measured
    cancelled: Spent | None = None  # builds that were ended before they were finished; not among ``builds``

    @classmethod
    def of(cls, trials: Iterable[Trial]) -> "Tally":
        """Raises ValueError without trials."""
        all_of_them = list(trials)
        if not all_of_them:
            raise ValueError("no hunt to add up")

        def how_often(judgement: Judgement, among: Sequence[Trial]) -> Chance:
            return Chance.of(sum(trial.judgement is judgement for trial in among), len(among))

        named = [trial for trial in all_of_them if trial.named]
        accounts = [trial.steps for trial in all_of_them if trial.steps is not None]
        return cls(
            hunts=len(all_of_them),
            right=how_often(Judgement.RIGHT, all_of_them),
            honest=how_often(Judgement.HONEST, all_of_them),
            wrong=how_often(Judgement.WRONG, all_of_them),
            named=Chance.of(len(named), len(all_of_them)),
            right_if_named=how_often(Judgement.RIGHT, named),
            stated=mean(trial.stated for trial in named if not math.isnan(trial.stated)),
            builds=Spent.of([trial.builds for trial in all_of_them]),
            runs=Spent.of([trial.runs for trial in all_of_them]),
            hours=Spent.of([trial.minutes / 60 for trial in all_of_them]),
            cost=Spent.of([trial.cost for trial in all_of_them]),
            steps=sum(accounts, Account()) if accounts else None,
            unused=Spent.of([trial.unused for trial in all_of_them]),
            cancelled=Spent.of([trial.cancelled for trial in all_of_them]),
        )


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
