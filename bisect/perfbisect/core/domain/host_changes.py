"""The differences of a machine since earlier runs, with which new ones are then not comparable."""

from collections.abc import Iterator

from perfbisect.core.domain.facts import HostFacts

LONGEST = 60  # characters of a value in a sentence


def differences(before: HostFacts, after: HostFacts) -> tuple[str, ...]:
    """A phrase for each difference: "its kernel was 6.1.0-18 and is 6.1.0-22".

    A fact that is missing on either side is no difference.
    """
    pairs = (pair for pair in _pairs(before, after) if pair[1] != pair[2] and all(pair))
    return tuple(f"its {what} was {short(was)} and is {short(now)}" for what, was, now in pairs)


def _pairs(before: HostFacts, after: HostFacts) -> Iterator[tuple[str, str, str]]:
    yield "processor", before.cpu, after.cpu
    yield "number of cores", str(before.cores), str(after.cores)
    yield "memory", f"{before.memory_mib:,} MiB", f"{after.memory_mib:,} MiB"
    yield "kernel", before.kernel, after.kernel
    yield "compiler", before.compiler, after.compiler
    for was, now in ((before.tools, after.tools), (before.settings, after.settings)):
        for name in sorted(was):
            yield name, was[name], now.get(name, "")


def short(text: str) -> str:
    """A value, cut to the length for a sentence."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1].rstrip()}…"
