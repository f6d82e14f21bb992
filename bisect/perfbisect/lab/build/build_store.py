"""The finished builds of a host: ``root/builds/KEY/`` with ``prefix/``, ``log``, ``build.json``, ``files/``, and ``links/`` if
wanted; that they are as they were made; and how one is sent to another host.

A build appears there with its record in one rename, so that a folder of that name is always complete. What is measured
may change or delete files of its own build. Beside ``prefix``:

    files/paths   of everything that was installed
    files/seen    its size, inode, times and mode, which are compared before each visit. Of a folder only the mode: what
                  a program adds is no file of the build
    files/held    what it contains: digests, and the targets of links. Compared where ``seen`` differs; where that is all
                  that differs, it is noted anew

All entries end with a NUL and are compared as bytes. A program can change the speed alone, so nothing else shows that its
build is no longer what was built.

A layout shares files with its build and the other layouts of it. To link or remove one of these changes times of such files,
so ``seen`` of the build, and of layouts that are linked together, is noted anew then: otherwise everything would be read.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import msgspec

from perfbisect.core.domain.facts import BuildFacts
from perfbisect.core.domain.settings import Patch
from perfbisect.errors import BuildChanged, ConnectionLost, EnvironmentFailure
from perfbisect.host.protocol import Host
from perfbisect.lab.build.toolchain import Toolchain, is_native
from perfbisect.lab.upload import recipe_archive
from perfbisect.recipes.build_systems import has_commands, revision
from perfbisect.recipes.builder import Builder, Variant
from perfbisect.recipes.builder_reader import build_of

LONG = 3600.0  # seconds: reading everything of a large system

# ``changed`` prints a few of the paths, one a line. A folder without a record, as of an earlier version, has not changed.
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


def changes(host: Host, folder: PurePosixPath) -> str:
    """What of the build in that folder is not as it was made, a path a line; "" where all is."""
    return host.run(["sh", "-c", _CHANGED, "changed", str(folder)], timeout=LONG).stdout


def note(host: Host, layouts: list[PurePosixPath]) -> None:
    """Note the times of layouts in these folders, once all are linked: each link changes those of the ones before."""
    host.run(["sh", "-c", _NOTE, "note", *map(str, layouts)], timeout=LONG)


_LAYOUT = "2"  # part of every key: raise it when what a build folder holds changes its meaning

# Idempotent: interrupted and run again, it continues. Files are synced first, so that a build is complete even after a
# power failure. $4 are its recorded links, if any.
_KEEP = f"""\
{FUNCTIONS}set -e
mkdir -p "${{1%/*}}"
if [ -d "$2" ]; then
    rm -rf "$1.part"; mkdir "$1.part"
    (umask 077; cp -- "$3" "$1.part/log")
    cat >"$1.part/build.json"
    [ ! -e "$4/plan" ] || cp -al -- "$4" "$1.part/links"
    find "$2" "$1.part" -type f -exec sync -- {{}} +
    mv -T -- "$2" "$1.part/prefix"
