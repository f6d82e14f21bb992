"""Checks of a host before it measures: one module for each subject, each check a generator of findings."""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import msgspec

from perfbisect.host.facts import Answers
from perfbisect.host.protocol import Host
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.workload import Workload


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    NOTE = "note"  # costs some precision or some time
    WARNING = "warning"  # may distort results; shown before every hunt
    REFUSED = "refused"  # nothing meaningful can be measured


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about a host, and the command or the step that fixes it."""

    level: Level
    topic: str
    text: str
    advice: str = ""


NOTHING = Answers({})
ok, note, warning, refused = (partial(Finding, level) for level in Level)


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What a host is checked for: measurements of ``metric``, or only builds; of which system, if that is known."""

    host: Host
    entry: HostEntry
    metric: str = "qps"
    builder: Builder | None = None
    variant: str = ""  # of the builder; "" is the recipe's own choice
    workloads: tuple[Workload, ...] | None = None  # that may be run; None when unknown
    notes: bool = True  # also what takes a while and never is a problem
    answers: Answers = NOTHING  # of the host so far
    system: str = ""  # "debian", "ubuntu", "fedora", or "" when it is not known

    @property
    def name(self) -> str:
        """The host's name."""
        return self.host.name

    @classmethod
    def to_build(cls, host: Host, entry: HostEntry, builder: Builder | None, variant: str) -> "CheckRequest":
        """What a host is checked for that builds for others: nothing is run there."""
        alone = msgspec.structs.replace(entry, build_hosts=[], server_cpus="", client_cpus="")
        built = msgspec.structs.replace(builder, server=None) if builder else None
        return cls(host, alone, builder=built, variant=variant, workloads=())
