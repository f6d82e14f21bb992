"""A lab for a repository of a test."""

from collections.abc import Sequence
from pathlib import Path

from perfbisect.core.domain.events import Commit
from perfbisect.host.protocol import Host
from perfbisect.lab.build.candidates import Candidates
from perfbisect.lab.build.lab_host import LabHost
from perfbisect.lab.host_lab import Earlier, HostLab
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.requested import quick_builder
from perfbisect.recipes.workload import Workload
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.git import Repository


def lab_of(
    host: Host,
    builder: Builder,
    workload: Workload,
    repository: Path | Repository,
    commits: tuple[str, ...],
    *,
    entry: HostEntry | None = None,
    earlier: Earlier | None = None,
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
        earlier or Earlier(),
        (LabHost(build_host, HostEntry(name=build_host.name)),) if build_host else (),
    )


def bench_lab(host: Host, repository: Path, sha: str, command: Sequence[str] = ("true",)) -> HostLab:
    """A lab for one commit that needs no build, measured by the rate that a command prints."""
    workload = Workload(
        name="bench",
        suite="suite",
        folder="/nowhere",
        driver="command",
        summary="",
        group="command",
        command=[*command],
        rate=r"ops/s: (\d+)",
        timeout=60.0,
    )
    return lab_of(host, quick_builder(("true",), str(repository)), workload, repository, (sha,), is_range=False)
