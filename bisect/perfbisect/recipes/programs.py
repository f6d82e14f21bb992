"""Handles the programs for which a tree is built: finds their build targets, decides which parts of the build may fail,
and finds the files of the programs.

A program is a path below {prefix}: one of the recipe's ``programs``, or a program that the command of --run starts. A
build by a known build system is successful if these programs exist afterwards. If the targets of the build system that
make the programs are known, only these targets are built. If the targets are unknown, the whole tree is built, errors
in other targets are ignored, and the programs are searched for among the built files. If a recipe has a server, the
whole tree must be built without errors, because a server loads files that no option names, such as plugins, and reports
no error if these files are missing.

The scripts of this module run in the folder {build}. They print lines that begin with ``SAID``, from which
``log_parser`` reads facts about the build.
"""

from pathlib import PurePosixPath

from perfbisect.recipes.builder import Build, Builder

# Begins an output line that perfbisect parses. A word, "] " and fields separated by tabs follow.
SAID = "[perfbisect:"
PARTIAL = "partial"  # only the needed programs were built
AGAIN = "again"  # the build begins again in another way, so that earlier errors do not explain a failure
PROGRAM = "program"  # fields: the path of a program, its file, and other files with its name
INCOMPLETE = ".perfbisect.incomplete"  # a file in {build} that tells later commands that not everything was built

# $0: {prefix}. $1: the folder that is searched. $2: programs, one in each line; if the user chose a file for the
# program, a tab and the file follow.
PRELUDE = r"""work=$(realpath ..) && prefix=$(realpath -m -- "$0") || exit
top=$1 programs=$2 incomplete=$PWD/INCOMPLETE
shift 2
tab='	' line='
'
loaded() { # libraries that $1 loads: name, path; of those that are found by their path it is the name, too
    LC_ALL=C ldd "$1" 2>/dev/null | sed -n 's/^[[:space:]]*\(.*\/.*\) (0x[0-9a-f]*)$/\1/p' |
        sed -e 's/ => /\t/' -e t -e 's/.*/&\t&/'
}
built() { # executable files called as the program $1, by preference; if the user chose the file $2, no others
    cd "$top" && find . -path ./.stage -prune -o -type f -perm -u+x -printf '%f\t%p\n' |
        name=${1##*/} awk -F '\t' '$1 == ENVIRON["name"] { print $2 }' |
        while IFS= read -r path; do # a script of libtool runs the program of its name in .libs
            ! head -n 5 -- "$path" | grep -aq 'temporary wrapper script for' || continue
            # What is no result of the build does not stand in for a result that is absent.
            [ ! -e "$incomplete" ] || [ ! -e "$work/source/$path" ] || continue
            case $path in *"/${2:-${1##*/}}") ;; *) continue;; esac
            case $path in *"/$1") place=0;; *) place=1;; esac
            linked=0 # a library that is not found is one of the build as well
            ! LC_ALL=C ldd "$path" 2>/dev/null | grep -qF '=> not found' || linked=1
            ! loaded "$path" | cut -f 2 | xargs -r -d '\n' realpath -- | grep -qF "$work/" || linked=1
            printf '%s\t%s\t%s\n' "$place$linked" "${#path}" "$path"
        done | LC_ALL=C sort -t "$tab" -k 1,1n -k 2,2n -k 3 | cut -f 3-
}
""".replace("INCOMPLETE", INCOMPLETE)

# Further arguments after the arguments of PRELUDE: "yes" if targets except the programs may fail, and the command that
# builds everything. Each SYSTEM defines: `targets`, which prints the targets that make the program $1; `build`, which
# builds the targets $names, or everything, with the option $keep; again=yes if the targets are a guess, so that
# everything is built if a guess was wrong; and alone, the option for one job, because a failure may depend on the order
# of jobs.
BUILD = r"""go_on=$1 keep= again= alone= one= names= all= needed=
shift
SYSTEM
set -f
IFS=$line
for each in $programs; do
    program=${each%%"$tab"*} file=${each#*"$tab"}
    if [ -z "$file" ] && [ -e "$work/source/$program" ]; then all=yes; continue; fi # it may start anything
    needed=$needed$each$line
    found=$(targets "${file:-$program}" "$@")
    if [ -n "$found" ]; then names=$names$found$line; else all=yes; fi
done
[ -z "$all" ] || names=
[ -n "$go_on" ] && [ -n "$needed" ] || keep= go_on=
build "$@" && exit
status=$?
[ -n "$go_on" ] || exit "$status"
: >"$incomplete"
absent() {
    for each in $needed; do
        program=${each%%"$tab"*} file=${each#*"$tab"}
        { [ -z "$file" ] && [ -f "$prefix/$program" ] && [ -x "$prefix/$program" ]; } ||
            [ -n "$(built "$program" "$file")" ] || return 0
    done
    return 1
}
if absent && [ -n "$again" ] && [ -n "$names" ] && names= && echo 'AGAIN' && build "$@"; then
    rm -f "$incomplete"
    exit
fi
! absent || exit "$status"
case " $* " in *" -j1 "* | *" --parallel 1 "*) alone=;; esac
if [ -n "$alone" ] && one=$alone && echo 'AGAIN' && build "$@"; then
    rm -f "$incomplete"
    exit
fi
echo 'PARTIAL'
""".replace("PARTIAL", f"{SAID}{PARTIAL}] ").replace("AGAIN", f"{SAID}{AGAIN}] ")

