"""Stores, finds and checks the finished builds of a host, makes a build available at the path where it is measured, and
sends builds to other hosts.

A build is the folder ``root/builds/KEY/`` with ``prefix/``, ``log``, ``build.json``, ``files/``, and ``links/`` if its
links are recorded. The folder is renamed to KEY after all its files are written, so a folder KEY is complete. A
measured program may change or delete files of its build. A changed file may change the speed without an error, so
before each visit the files are compared with three records:

    files/paths   the path of everything that was installed
    files/seen    size, inode, times and mode of each path: compared before each visit. Of a folder, only the mode is
                  stored, because a file that a program adds does not belong to the build
    files/held    the digest of each file and the target of each link: compared only if ``seen`` differs. If ``held``
                  does not differ, ``seen`` is written again

All entries of the records end with a NUL and are compared byte by byte.

A layout shares files with its build and with other layouts of the build by hard links. Linking or removing a layout
changes the times of these files. perfbisect then writes ``seen`` of the build and of its layouts again; otherwise the
next check would read all files."""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath

import msgspec

from perfbisect.core.domain.facts import BuildFacts
from perfbisect.errors import BuildFilesChanged, ConnectionLost, EnvironmentFailure
from perfbisect.host import jobs
from perfbisect.host.protocol import Host

LONG = 3600.0  # seconds: enough to read all files of a large system

# ``changed`` prints a few of the changed paths, one per line. A folder without ``files/seen``, as of an earlier version of
# perfbisect, counts as unchanged.
FUNCTIONS = r"""
seen() { # in folder $1, of the paths on standard input
    (cd -- "$1/prefix" && LC_ALL=C xargs -0 -r sh -c \
        'find "$@" -maxdepth 0 "(" -type d -printf "%y %m %p\0" -o -printf "%y %m %s %i %T@ %C@ %p\0" ")"' find) |
        LC_ALL=C sort -z
}
held() {
    (cd -- "$1/prefix" && LC_ALL=C xargs -0 -r sh -c \
        'find "$@" -maxdepth 0 -printf "%y %m %l %p\0" -type f -exec sha256sum -z -- {} +' find) | LC_ALL=C sort -z
}
note() { [ ! -e "$1/files/paths" ] || seen "$1" <"$1/files/paths" >"$1/files/seen"; }
alike() { seen "$1" <"$1/files/paths" 2>/dev/null | cmp -s - "$1/files/seen"; }
record() {
    mkdir -p "$1/files" && (cd -- "$1/prefix" && find . -mindepth 1 -print0) >"$1/files/paths" &&
        held "$1" <"$1/files/paths" >"$1/files/held" && note "$1" && sync -- "$1"/files/*
}
record_layout() { # $1 of the build in folder $2, in which the paths in file $3 were linked again
    mkdir "$1/files" && cp -- "$2/files/paths" "$1/files" &&
        { held "$2" <"$3" | LC_ALL=C comm -z -13 - "$2/files/held"; held "$1" <"$3"; } | LC_ALL=C sort -z >"$1/files/held" &&
        note "$1"
}
changed() {
    [ -d "$1/prefix" ] || { echo 'all of them'; return; }
    [ -e "$1/files/seen" ] || return 0
    ! alike "$1" || return 0
    held "$1" <"$1/files/paths" 2>/dev/null | LC_ALL=C comm -z -13 - "$1/files/held" | LC_ALL=C sed -z 's,^.* \(\./\),\1,' |
        tr '\n\0' ' \n' | LC_ALL=C sort -u | cut -b -100 |
        LC_ALL=C awk 'NR < 4; NR == 4 { print "…" } END { exit !NR }' || note "$1"
}
"""
_CHANGED = f'{FUNCTIONS}changed "$1"'
_NOTE = f'{FUNCTIONS}for each do note "$each" || exit; done'


def changed_files(host: Host, folder: PurePosixPath) -> str:
    """The paths of the changed files of the build in ``folder``, a path on each line; "" if no file has changed."""
    return host.script(_CHANGED, folder, timeout=LONG).stdout


