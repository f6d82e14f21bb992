"""Labs for the repositories of tests, such as a small library in C at five commits; with their orders and events."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from installed_servers import recipe
from perfbisect.core.domain.events import CandidateSkipped, Commit, LabEvent, RunFinished, Warned
from perfbisect.core.domain.facts import RunFacts, SkipFacts
from perfbisect.core.domain.orders import Measure, PlannedRuns, Purpose
from perfbisect.host.protocol import Host
from perfbisect.lab.building.candidates import Candidates, LabHost
from perfbisect.lab.host_lab import EarlierAttempts, HostLab
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.requested import quick_builder
from perfbisect.recipes.workload import Option, Workload
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.git import Repository

GIVEN = Path(__file__).parent / "given"


def lab_of(
    host: Host,
    builder: Builder,
    workload: Workload,
    repository: Path | Repository,
    commits: tuple[str, ...],
    *,
    entry: HostEntry | None = None,
    earlier: EarlierAttempts | None = None,
    ends: dict[str, str] | None = None,
    is_range: bool = True,
    build_host: Host | None = None,
) -> HostLab:
    candidates = Candidates(
        repository if isinstance(repository, Repository) else open_repository(repository),
        commits,
        lambda sha: Commit(sha, "2020-01-02", "Test", "change"),
        ends=ends or {},
        is_range=is_range,
    )
    return HostLab(
        LabHost(host, entry or HostEntry(name=host.name)),
        builder,
        "",
        workload,
        candidates,
        earlier or EarlierAttempts(),
        (LabHost(build_host, HostEntry(name=build_host.name)),) if build_host else (),
    )


def workload_of(**keys: Any) -> Workload:
    """A workload with these keys, and with defaults for the other keys."""
    folder = str(GIVEN)  # a small folder, because a suite is sent to the host
    usual = {"name": "w", "suite": "s", "folder": folder, "driver": "pgsql", "summary": "", "group": "g"}
    return Workload(**usual | keys)


SUITE = (GIVEN / "suite.toml").read_text()


def bench_lab(
    host: Host, repository: Path, *commits: str, command: Sequence[str] = ("true",), build: str = "true", **keys: Any
) -> HostLab:
    """A lab for commits that are built by the command ``build``, and measured by the rate that ``command`` prints."""
    rate = r"ops/s: (\d+)"
    workload = workload_of(name="bench", driver="command", command=[*command], rate=rate, timeout=60.0, **keys)
    return lab_of(host, quick_builder((build,), str(repository)), workload, repository, commits, is_range=False)


def measure(lab: HostLab, *shares: PlannedRuns) -> list[LabEvent]:
    """All events of an order with these shares."""
    return list(lab.measure(Measure(shares, Purpose.SEARCH)))


def finished(events: list[LabEvent]) -> list[tuple[int, RunFacts]]:
    """Candidate and facts of each run among the events."""
    return [(event.candidate, event.facts) for event in events if isinstance(event, RunFinished)]


def runs(events: list[LabEvent]) -> list[RunFacts]:
    """The runs among the events."""
    return [event.facts for event in events if isinstance(event, RunFinished)]


def warnings(events: list[LabEvent]) -> list[str]:
    """The texts of the warnings among the events."""
    return [event.text for event in events if isinstance(event, Warned)]


def skipped(events: list[LabEvent]) -> SkipFacts:
    """The facts of the last event, by which a candidate is skipped."""
    assert isinstance(events[-1], CandidateSkipped), events
    return events[-1].facts


HERE = Path(__file__).parent / "lab"
FAST, SLOW, SAME, BROKEN = range(4)

BUILDER = recipe("small", "lab")


def workload(args: dict[str, Option] | None = None) -> Workload:
    keys = {"name": "operation", "suite": "small", "folder": str(HERE), "driver": "small", "group": "point"}
    script = "operation.lua"
    return workload_of(**keys, script=script, args=args or {}, prepare_script=script, warmup=0.1, time=1.0)


Open = Callable[..., HostLab]
