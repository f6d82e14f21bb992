"""Names of leased hosts: ``slurm:quiet`` is a machine with the feature quiet, leased by the commands of ``[leases.slurm]``.

``slurm:quiet*3`` are three of them, which are called ``slurm:quiet/1`` and so on.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from perfbisect.errors import UsageError

MOST = 1000  # machines of one name
_NAME = re.compile(r"([\w.-]+):([\w.,&|=:+()!-]*)(?:\*([0-9]{1,4})|/([0-9]{1,4}))?")


@dataclass(frozen=True, slots=True)
class LeaseName:
    """What a name says."""

    lease: str  # of hosts.toml
    features: str  # as the scheduler takes them; "": any machine
    count: int = 1

    @property
    def kind(self) -> str:
        """The class of all machines with these features, and what their names begin with."""
        return f"{self.lease}:{self.features}"


def parse(name: str) -> LeaseName | None:
    """What the name of a leased host says; None for the name of another."""
    found = _NAME.fullmatch(name)
    return LeaseName(found[1], found[2], int(found[3] or 1)) if found else None


def expanded(names: Iterable[str]) -> tuple[str, ...]:
    """The names with ``*3`` as three names. Raises UsageError for a number that is none."""
    every: list[str] = []
    for name in names:
        said = parse(name)
        if said is None or "*" not in name:
            every.append(name)
        elif not 1 <= said.count <= MOST:
            raise UsageError(f"{name} are {said.count} hosts, but 1 to {MOST} can be leased.")
        else:
            every += [f"{said.kind}/{number}" for number in range(1, said.count + 1)]
    return tuple(every)
