"""Builds in the tree of the last build: when a commit may be built so, and what brings that tree to the commit.

After a build, ``root/work/BUILDER/base`` says how it was made, of which commit, and under which key it is kept. The next commit
is checked out over its sources, where git leaves files alone that do not change, and the build system makes what is left:

- cmake, meson and cargo know which files an object depends on. Where a file has changed that the configure step reads, that
  step begins anew: what it has found out about options and the compiler may be wrong now. Else it is left out; except by
  cmake where files came or went, which it may look for by a pattern.
- make and autotools know it by dependency files, if each object has one. Where a Makefile has changed, or files came or went,
  programs and archives are removed, so that they are linked again; autotools make their Makefiles again by config.status. Without
  dependency files only sources may have changed that no file includes, and texts. Where a configure script has changed, or what
  it is made from, the commit is built in an empty folder.

Commands of ``--build`` are such systems', if they start nothing else.

What is known to be safe is no proof: a rule may lack a dependency. So the search proves what it names by other builds
(``core/search/clean_builds.py``).
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from perfbisect.host.protocol import Host
from perfbisect.lab.building import build_store, checkout
from perfbisect.lab.building.log_parser import CONFIGURE
from perfbisect.lab.building.plan import BuildContext, BuildPlan
from perfbisect.recipes.build_commands import AGED
from perfbisect.recipes.build_systems import SYSTEMS, Incremental
from perfbisect.recipes.builder_reader import build_of
from perfbisect.repository.git import all_but

SOURCE = re.compile(r"\.(?:c|cc|cpp|cxx|c\+\+|C|s|S|asm|f|f90|m|mm)$")
HEADER = re.compile(r"\.(?:h|hh|hpp|hxx|h\+\+|H|inc|inl|ipp|tcc|tpp|def)$")
# What no build reads, or no part of it that is measured; sources and headers of such folders count as any other.
NEUTRAL = re.compile(
    r"\.(?:md|rst|txt|html?|texi|adoc|pod|[1-8]|po|pot|png|svg|jpe?g|pdf|ya?ml)$|(?:^|/)(?:docs?|tests?|testsuite|t|man|ci)/"
    r"|(?:^|/)(?:README|NEWS|ChangeLog|CHANGES|AUTHORS|TODO|COPYING|LICENSE)[^/]*$|(?:^|/)\.git"
)

_NOTE = 'printf "%s\\n" "$2" "$3" "$4" >"$1/base"'
_READ = 'cat -- "$1/base" 2>/dev/null || :'
# Whether each object below $1 has a dependency file of its name, here or in another folder; one that automake has begun
# is empty but for a comment. Prints "yes", or nothing.
_TRACKED = r"""
cd -- "$1" && {
    find . -name '*.o' -type f -printf 'o %f\n'
    find . -type f -size +16c '(' -name '*.d' -o -name '*.P' -o -name '*.Po' -o -name '*.Plo' -o -name '*.dep' ')' -printf 'd %f\n'
} | awk '{ sub(/^\./, "", $2); sub(/\.(d|P|Po|Plo|dep)$/, "", $2); sub(/\.l?o$/, "", $2) }
    $1 == "d" { known[$2] } $1 == "o" { objects[$2] }
    END { for (each in objects) { some = 1; if (!(each in known)) exit } if (some) print "yes" }'
"""
# Whether a file below $1 includes one with a name that the pattern $2 matches.
_INCLUDED = 'grep -rqsE -e "$2" -- "$1"'
_MAKEFILE = re.compile(r"(?:^|/)(?:GNUm|m|M)akefile[^/]*$|\.(?:am|in|mk|inc|make)$")
# Removes what links make below $1, where $2 is the tree; libtool has a script, or a list, beside each. The next make does it again.
_UNLINK = r"""
cd -- "$1" && find . -type f '(' -perm -u+x -o -name '*.a' -o -name '*.so' -o -name '*.so.*' ')' ! -path './.perfbisect/*' -exec sh -c '
    from=$0
    for path do
        [ ! -e "$from/$path" ] || continue
        case $(head -c 7 -- "$path" | tr -d "\0") in ?ELF*|"!<arch>"|"!<thin>") ;; *) continue;; esac
        rm -f -- "$path" || exit
        case $path in */.libs/*) name=${path##*/}; rm -f -- "${path%/.libs/*}/$name" "${path%/.libs/*}/${name%%.*}.la";; esac
    done' "$2" {} +