# Prints the files that ninja links and whose path is $1 (which begins with build/ in a tree that is built in place); if
# there are none, the files that have the file name of $1.
NINJA_TARGETS = r"""linked() { ninja -C "$folder" -t targets all | program=$1 awk -F ': ' '
    BEGIN { program = "/" ENVIRON["program"]; name = program; sub(".*/", "/", name) }
    function ends(text, end) { return substr(text, length(text) - length(end) + 1) == end }
    $2 ~ /EXECUTABLE_LINKER|^[a-z]+_LINKER/ && ends("/build/" $1, name) {
        if (ends("/build/" $1, program)) exact = exact $1 "\n"; else other = other $1 "\n"
    }
    END { printf "%s", exact == "" ? other : exact }'; }
"""
CMAKE_TARGETS = rf"""{NINJA_TARGETS}
targets() {{
    if [ -e "$folder/build.ninja" ]; then linked "$1"; else
        cmake --build "$folder" --target help | awk -v t="${{1##*/}}" '$2 == t {{ print t }}'
    fi
}}
if [ -e "$folder/build.ninja" ]; then keep=-k0; else keep=-k; fi
alone=-j1
build() {{ "$@" ${{names:+--target}} $names ${{keep:+--}} $keep $one; }}
"""
MESON_TARGETS = rf"""{NINJA_TARGETS}
keep=-k0 alone=-j1
targets() {{ [ -z "$in_place" ] || linked "$1"; }}
build() {{ "$@" $keep $one $names; }}
"""
# `targets` prints the program's path if the Makefile has a rule for this path and the path is not a phony target,
# because a phony target such as `bench` may run a benchmark. It prints nothing if another target sets variables (`all:
# CFLAGS += -O3`). Targets are a guess (again=yes), because only `all` may make other files that the program needs.
MAKE_TARGETS = r"""keep=-k again=yes alone=-j1
targets() {
    [ -n "$in_place" ] || return 0
    program=$1
    shift
    "$@" -npq .DEFAULT 2>/dev/null | t=$program awk '
        /^# Not a target/ { getline; next }
        index($0, ENVIRON["t"] ":") == 1 { on = found = 1 }
        on && /^#  Phony target/ { found = 0 }
        !on && /^# [A-Za-z_][A-Za-z0-9_]* [:+?]*= / { other = 1 }
        /^$/ { on = 0 }
        END { if (found && !other) print ENVIRON["t"] }'
}
build() { "$@" $keep $one $names; }
"""
CARGO_TARGETS = r"""keep=$(cargo build --help 2>/dev/null | grep -o -m 1 -e --keep-going) again=yes
targets() {
    name=${1##*/}
    cargo metadata --no-deps --offline --format-version=1 --manifest-path="$work/source/Cargo.toml" 2>/dev/null |
        grep -qF "\"kind\":[\"bin\"],\"crate_types\":[\"bin\"],\"name\":\"$name\"" && echo "--bin=$name"
}
build() { "$@" $keep $names; }
"""
GO_TARGETS = r"""targets() { :; }
build() { "$@"; }
"""