def record_file_times(host: Host, layouts: list[PurePosixPath]) -> None:
    """Write the record ``seen`` of ``layouts``, after all layouts are linked: linking a layout changes times of the
    files that it shares with earlier layouts."""
    host.script(_NOTE, *layouts, timeout=LONG)


# Can be repeated after an interruption. Files are synced before the rename, so that a build is complete even after a
# power failure; the whole file system is synced, because syncing 8,000 files separately took forty times as long. $4 is
# the folder of recorded links, if any; the links also stay there for incremental builds, which do not repeat all links.
_KEEP = f"""\
{FUNCTIONS}set -e
mkdir -p "${{1%/*}}"
if [ -d "$2" ]; then
    rm -rf "$1.part"; mkdir "$1.part"
    (umask 077; cp -- "$3" "$1.part/log")
    cat >"$1.part/build.json"
    [ ! -e "$4/plan" ] || cp -al -- "$4" "$1.part/links"
    sync -f -- "$2" "$1.part"
    mv -T -- "$2" "$1.part/prefix"
fi
[ ! -d "$1.part" ] || {{ record "$1.part"; rm -rf "$1"; mv -T -- "$1.part" "$1"; }}
"""
# A form feed after the record says that the build has no links.
_FIND = """\
cd -- "$1" 2>/dev/null && cat build.json && { [ -e links/plan ] || printf '\\f'; }
"""
# $3 is the build's folder, "" for a build outside the root folder. The folder's mtime is the time of its last use.
_POINT = f"""\
{FUNCTIONS}mkdir -p "${{2%/*}}" && rm -rf "$2" && ln -s -- "$1" "$2" || exit
[ -n "$3" ] || exit 0
touch -c -- "$3" && changed "$3"
[ -e "$3/files/seen" ] || [ ! -d "$1" ] || record "$3"
"""
# Like _POINT, but $7 leads to a copy $4 of the build, in which the sed expression $5 replaces the path $2 by $7; files
# without $2 are shared. $6 is a pattern of link targets. ``copy`` in the build has the copy's record and a link to it.
_COPY = f"""\
{FUNCTIONS}copy() {{
    rm -rf -- "$3" "$6/copy" && cp -al -- "$1" "$3" && mkdir -- "$6/copy" && ln -s -- "$3" "$6/copy/prefix" && cd -- "$3" || return
    {{ LC_ALL=C grep -rlFZ -e "$2" .; find . -type l -lname "$5" -print0; }} >"$6/copy/paths"
    LC_ALL=C xargs -0 -r sh -c '
        rewrite=$1; shift
        for each do
            if [ -h "$each" ]; then
                to=$(readlink -- "$each" | sed -e "$rewrite") && ln -sfn -- "$to" "$each" || exit
                continue
            fi
            at=$(stat -c %y -- "$each") && LC_ALL=C sed -i -e "$rewrite" -- "$each" && touch -d "$at" -- "$each" || exit
        done' rewrite "$4" <"$6/copy/paths" || return
    [ ! -e "$6/files/paths" ] || record_layout "$6/copy" "$6" "$6/copy/paths"
}}
[ -d "$1" ] || {{ echo 'all of them'; exit 0; }}
if [ ! -d "$4" ]; then # which changes times of the build
    unchanged=
    ! alike "$3" 2>/dev/null || unchanged=yes
    copy "$1" "$2" "$4.part" "$5" "$6" "$3" || exit
    [ -z "$unchanged" ] || note "$3"
    ln -sfn -- "$4" "$3/copy/prefix" && mv -T -- "$4.part" "$4" || exit
fi
rm -rf -- "$7" && mkdir -p "${{7%/*}}" && ln -s -- "$4" "$7" || exit
touch -c -- "$3" && changed "$3" && changed "$3/copy"
"""

# $1 is a build, or a layout of the build $2: both share files, so that the removal changes times of the build's files.
_REMOVE = f"""\
{FUNCTIONS}remove() {{ rm -rf --one-file-system -- "$1"; }}
if alike "$2" 2>/dev/null; then remove "$1" && note "$2"; else remove "$1"; fi
"""


REFUSED = 3  # exit status for an archive that would do harm

