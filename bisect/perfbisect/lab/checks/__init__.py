"""Checks of a host before measurements. Each module has the checks of one subject, and each check yields its
findings."""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import msgspec

from perfbisect.host.facts import FactAnswers
from perfbisect.host.protocol import Host
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.workload import Workload


class Severity(StrEnum):
    """How serious a finding is."""

    OK = "ok"
    NOTE = "note"  # costs some precision or some time
    WARNING = "warning"  # may distort results; shown before every hunt
    REFUSED = "refused"  # nothing meaningful can be measured


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence about a host, and a command or a step that solves the problem."""

    level: Severity
    topic: str
    text: str
    advice: str = ""


NOTHING = FactAnswers({})
ok, note, warning, refused = (partial(Finding, level) for level in Severity)


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """The subject of a host's check: measurements of ``metric``, or only builds; and the system that is built, if
    known."""

    host: Host
    entry: HostEntry
    metric: str = "qps"
    builder: Builder | None = None
    variant: str = ""  # variant of the builder; "": the variant that the recipe chooses
    workloads: tuple[Workload, ...] | None = None  # workloads that may be run; None if unknown
    notes: bool = True  # whether to run checks, too, that take a while and never find a problem
    answers: FactAnswers = NOTHING  # the facts of the host read so far
    system: str = ""  # "debian", "ubuntu", "fedora", or "" if unknown

    @property
    def host_name(self) -> str:
        """The host's name."""
        return self.host.name

    @classmethod
    def for_build_host(cls, host: Host, entry: HostEntry, builder: Builder | None, variant: str) -> "CheckRequest":
        """The check request for a host that only builds for other hosts: the host is not checked for measurements."""
        alone = msgspec.structs.replace(entry, build_hosts=[], server_cpus="", client_cpus="")
        built = msgspec.structs.replace(builder, server=None) if builder else None
        return cls(host, alone, builder=built, variant=variant, workloads=())
