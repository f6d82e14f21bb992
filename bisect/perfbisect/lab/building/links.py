"""Records the linker calls of a build, and repeats these calls with a linker that puts the functions in a random order.

During a build, COMPILER_PATH makes gcc and clang call the script ``recorder/ld`` in place of the linker; this script
calls the linker, and records the call. COMPILER_PATH is the same for all builds of a host, because ccache hashes the
variable and would otherwise find no cached file. After the installation, ``keep`` repeats the linker call of each
installed file unchanged. If the code of the result differs from the code of the installed file, the record of this call
is not used. All other records are kept beside the build, in the folder ``links``:

    plan               one line for each installed file that can be linked again: the id of its link, its path
    ID/argv, cwd …     see ``recorder/ld``
    ID/functions       the sections ``.text.NAME`` of its inputs
    root               the root folder of the host that recorded, if it differs

``link`` makes the layout of a build for a seed: a copy of the build's installation that consists of hard links, except
the files in ``plan``, which are linked again. A seed is never an argument of a compiler, because ccache might use the
file of another seed.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path, PurePosixPath

import msgspec

from perfbisect.core.domain.events import Warned
from perfbisect.core.domain.facts import BuildFacts, RunFacts
from perfbisect.errors import BuildFailed
from perfbisect.host import jobs
from perfbisect.host.protocol import Host
from perfbisect.lab import upload
from perfbisect.lab.building import build_store
from perfbisect.lab.building.log_parser import LINK
from perfbisect.recipes.builder import Build, Variant

# Linkers, the preferred linker first. OBJECTS orders whole object files, by the order of its arguments; the other
# linkers order functions.
MOLD, LLD, GOLD, OBJECTS = "mold", "lld", "gold", "ld"
# The arguments are a name, a program and an option for each linker. Prints the name of the first linker that is
# installed and whose help text has the option, and then the first line of the linker's version text.
_FIND_LINKER = """\
while [ $# != 0 ]; do
    if command -v "$2" >/dev/null && "$2" --help 2>/dev/null | grep -q -e "$3"; then
        printf '%s\\n' "$1" && "$2" --version | head -n 1
        exit
    fi
    shift 3
done
"""
PROGRAMS = {
    MOLD: ("ld.mold", "--shuffle-sections"),
    LLD: ("ld.lld", "--shuffle-sections=<section-glob>"),
    GOLD: ("ld.gold", "--section-ordering-file"),
    OBJECTS: ("ld", "-o"),
}


@dataclass(frozen=True, slots=True)
class LayoutLinker:
    """A linker that makes randomized layouts."""

    name: str  # MOLD, LLD, GOLD or OBJECTS
    version: str  # the first line of the linker's version text


def find_linker(host: Host) -> LayoutLinker | None:
    """The best linker of the host; None if the host has none."""
    forms = [word for name, (program, option) in PROGRAMS.items() for word in (name, program, option)]
    name, _, version = host.script(_FIND_LINKER, *forms).stdout.strip().partition("\n")
    return LayoutLinker(name, version.strip()) if name else None


@dataclass
class LayoutSeeds:
    """The seeds of randomized layouts on one host: the n-th run of a commit in a randomized layout has the seed ``first
    + (n - 1) step``.

    Therefore a resumed hunt continues with new layouts, and hosts with different ``first`` never share a layout.
    """

    first: int = 1
    step: int = 1
    used: dict[str, int] = field(default_factory=dict)  # commit → the last seed that was used

    def note_used_seed(self, run: RunFacts) -> None:
        """Store the seed of a run that has ended, so that no later layout of the commit has this seed."""
        if run.layout:
            self.used[run.commit] = max(run.layout, self.used.get(run.commit, 0))

    def next_seeds(self, commit: str) -> Iterator[int]:
        """The seeds of the next layouts of a commit."""
        return count(self.used[commit] + self.step if commit in self.used else self.first, self.step)


REVISION = "3"  # part of the key of every build that can be linked again: raise it when records change
FOLDER = "links"
SECTIONS = "-ffunction-sections"
MAX_FILES = 40  # programs and libraries of a build that are linked again, if its recipe names none
LONG = 1800.0  # most seconds for all links of the largest servers
_NAMES = ("ld", "ld.bfd", "ld.gold", "ld.lld", "ld.mold")

# Prints the arguments of a recorded link, changed for its copy: paths below the root folder $1 become paths below
# $2/files$1, and options that would write further files are left out. $3 is the RUNPATH of the output, which an
# installation changes, or "same". Paths are escaped, as in a response file.
_ARGUMENTS = r"""
arguments() {
    awk -v root="$1/" -v to="$2/files$1/" -v runpath="$3" '
        function moved(text,    done, at) {
            while (at = index(text, root)) {
                done = done substr(text, 1, at - 1) to
                text = substr(text, at + length(root))
            }
            return done text
        }
        function of_libraries(folder) { # where the linker looks for those that libraries load, too
            if (same) printf "-rpath\n%s\n", folder
            printf "-rpath-link\n%s\n", moved(folder)
        }
        BEGIN { same = runpath == "same" }
        skip { skip = 0; next }
        folder { folder = 0; of_libraries($0); next }
        /^--?(Map|dependency-file)$/ { skip = 1; next }
        /^--?(Map=|dependency-file=|build-id)/ { next }
        /^(--?rpath|-R)$/ { folder = 1; next }
        sub(/^(--?rpath=|-R)/, "") { of_libraries($0); next }
        { print moved($0) }
        END { if (!same && runpath != "") printf "-rpath\n%s\n", runpath }
    ' argv
}
escaped() { printf '%s' "$1" | sed 's/[^A-Za-z0-9_./,:=+@%-]/\\&/g'; }
objects() { # of the build, among the arguments in file $2; $1 as the second above
    awk -v kept="$1/files/" '/^[^-\/].*\.l?o(bj)?$/ || index($0, kept) == 1 && /\.l?o(bj)?$/' "$2"
}
in_awk() { escaped "$1" | sed 's/\\/\\\\/g'; } # awk takes the escapes of a variable away
"""
# $1 is the root, $2 a temporary folder, $3 the links, $4 the installation, $5 the linker's name, then paths below the installation.
# Prints each path, and the reason if the file cannot be linked again.
_KEEP = r"""
root=$(in_awk "$1")
mkdir -p "$2" && scratch=$(mktemp -d -p "$2") && trap 'rm -rf "$scratch"' EXIT || exit
links=$3 prefix=$(realpath -- "$4") linker=$5 || exit
shift 5
text() { objcopy -O binary -j .text -- "$1" "$2" 2>/dev/null && [ -s "$2" ]; }
again() { # the path of an installed file; prints why it cannot be linked again
    file=$(realpath -e -- "$prefix/$1" 2>/dev/null) || { echo "it is not a file"; return; }
    case $file in *"
"*) echo "a line ends in its name"; return;; "$prefix"/*) ;; *) echo "it is a link to a file elsewhere"; return;; esac
    id=$(readelf -n -- "$file" 2>/dev/null | sed -n 's/^ *Build ID: *//p' | head -n 1)
    [ -n "$id" ] && cd -- "$links/$id" 2>/dev/null || { echo "its link was not recorded"; return; }
    [ ! -e functions ] || { printf '%s\t%s\n' "$id" "${file#"$prefix"/}" >>"$links/plan"; return; } # another name of it
    arguments "$root" "$(in_awk "$PWD")" same >"$scratch/argv"
    if ! (used=$(cat linker) && cd -- "files$(cat cwd)" && "$used" "@$scratch/argv" -o "$scratch/out") >"$scratch/log" 2>&1; then
        reason=$(grep -m 1 -iE 'error|undefined|fatal|cannot|no such' "$scratch/log" || head -n 1 "$scratch/log")
        printf 'the same link fails the second time: %s\n' "$reason"
        return
    fi
    text "$file" "$scratch/installed" && text "$scratch/out" "$scratch/linked" || { echo "it has no code"; return; }
    cmp -s "$scratch/installed" "$scratch/linked" || { echo "the same link gives other code the second time"; return; }
    find files -type f -exec readelf -SW -- {} + 2>/dev/null | grep -oE ' \.text\.[^ ]+' | tr -d ' ' | sort -u >functions.new
    if [ "$linker" = ld ]; then
        [ "$(objects "$(in_awk "$PWD")" "$scratch/argv" | wc -l)" -gt 1 ] || { echo "it is one object file"; return; }
    else
        [ "$(wc -l <functions.new)" -gt 1 ] || { echo "its functions are not in separate sections (-ffunction-sections); does its build use \$CC?"; return; }
    fi
    rm -f words trace && mv -f functions.new functions
    printf '%s\t%s\n' "$id" "${file#"$prefix"/}" >>"$links/plan"
}
[ -d "$links" ] || mkdir "$links"
rm -f "$links/plan"
for path do
    reason=$(again "$path")
    printf '%s\t%s\n' "$(printf %s "$path" | tr '\n' ' ')" "$reason"
done
cd -- "$links" || exit
[ ! -e plan ] || sort -u -o plan plan
for id in *; do
    [ ! -d "$id" ] || grep -qs "^$id" plan || rm -rf "$id"
done
"""
# $1 is the root, $2 a temporary folder, $3 the build's folder, $4 the layout's folder, $5 the seed, $6 the linker's
# name, $7 the linker's command.
_LINK = r"""
set -e
from=$1 # the root folder of the host where the links were recorded
[ ! -e "$3/links/root" ] || from=$(cat -- "$3/links/root")
root=$(in_awk "$from") build=$3 made=$4 seed=$5 linker=$6 command=$7
if [ -d "$made" ]; then [ -n "$(changed "$made")" ] || exit 0; rm -rf "$made"; fi
[ -e "$build/links/plan" ] || { echo 'the recorded links were removed, as by `bisect gc`' >&2; exit 1; }
mkdir -p "$2" && scratch=$(mktemp -d -p "$2") && trap 'rm -rf "$scratch"' EXIT
[ -e "$build/files/seen" ] || record "$build"
rm -rf "$made.part" && mkdir "$made.part" && cp -al -- "$build/prefix" "$build/build.json" "$made.part"
sed 's,^[^	]*	,./,' "$build/links/plan" | tr '\n' '\0' >"$scratch/linked"
(cd -- "$made.part/prefix" && xargs -0 rm -f -- <"$scratch/linked") # hard links: the build's own files stay as they are
note "$build" # both have changed the times of its files
printf '%016d' "$seed" >"$scratch/seed" # the 16 bytes that sort -R takes
shuffled() { LC_ALL=C sort -R --random-source="$scratch/seed"; }
while IFS='	' read -r id path; do
    file=$build/prefix/$path
    cd -- "$build/links/$id"
    runpath=$(readelf -dW -- "$file" | sed -n 's/.*(R\(UN\)\{0,1\}PATH).*\[\(.*\)\]$/\2/p')
    arguments "$root" "$(in_awk "$PWD")" "$(in_awk "$runpath")" >"$scratch/argv"
    record=$PWD
    cd -- "files$(cat cwd)"
    set -- "@$scratch/argv" -o "$scratch/out"
    case $linker in
        mold) set -- "$@" "--shuffle-sections=$seed";;
        lld) set -- "$@" "--shuffle-sections=.text*=$seed";;
        gold)
            shuffled <"$record/functions" >"$scratch/order"
            set -- "$@" "--section-ordering-file=$scratch/order"
            ;;
        *)
            objects "$(in_awk "$record")" "$scratch/argv" >"$scratch/objects"
            shuffled <"$scratch/objects" | paste "$scratch/objects" - |
                awk -F '\t' 'NR == FNR { by[$1] = $2; next } { print $0 in by ? by[$0] : $0 }' - "$scratch/argv" >"$scratch/moved"
            mv -f -- "$scratch/moved" "$scratch/argv"
            ;;
    esac
    "$command" "$@"
    chmod --reference="$file" -- "$scratch/out"
    mv -- "$scratch/out" "$made.part/prefix/$path"
