"""Unpacks prebuilt binaries, which replace a build; and archives that a build needs in addition to the files in git, as
MySQL needs a version of boost.

Prebuilt binaries are a folder on the host, or a tarball on this machine. perfbisect neither copies such a folder nor
writes into it: at the path at which every build is measured, perfbisect makes a symbolic link to the folder. A tarball
is sent to the host once, and its contents are stored like a finished build, so that ``bisect gc`` can remove them.
Archives are stored in the same way; the key of an archive is its checksum. The needed version of an archive may differ
between commits.
"""

import hashlib
import os
import re
import time
from collections import deque
from collections.abc import Collection, Generator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from perfbisect.core.domain.facts import BuildFacts, HostFacts
from perfbisect.errors import CommandFailed, ConnectionLost, EnvironmentFailure, UsageError
from perfbisect.host.facts import is_disk_nearly_full
from perfbisect.host.packages import missing_needs_error, require_programs
from perfbisect.host.protocol import Host, disk_full_error
from perfbisect.lab import upload
from perfbisect.lab.building import build_store, checkout
from perfbisect.lab.building.build_store import FUNCTIONS, LONG, REFUSED, UNPACK, hash_artifacts
from perfbisect.lab.building.checkout import BuildSource, run_git
from perfbisect.lab.building.log_parser import FETCH, SEND, BuildStep, steps_as_progress
from perfbisect.lab.building.plan import InstalledBuild
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.builder_reader import TreeFacts, recipe_for_tree, version_text
from perfbisect.recipes.placeholders import archive_names_in, fill_command
from perfbisect.repository.discovery import download

UNPACKERS = {
    ".tar": (), ".tar.gz": ("gzip",), ".tgz": ("gzip",), ".tar.bz2": ("bzip2",), ".tar.xz": ("xz",), ".tar.zst": ("zstd",),
}  # fmt: skip
"""Endings of tarballs, and the program that each needs on the host."""


_ADVICE = "Give the folder of the installation, which contains bin or lib, or a tarball of that folder."

# Prints the names, hashes of contents, and links of everything below $1; times, owners and modes are ignored.
_FINGERPRINT = """\
cd -- "$1" || exit
{ find . -type f -print0 | LC_ALL=C sort -z | xargs -0 -r sha256sum -- && find . -type l -printf '%p %l\\n' | LC_ALL=C sort
} | sha256sum
"""
# $1: the folder of the build. $2: the path that the user gave. Then options of tar. The script prints why it refuses
# the archive. If everything is in one folder at the top, which has the name of the release, the folder is left out,
# except a folder such as bin or lib. The whole file system is synced, because syncing 60,000 headers one by one takes
# minutes.
_UNPACK = f"""\
{FUNCTIONS}{UNPACK}
place=$1 given=$2
shift 2
cd -- "$place.part" 2>/dev/null || {{ [ -d "$place" ]; exit; }} # done already
rm -rf prefix inner && mkdir prefix || exit
unpack prefix "$@" <archive || exit
chmod -R u+rwX prefix || exit
odd=$(odd prefix)
[ -z "$odd" ] || refuse "$odd is a device, a FIFO or a socket"
set -- prefix/* prefix/.[!.]*
if [ $# = 2 ] && [ -L "$1" ] && [ ! -L "$2" ]; then refuse "its top, ${{1#prefix/}}, is a symbolic link"; fi
if [ $# = 2 ] && [ -d "$1" ] && [ ! -e "$2" ]; then
    case ${{1#prefix/}} in
        bin | sbin | lib | lib64 | libexec) ;;
        *) mv -T -- "$1" inner && rmdir prefix && mv -T inner prefix || exit;;
    esac
fi
printf '%s\n' "$given" >log && rm archive && sync -f . && record "$place.part" &&
    rm -rf "$place" && mv -T -- "$place.part" "$place"
"""


# Arguments: a prefix, and for each client a word with its possible names. For each client that is not in PREFIX/bin, or
# lacks shared libraries, the script prints the path of the host's client; or the names, if the host has no client.
_CLIENTS = """\
prefix=$1
shift
for client do
    for name in $client; do
        program=$prefix/bin/$name
        [ ! -x "$program" ] || ldd "$program" 2>/dev/null | grep -q 'not found' || continue 2
    done
    for name in $client; do
        if command -v -- "$name"; then continue 2; fi
    done
    printf '%s\n' "$client"
done
"""
_LIBRARY = re.compile(r"error while loading shared libraries: ([\w.+-]+): cannot open")


def is_tarball(path: str) -> bool:
    """Whether a path ends with a file name extension of tarballs."""
    return path.endswith(tuple(UNPACKERS))


