"""What earlier hunts in the history provide to a new one."""

from dataclasses import replace

from perfbisect.core.domain.facts import SkipFacts
from perfbisect.core.domain.settings import Settings
from perfbisect.store.history import History
from perfbisect.store.prior_data import read_costs, read_failures, read_noise

REMEMBERED = 30 * 86400.0  # seconds for which a failed build is not tried again


def with_prior_knowledge(history: History, settings: Settings) -> Settings:
    """The settings with the noise of a run and the cost of a build, from earlier hunts on hosts of the first one's class."""
    prior, each = settings.prior, on_each_like_first(settings)
    costs = next((known for one in each if (known := read_costs(history, one)).build and known.run), None)
    if costs and costs.build and costs.run:
        prior = replace(prior, build_cost=costs.build / costs.run)
    noise = next((noise for one in each if (noise := read_noise(history, one)) is not None), None)
    return replace(settings, prior=replace(prior, noise=noise))


def known_failures(history: History, settings: Settings, now: float) -> tuple[SkipFacts, ...]:
    """Builds that failed in earlier hunts on hosts of the first one's class."""
    found = {
        facts.commit: facts
        for one in on_each_like_first(settings)
        for facts in read_failures(history, one, now - REMEMBERED)
    }
    return tuple(found.values())


def on_each_like_first(settings: Settings) -> list[Settings]:
    """The settings with each host of the first one's class as the only host, the first one first."""
    classes = settings.prior.host_classes or ("",)
    alike = (name for name, one in zip(settings.hosts, classes, strict=True) if one == classes[0])
    return [replace(settings, host=name, further_hosts=()) for name in alike]