"""
# $1 the folder of fixed paths; $2 the folder of a kept build whose installation is copied, of a tree that is built in place;
# $3 where below $1 the tree has a copy. Standard input: paths of that which have changed. Hard links to what is kept are
# broken, as tools may write into a file that exists.
_BEGIN = r"""
cd -- "$1" && rm -rf base prefix objects ccache.log || exit
if [ -n "$2" ]; then
    mkdir prefix && tar -C "$2/prefix" --null --no-recursion --format=pax -cf - -T "$2/files/paths" | tar -C prefix -xpf - || exit
else
    rm -rf build/.perfbisect.incomplete build/.perfbisect.log build/.perfbisect.log.failed || exit
    find build -type f -links +1 -exec sh -c 'for each do cp -p -- "$each" "$each.perfbisect" && mv -f -- "$each.perfbisect" "$each" || exit; done' copy {} +
fi || exit
[ -n "$3" ] || exit 0
cat >changed && (cd -- "$3" && xargs -0 -r rm -rf -- ) <changed && (
    cd source && xargs -0 -r sh -c 'for path do if [ -e "$path" ] || [ -L "$path" ]; then printf "%s\\0" "$path"; fi; done' there <../changed |
        tar --null --no-recursion --format=pax -cf - -T -
) | tar -C "$3" -xpf -
"""
# Programs of commands that build: some know which files an object depends on.
MAKES, KNOWS = {"make", "gmake", "configure"}, {"cmake", "ninja", "meson", "cargo"}
# Makes configure steps begin anew: of cmake's cache results of checks stay, and what was found of the system, while options have
# their defaults again; meson asks for everything again.
_ANEW = r"""
find . -name CMakeCache.txt -exec sed -i -E '/^\/\/|^[^:]*:(BOOL|STRING|PATH|UNINITIALIZED)=/d' {} + &&
    find . -type d '(' -name meson-private -o -name meson-info ')' -prune -exec rm -rf {} +
