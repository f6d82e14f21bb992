"""Builds in the tree of the last build: when a commit may be built so, and what brings that tree to the commit.

After a build, ``root/work/BUILDER/base`` says how it was made, of which commit, and under which key it is kept. The next commit
is checked out over its sources, where git leaves files alone that do not change, and the build system makes what is left:

- cmake, meson and cargo know which files an object depends on. Where a file has changed that the configure step reads, that
  step begins anew: what it has found out about options and the compiler may be wrong now. Else it is left out; except by
  cmake where files came or went, which it may look for by a pattern.
- make and autotools know it by dependency files, if each object has one. Without these only sources may have changed that no file
  includes, and texts. Where a Makefile has changed, or files came or went, autotools make their Makefiles again by config.status.
  Where options of compilers in a Makefile, a configure script or what it is made from have changed, the folder is empty.

Programs and archives are removed, by make always, else where files came or went: one that is not made any more is not measured.

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
_TAKE = 'cd -- "$1" 2>/dev/null && [ -e base ] && cat base && rm -f base || :'
# Whether each object below $1 has a dependency file of its name, here or in another folder; one that automake has begun
# is empty but for a comment. Objects of assembly code in the tree $2 need none, as they are removed. Prints "yes", or nothing.
_TRACKED = r"""
cd -- "$1" && {
    find . -name '*.o' -type f -printf 'o %f\n'
    find . -type f -size +16c '(' -name '*.d' -o -name '*.P' -o -name '*.Po' -o -name '*.Plo' -o -name '*.dep' ')' -printf 'd %f\n'
    find "$2" -type f -name '*.[sS]' -printf 'd %f\n'
} | awk '{ sub(/^\./, "", $2); sub(/\.(d|P|Po|Plo|dep|s|S)$/, "", $2); sub(/\.l?o$/, "", $2) }
    $1 == "d" { known[$2] } $1 == "o" { objects[$2] }
    END { for (each in objects) { some = 1; if (!(each in known)) exit } if (some) print "yes" }'
"""
# Whether a file below $1 includes one with a name that the pattern $2 matches.
_INCLUDED = 'grep -rqsE -e "$2" -- "$1"'
# Whether options of compilers differ between the commits $2 and $3 in Makefiles, the paths that follow. Prints "yes", or nothing.
_OPTIONS = r"""
bare=$1 before=$2 after=$3
shift 3
git --git-dir="$bare" diff -U0 --no-color --no-ext-diff --no-textconv "$before" "$after" -- "$@" | LC_ALL=C grep -qE \
    -e '^[+-].*(FLAGS|DEFS|DEFINES)[A-Za-z_]*[[:space:]]*[:+?]*=' \
    -e '^[+-].*[[:space:]=]-(O|std=|[DU][A-Za-z_]|[fm][a-z0-9]{2})' && echo yes || :