# For archives from other machines. tar skips names with .. and follows no link that leads out of the folder. tar only
# warns of an absolute name, but here the archive is refused. Set-user-ID bits and owners are dropped.
UNPACK = f"""\
refuse() {{ printf '%s\n' "$1" | head -n 1 | cut -c -300; exit {REFUSED}; }}
unpack() {{ # standard input into the folder $1, by these options of tar
    into=$1; shift
    LC_ALL=C tar -x "$@" --no-same-owner --no-same-permissions -f - -C "$into" 2>said
    status=$?
    head -n 20 said | cut -c -500 >&2
    ! grep -q '^tar: Removing leading' said || refuse "it has names that lead out of the folder in which it is unpacked ($(head -n 1 said))"
    rm said
    return $status
}}
odd() {{ # the first thing below the folder $1 that is neither a file nor a folder nor a link
    find "$1" ! -type f ! -type d ! -type l -printf '%P\\n' -quit
}}
"""


class BuildRecord(msgspec.Struct, frozen=True):
    """The stored facts of a build. They do not include the recipe, because the recipe may change in parts that do not
    affect the build."""

    facts: BuildFacts
    version: str  # version of the system, as the recipe's version command prints it


def build_folder(host: Host, key: str) -> PurePosixPath:
    """The folder of the build with the key ``key``, whether the folder exists or not."""
    return host.root / "builds" / key


def prefix_folder(host: Host, key: str) -> PurePosixPath:
    """The folder with the installed files of the build with the key ``key``."""
    return build_folder(host, key) / "prefix"


def find_build(host: Host, key: str, sha: str) -> BuildRecord | None:
    """The record of a finished build, with ``sha`` as its commit; None if the build has to be made again: because it is
    absent, its record is unreadable, or its recorded links were removed but are needed."""
    stored, unlinked = _record_and_lacks_links(host, key)
    if stored is None:
        return None
    if unlinked and stored.facts.linker:
        return None
    log = str(build_folder(host, key) / "log")  # the build may come from a host with another root folder
    facts = replace(stored.facts, key=key, commit=sha, seconds=0.0, reused=True, log=log)
    facts = replace(facts, cache_hits=0, cache_misses=0, remote_hits=0)
    return BuildRecord(facts, stored.version)


def _record_and_lacks_links(host: Host, key: str) -> tuple[BuildRecord | None, bool]:
    """The record of a finished build (None: absent or unreadable), and whether the build lacks recorded links."""
    record, mark, _ = host.script(_FIND, build_folder(host, key), check=False).stdout.partition("\f")
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(record, type=BuildRecord), bool(mark)
    return None, bool(mark)


def has_build_or_layout(host: Host, key: str) -> bool:
    """Whether the host has a build or a layout with the key ``key``."""
    return host.run(["test", "-f", str(build_folder(host, key) / "build.json")], check=False).ok


def check_unchanged(host: Host, key: str) -> None:
    """Raise BuildFilesChanged if files of the build have changed since the build was made."""
    _require_unchanged_files(host, key, _CHANGED, build_folder(host, key))


def _require_unchanged_files(host: Host, key: str, script: str, *arguments: object) -> None:
    """Run a script that prints the changed files of a build; raise BuildFilesChanged if the script prints any."""
    if paths := host.script(script, *arguments, timeout=LONG).stdout:
        raise BuildFilesChanged(host.name, key, paths)


def remove_build_or_layout(host: Host, key: str, build_of_layout: str = "") -> None:
    """Remove the build ``key``, or the layout ``key``; ``build_of_layout`` is then the key of the layout's build."""
    host.script(_REMOVE, build_folder(host, key), build_folder(host, build_of_layout), timeout=600)


def add(host: Host, facts: BuildFacts, version: str, installed: PurePosixPath, log: PurePosixPath) -> BuildFacts:
    """Store a build: move its installation and its log to the build's folder; return facts with the log's new path."""
    final_folder = build_folder(host, facts.key)
    facts = replace(facts, log=str(final_folder / "log"))
    stdin = msgspec.json.encode(BuildRecord(facts, version)).decode()
    host.script(_KEEP, final_folder, installed, log, installed.parent / "links", stdin=stdin, timeout=LONG)
    return facts