def install_prebuilt(host: Host, builder: Builder, name: str, path: str) -> InstalledBuild:
    """The installed system at ``path``, which is a folder of the host or a tarball of this machine; ``name`` is the
    name that the user gave to the system.

    The ``[[when]]`` conditions of the recipe on the version are evaluated for the version that the installed system
    prints. ``[[when]]`` conditions on a source tree or on a compiler are always false. Raises UsageError if ``path``
    does not contain the system of the recipe, and EnvironmentFailure if the host cannot unpack the tarball.
    """
    began = time.monotonic()
    tarball = unpack_tarball_as_build(host, path) if is_tarball(path) else ""
    prefix = build_store.prefix_folder(host, tarball) if tarball else _real_folder(host, path)
    hashed = host.script(_FINGERPRINT, prefix, timeout=LONG)
    if hashed.stderr:
        raise EnvironmentFailure(f"{prefix} on host {host.name} cannot be read: {hashed.stderr.splitlines()[0]}")
    contents = hashed.stdout[:32]
    version = _installed_version(host, builder, path, prefix)
    of_versions = [block for block in builder.when if not (block.file or block.missing)]
    selected = msgspec.structs.replace(builder, when=of_versions)
    recipe = recipe_for_tree(selected, TreeFacts(version, lambda _: False, "", ""))
    try:
        artifacts = recipe.build.artifacts if recipe.build else []
        binary = hash_artifacts(host, prefix, artifacts) if artifacts else contents
        if recipe.library and not host.run(["test", "-f", str(prefix / recipe.library)], check=False).ok:
            raise FileNotFoundError(recipe.library)
    except FileNotFoundError as absent:
        raise UsageError(f"{path} is not an installation of {builder.name}: it has no {absent}.", _ADVICE) from absent
    facts = BuildFacts(name, tarball or contents, binary, time.monotonic() - began, 0, 0, reused=True, log="")
    borrowed = _borrowed_clients(host, recipe, path, prefix)
    return InstalledBuild(facts, recipe, version, None if tarball else prefix, path if tarball else "", borrowed)


def build_of_host_programs(host: Host, builder: Builder, facts: HostFacts) -> InstalledBuild:
    """A build that consists of programs that are installed on a host, in the recipe's folder ``installed``. A run of
    such a build measures the speed of the host itself.

    The key of the build is a hash of the known properties of the host that can change the speed: processor, memory,
    kernel, and the output of the command ``installed_version``.
    """
    prefix = PurePosixPath(builder.installed)
    printed = _version_output(host, builder, prefix)
    identity = [facts.name, facts.cpu, facts.cores, facts.memory_mib, facts.kernel, printed.strip()]
    key = hashlib.sha256(repr(identity).encode()).hexdigest()[:32]
    done = BuildFacts(facts.name, key, "", 0.0, 0, 0, reused=True, log="")
    return InstalledBuild(done, builder, facts.kernel, prefix)


def _borrowed_clients(host: Host, recipe: Builder, path: str, prefix: PurePosixPath) -> tuple[str, ...]:
    """The paths of client programs of the host that replace client programs of the prebuilt system, because the system
    lacks these programs or cannot run them."""
    if recipe.server is None or not recipe.server.clients:
        return ()
    clients = host.script(_CLIENTS, prefix, *recipe.server.clients).stdout.splitlines()
    if none := [client.split()[-1] for client in clients if "/" not in client]:
        raise missing_needs_error(none, host.name, extra_advice=f"{path} has none that runs")
    return tuple(clients)


def _version_output(host: Host, builder: Builder, prefix: PurePosixPath) -> str:
    """The output of the recipe's version command for the installed system; "" if the recipe has no such command."""
    values = {"prefix": str(prefix), "recipe": str(upload.place_recipe(host, builder))}
    return host.run(fill_command(builder.installed_version, values)).stdout if builder.installed_version else ""


def _installed_version(host: Host, builder: Builder, path: str, prefix: PurePosixPath) -> str:
    """The version that the installed system prints; "" if the recipe has no command that prints the version."""
    try:
        printed = _version_output(host, builder, prefix)
    except ConnectionLost:
        raise
    except EnvironmentFailure as failure:
        if library := isinstance(failure, CommandFailed) and _LIBRARY.search(failure.output):
            raise missing_needs_error([library[1]], host.name, extra_advice=f"{path} needs it") from failure
        raise UsageError(f"{path} is not an installation of {builder.name}: {failure}", _ADVICE) from failure
    # The program's own path, which may contain a number, is removed: many programs begin their version text with it.
    if (version := version_text(re.sub(r"(?<!\S)/\S*", "", printed))) or not builder.installed_version:
        return version
    raise UsageError(f"The version of {path} is unknown: its program printed {printed.strip()[:80]!r}.", _ADVICE)


