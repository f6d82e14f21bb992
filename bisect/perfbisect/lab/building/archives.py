"""Archives that a tree needs beside git, as MySQL its boost: which version, from the commit; unpacked
once on each host, which keeps them among its builds, by their sums."""

import re
from collections.abc import Collection, Generator
from dataclasses import dataclass
from pathlib import PurePosixPath

from perfbisect.errors import CommandFailed
from perfbisect.host.protocol import Host
from perfbisect.lab.building import build_store, checkout, prebuilt
from perfbisect.lab.building.checkout import Sources, staged
from perfbisect.lab.building.host_git import git
from perfbisect.lab.building.log_parser import Progress
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.placeholders import archives_in
from perfbisect.repository.discovery import downloaded


@dataclass(frozen=True, slots=True)
class Needed:
    """An archive that a commit needs."""

    name: str
    version: str
    address: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def needed(
    host: Host, bare: PurePosixPath, sources: Sources, builder: Builder, paths: Collection[str]
) -> dict[str, Needed]:
    """The archives that a build of a commit which has these paths needs, by their names.

    Raises BuildFailed where the version of one is not found, or has no sum.
    """
    found, sha = {}, sources.sha
    for name in sorted(archives_in(builder.build, builder.when)):
        archive = builder.archives[name]
        if archive.file not in paths or archive.unless in paths:
            continue
        try:
            text = git(host, f"--git-dir={bare}", "cat-file", "blob", f"{sources.commit}:{archive.file}").stdout
        except CommandFailed as failed:
            raise checkout.failure(host, bare, sha, failed) from failed
        key = f"archives.{name}"
        match = re.search(archive.pattern, text, re.MULTILINE)
        version = (match[1] or "").replace("_", ".") if match else ""
        if not version:
            hint = f"Let `{key}.pattern` of the recipe {builder.name}, now {archive.pattern!r}, match it."
            raise checkout.cannot(host, sha, f"its {archive.file} names no version of {name}", text, hint)
        if version not in archive.sha256:
            hint = f'Add "{version}" = "SHA256" to [{key}.sha256] of {builder.name}, or of a recipe that extends it.'
            raise checkout.cannot(host, sha, f"it needs {name} {version}, of which the recipe has no sum", text, hint)
        address = archive.address.replace("{version:_}", version.replace(".", "_")).replace("{version}", version)
        found[name] = Needed(name, version, address, archive.sha256[version])
    return found


def bring(host: Host, archives: Collection[Needed]) -> Generator[Progress]:
    """Unpack the archives on the host, unless they are there; those that this machine lacks are fetched.

    Raises EnvironmentFailure when one cannot be had, or is not what the recipe says.
    """
    for each in archives:
        folder = build_store.folder(host, each.sha256[:32])
        if build_store.changes(host, folder):
            path = yield from staged("fetch", downloaded(str(each), each.address, each.sha256))
            yield Progress("send")
            prebuilt.unpack(host, str(path), f"It is {each}, from {each.address}.")
        host.run(["touch", "--", str(folder)])  # its last use
