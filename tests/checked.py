"""Fitness checks to make histories of."""

import math
from dataclasses import replace

import sample_hunt as sample
from perfbisect.core.domain.events import RunFinished, TrialEnded, TrialStarted
from perfbisect.core.domain.settings import Settings, TrialBuild, TrialRequest, TrialType, TrialWorkload
from perfbisect.core.stats.fitness import fitness_facts
from perfbisect.store.history import History
from perfbisect.store.listing import FITNESS_CHECK

SHAPE = (-1.5, -0.5, -0.1, 0.1, 0.5, 1.5)  # of the runs of a check; their s.d. is 1.006
DAY = 86400.0


def write(
    history: History,
    host: str,
    day: float,
    level: float = 1.0,
    *,
    noise: float = 0.005,
    node: str = "",
    key: str = "key-1",
    settings: Settings = sample.SETTINGS,
    ended: bool = True,
    name: str = FITNESS_CHECK,
) -> int:
    """A check of a host, or of the node behind it, on a day; its level is relative to 20,000 QPS."""
    at = sample.BEGAN + DAY * day
    builds, works = (TrialBuild("1.0", "a" * 40, key=key),), (TrialWorkload("update-index", "all", 1.0, 10.0, "hash"),)
    request = TrialRequest(TrialType.NOISE, "engine", "o2nofp", host, "qps", {}, builds, works, len(SHAPE), 1)
    facts = replace(sample.HOST, name=host, settings={"node": node} if node else {})
    number = history.begin_trial(replace(settings, host=host, name=name), request, facts, at)
    history.append(number, TrialStarted(number, request, facts, resumed=False), at)
    for place, each in enumerate(SHAPE):
        run = sample.run(0, at + 10 * place, qps=20_000 * level * math.exp(noise * each))
        history.append(number, RunFinished(0, run, round=place), at + 10 * place)
    if ended:
        history.append(number, TrialEnded(fitness_facts(history.read_trial(number))), at + 100)
    return number


def write_fall(history: History, host: str, *, node: str = "", settings: Settings = sample.SETTINGS) -> None:
    """Checks of six days, with a lower level in the last two."""
    for day in range(6):
        write(history, host, day, 0.9 if day > 3 else 1.0, node=node, settings=settings)
