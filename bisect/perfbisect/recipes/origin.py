"""From which files recipes are that are neither shipped nor the user's own."""

from collections.abc import Iterable
from pathlib import Path

from perfbisect.recipes import builder_reader, suites
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.search_path import BUILDERS, HOSTS, WORKLOADS, own_places
from perfbisect.recipes.workload import Workload


def foreign_files(
    builder: Builder | None, workloads: Iterable[Workload], hosts: Iterable[HostEntry]
) -> dict[str, Path]:
    """What each file defines → the file, for all that are neither shipped nor in the user's configuration folder."""
    found = {}
    if builder:
        for folder in map(Path, (builder.folder, *builder.inherited)):
            if not _is_own(folder.parent, BUILDERS):
                found[f"Builder {folder.name}"] = folder / builder_reader.FILE
    for suite in dict.fromkeys(Path(each.folder) for each in workloads if each.folder):  # a command is of no suite
        if not _is_own(suite.parent, WORKLOADS):
            found[f"Suite {suite.name}"] = suite / suites.FILE
    for host in hosts:
        if not _is_own(Path(host.file), HOSTS):
            found[f"Host {host.name}"] = Path(host.file)
    return found


def _is_own(path: Path, name: str) -> bool:
    return path.resolve() in [place.resolve() for place in own_places(name)]