"""
_CONFIGURED = "[ ! -e config.status ] || ./config.status"
LONG = 3600.0  # seconds, for copying a large tree


@dataclass(frozen=True, slots=True)
class IncrementalBuild:
    """How a commit is built in the tree of the last build."""

    commands: tuple[tuple[str, list[str]], ...]  # stage, argv
    kept: str  # the folder of a kept build whose installation is copied; "" unless the tree is built in place
    copy: str  # where the tree has a copy below the folder of fixed paths; "" where it has none
    changed: tuple[str, ...]  # paths of the tree
    unlinked: str = ""  # the folder in which what links make is removed; "" for none

    def begin(self, host: Host, work: PurePosixPath) -> None:
        """Bring the tree of the last build to the commit that is checked out."""
        paths = "".join(f"{path}\0" for path in self.changed)
        host.script(_BEGIN, work, self.kept, self.copy, stdin=paths, timeout=LONG)
        if self.unlinked:
            host.script(_UNLINK, work / self.unlinked, work / "source", timeout=LONG)


def rules(plan: BuildPlan, prefix: str) -> Incremental | None:
    """When a commit may be built in the tree of another: by its build system, or by commands in a copy of the tree that are
    those of build systems alone. None where it may not.
    """
    if plan.system:
        return SYSTEMS[plan.system].incremental
    (_, copying), *others = plan.commands or (("", []),)
    programs = {_program(argv) if argv[:3] == ["env", "-C", prefix] else "" for _, argv in others}
    if copying[:2] != ["cp", "-a"] or copying[-1] != prefix or not programs or not programs <= MAKES | KNOWS:
        return None
    systems = [SYSTEMS[name].incremental for name in ("cmake", "meson", *(["autotools"] * ("configure" in programs)))]
    inputs = "|".join(each.inputs for each in systems if each)
    return Incremental(inputs, anew="configure" not in programs, tracks=bool(programs & KNOWS))


def _program(argv: Sequence[str]) -> str:
    """The name of the program that ``env -C FOLDER VARIABLES…`` starts."""
    return next((PurePosixPath(word).name for word in argv[3:] if not re.match(r"\w+=", word)), "")


def how(context: BuildContext, plan: BuildPlan) -> str:
    """A hash of how a commit is built; "" where nothing may be built in its tree afterwards."""
    alone = context.training or any(patch.version for patch in context.patches)
    if alone or rules(plan, str(context.work / "prefix")) is None:
        return ""
    parts = [plan.system, plan.commands, dict(plan.env), context.tools.identity]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def note(context: BuildContext, plan: BuildPlan, commit: str, key: str) -> None:
    """Note what the tree of the last build is, for the next one."""
    if made := how(context, plan):
        context.host.script(_NOTE, context.work, made, commit, key)


def begun(context: BuildContext) -> str:
    """The commit that the tree of the last build is of; "" without such a tree."""
    return next(iter(_base(context)[1:2]), "")


def incremental(context: BuildContext, plan: BuildPlan, commit: str) -> IncrementalBuild | None:
    """How a commit, which is checked out, is built in the tree of the last build; None where it is built in an empty folder."""
    host, work, base = context.host, context.work, _base(context)
    made = how(context, plan)
    if not made or base[:1] != [made]:
        return None
    system, in_place = rules(plan, str(work / "prefix")), build_of(plan.builder).in_place or not plan.system
    kept = build_store.folder(host, base[2]) if in_place else None
    top = kept / "prefix" if kept else work / "build"
    changed = changes(host, context.bare, base[1], commit, context.builder.ignore)
    if changed is None or system is None or not host.run(["test", "-d", str(top)], check=False).ok:
        return None
    asks = [path for _, path in changed if re.search(system.inputs, path)]
    if asks and not system.anew:
        return None
    by_make = not system.tracks
    if by_make and not (host.script(_TRACKED, top, timeout=LONG).stdout or _safe(host, work, changed)):
        return None
    again = bool(asks) or (plan.system == "cmake" and any(status != "M" for status, _ in changed))
    commands = [(stage, argv) for stage, argv in plan.commands if again or stage != CONFIGURE]
    commands = [(stage, argv) for stage, argv in commands if argv[:2] != ["cp", "-a"]]
    folder = work / "prefix" if in_place else work / "build"
    if asks:
        commands.insert(0, (CONFIGURE, ["env", "-C", str(folder), "sh", "-c", _ANEW]))
    copy = "prefix" if in_place else "build" if plan.system == "make" else ""
    makefiles = by_make and any(status != "M" or _MAKEFILE.search(path) for status, path in changed)
    if plan.system == "autotools":
        made_here = host.run(["test", "-e", str(work / "build" / "configure")], check=False).ok
        copy = copy or "build" * made_here
        generated = not checkout.present(host, context.bare, commit, ["configure"])
        if generated and any(path.endswith(".am") for _, path in changed):
            return None
        if makefiles:
            commands.insert(0, (CONFIGURE, ["env", "-C", str(folder), "sh", "-c", _CONFIGURED]))
        aged = AGED.replace("{{", "{").replace("}}", "}")
        commands.insert(0, (CONFIGURE, ["sh", "-c", aged, str(folder if copy else work / "source")]))
    paths = tuple(path for _, path in changed)
    return IncrementalBuild(tuple(commands), str(kept or ""), copy, paths, folder.name * makefiles)


def changes(
    host: Host, bare: PurePosixPath, before: str, after: str, ignore: Sequence[str]
) -> list[tuple[str, str]] | None:
    """The files that differ between two commits beyond the ignored paths: A, M, D or T, and the path.

    None where that is not known: a submodule differs, or a commit is absent.
    """
    options = ["-r", "-z", "--raw", "--no-renames", "--no-ext-diff", "--ignore-submodules=none"]
    listing = checkout.git(
        host, f"--git-dir={bare}", "diff-tree", *options, before, after, "--", *all_but(ignore), check=False
    )
    fields = listing.stdout.split("\0")[:-1]
    entries = [(facts.split(" "), path) for facts, path in zip(fields[::2], fields[1::2], strict=True)]
    if not listing.ok or any("160000" in facts[0] or "160000" in facts[1] for facts, _ in entries):
        return None
    return [(facts[4], path) for facts, path in entries]


def _base(context: BuildContext) -> list[str]:
    """How the last build was made, of which commit, its key; empty without one."""
    lines = context.host.script(_READ, context.work).stdout.split("\n")
    return lines[:3] if len(lines) > 3 else []


def _safe(host: Host, work: PurePosixPath, changed: Sequence[tuple[str, str]]) -> bool:
    """Whether a Makefile without dependency files makes what depends on these files."""
    sources = [PurePosixPath(path).name for _, path in changed if SOURCE.search(path)]
    if any(status != "M" or HEADER.search(path) for status, path in changed if not NEUTRAL.search(path)):
        return False
    if not all(SOURCE.search(path) or NEUTRAL.search(path) for _, path in changed):
        return False
    pattern = f'include.*["</]({"|".join(map(re.escape, sources))})[">]'
    return not sources or host.script(_INCLUDED, work / "source", pattern, check=False, timeout=LONG).status == 1
