"""Decides when a commit may be built incrementally (in the tree of the last build), and prepares the tree for the
commit.

After a build, perfbisect writes into the file ``root/work/BUILDER/base`` how the tree was made, from which commit, and
the key of the build. The next commit is checked out over the sources of the last build; git does not write unchanged
files. The build system then makes everything again that depends on changed files:

- cmake, meson and cargo know on which files an object depends. If a file has changed that the configure step reads,
  this step is repeated from the beginning, because its results about options and the compiler may be wrong now. If no
  such file has changed, the configure step is skipped; except with cmake if files were added or removed, because cmake
  may look for files by a pattern.
- make and autotools know which files an object depends on, if each object has a dependency file.
  Without dependency files, an incremental build is possible only if the changed files are text files or source files
  that no file includes. If a Makefile has changed, or files were added or removed, autotools generate their Makefiles
  again by config.status. If compiler options have changed in a Makefile, in a configure script or in an input of such
  a script, the build begins in an empty folder.

Before the next build, perfbisect removes the programs and archives of the last build, so that no old program is
measured if the next build does not make the program: with make always, with other build systems if files were added or
removed.

For commands of ``--build`` that start only build systems, the rules of these build systems apply.

An incremental build may still be wrong, because the tree's Makefile may lack a dependency. So the search confirms its
result with clean builds (``core/search/clean_builds.py``).
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
from perfbisect.recipes.build_systems import SYSTEMS, IncrementalBuilds
from perfbisect.recipes.builder_reader import required_build_section
from perfbisect.repository.git import pathspecs_except

SOURCE = re.compile(r"\.(?:c|cc|cpp|cxx|c\+\+|C|s|S|asm|f|f90|m|mm)$")
HEADER = re.compile(r"\.(?:h|hh|hpp|hxx|h\+\+|H|inc|inl|ipp|tcc|tpp|def)$")
# Files that no build reads, or that are read only by parts that are not measured. Sources and headers in such folders
# count like other sources.
NEUTRAL = re.compile(
    r"\.(?:md|rst|txt|html?|texi|adoc|pod|[1-8]|po|pot|png|svg|jpe?g|pdf|ya?ml)$|(?:^|/)(?:docs?|tests?|testsuite|t|man|ci)/"
    r"|(?:^|/)(?:README|NEWS|ChangeLog|CHANGES|AUTHORS|TODO|COPYING|LICENSE)[^/]*$|(?:^|/)\.git"
)

_NOTE = 'printf "%s\\n" "$2" "$3" "$4" >"$1/base"'
_TAKE = 'cd -- "$1" 2>/dev/null && [ -e base ] && cat base && rm -f base || :'
# Prints "yes" if each object below $1 has a dependency file of its name, in any folder. A dependency file with only the
# comment that automake writes at first does not count. Objects of assembly code of the tree $2 need no dependency file,
# because _UNLINK removes these objects.
_TRACKED = r"""
cd -- "$1" && {
    find . -name '*.o' -type f -printf 'o %f\n'
    find . -type f -size +16c '(' -name '*.d' -o -name '*.P' -o -name '*.Po' -o -name '*.Plo' -o -name '*.dep' ')' -printf 'd %f\n'
    find "$2" -type f -name '*.[sS]' -printf 'd %f\n'
} | awk '{ sub(/^\./, "", $2); sub(/\.(d|P|Po|Plo|dep|s|S)$/, "", $2); sub(/\.l?o$/, "", $2) }
    $1 == "d" { known[$2] } $1 == "o" { objects[$2] }
    END { for (each in objects) { some = 1; if (!(each in known)) exit } if (some) print "yes" }'
"""
# Whether a file below $1 includes a file with a name that the pattern $2 matches.
_INCLUDED = 'grep -rqsE -e "$2" -- "$1"'
# Prints "yes" if options of compilers differ between the commits $2 and $3 in the Makefiles at the paths that follow.
_OPTIONS = r"""
bare=$1 before=$2 after=$3
shift 3
git --git-dir="$bare" diff -U0 --no-color --no-ext-diff --no-textconv "$before" "$after" -- "$@" | LC_ALL=C grep -qE \
    -e '^[+-].*(FLAGS|DEFS|DEFINES)[A-Za-z_]*[[:space:]]*[:+?]*=' \
    -e '^[+-].*[[:space:]=]-(O|std=|[DU][A-Za-z_]|[fm][a-z0-9]{2})' && echo yes || :
