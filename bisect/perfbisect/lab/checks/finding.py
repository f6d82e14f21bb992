"""What a look at a host finds, and what it is looked at for."""

from dataclasses import dataclass
from enum import StrEnum

from perfbisect.errors import EnvironmentFailure
from perfbisect.host.facts import Answers
from perfbisect.host.protocol import Host
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.workload import Workload


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    NOTE = "note"  # good to know: it costs some steadiness or some time
    WARNING = "warning"  # may spoil results; told before every hunt
    REFUSED = "refused"  # nothing meaningful can be measured


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about a host, and the command or the step that mends it."""

    level: Level
    topic: str
    text: str
    advice: str = ""

    def failure(self) -> EnvironmentFailure:
        """The error that a refused host is for a hunt."""
        return EnvironmentFailure(self.text, self.advice)


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What a host is looked at for: measurements of ``metric``; of which system, if that is known."""

    host: Host
    entry: HostEntry
    metric: str = "qps"
    builder: Builder | None = None
    variant: str = ""  # of the builder; "" is the recipe's own choice
    workloads: tuple[Workload, ...] | None = None  # that may be run; None when nobody knows


@dataclass(frozen=True, slots=True)
class Inspection:
    """The request, and what the host has told so far."""

    request: CheckRequest
    answers: Answers
    system: str  # "debian", "ubuntu", "fedora", or "" when it is not known

    @property
    def name(self) -> str:
        """The host's name."""
        return self.request.host.name
