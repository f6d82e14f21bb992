"""What earlier hunts teach one that is about to begin."""

from dataclasses import replace

from perfbisect.core.domain.facts import SkipFacts
from perfbisect.core.domain.settings import Settings
from perfbisect.store.history import History

REMEMBERED = 30 * 86400.0  # seconds for which a failed build is not tried again


def experienced(history: History, settings: Settings) -> Settings:
    """The settings with what earlier hunts on the host, or on one like it, teach: how noisy a run is, and how many runs
    a build costs.
    """
    prior, each = settings.prior, like_the_first(settings)
    costs = next((known for one in each if (known := history.costs(one)).build and known.run), None)
    if costs and costs.build and costs.run:
        prior = replace(prior, build_cost=costs.build / costs.run)
    noise = next((noise for one in each if (noise := history.noise(one)) is not None), None)
    return replace(settings, prior=replace(prior, noise=noise))


def failures_before(history: History, settings: Settings, now: float) -> tuple[SkipFacts, ...]:
    """Builds that failed in earlier hunts, on the host or on one like it."""
    found = {
        facts.commit: facts
        for one in like_the_first(settings)
        for facts in history.build_failures(one, now - REMEMBERED)
    }
    return tuple(found.values())


def like_the_first(settings: Settings) -> list[Settings]:
    """The settings for each host of the first one's class alone, the first one's before the others."""
    classes = settings.prior.host_classes or ("",)
    alike = (name for name, its in zip(settings.hosts, classes, strict=True) if its == classes[0])
    return [replace(settings, host=name, further_hosts=()) for name in alike]