COPY = r"""fail() { echo "error: $1"; exit 1; }
of_the_build() { # whether the path $1 is one of the tree, or of what was built of it
    case $1 in "$prefix" | "$prefix"/*) return 1;; "$work"/*) return 0;; *) return 1;; esac
}
move() { # let $1 look for libraries beside itself in place of the build
    runpath=$(readelf -dW -- "$1" 2>/dev/null | sed -n 's/.*(R\(UN\)\{0,1\}PATH).*\[\(.*\)\]$/\2/p')
    new=\$ORIGIN changed=
    set -f
    IFS=:
    for folder in $runpath; do
        case $folder in
            /*) if of_the_build "$(realpath -m -- "$folder")"; then changed=yes; else new=$new:$folder; fi;;
            *) changed=yes;; # relative to the file, or to where it is run
        esac
    done
    unset IFS
    set +f
    [ -n "$changed" ] || return 0
    section=$(readelf -SW -- "$1" | sed -n 's/^ *\[ *[0-9]*\] \.dynstr  *STRTAB  *[0-9a-f]*  *\([0-9a-f]*\) .*/\1/p')
    at=$(readelf -W -p .dynstr -- "$1" | sed -n 's/^ *\[ *\([0-9a-f]*\)\]  /\1\t/p' |
        text=$runpath awk -F '\t' '$2 == ENVIRON["text"] { print $1; exit }')
    [ -n "$section" ] && [ -n "$at" ] && [ "${#new}" -le "${#runpath}" ] ||
        fail "${1##*/} loads libraries of its build, and its RUNPATH cannot be changed: $runpath"
    { printf %s "$new"; head -c "$((${#runpath} - ${#new}))" /dev/zero; } |
        dd of="$1" bs=1 seek="$((0x$section + 0x$at))" conv=notrunc status=none || exit
}
copy() {
    mkdir -p -- "${2%/*}" && cp -pL --remove-destination -- "$1" "$2" && chmod u+w -- "$2" || exit
    move "$2"
}
bring() { # the file $1 of the build to $prefix/$program, with the libraries that it loads from there
    copy "$1" "$to"
    loaded "$1" | while IFS=$tab read -r name path; do
        of_the_build "$(realpath -- "$path")" || continue
        [ "$name" != "$path" ] || fail "$program loads a library of its build by its path: $path"
        [ -e "${to%/*}/$name" ] || copy "$path" "${to%/*}/$name"
    done || exit
    loaded "$to" | while IFS=$tab read -r name path; do
        ! of_the_build "$(realpath -- "$path")" || fail "$program still loads a library of its build: $path"
    done || exit
}
cd "$top" || exit
printf '%s\n' "$programs" | while IFS= read -r each; do
    program=${each%%"$tab"*} file=${each#*"$tab"}
    to=$prefix/$program
    [ -n "$file" ] || [ ! -e "$to" ] || continue
    found=$(built "$program" "$file")
    from=${found%%"$line"*}
    [ -n "$from" ] || [ -z "$file" ] || fail "the build has no program $file, which --program chooses"
    [ -n "$from" ] || continue
    [ ! "$from" -ef "$to" ] || continue
    printf 'SAID%s\t%s\n' "$program" "$(printf '%s\n' "$found" | paste -s)"
    [ "$(realpath .)" = "$prefix" ] || { bring "$from"; continue; }
    mkdir -p -- "${to%/*}" && ln -srfT -- "$from" "$to" || exit
done
""".replace("SAID", f"{SAID}{PROGRAM}] ")


def measured_program_lines(builder: Builder) -> str:
    """Lines for a shell script: the list of the programs that the command of --run starts."""
    chosen = {PurePosixPath(path).name: path for path in builder.chosen}
    programs = dict.fromkeys((*builder.programs, *builder.started))
    return "\n".join(f"{program}\t{chosen.get(PurePosixPath(program).name, '')}" for program in programs)


def _with_escaped_braces(text: str) -> str:
    """``text`` with its braces escaped, so that it can be a word of a command in a recipe."""
    return text.replace("{", "{{").replace("}", "}}")


def word_or_script_purpose(word: str) -> str:
    """A word of a command in the form that is shown to the user. If the word is a script of this module, its purpose is
    shown in place of the script.
    """
    if not word.startswith(_with_escaped_braces(PRELUDE)):
        return word
    is_copy = word.endswith(_with_escaped_braces(COPY))
    return "install the measured programs" if is_copy else "build the measured programs"


def measured_program_build_command(
    builder: Builder, build: Build, system: str, argv: list[str], folder: str = "."
) -> list[str]:
    """A command that builds the programs that the command of --run starts.

    ``argv`` is the command that builds all targets in ``folder``; ``system`` is the part of the shell script that
    depends on the build system.
    """
    programs = measured_program_lines(builder)
    if not programs:
        return argv
    variables = f'folder="{folder}" in_place={"yes" * build.in_place}\n'
    script = _with_escaped_braces(PRELUDE + BUILD.replace("SYSTEM", variables + system))
    script = script.replace("{{prefix}}", "{prefix}")
    go_on = "" if builder.server else "yes"
    top = "{prefix}" if build.in_place else "."
    return ["sh", "-c", script, "{prefix}", top, _with_escaped_braces(programs), go_on, *argv]


def copy_to_prefix_commands(builder: Builder, build: Build) -> list[list[str]]:
    """The command that copies programs to {prefix} that the build makes but does not install. Many benchmarks are such
    programs.

    A program finds its shared libraries by its RUNPATH, which names the folder of the build. This folder is emptied
    before the next build. So the shared libraries of the program are copied, too, to the same folder as the program. In
    each copied file, the text ``$ORIGIN`` overwrites the old path in the RUNPATH, which is at least as long. If the
    tree is built in {prefix}, the command makes a link to the program in place of a copy.
    """
    programs = measured_program_lines(builder)
    top = "{prefix}" if build.in_place else "."
    script = _with_escaped_braces(PRELUDE + COPY)
    return [["sh", "-c", script, "{prefix}", top, _with_escaped_braces(programs)]] if programs else []