fi
rm -rf "$4"
[ ! -d "$1.part" ] || {{ record "$1.part"; rm -rf "$1"; mv -T -- "$1.part" "$1"; }}
"""
# A form feed after the record says that the build has no links.
_FIND = """\
cd -- "$1" 2>/dev/null && cat build.json && { [ -e links/plan ] || printf '\\f'; }
"""
# The time of a build's folder ($3; empty for one outside the root folder) is that of its last use.
_POINT = f"""\
{FUNCTIONS}mkdir -p "${{2%/*}}" && rm -rf "$2" && ln -s -- "$1" "$2" || exit
[ -n "$3" ] || exit 0
touch -c -- "$3" && changed "$3"
[ -e "$3/files/seen" ] || [ ! -d "$1" ] || record "$3"
"""

# $1 a build, or a layout of that in $2, whose times the removal changes.
_REMOVE = f"""\
{FUNCTIONS}remove() {{ rm -rf --one-file-system -- "$1"; }}
if alike "$2" 2>/dev/null; then remove "$1" && note "$2"; else remove "$1"; fi
"""


class BuildRecord(msgspec.Struct, frozen=True):
    """The stored facts of a build. The recipe is not among them: parts that do not affect the build may change."""

    facts: BuildFacts
    version: str  # of the system, as printed by the recipe's version command


def key_of(
    builder: Builder,
    variant: Variant,
    tools: Toolchain,
    tree: str,
    present: Collection[str],
    sha: str,
    system: str = "",
    patches: Sequence[Patch] = (),
    links: str = "",
    training: Mapping[str, Any] | None = None,
) -> str:
    """The key of a build: everything that can change it, and nothing else.

    ``links`` is how its links are recorded and repeated, "" where they are not; ``training`` is what it is trained with.

    ``system`` is the build system of this commit, "" where the recipe has commands. The patches that it may get are in
    the ``tree``, except for those of some versions: which of them it gets follows from the tree.

    The effect of the recipe's conditions follows from the tree, the toolchain, and which of their paths are ``present``,
    ignored or not; so these and the conditions are in the key instead.
    """
    if system:  # builds have the path of their home in them: cmake's RPATH
        how = msgspec.structs.replace(build_of(builder), system=system)
        builder = msgspec.structs.replace(builder, build=how, home=builder.work_name)
    recipe = _recipe(builder, variant) | ({"system": revision(system)} if system else {})
    recipe |= _identity([patch for patch in patches if patch.version])
    recipe |= training or {}
    return _hash(recipe | {
        "tree": tree,
        "present": sorted(present),
        "toolchain": tools.identity,
        "commit": sha if "{commit}" in recipe["commands"] else "",
    } | ({"links": links} if links else {}) | ({"processor": tools.processor} if for_processor(builder, variant) else {}))[:32]  # fmt: skip


def for_processor(builder: Builder, variant: Variant) -> bool:
    """Whether the recipe or the variant compiles for the processor of the host that builds."""
    recipe = _recipe(builder, variant)
    return is_native(" ".join((recipe["commands"], *recipe["variant"])))


def fingerprint(builder: Builder, variant: Variant, patches: Sequence[Patch] = ()) -> str:
    """A hash of everything in a recipe that affects builds, and of the patches."""
    return _hash(_recipe(builder, variant) | _identity(patches))[:16]


def _identity(patches: Sequence[Patch]) -> dict[str, Any]:
    return {"patches": [patch.identity for patch in patches]} if patches else {}


def _recipe(builder: Builder, variant: Variant) -> dict[str, Any]:
    build = msgspec.to_builtins(msgspec.structs.replace(build_of(builder), needs=[], packages={}))
    by_system = {key: build.pop(key) for key in ("system", "options", "targets", "in_place")}
    if not has_commands(build_of(builder)):
        build |= by_system | {"programs": builder.programs, "library": builder.library}
    commands = json.dumps(build) + json.dumps(msgspec.to_builtins(builder.when))
    parts = {
        "layout": _LAYOUT,
        "commands": commands,
        "version": builder.version,
        "variant": [variant.cc, variant.cxx, variant.cflags, variant.ldflags, *filter(None, [variant.train])],
        "files": hashlib.sha256(recipe_archive(builder)).hexdigest() if "{recipe}" in commands else "",
    }
    return parts | {"home": builder.home} if builder.home else parts  # a build may contain the path of its home


def _hash(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def folder(host: Host, key: str) -> PurePosixPath:
    """Where the build with that key is, or would be."""
    return host.root / "builds" / key


def prefix(host: Host, key: str) -> PurePosixPath:
    """Where the build with that key is installed."""
    return folder(host, key) / "prefix"


def find(host: Host, key: str, sha: str) -> BuildRecord | None:
    """A finished build, as one of commit ``sha``; None where it has to be built again.

    That is where none exists, its record is unreadable, or its links were freed, with which it could be linked again.
    """
    found = host.run(["sh", "-c", _FIND, "find", str(folder(host, key))], check=False)
    if not found.ok:
        return None
    record, unlinked, _ = found.stdout.partition("\f")
    try:
        kept = msgspec.json.decode(record, type=BuildRecord)
    except msgspec.DecodeError:
        return None
    if unlinked and kept.facts.linker:
        return None
    log = str(folder(host, key) / "log")  # it may come from a host with another root folder
    facts = replace(
        kept.facts, key=key, commit=sha, seconds=0.0, cache_hits=0, cache_misses=0, remote_hits=0, reused=True, log=log
    )
    return BuildRecord(facts, kept.version)


def has(host: Host, key: str) -> bool:
    """Whether the host has a build with that key, or a layout of one."""
    return host.run(["test", "-f", str(folder(host, key) / "build.json")], check=False).ok


def check(host: Host, key: str) -> None:
    """Raise BuildChanged where the files of the build with that key are not as they were made."""
    if paths := changes(host, folder(host, key)):
        raise BuildChanged(host.name, key, paths)


def remove(host: Host, key: str, of: str = "") -> None:
    """Remove the build with that key, or a layout ``of`` one."""
    host.run(["sh", "-c", _REMOVE, "remove", str(folder(host, key)), str(folder(host, of))], timeout=600)


def keep(host: Host, facts: BuildFacts, version: str, installed: PurePosixPath, log: PurePosixPath) -> BuildFacts:
    """Move what was installed to its place for good, with its log and facts; returns the facts, the log's place set."""
    place = folder(host, facts.key)
    facts = replace(facts, log=str(place / "log"))
    stdin = msgspec.json.encode(BuildRecord(facts, version)).decode()
    links = str(installed.parent / "links")
    host.run(["sh", "-c", _KEEP, "keep", str(place), str(installed), str(log), links], stdin=stdin, timeout=LONG)
    return facts