def _real_folder(host: Host, path: str) -> PurePosixPath:
    """The path of a folder of the host, with symbolic links resolved, because a link may be changed during the
    session."""
    target = host.run(["readlink", "-f", "--", path], check=False).stdout.removesuffix("\n")
    if not target or not host.run(["test", "-d", target], check=False).ok:
        raise UsageError(f"The folder {path} does not exist on host {host.name}.", _ADVICE)
    return PurePosixPath(target)


def unpack_tarball_as_build(host: Host, path: str, advice: str = _ADVICE) -> str:
    """Unpack a tarball into a folder beside the builds of the host, and return the key of the build. If the folder
    already exists and is unchanged, nothing is unpacked.

    Raises UsageError, with ``advice``, for a tarball that cannot be read or whose content would damage the host.
    """
    programs = next(programs for ending, programs in UNPACKERS.items() if path.endswith(ending))
    through = [f"--use-compress-program={program}" for program in programs]

    def send() -> None:
        file.seek(0)
        deque(build_store.send_archive(host, target, file.read, os.fstat(file.fileno()).st_size), maxlen=0)

    try:
        with Path(path).open("rb") as file:
            key = hashlib.file_digest(file, "sha256").hexdigest()[:32]
            target = build_store.build_folder(host, key)
            if not build_store.changed_files(host, target):
                return key
            require_programs(host, ("tar", *programs))
            build_store.repeat_if_broken_off(send)
        host.script(_UNPACK, target, path, *through, timeout=LONG)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", advice) from error
    except CommandFailed as failure:
        if is_disk_nearly_full(host):
            raise disk_full_error(host.name, f"{path} cannot be unpacked") from failure
        host.run(["rm", "-rf", "--", f"{target}.part"], timeout=LONG)
        if failure.status == REFUSED:
            raise UsageError(f"{path} is refused: {failure.output.splitlines()[0]}.", advice) from failure
        lines = failure.output.strip().splitlines()
        raise UsageError(f"{path} is damaged, or not a tarball: {lines[0] if lines else failure}.") from failure
    return key


@dataclass(frozen=True, slots=True)
class NeededArchive:
    """An archive (such as a library's source code) that the build of a commit needs."""

    name: str
    version: str
    address: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def needed_archives(
    host: Host, bare: PurePosixPath, sources: BuildSource, builder: Builder, paths: Collection[str]
) -> dict[str, NeededArchive]:
    """Maps the name of each archive that the build of a commit needs to the archive; ``paths`` are the paths in the
    commit's tree.

    Raises BuildFailed if the tree does not show the version of an archive, or if the recipe has no checksum for this
    version.
    """
    archives, sha = {}, sources.sha
    for name in sorted(archive_names_in(builder.build, builder.when)):
        archive = builder.archives[name]
        if archive.file not in paths or archive.unless in paths:
            continue
        with checkout.convert_git_errors(host, bare, sha):
            blob = f"{sources.built_commit}:{archive.file}"
            text = run_git(host, f"--git-dir={bare}", "cat-file", "blob", blob).stdout
        key = f"archives.{name}"
        match = re.search(archive.pattern, text, re.MULTILINE)
        version = (match[1] or "").replace("_", ".") if match else ""
        if not version:
            hint = f"Change `{key}.pattern` of the recipe {builder.name}, which is {archive.pattern!r}, so that it matches."
            raise checkout.checkout_error(host, sha, f"the file {archive.file} has no version of {name}", text, hint)
        if version not in archive.sha256:
            hint = f'Add "{version}" = "SHA256" to [{key}.sha256] of {builder.name}, or of a recipe that extends it.'
            problem = f"the commit needs {name} {version}, but the recipe has no checksum of that version"
            raise checkout.checkout_error(host, sha, problem, text, hint)
        address = archive.address.replace("{version:_}", version.replace(".", "_")).replace("{version}", version)
        archives[name] = NeededArchive(name, version, address, archive.sha256[version])
    return archives


def download_and_unpack(host: Host, archives: Collection[NeededArchive]) -> Generator[BuildStep]:
    """Unpack on the host all archives that are not yet unpacked there. Archives that are not in the cache of this
    machine are downloaded.

    Raises EnvironmentFailure if an archive cannot be obtained, or if its checksum differs from the checksum in the
    recipe.
    """
    for archive in archives:
        folder = build_store.build_folder(host, archive.sha256[:32])
        if build_store.changed_files(host, folder):
            path = yield from steps_as_progress(FETCH, download(str(archive), archive.address, archive.sha256))
            yield BuildStep(SEND)
            unpack_tarball_as_build(host, str(path), f"The file is {archive}, from {archive.address}.")
        host.run(["touch", "--", str(folder)])  # stores the time of the last use
