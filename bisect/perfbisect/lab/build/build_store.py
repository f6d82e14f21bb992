"""The finished builds of a host: ``root/builds/KEY/`` with ``prefix/``, ``log``, ``build.json``, ``files/`` (see
``integrity.py``), and ``links/`` if wanted.

A build appears there with its record in one rename, so that a folder of that name is always complete.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import msgspec

from perfbisect.core.domain.facts import BuildFacts
from perfbisect.core.domain.patch import Patch
from perfbisect.errors import BuildChanged
from perfbisect.host.protocol import Host
from perfbisect.lab.build import integrity
from perfbisect.lab.build.toolchain import Toolchain, is_native
from perfbisect.lab.upload.recipe import archive
from perfbisect.recipes.build_systems import has_commands, revision
from perfbisect.recipes.builder import Builder, Variant
from perfbisect.recipes.builder_reader import build_of

_LAYOUT = "2"  # part of every key: raise it when what a build folder holds changes its meaning

# Idempotent: interrupted and run again, it continues. Files are synced first, so that a build is complete even after a
# power failure. $4 are its recorded links, if any.
_KEEP = f"""\
{integrity.FUNCTIONS}set -e
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
{integrity.FUNCTIONS}mkdir -p "${{2%/*}}" && rm -rf "$2" && ln -s -- "$1" "$2" || exit
[ -n "$3" ] || exit 0
touch -c -- "$3" && changed "$3"
[ -e "$3/files/seen" ] || [ ! -d "$1" ] || record "$3"
"""

# $1 a build, or a layout of that in $2, whose times the removal changes.
_REMOVE = f"""\
{integrity.FUNCTIONS}remove() {{ rm -rf --one-file-system -- "$1"; }}
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
        "files": hashlib.sha256(archive(builder)).hexdigest() if "{recipe}" in commands else "",
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
    if paths := integrity.changes(host, folder(host, key)):
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
    host.run(
        ["sh", "-c", _KEEP, "keep", str(place), str(installed), str(log), links], stdin=stdin, timeout=integrity.LONG
    )
    return facts


def put_in_place(host: Host, builder: str, key: str, elsewhere: PurePosixPath | None = None) -> PurePosixPath:
    """Make ``root/work/BUILDER/prefix`` lead to a finished build, or to what is installed ``elsewhere``; return that path.

    It is the path of the installation, so paths that the build contains are valid; and it is the same for every build
    that is measured. Raises BuildChanged where the files of the build are not as they were made.
    """
    fixed = host.root / "work" / builder / "prefix"
    installed, touched = (elsewhere, "") if elsewhere else (prefix(host, key), str(folder(host, key)))
    argv = ["sh", "-c", _POINT, "point", str(installed), str(fixed), touched]
    if paths := host.run(argv, timeout=integrity.LONG).stdout:
        raise BuildChanged(host.name, key, paths)
    return fixed