def put_in_place(host: Host, builder: str, key: str, elsewhere: PurePosixPath | None = None) -> PurePosixPath:
    """Make ``root/work/BUILDER/prefix`` lead to a finished build, or to what is installed ``elsewhere``; return that path.

    It is the path of the installation, so paths that the build contains are valid; and it is the same for every build
    that is measured. Raises BuildChanged where the files of the build are not as they were made.
    """
    fixed = host.root / "work" / builder / "prefix"
    installed, touched = (elsewhere, "") if elsewhere else (prefix(host, key), str(folder(host, key)))
    argv = ["sh", "-c", _POINT, "point", str(installed), str(fixed), touched]
    if paths := host.run(argv, timeout=LONG).stdout:
        raise BuildChanged(host.name, key, paths)
    return fixed


ATTEMPTS = 3  # at a stream during which a connection broke off

READY = 'mkdir -p "${1%/*}" && rm -rf "$1.part" && mkdir "$1.part"'
_DONE = (
    f"{FUNCTIONS}"
    '[ ! -d "$1.part" ] || { find "$1.part" -type f -exec sync -- {} + && note "$1.part" && rm -rf "$1" && mv -T -- "$1.part" "$1"; }'
)


def ship(build_host: Host, builder: str, key: str, host: Host) -> None:
    """Send the build with that key to ``host``, unless it has it. Its links stay where it was built.

    Raises EnvironmentFailure when the build contains the path of its installation, which differs on ``host``, and
    BuildChanged where it is not as it was made.
    """
    place, there = folder(build_host, key), folder(host, key)
    if has(host, key):
        return
    check(build_host, key)
    if build_host.root != host.root:
        _refuse_rooted(build_host, builder, key, host)
    for left in reversed(range(ATTEMPTS)):
        build_host.run(["test", "-d", str(place)])  # which also waits for a lost connection, as the next command does
        host.run(["sh", "-c", READY, "ready", str(there)], timeout=600)
        try:
            _stream(
                build_host,
                ["tar", "-cf", "-", "-C", str(place), "--exclude=./links", "."],
                host,
                ["tar", "-xf", "-", "-C", f"{there}.part"],
            )
            break
        except ConnectionLost:
            if not left:
                raise
    host.run(["sh", "-c", _DONE, "done", str(there)], timeout=600)


def _stream(build_host: Host, pack: list[str], host: Host, unpack: list[str]) -> None:
    """What ``pack`` writes goes to ``unpack``.

    Both report how they ended. The error of the packing side comes first, since a truncated stream looks damaged to the
    other; unless the unpacking side has ended early.
    """
    with host.stream(unpack) as target, suppress(ConnectionError), build_host.stream(pack) as source:
        while chunk := source.recv(1 << 16):
            target.sendall(chunk)


def _refuse_rooted(build_host: Host, builder: str, key: str, host: Host) -> None:
    fixed = str(build_host.root / "work" / builder / "prefix")
    found = build_host.run(["grep", "-rlF", "-m1", "-e", fixed, str(prefix(build_host, key))], check=False, timeout=600)
    if found.ok:
        raise EnvironmentFailure(
            f"builds of {builder} contain the path of their installation below {build_host.root} on host {build_host.name}, and the root"
            f" folder of host {host.name} is {host.root}",
            f"Give both hosts the same `root` in hosts.toml, or let {host.name} build for itself.",
        )