done <"$build/links/plan"
record_layout "$made.part" "$build" "$scratch/linked"
mv -T -- "$made.part" "$made"
"""
# $1 is the folder of the recorded links, $2 the installation; the measured paths follow. If a measured file is an ELF
# file, not a script, prints the measured paths. Otherwise prints the paths of all programs and libraries with a
# recorded link, except programs with which cmake and meson test compilers.
_MEASURED = """\
links=$1
cd -- "$2" && shift 2 || exit
for file do
    ! readelf -h -- "$file" >/dev/null 2>&1 || { printf '%s\\0' "$@"; exit; }
done
find . '(' -name CMakeFiles -o -name meson-private ')' -prune -o -type f '(' -perm -u+x -o -name '*.so' -o -name '*.so.*' ')' -print0 |
LC_ALL=C sort -z | xargs -0 -r sh -c '
    for file do
        id=$(readelf -n -- "$file" 2>/dev/null | sed -n "s/^ *Build ID: *//p" | head -n 1)
        [ -z "$id" ] || [ ! -d "$0/$id" ] || printf "%s\\0" "$file"
    done' "$links"
"""
# Prints which of the sections .text (compiled) and .go.buildinfo (compiled by Go) the programs in $1 have.
_SECTIONS = r"""find -- "$1" -type f -perm -u+x -exec readelf -SW -- {} + 2>/dev/null | grep -owE '\.text|\.go\.buildinfo' | sort -u"""
GO = "Go's linker cannot change the order of functions"
NOT_COMPILED = "the programs that run are not compiled"  # then the order of functions has no effect


@dataclass(frozen=True, slots=True)
class LinkRecorder:
    """The script and the files with which the builds of a host record their linker calls."""

    linker: LayoutLinker  # the linker that makes the layouts of these builds
    folder: PurePosixPath  # the folder with the programs that record links

    @property
    def linker_identity(self) -> str:
        """A text that identifies the linker. It is a part of the keys of builds, because layouts by different linkers
        are not compared."""
        return f"{REVISION} {self.linker.name} {self.linker.version}"

    def environment(self, work: PurePosixPath) -> dict[str, str]:
        """The environment variables of a build in ``work``."""
        return {"COMPILER_PATH": str(self.folder), "PERFBISECT_LINKS": str(work / FOLDER)}


def install_recorder(host: Host) -> LinkRecorder | None:
    """Copy the recorder of links to the host; returns the recorder, or None if the host has no linker."""
    linker = find_linker(host)
    script = Path(__file__).parent / "recorder" / "ld"
    return LinkRecorder(linker, upload.place_files(host, "linker", dict.fromkeys(_NAMES, script))) if linker else None


def with_function_sections(variant: Variant, recorder: LinkRecorder | None) -> Variant:
    """The variant with which a build is compiled. If linker calls are recorded, the compiler puts each function into a
    separate section, because a linker can move sections.
    """
    return msgspec.structs.replace(variant, cflags=f"{variant.cflags} {SECTIONS}".strip()) if recorder else variant


def section_options_for_compiler(build: Build, recorder: LinkRecorder | None) -> str:
    """The options to append to the name of the compiler in a recipe that sets its own flags, because such a recipe
    ignores the flags of ``with_function_sections``.
    """
    commands = repr([build.configure, build.compile, build.install, build.env])
    own_flags = not build.system and "{cflags}" not in commands
    return f" {SECTIONS}" if recorder and own_flags else ""


def why_not_relinkable(variant: Variant) -> str:
    """The reason why the variant prevents builds from being linked again; "" if the variant does not prevent this."""
    if "-flto" in f"{variant.cflags} {variant.ldflags}":
        return "with optimisation at link time, the compiler decides the order of functions"
    if variant.train:
        return "with profile-guided optimisation (PGO), the profile decides the order of functions"
    return ""


def layouts_unavailable_warning(reason: str) -> Warned:
    """The warning that builds cannot be linked again; its text is the same for all builds of a hunt."""
    text = f"Randomized layouts are not available: {reason}"
    return Warned(text, "So an effect of code placement may look like a change of the speed.")


def keep_links(
    host: Host, work: PurePosixPath, paths: Sequence[str], variant: Variant, recorder: LinkRecorder, built: BuildFacts
) -> BuildFacts:
    """Store in ``work`` the recorded linker calls of the installed files ``paths`` (relative to the prefix), or of all
    installed files if ``paths`` is empty.

    Returns the facts of the build, with the version of the linker, or with the reason why the build cannot be linked
    again.
    """
    fixed = why_not_relinkable(variant) or _keep_links_or_reason(host, work, paths, recorder)
    return replace(built, linker="" if fixed else recorder.linker.version, fixed=fixed)


def _keep_links_or_reason(host: Host, work: PurePosixPath, paths: Sequence[str], recorder: LinkRecorder) -> str:
    """Store the recorded links of the installed files; returns "", or the reason why no file can be linked again."""
    links, prefix = work / FOLDER, work / "prefix"
    files = host.script(_MEASURED, links, prefix, *paths, timeout=LONG).stdout.split("\0")[:-1]
    if len(files) > max(MAX_FILES, len(paths)):
        return f"the build has {len(files)} programs and libraries, but the recipe does not name the `artifacts` to measure"
    where = (host.root, jobs.temp_files_folder(host), links, prefix, recorder.linker.name)
    printed = host.script(_ARGUMENTS + _KEEP, *where, *files, timeout=LONG).stdout
    reasons = [line.partition("\t")[::2] for line in printed.splitlines()]
    if not reasons:
        sections = host.script(_SECTIONS, prefix, timeout=LONG).stdout
        recorded = "the link of no installed program was recorded"
        return GO if ".go" in sections else recorded if sections else NOT_COMPILED
    # One file that can be linked again is enough. If there is no such file, the reason of the first file is returned.
    path, reason = min(reasons, key=lambda path_and_reason: path_and_reason[1] != "")
    return reason and f"{path}: {reason}"


def link_layout(host: Host, key: str, seed: int, linker: LayoutLinker) -> str:
    """Link the build with the key ``key`` again, in the layout of ``seed``, unless the layout already exists; returns
    the key of the layout.

    Raises BuildFailed if the linker fails, and BuildFilesChanged if files of the build have changed since it was made.
    """
    build_store.check_unchanged(host, key)
    layout_key = hashlib.sha256(f"{key} {seed} {linker.name} {linker.version}".encode()).hexdigest()[:32]
    build, layout = build_store.build_folder(host, key), build_store.build_folder(host, layout_key)
    places, (program, _) = (host.root, jobs.temp_files_folder(host), build, layout), PROGRAMS[linker.name]
    script = build_store.FUNCTIONS + _ARGUMENTS + _LINK
    linked = host.script(script, *places, seed, linker.name, program, check=False, timeout=LONG)
    if not linked.ok:
        lines = [line.strip() for line in linked.stderr.splitlines() if line.strip()]
        named = (line for line in lines if re.search(r"error|undefined|fatal|cannot", line, re.IGNORECASE))
        reason = next(named, lines[-1] if lines else "the linker printed no reason")
        raise BuildFailed(f"the build cannot be linked in layout {seed}: {reason}", stage=LINK, log=str(build / "log"))
    return layout_key
