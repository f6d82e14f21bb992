"""Which hunts of a batch begin next, and on which hosts. Pure.

A host measures for one hunt at a time. Hunts begin in their order in the file, and a later one only on hosts that no
earlier one waits for: so each hunt begins at some time. Where a hunt has a choice of hosts, the first choice is one on which
hunts of its range have been built: they share their builds there. A hunt whose range is at home on a busy host
leaves a free one to a range without a home, and takes it only if no such range waits.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Waiting:
    """A hunt that has not begun."""

    number: int
    choices: tuple[tuple[str, ...], ...]  # it measures on all hosts of one of these
    range: str  # equal for hunts that can share builds


def next_ones(
    waiting: Sequence[Waiting], busy: Collection[str], homes: Mapping[str, Collection[tuple[str, ...]]]
) -> list[tuple[int, tuple[str, ...]]]:
    """The hunts that begin now, by number, each with its hosts.

    ``busy`` are hosts in use, ``homes`` the hosts that hunts of each range have used.
    """
    taken, begun = set(busy), list[tuple[int, tuple[str, ...]]]()
    known = {name: set(places) for name, places in homes.items()}
    for share in (True, False):
        held = set(taken)  # also what earlier ones wait for
        for one in waiting:
            if any(number == one.number for number, _ in begun):
                continue
            home = known.setdefault(one.range, set())
            wanted = [hosts for hosts in one.choices if not home or hosts in home] if share else list(one.choices)
            free = [hosts for hosts in wanted if held.isdisjoint(hosts)]
            if free:
                hosts = min(free, key=lambda each: each not in home)
                begun.append((one.number, hosts))
                home.add(hosts)
                taken |= set(hosts)
                held |= set(hosts)
            elif len(one.choices) == 1:
                held |= set(one.choices[0])
    return begun