"""
_MAKEFILE = re.compile(r"(?:^|/)(?:GNUm|m|M)akefile[^/]*$|\.(?:am|in|mk|inc|make)$")
# Removes what links make, and objects of assembly code, below $1, at most $3 folders deep, where $2 is the tree; libtool has a
# script, or a list, beside each. The next build makes it again, unless nothing does any more. By make that is always done: a
# program may be made of sources at once, and a library of objects that have gone.
_UNLINK = r"""
[ -d "$1" ] || exit 0
cd -- "$1" && find . -maxdepth "$3" -type f '(' -perm -u+x -o -name '*.a' -o -name '*.so' -o -name '*.so.*' ')' ! -path './.perfbisect/*' -exec sh -c '
    from=$0
    for path do
        [ ! -e "$from/$path" ] || continue
        case $(head -c 7 -- "$path" | tr -d "\0") in ?ELF*|"!<arch>"|"!<thin>") ;; *) continue;; esac
        rm -f -- "$path" || exit
        case $path in */.libs/*) name=${path##*/}; rm -f -- "${path%/.libs/*}/$name" "${path%/.libs/*}"/*.la;; esac
    done' "$2" {} +
find "$2" -type f -name '*.[sS]' -printf '%f\n' | while IFS= read -r name; do
    find . -maxdepth "$3" -type f '(' -name "${name%.[sS]}.o" -o -name "${name%.[sS]}.lo" ')' -exec rm -f {} +
done
"""
# $1 the folder of fixed paths; $2 the folder of a kept build whose installation is copied, of a tree that is built in place;
# $3 where below $1 the tree has a copy. Standard input: paths of the tree that have changed, behind A, M, D or T: where a file
# went, a link may be in its place that leads elsewhere. Hard links to kept builds are broken, as tools may write into a file
# that exists.
_BEGIN = r"""
cd -- "$1" && rm -rf base prefix objects ccache.log || exit
if [ -n "$2" ]; then
    mkdir prefix && tar -C "$2/prefix" --null --no-recursion --format=pax -cf - -T "$2/files/paths" | tar -C prefix -xpf - || exit
else
    rm -rf build/.perfbisect.incomplete build/.perfbisect.log build/.perfbisect.log.failed || exit
    find build -type f -links +1 -exec sh -c 'for each do cp -p -- "$each" "$each.perfbisect" && mv -f -- "$each.perfbisect" "$each" || exit; done' copy {} +
fi || exit
[ -n "$3" ] || exit 0
cat >changed && (cd -- "$3" && cut -zc 2- | xargs -0 -r rm -rf --) <changed &&
    grep -zv '^D' changed | cut -zc 2- | tar -C source --null --no-recursion --format=pax -cf - -T - | tar -C "$3" -xpf -
"""
# Programs of commands that build: some know which files an object depends on.
MAKES, KNOWS = {"make", "gmake", "configure"}, {"cmake", "ninja", "meson", "cargo"}
# Makes configure steps begin anew: of cmake's cache results of checks stay, and what was found of the system, while options have
# their defaults again; meson asks for everything again.
_ANEW = r"""
find . -name CMakeCache.txt -exec sed -i -E '/^\/\/|^[^:]*:(BOOL|STRING|PATH|UNINITIALIZED)=/d' {} + &&
    find . -type d '(' -name meson-private -o -name meson-info ')' -prune -exec rm -rf {} +
"""
# Of those that ``build_commands.AGED`` ages in a new tree: what has changed of the others, such as x.h.in, is newer than what is
# made from it. $0 the tree.
_AGED = """\
find "$0" -type f '(' -name configure -o -name '*.ac' -o -name '*.am' -o -name '*.m4' ')' -exec touch -d @315532800 {} +
"""
# Prints the programs and shared libraries below $1.
_PROGRAMS = r"""
[ -d "$1" ] && cd -- "$1" || exit 0
find . '(' -name CMakeFiles -o -name meson-private ')' -prune -o -type f '(' -perm -u+x -o -name '*.so' -o -name '*.so.*' ')' -print0 |
LC_ALL=C sort -z | xargs -0 -r sh -c 'for each do case $(head -c 4 -- "$each" | tr -d "\0") in ?ELF) printf "%s\0" "$each";; esac; done' find
"""
MOST = 200  # of them that are compared
DEEP = 100  # folders
LONG = 3600.0  # seconds, for copying a large tree


@dataclass(frozen=True, slots=True)
class IncrementalBuild:
    """How a commit is built in the tree of the last build."""

    commands: tuple[tuple[str, list[str]], ...]  # stage, argv
    kept: str  # the folder of a kept build whose installation is copied; "" unless the tree is built in place
    copy: str  # where the tree has a copy below the folder of fixed paths; "" where it has none
    changed: tuple[str, ...]  # A, M, D or T, and a path of the tree
    unlinked: tuple[str, int] | None = None  # the folder in which what links make is removed, and how deep

    def begin(self, host: Host, work: PurePosixPath) -> None:
        """Bring the tree of the last build to the commit that is checked out."""
        paths = "".join(f"{path}\0" for path in self.changed)
        host.script(_BEGIN, work, self.kept, self.copy, stdin=paths, timeout=LONG)
        if self.unlinked:
            folder, deep = self.unlinked
            host.script(_UNLINK, work / folder, work / "source", deep, timeout=LONG)


def rules(plan: BuildPlan, prefix: str) -> Incremental | None:
    """When a commit may be built in the tree of another: by its build system, or by commands in a copy of the tree that are
    those of build systems alone. None where it may not.
    """
    if plan.system:
        return SYSTEMS[plan.system].incremental
    (_, copying), *others = plan.commands or (("", []),)
    programs = set()
    for _, argv in others:
        words = [word for word in argv[3:] if not re.match(r"\w+=", word)]  # without variables
        programs.add(PurePosixPath(words[0]).name if words and argv[:3] == ["env", "-C", prefix] else "")
    if copying[:2] != ["cp", "-a"] or copying[-1] != prefix or not programs or not programs <= MAKES | KNOWS:
        return None
    systems = [SYSTEMS[name].incremental for name in ("cmake", "meson", *(["autotools"] * ("configure" in programs)))]
    inputs = "|".join(each.inputs for each in systems if each)
    return Incremental(inputs, anew="configure" not in programs, tracks=bool(programs & KNOWS))


def how(context: BuildContext, plan: BuildPlan) -> str:
    """A hash of how a commit is built; "" where nothing may be built in its tree afterwards."""
    alone = context.training or any(patch.version for patch in context.patches)
    if alone or rules(plan, str(context.work / "prefix")) is None:
        return ""
    parts = [plan.system, plan.commands, dict(plan.env), context.tools.identity, [*context.builder.ignore]]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def programs(host: Host, prefix: PurePosixPath) -> list[str]:
    """The programs and shared libraries below ``prefix``; none where they are too many, or a name is no text."""
    paths = host.script(_PROGRAMS, prefix, timeout=LONG).stdout.split("\0")[:-1]
    return [] if len(paths) > MOST or any("\N{REPLACEMENT CHARACTER}" in path for path in paths) else paths


def note(context: BuildContext, plan: BuildPlan, commit: str, key: str) -> None:
    """Note what the tree of the last build is, for the next one."""
    if made := how(context, plan):
        context.host.script(_NOTE, context.work, made, commit, key)


@dataclass(frozen=True, slots=True)
class Base:
    """What the tree of the last build is."""

    made: str  # see ``how``
    commit: str
    key: str


def take(context: BuildContext) -> Base | None:
    """What the tree of the last build is; None without one. It is that no more: whatever is interrupted from here on, the next
    build begins in an empty folder.
    """
    made, commit, key, *_ = [*context.host.script(_TAKE, context.work).stdout.split("\n"), "", ""]
    return Base(made, commit, key) if key else None


def incremental(context: BuildContext, plan: BuildPlan, commit: str, base: Base) -> IncrementalBuild | None:
    """How a commit, which is checked out, is built in the tree of the last build; None where it is built in an empty folder."""
    rule = rules(plan, str(context.work / "prefix"))
    if rule is None or base.made != how(context, plan):
        return None
    changed = changes(context.host, context.bare, base.commit, commit, context.builder.ignore)
    if changed is None:
        return None
    way = _TreeChange(context, plan, commit, base, rule, changed)
    return way.build() if way.possible() else None


@dataclass(frozen=True, slots=True)
class _TreeChange:
    """What has changed since the last build: whether the build system can make it in the tree of that, and by what."""

    context: BuildContext
    plan: BuildPlan
    commit: str
    base: Base
    rule: Incremental
    changed: Sequence[tuple[str, str]]

    @property
    def in_place(self) -> bool:
        return build_of(self.plan.builder).in_place or not self.plan.system

    @property
    def last(self) -> PurePosixPath:
        """Where the objects of the last build are."""
        kept = build_store.folder(self.context.host, self.base.key) / "prefix"
        return kept if self.in_place else self.context.work / "build"

    @property
    def asks(self) -> bool:
        """Whether the configure step has to find out everything anew."""
        return any(re.search(self.rule.inputs, path) for _, path in self.changed)

    @property
    def came_or_went(self) -> bool:
        return any(status != "M" for status, _ in self.changed)

    @property
    def makefiles(self) -> tuple[str, ...]:
        """Those that have changed, where they alone say what is made."""
        return tuple(path for _, path in self.changed if not self.rule.tracks and _MAKEFILE.search(path))

    def possible(self) -> bool:
        """Whether nothing is known to become stale."""
        host = self.context.host
        there = host.run(["test", "-d", str(self.last)], check=False).ok
        if not there or (self.asks and not self.rule.anew):
            return False
        # What was measured may have written to its own files.
        if self.in_place and build_store.changes(host, build_store.folder(host, self.base.key)):
            return False
        if self.rule.tracks:
            return True
        if self.plan.system == "autotools":  # config.status makes again what is made from templates
            am, templates = (any(path.endswith(end) for _, path in self.changed) for end in (".am", ".in"))
            if am and not checkout.present(host, self.context.bare, self.commit, ["configure"]):
                return False
            if templates and not am and not self._has("config.status"):
                return False
        if not (
            host.script(_TRACKED, self.last, self.context.work / "source", timeout=LONG).stdout
            or _safe(host, self.context.work, self.changed)
        ):
            return False
        where = [str(self.context.bare), self.base.commit, self.commit]
        return not (self.makefiles and checkout.scripted(host, _OPTIONS, [*where, *self.makefiles]).stdout)

    def _has(self, name: str) -> bool:
        return self.context.host.run(["test", "-e", str(self.last / name)], check=False).ok

    def build(self) -> IncrementalBuild:
        """How the commit is built."""
        work, system = self.context.work, self.plan.system
        folder = work / "prefix" if self.in_place else work / "build"
        again = self.asks or (system == "cmake" and self.came_or_went)
        commands = [(stage, argv) for stage, argv in self.plan.commands if again or stage != CONFIGURE]
        commands = [(stage, argv) for stage, argv in commands if argv[:2] != ["cp", "-a"]]
        copy = "prefix" if self.in_place else "build" if system == "make" else ""
        first: list[list[str]] = []
        if system == "autotools":
            copy = copy or "build" * self._has("configure")
            first.append(["sh", "-c", _AGED, str(folder if copy else work / "source")])
            if (self.came_or_went or self.makefiles) and self._has("config.status"):
                first.append(["env", "-C", str(folder), "./config.status"])
        if self.asks:
            first.append(["env", "-C", str(folder), "sh", "-c", _ANEW])
        relinked, unlinked = self.asks or self.came_or_went or not self.rule.tracks, (folder.name, DEEP)
        if system == "cargo":  # what is deeper are its own files, of which it knows all
            relinked, unlinked = True, (f"{folder.name}/{'target/' * self.in_place}release", 1)
        return IncrementalBuild(
            (*((CONFIGURE, argv) for argv in first), *commands),
            str(self.last.parent) if self.in_place else "",
            copy,
            tuple(f"{status}{path}" for status, path in self.changed),
            unlinked if relinked else None,
        )


def changes(
    host: Host, bare: PurePosixPath, before: str, after: str, ignore: Sequence[str]
) -> list[tuple[str, str]] | None:
    """The files that differ between two commits beyond the ignored paths: A, M, D or T, and the path.

    None where that is not known: a submodule differs, a commit is absent, or a name is not UTF-8, which no command can be given.
    """
    options = ["-r", "-z", "--raw", "--no-renames", "--no-ext-diff", "--ignore-submodules=none"]
    listing = checkout.git(
        host, f"--git-dir={bare}", "diff-tree", *options, before, after, "--", *all_but(ignore), check=False
    )
    fields = listing.stdout.split("\0")[:-1]
    entries = [(facts.split(" "), path) for facts, path in zip(fields[::2], fields[1::2], strict=True)]
    if (
        not listing.ok
        or "\N{REPLACEMENT CHARACTER}" in listing.stdout
        or any("160000" in facts[0] or "160000" in facts[1] for facts, _ in entries)
    ):
        return None
    return [(facts[4], path) for facts, path in entries]


def _safe(host: Host, work: PurePosixPath, changed: Sequence[tuple[str, str]]) -> bool:
    """Whether a Makefile without dependency files makes what depends on these files."""
    read = [each for each in changed if SOURCE.search(each[1]) or HEADER.search(each[1]) or not NEUTRAL.search(each[1])]
    if any(status != "M" or not SOURCE.search(path) for status, path in read):
        return False
    sources = [PurePosixPath(path).name for _, path in read]
    pattern = f'include.*["</]({"|".join(map(re.escape, sources))})[">]'
    return not sources or host.script(_INCLUDED, work / "source", pattern, check=False, timeout=LONG).status == 1