def symlink_build(host: Host, builder: str, key: str, installation: PurePosixPath | None = None) -> PurePosixPath:
    """Make ``root/work/BUILDER/prefix`` a symlink to a build, or to ``installation`` if it is given; return this path.

    All builds are made for this path, so the paths inside their files are valid, and all builds are measured at this
    path. Raises BuildFilesChanged if files of the build have changed since it was made.
    """
    fixed = host.root / "work" / builder / "prefix"
    paths_in_store = prefix_folder(host, key), str(build_folder(host, key))
    installed, touched = (installation, "") if installation else paths_in_store
    _require_unchanged_files(host, key, _POINT, installed, fixed, touched)
    return fixed


def symlink_build_copy(host: Host, builder: str, key: str, installation: PurePosixPath | None = None) -> PurePosixPath:
    """Like ``symlink_build``, but make a second path a symlink, for a build that runs at the same time as the build at
    the first path. The build is copied to the folder ``beside``, and in the copied files the second path replaces the
    first path, which has the same length. Also raises BuildFilesChanged if files of the copy have changed."""
    first = host.root / "work" / builder / "prefix"
    fixed = first.with_name("second")
    if installation:
        if host.run(["grep", "-rqF", "-e", str(first), "--", str(installation)], timeout=LONG, check=False).ok:
            raise EnvironmentFailure(
                f"{installation} on host {host.name} contains the path of another build folder: {first}"
            )
        host.script(_POINT, installation, fixed, "", timeout=LONG)
        return fixed
    pattern = re.sub(r"([][\\.*^$,])", r"\\\1", str(first))
    written = re.sub(r"([&,\\])", r"\\\1", str(fixed))
    links = re.sub(r"([][*?\\])", r"\\\1", str(first)) + "*"
    build = build_folder(host, key)
    rewriting = f"s,{pattern},{written},g", links
    _require_unchanged_files(host, key, _COPY, build / "prefix", first, build, build / "beside", *rewriting, fixed)
    return fixed


def _program_hash(host: Host, key: str) -> str:
    """The hash of an incremental build's programs, which the key does not determine; "" for a clean build."""
    stored, _ = _record_and_lacks_links(host, key)
    return stored.facts.binary if stored and stored.facts.incremental else ""


ATTEMPTS = 3  # most attempts to stream a build, if the connection breaks off
CHUNK = 1 << 20  # bytes that are streamed at a time

NOT_SENT = ("links", "beside", "copy")

_READY = 'mkdir -p "${1%/*}" && rm -rf "$1.part" && mkdir "$1.part"'
_DONE = (
    f"{FUNCTIONS}"
    '[ ! -d "$1.part" ] || { sync -f -- "$1.part" && note "$1.part" && rm -rf "$1" && mv -T -- "$1.part" "$1"; }'
)


def ship_build(build_host: Host, builder: str, key: str, host: Host) -> None:
    """Send a build from ``build_host`` to ``host``, except if ``host`` already has the build (for an incremental build:
    a build with the same key and programs). The recorded links of the build are not sent.

    Raises EnvironmentFailure if the build contains its own path and this path is different on ``host``; raises
    BuildFilesChanged if files of the build have changed since it was made.
    """
    source, target = build_folder(build_host, key), build_folder(host, key)
    if has_build_or_layout(host, key) and _program_hash(host, key) == _program_hash(build_host, key):
        return
    check_unchanged(build_host, key)
    fixed = str(build_host.root / "work" / builder / "prefix")
    search = ["grep", "-rlF", "-m1", "-e", fixed, str(prefix_folder(build_host, key))]
    if build_host.root != host.root and build_host.run(search, check=False, timeout=600).ok:
        raise EnvironmentFailure(
            f"builds of {builder} contain the path of their installation below {build_host.root} on host {build_host.name}, and the root"
            f" folder of host {host.name} is {host.root}",
            f"Set the same `root` for both hosts in hosts.toml, or remove `build_hosts` of {host.name}.",
        )

    def send_build() -> None:
        """Pack the build on the build host, and unpack it on ``host``. If both sides fail, raises the error of the
        packing side, because its failure also makes unpacking fail. If the unpacking side ends first, raises its error.
        """
        build_host.run(["test", "-d", str(source)])  # waits for a lost connection, like the next command
        host.script(_READY, target, timeout=600)
        pack = ["tar", "-cf", "-", "-C", str(source), *(f"--exclude=./{name}" for name in NOT_SENT), "."]
        unpack = ["tar", "-xf", "-", "-C", f"{target}.part"]
        with host.stream(unpack) as unpacking, suppress(ConnectionError), build_host.stream(pack) as packing:
            while chunk := packing.recv(CHUNK):
                unpacking.sendall(chunk)

    repeat_if_broken_off(send_build)
    host.script(_DONE, target, timeout=600)