"""
_MAKEFILE = re.compile(r"(?:^|/)(?:GNUm|m|M)akefile[^/]*$|\.(?:am|in|mk|inc|make)$")
# Removes the products of linkers, and objects of assembly code, below $1, at most $3 folders deep, but no files of the
# tree $2. Of a product of libtool, the script or the list (.la) is removed, too. The next build makes the products
# again, except products that no rule makes any more. For make, the products are always removed, because a program may
# be made directly from sources, and a library may contain objects that no longer exist.
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
# Prepares an incremental build. $1 is the folder of fixed paths; $2 the folder of a kept build whose installation is
# copied, or ""; $3 the folder below $1 with a copy of the tree, or "". Standard input: changed paths of the tree, each
# after A, M, D or T. Changed files of the copy are first removed, because a link at such a path may lead elsewhere.
# Files with hard links to kept builds are copied, because tools may write into existing files.
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
# Names of build programs in commands. The programs of KNOWS know on which files each object depends.
MAKES, KNOWS = {"make", "gmake", "configure"}, {"cmake", "ninja", "meson", "cargo"}
# Prepares a tree for a new configure step. cmake's cache keeps the results of checks and facts about the system, and
# loses options, so that they get their defaults again. meson checks everything again.
_ANEW = r"""
find . -name CMakeCache.txt -exec sed -i -E '/^\/\/|^[^:]*:(BOOL|STRING|PATH|UNINITIALIZED)=/d' {} + &&
    find . -type d '(' -name meson-private -o -name meson-info ')' -prune -exec rm -rf {} +
