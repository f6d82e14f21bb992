"""Profiles of runs, with frames as they are stored."""

from collections.abc import Mapping

from perfbisect.core.domain.facts import ProfileFacts
from perfbisect.core.explain.profiles import frame

PERIOD = 2000.0  # microseconds between two samples


def stack(*functions: str, binary: str = "engine") -> str:
    """A stack of a program, outermost function first; "memcpy@libc.so.6" names another binary."""
    parts = (name.split("@") for name in functions)
    return ";".join(["engine", *(frame(name, *(rest or [binary])) for name, *rest in parts)])


def profile(
    commit: str, stacks: Mapping[tuple[str, ...], int], operations: int = 1000, period: float = PERIOD
) -> ProfileFacts:
    """A profile from the number of samples of each stack."""
    costs = {stack(*functions): number * period for functions, number in stacks.items()}
    return ProfileFacts(
        commit=commit,
        build_key="k",
        host="local",
        operations=operations,
        seconds=10.0,
        unit="us",
        stacks=costs,
        samples=sum(stacks.values()),
        event="cpu-clock:u",
        chains="fp",
    )