def send_archive(host: Host, final_folder: PurePosixPath, read: Callable[[int], bytes], size: int) -> Iterator[int]:
    """Send an archive of ``size`` bytes to the file ``FINAL_FOLDER.part/archive`` on the host; yields the bytes sent so
    far."""
    host.script(_READY, final_folder, timeout=LONG)
    with host.stream(["sh", "-c", 'cat >"$1.part/archive"', "receive", str(final_folder)]) as target:
        done = 0
        while done < size and (part := read(min(CHUNK, size - done))):
            try:
                target.sendall(part)
            except OSError:  # the command has ended, and reports why
                break
            done += len(part)
            yield done


def repeat_if_broken_off(stream: Callable[[], None]) -> None:
    """Call ``stream``, which sends data to a host, and repeat the call if the connection breaks."""
    for _ in range(ATTEMPTS - 1):
        with suppress(ConnectionLost):
            return stream()
    return stream()


# Hashes the loaded image of a program or shared library, whose type (17th byte of the ELF header) is 2 or 3, and other
# files as a whole: an object file's image would lack relocations. $1 is the folder for temporary files; paths follow.
_HASH = """\
mkdir -p "$1" && image=$(mktemp -p "$1") && trap 'rm -f "$image"' EXIT || exit 1
shift
for file do
    if [ ! -f "$file" ]; then echo absent; continue; fi
    magic=$(od -An -v -tx1 -N18 -- "$file" | tr -d ' \\n')
    case $magic in
        7f454c46*0[23]00 | 7f454c46*000[23])
            objcopy -O binary -R .note.gnu.build-id -- "$file" "$image" || exit 1
            { readelf -lW -- "$file" | grep -E '^ +(LOAD|TLS) '; cat "$image"; } | sha256sum;;
        *) sha256sum <"$file";;
    esac
done
"""


# Prints the shared libraries below $1, which does not exist if nothing was installed.
_LIBRARIES = """[ -d "$1" ] || exit 0; cd -- "$1" && find . -type f '(' -name '*.so' -o -name '*.so.*' ')' -print0 | LC_ALL=C sort -z"""


def measured_files(host: Host, prefix: PurePosixPath, artifacts: Sequence[str], *, with_libraries: bool) -> list[str]:
    """The paths below ``prefix`` of the files whose contents identify a build: the artifacts and, if
    ``with_libraries``, all shared libraries.

    Empty if a library's name is not UTF-8, because such a name cannot be passed to commands.
    """
    if not (artifacts and with_libraries):
        return [*artifacts]
    libraries = host.script(_LIBRARIES, prefix, timeout=600).stdout.split("\0")[:-1]
    return [] if any("\N{REPLACEMENT CHARACTER}" in path for path in libraries) else [*artifacts, *libraries]


def hash_artifacts(host: Host, prefix: PurePosixPath, artifacts: Sequence[str]) -> str:
    """A single hash of all artifacts, which are paths below ``prefix``.

    Raises FileNotFoundError with the path of the first artifact that is missing.
    """
    paths = [prefix / artifact for artifact in artifacts]
    answers = host.script(_HASH, jobs.temp_files_folder(host), *paths, timeout=600).stdout.splitlines()
    digest = hashlib.sha256()
    for artifact, answer in zip(artifacts, answers, strict=True):
        if answer == "absent":
            raise FileNotFoundError(artifact)
        digest.update(f"{artifact}\0{answer.split()[0]}\n".encode())
    return digest.hexdigest()