"""
# The files that ``build_commands.AGED`` ages in a new tree, except templates: a changed template, such as x.h.in, is newer than
# the file that is made from it. $0 is the tree.
_AGED = """\
find "$0" -type f '(' -name configure -o -name '*.ac' -o -name '*.am' -o -name '*.m4' ')' -exec touch -d @315532800 {} +
"""
# Prints the programs and shared libraries below $1.
_PROGRAMS = r"""
[ -d "$1" ] && cd -- "$1" || exit 0
find . '(' -name CMakeFiles -o -name meson-private ')' -prune -o -type f '(' -perm -u+x -o -name '*.so' -o -name '*.so.*' ')' -print0 |
LC_ALL=C sort -z | xargs -0 -r sh -c 'for each do case $(head -c 4 -- "$each" | tr -d "\0") in ?ELF) printf "%s\0" "$each";; esac; done' find
"""
MAX_PROGRAMS = 200  # most programs of a build that are compared
DEEP = 100  # levels of folders: more than a tree has
LONG = 3600.0  # seconds, for copying a large tree


@dataclass(frozen=True, slots=True)
class IncrementalBuild:
    """The way in which a commit is built in the tree of the last build."""

    commands: tuple[tuple[str, list[str]], ...]  # (stage of the build, argv) of each command
    kept_folder: str  # the folder of a kept build whose installation is copied; "" unless the tree is built in place
    copy_folder: str  # the folder of the tree's copy below the folder of fixed paths; "" without a copy
    changed_paths: tuple[str, ...]  # A, M, D or T, followed by a path of the tree
    unlinked: tuple[str, int] | None = None  # the folder in which products of linkers are removed, and how deep

    def prepare_tree(self, host: Host, work: PurePosixPath) -> None:
        """Prepare the tree of the last build, in which a commit was checked out, for the build of this commit."""
        paths = "".join(f"{path}\0" for path in self.changed_paths)
        host.script(_BEGIN, work, self.kept_folder, self.copy_folder, stdin=paths, timeout=LONG)
        if self.unlinked:
            folder, deep = self.unlinked
            host.script(_UNLINK, work / folder, work / "source", deep, timeout=LONG)


def incremental_rules(plan: BuildPlan, prefix: str) -> IncrementalBuilds | None:
    """The rules for incremental builds: the rules of the plan's build system or, if the plan has other commands, the
    rules of the build systems that these commands start. None if incremental builds are not allowed, for example
    because the commands start other programs, too.
    """
    if plan.system:
        return SYSTEMS[plan.system].incremental
    (_, copying), *further = plan.commands or (("", []),)
    programs = set()
    for _, argv in further:
        words = [word for word in argv[3:] if not re.match(r"\w+=", word)]  # without NAME=VALUE
        programs.add(PurePosixPath(words[0]).name if words and argv[:3] == ["env", "-C", prefix] else "")
    if copying[:2] != ["cp", "-a"] or copying[-1] != prefix or not programs or not programs <= MAKES | KNOWS:
        return None
    systems = [SYSTEMS[name].incremental for name in ("cmake", "meson", *(["autotools"] * ("configure" in programs)))]
    inputs = "|".join(each.inputs for each in systems if each)
    return IncrementalBuilds(inputs, anew="configure" not in programs, tracks=bool(programs & KNOWS))


def build_method_hash(context: BuildContext, plan: BuildPlan) -> str:
    """A hash of the commands, the environment and the tools that build a commit; "" if the commit's tree cannot be used
    for incremental builds.
    """
    alone = context.training or any(patch.version for patch in context.patches)
    if alone or incremental_rules(plan, str(context.work / "prefix")) is None:
        return ""
    parts = [plan.system, plan.commands, dict(plan.env), context.tools.identity, [*context.builder.ignore]]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def built_programs(host: Host, prefix: PurePosixPath) -> list[str]:
    """The paths of the programs and shared libraries below ``prefix``; [] if there are more than ``MAX_PROGRAMS``, or
    if a name is not UTF-8.
    """
    paths = host.script(_PROGRAMS, prefix, timeout=LONG).stdout.split("\0")[:-1]
    return [] if len(paths) > MAX_PROGRAMS or any("\N{REPLACEMENT CHARACTER}" in path for path in paths) else paths


def note_last_build(context: BuildContext, plan: BuildPlan, commit: str, key: str) -> None:
    """Write a note for the next incremental build: the settings and the commit of the build that was just made."""
    if made := build_method_hash(context, plan):
        context.host.script(_NOTE, context.work, made, commit, key)


@dataclass(frozen=True, slots=True)
class LastBuild:
    """The note about the last build: how its tree was made, and from which commit."""

    made: str  # see ``build_method_hash``
    commit: str
    key: str


def take_last_build_note(context: BuildContext) -> LastBuild | None:
    """Read and remove the note about the last build; None if there is no note. The note is removed so that, if this
    build is interrupted, the next build begins in an empty folder.
    """
    made, commit, key, *_ = [*context.host.script(_TAKE, context.work).stdout.split("\n"), "", ""]
    return LastBuild(made, commit, key) if key else None


def incremental_build(context: BuildContext, plan: BuildPlan, commit: str, base: LastBuild) -> IncrementalBuild | None:
    """The way in which the checked-out commit can be built in the tree of the last build; None if the commit must be
    built in an empty folder.
    """
    rule = incremental_rules(plan, str(context.work / "prefix"))
    if rule is None or base.made != build_method_hash(context, plan):
        return None
    changed = changed_files(context.host, context.bare, base.commit, commit, context.builder.ignore)
    if changed is None:
        return None
    way = _TreeChange(context, plan, commit, base, rule, changed)
    return way.build_method() if way.is_possible() else None


@dataclass(frozen=True, slots=True)
class _TreeChange:
    """The changes since the last build. Decides whether and how the build system can build the changes in the tree of
    the last build.
    """

    context: BuildContext
    plan: BuildPlan
    commit: str
    base: LastBuild
    rule: IncrementalBuilds
    changed: Sequence[tuple[str, str]]

    @property
    def in_place(self) -> bool:
        return required_build_section(self.plan.builder).in_place or not self.plan.system

    @property
    def objects_folder(self) -> PurePosixPath:
        """The folder that contains the object files of the last build."""
        installation = build_store.build_folder(self.context.host, self.base.key) / "prefix"
        return installation if self.in_place else self.context.work / "build"

    @property
    def needs_configure(self) -> bool:
        """Whether the configure step has to be repeated from the beginning."""
        return any(re.search(self.rule.inputs, path) for _, path in self.changed)

    @property
    def has_added_or_removed_files(self) -> bool:
        return any(status != "M" for status, _ in self.changed)

    @property
    def changed_makefiles(self) -> tuple[str, ...]:
        """The changed Makefiles, if the build system is make or autotools; otherwise ()."""
        return tuple(path for _, path in self.changed if not self.rule.tracks and _MAKEFILE.search(path))

    def is_possible(self) -> bool:
        """Whether the build system will probably make everything again that depends on the changes."""
        host = self.context.host
        has_objects = host.run(["test", "-d", str(self.objects_folder)], check=False).ok
        if not has_objects or (self.needs_configure and not self.rule.anew):
            return False
        # Measured programs may have written into files of the build; then the next build cannot start from it.
        if self.in_place and build_store.changed_files(host, build_store.build_folder(host, self.base.key)):
            return False
        if self.rule.tracks:
            return True
        if self.plan.system == "autotools":  # config.status makes files from changed templates
            am, templates = (any(path.endswith(end) for _, path in self.changed) for end in (".am", ".in"))
            if am and not checkout.present_paths(host, self.context.bare, self.commit, ["configure"]):
                return False
            if templates and not am and not self._has("config.status"):
                return False
        if not (
            host.script(_TRACKED, self.objects_folder, self.context.work / "source", timeout=LONG).stdout
            or _is_makefile_safe(host, self.context.work, self.changed)
        ):
            return False
        where = [str(self.context.bare), self.base.commit, self.commit]
        makefiles = self.changed_makefiles
        return not (makefiles and checkout.git_script(host, _OPTIONS, [*where, *makefiles]).stdout)

    def _has(self, name: str) -> bool:
        return self.context.host.run(["test", "-e", str(self.objects_folder / name)], check=False).ok

    def build_method(self) -> IncrementalBuild:
        """The way in which the commit is built in the tree of the last build."""
        work, system = self.context.work, self.plan.system
        folder = work / "prefix" if self.in_place else work / "build"
        again = self.needs_configure or (system == "cmake" and self.has_added_or_removed_files)
        commands = [(stage, argv) for stage, argv in self.plan.commands if again or stage != CONFIGURE]
        commands = [(stage, argv) for stage, argv in commands if argv[:2] != ["cp", "-a"]]
        copy = "prefix" if self.in_place else "build" if system == "make" else ""
        first: list[list[str]] = []
        if system == "autotools":
            copy = copy or "build" * self._has("configure")
            first.append(["sh", "-c", _AGED, str(folder if copy else work / "source")])
            if (self.has_added_or_removed_files or self.changed_makefiles) and self._has("config.status"):
                first.append(["env", "-C", str(folder), "./config.status"])
        if self.needs_configure:
            first.append(["env", "-C", str(folder), "sh", "-c", _ANEW])
        relinked = self.needs_configure or self.has_added_or_removed_files or not self.rule.tracks
        unlinked = folder.name, DEEP
        if system == "cargo":  # cargo itself tracks the files in the folders below release/
            relinked, unlinked = True, (f"{folder.name}/{'target/' * self.in_place}release", 1)
        return IncrementalBuild(
            (*((CONFIGURE, argv) for argv in first), *commands),
            str(self.objects_folder.parent) if self.in_place else "",
            copy,
            tuple(f"{status}{path}" for status, path in self.changed),
            unlinked if relinked else None,
        )


def changed_files(
    host: Host, bare: PurePosixPath, old: str, new: str, ignore: Sequence[str]
) -> list[tuple[str, str]] | None:
    """The files that differ between two commits, except ignored paths, as pairs (status, path); git's status is A, M, D
    or T.

    None if the files cannot be listed: a submodule differs, a commit is absent, or a name is not UTF-8 and so cannot be
    passed to commands.
    """
    options = ["-r", "-z", "--raw", "--no-renames", "--no-ext-diff", "--ignore-submodules=none"]
    paths = pathspecs_except(ignore)
    listing = checkout.run_git(host, f"--git-dir={bare}", "diff-tree", *options, old, new, "--", *paths, check=False)
    fields = listing.stdout.split("\0")[:-1]
    entries = [(facts.split(" "), path) for facts, path in zip(fields[::2], fields[1::2], strict=True)]
    if (
        not listing.ok
        or "\N{REPLACEMENT CHARACTER}" in listing.stdout
        or any("160000" in facts[0] or "160000" in facts[1] for facts, _ in entries)
    ):
        return None
    return [(facts[4], path) for facts, path in entries]


def _is_makefile_safe(host: Host, work: PurePosixPath, changed: Sequence[tuple[str, str]]) -> bool:
    """Whether a Makefile without dependency files will make everything again that depends on the ``changed`` files."""
    read = [pair for pair in changed if SOURCE.search(pair[1]) or HEADER.search(pair[1]) or not NEUTRAL.search(pair[1])]
    if any(status != "M" or not SOURCE.search(path) for status, path in read):
        return False
    sources = [PurePosixPath(path).name for _, path in read]
    pattern = f'include.*["</]({"|".join(map(re.escape, sources))})[">]'
    return not sources or host.script(_INCLUDED, work / "source", pattern, check=False, timeout=LONG).status == 1
