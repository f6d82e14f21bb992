"""What a build took, in words."""

from perfbisect.core.domain.facts import BuildFacts, remote_rate
from perfbisect.wording.quantities import duration, share


def made(facts: BuildFacts) -> list[str]:
    """How a build came about: what it took, and what the compiler cache found."""
    if facts.shared:
        return [f"from the shared builds in {duration(facts.seconds)}"]
    if facts.reused:
        return ["an earlier build is used again"]
    return [duration(facts.seconds), *filter(None, [cached(facts.hit_rate, remote_rate([facts]))])]


def cached(rate: float | None, remote: float | None) -> str:
    """The share of compilations that ccache answered, and the share of these that its remote store did; "" without any."""
    if rate is None:
        return ""
    return f"ccache {share(rate)}" + (f", {share(remote)} of that remote" if remote else "")
