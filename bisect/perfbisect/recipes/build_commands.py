"""What a recipe's ``[build]`` without commands runs: for each build system the commands, and what they need beside it.

They run in the empty folder ``{build}``. Of ``in_place`` the result is the copy of the tree in {prefix} in which it is built,
not what is installed there: that copy is made before, and nothing is installed. ``copying`` brings what a tree builds and
does not install.
"""

import re
from collections.abc import Collection
from pathlib import PurePosixPath

from perfbisect.recipes.builder import Build, Builder

# Nothing is fetched during a build: what a build gets from the network differs from day to day.
OFFLINE = {
    "http_proxy": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
    "ftp_proxy": "http://127.0.0.1:9",
    "all_proxy": "http://127.0.0.1:9",
    "GIT_ALLOW_PROTOCOL": "file",
    "PIP_NO_INDEX": "1",
    "npm_config_offline": "true",
}

# Runs its arguments as an installation below the folder $0, and nowhere else: what would be written to other folders of
# the system goes to a stage, and is removed. A tree that knows no DESTDIR installs to $0 itself.
STAGED = """\
stage=$PWD/.stage
DESTDIR=$stage "$@" || exit
if [ -d "$stage$0" ]; then mkdir -p "$0" && cp -al "$stage$0/." "$0"; fi
"""


# Of variables that a tree does not use, cmake only warns. $0 is the log, then variables.
_REFUSE = """\
for variable do
    if awk '/Manually-specified variables were not used/ {{ on = 1 }} on' "$0" | grep -qxF "    $variable"; then
        echo "error: this tree does not know the option -D$variable of --configure"
        exit 1
    fi
done
"""
_LOG = ".perfbisect.log"  # beside folders of the tree's own names
_LOGGED = f'{{{{ "$0" "$@" 2>&1 || : >{_LOG}.failed; }}}} | tee {_LOG}; [ ! -e {_LOG}.failed ]'
_VARIABLE = re.compile(r"-D([^:=]+)")
_CMAKE_CONFIGURE = 'command -v ninja >/dev/null && set -- -G Ninja "$@"; exec "$0" "$@"'
# $0 the number of jobs, then a folder and programs: targets of the same names are built, or everything if one is not
# a target.
_BUILD_PROGRAMS = """\
folder=$1; shift
if [ -e "$folder/build.ninja" ]; then
    known=$(ninja -C "$folder" -t targets all) || exit
else
    known=$(cmake --build "$folder" --target help) || exit
fi
for target do
    printf '%s\\n' "$known" | awk -v t="$target" '$1 == t":" || $2 == t {{ known = 1 }} END {{ exit !known }}' || set --
done
exec cmake --build "$folder" --parallel "$0" ${{1+--target}} "$@"
"""
# What was not built is left out: cmake's own installation ends at the first file that is absent.
_OPTIONAL = r"s/^( *file\(INSTALL DESTINATION .* TYPE [A-Z_]+)( |$)/\1 OPTIONAL\2/"


def _there(build: Build) -> tuple[str, list[str]]:
    """The folder with the tree, and what runs a command in the tree's copy where it is built in one."""
    return ("{prefix}", ["env", "-C", "{prefix}"]) if build.in_place else ("{source}", [])


def cmake(builder: Builder, build: Build, _: Collection[str]) -> Build:
    """A Release configuration, because projects leave out checks in it, with the variant's options in place of its -O3.

    Ninja is used where it is installed.
    """
    source, folder = _there(build)[0], "{prefix}/build" if build.in_place else "."
    shared = ["-DBUILD_SHARED_LIBS=ON"] if builder.library.endswith(".so") else []
    variables = [found[1] for option in builder.requested if (found := _VARIABLE.match(option))]
    configure = [
        *(("sh", "-c", _LOGGED) if variables else ()), "sh", "-c", _CMAKE_CONFIGURE, "cmake", "-S", source, "-B", folder,
        "-DCMAKE_INSTALL_PREFIX={prefix}",
        "-DCMAKE_INSTALL_LIBDIR=lib",
        "-DCMAKE_INSTALL_RPATH={prefix}/lib",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_C_COMPILER={compiler}",
        "-DCMAKE_CXX_COMPILER={cxx_compiler}",
        "-DCMAKE_C_COMPILER_LAUNCHER=ccache",
        "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache",
        # Compilers warn of more each year: a tree that makes errors of warnings would not build with a newer one.
        "-DCMAKE_C_FLAGS_RELEASE={cflags} -DNDEBUG -Wno-error",
        "-DCMAKE_CXX_FLAGS_RELEASE={cflags} -DNDEBUG -Wno-error",
        "-DCMAKE_EXE_LINKER_FLAGS_RELEASE={ldflags}",
        "-DCMAKE_SHARED_LINKER_FLAGS_RELEASE={ldflags}",
        "-DCMAKE_MODULE_LINKER_FLAGS_RELEASE={ldflags}",
        "-DFETCHCONTENT_FULLY_DISCONNECTED=ON",
        "-DCMAKE_POLICY_VERSION_MINIMUM=3.5",  # trees that ask for less are refused by cmake 4
        "-DBUILD_TESTING=OFF",
        *shared,
        *build.options,
    ]  # fmt: skip
    compile_ = ["cmake", "--build", folder, "--parallel", "{jobs}"]
    if build.targets:
        compile_ += ["--target", *build.targets]
    elif builder.programs and not build.in_place:
        names = (PurePosixPath(program).name for program in builder.programs)
        compile_ = ["sh", "-c", _BUILD_PROGRAMS, "{jobs}", folder, *names]
    install = [
        ["find", ".", "-name", "cmake_install.cmake", "-exec", "sed", "-i", "-E", _OPTIONAL, "{{}}", "+"],
        ["sh", "-c", STAGED, "{prefix}", "cmake", "-P", "cmake_install.cmake"],
    ]
    refuse = [["sh", "-c", _REFUSE, _LOG, *variables]] if variables else []
    return Build(configure=[configure, *refuse], compile=[compile_], install=install)


# Meson takes compilers of more than one word from a file only. $0 is the file, then the words of both compilers.
_NATIVE = """\
list() {{ for word do printf "'%s', " "$word"; done; }}
printf '[binaries]\\nc = [%s]\\ncpp = [%s]\\n' "$(list $1)" "$(list $2)" >"$0"
"""


def meson(_: Builder, build: Build, __: Collection[str]) -> Build:
    """The build type is ``plain``: the compiler's options are the variant's alone."""
    source, folder = _there(build)[0], "{prefix}/build" if build.in_place else "."
    setup = [
        "meson", "setup", folder, source, "--native-file={build}/native.ini",
        "--prefix={prefix}", "--libdir=lib", "--buildtype=plain", "--wrap-mode=nodownload",
        "-Db_ndebug=true", "-Dwerror=false",
        "-Dc_args={cflags} -Wno-error", "-Dcpp_args={cflags} -Wno-error",
        "-Dc_link_args={ldflags}", "-Dcpp_link_args={ldflags}",
        *build.options,
    ]  # fmt: skip
    return Build(
        configure=[["sh", "-c", _NATIVE, "{build}/native.ini", "{cc}", "{cxx}"], setup],
        compile=[["ninja", "-C", folder, "-j{jobs}", *build.targets]],
        install=[["sh", "-c", STAGED, "{prefix}", "meson", "install", "--no-rebuild"]],
    )


# $0 the tree, then options. Of those that do no harm, the script gets the ones that its help has; and an option of the
# recipe or of the user that it does not know is an error.
_AUTOTOOLS_CONFIGURE = """\
source=$0
# git writes files by name: a script looks older than what it was made from, and make would make and run it once more.
find "$source" -type f '(' -name configure -o -name '*.ac' -o -name '*.am' -o -name '*.in' -o -name '*.m4' ')' \\
    -exec touch -d @315532800 {{}} + || exit
if ! head -n 20 "$source/configure" | grep -q 'Generated by GNU Autoconf'; then
    [ "$source" -ef . ] || cp -a "$source/." . || exit
    source=.
fi
known=$("$source/configure" --help 2>/dev/null)
for option in --disable-dependency-tracking --disable-silent-rules --disable-maintainer-mode; do
    case $known in *"$option"*) set -- "$option" "$@";; esac
done
case $known in *--disable-option-checking*) set -- --enable-option-checking=fatal "$@";; esac
exec "$source/configure" "$@"
"""


def autotools(_: Builder, build: Build, paths: Collection[str]) -> Build:
    """A configure script, or a configure.ac to make one from.

    Scripts of GNU Autoconf are run out of the tree. Others, written by hand, may not know how: for these the folder of the
    build is a copy of the tree.
    """
    source, there = _there(build)
    options = [
        "--prefix={prefix}", "--libdir={prefix}/lib",
        "CC={cc}", "CXX={cxx}", "CFLAGS={cflags}", "CXXFLAGS={cflags}", "LDFLAGS={ldflags}",
        *build.options,
    ]  # fmt: skip
    generate = [] if "configure" in paths else [[*there, "autoreconf", "-f", "-i", source]]
    return Build(
        configure=[*generate, [*there, "sh", "-c", _AUTOTOOLS_CONFIGURE, source, *options]],
        compile=[[*there, "make", "-j{jobs}", *build.targets]],
        install=[["sh", "-c", STAGED, "{prefix}", "make", "install"]],
        needs=["autoreconf"] if generate else [],
    )


# $0 the folder of the compilers' scripts. Values are quoted for a shell, and the scripts get them as they are.
_MAKE_SCRIPT = """\
cat >"$0/{name}" <<'.' || exit
#!/bin/sh
case " $* " in *" -c "* | *" -E "* | *" -S "*) exec ccache {compiler} "$@" {{cflags}} -Wno-error;; esac
exec ccache {compiler} "$@" {{cflags}} -Wno-error {{ldflags}}
.
"""
_MAKE_COMPILERS = "\n".join((
    'mkdir -p "$0" || exit',
    _MAKE_SCRIPT.format(name="cc", compiler="{compiler}"),
    _MAKE_SCRIPT.format(name="cxx", compiler="{cxx_compiler}"),
    'chmod +x "$0/cc" "$0/cxx"',
))  # fmt: skip
# $0 {prefix}, then make and its variables.
_MAKE_INSTALL = f"""\
if make -s -n install "$@" >/dev/null 2>&1; then
    set -- make install "$@"
    {STAGED}
else
    mkdir -p "$0" && cp -a . "$0"
fi
"""


def make(_: Builder, build: Build, __: Collection[str]) -> Build:
    """A Makefile alone, in a copy of the tree.

    Makefiles have no common way to set the compiler's options: some append to CFLAGS, some ignore it. So the compiler is
    a script that puts the variant's options last, where they count, and makes no errors of warnings, of which newer
    compilers have more. An installation is tried if the Makefile has one; otherwise the whole folder is the result.
    """
    there = _there(build)[1]
    compilers = "{prefix}/.perfbisect" if build.in_place else "{build}/.perfbisect"
    variables = [f"CC={compilers}/cc", f"CXX={compilers}/cxx", "PREFIX={prefix}", "prefix={prefix}", *build.options]
    copied = [] if build.in_place else [["cp", "-a", "{source}/.", "{build}"]]
    return Build(
        configure=[*copied, ["sh", "-c", _MAKE_COMPILERS, compilers]],
        compile=[[*there, "make", "-j{jobs}", *variables, *build.targets]],
        install=[["sh", "-c", _MAKE_INSTALL, "{prefix}", *variables]],
    )


_CARGO_INSTALL = """\
mkdir -p "$0/bin" "$0/lib" && cd release || exit
find . -maxdepth 1 -type f -perm -u+x ! -name '*.so' -exec cp -- {{}} "$0/bin" \\; &&
find . -maxdepth 1 -type f -name '*.so' -exec cp -- {{}} "$0/lib" \\;
"""


def cargo(_: Builder, build: Build, paths: Collection[str]) -> Build:
    """A release build with the crates that are vendored or in the host's cache; ``targets`` are options: ``--bin=NAME``."""
    target = "{prefix}/target" if build.in_place else "{build}"
    locked = ["--locked"] if "Cargo.lock" in paths else []
    return Build(
        compile=[[
            "cargo", "build", "--release", "--offline", f"--manifest-path={_there(build)[0]}/Cargo.toml",
            f"--target-dir={target}", "--jobs={jobs}", *build.options, *build.targets, *locked,
        ]],
        install=[["sh", "-c", _CARGO_INSTALL, "{prefix}"]],
        env={"CC": "{cc}", "CXX": "{cxx}", "CFLAGS": "{cflags}", "CXXFLAGS": "{cflags}", "CARGO_NET_OFFLINE": "true"},
    )  # fmt: skip


def go(_: Builder, build: Build, __: Collection[str]) -> Build:
    """All commands of the module, with the modules that are vendored or in the host's cache; ``targets`` are packages."""
    return Build(
        configure=[["mkdir", "-p", "{prefix}/bin/"]],
        compile=[[
            "env", "-C", _there(build)[0], "go", "build", "-trimpath", "-o", "{prefix}/bin/", *build.options,
            *(build.targets or ["./..."]),
        ]],
        env={
            "GOPROXY": "off", "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false -p={jobs}",
            "CC": "{cc}", "CXX": "{cxx}", "CGO_CFLAGS": "{cflags}", "CGO_CXXFLAGS": "{cflags}", "CGO_LDFLAGS": "{ldflags}",
        },
    )  # fmt: skip


# $0 {prefix}, then paths of programs below it. Runs in {build}.
COPY = r"""
work=$(realpath ..) && prefix=$(realpath -m -- "$0") || exit
tab='	'
fail() { echo "error: $1"; exit 1; }
of_the_build() { # whether the path $1 is one of the tree, or of what was built of it
    case $1 in "$prefix" | "$prefix"/*) return 1;; "$work"/*) return 0;; *) return 1;; esac
}
built() { # paths of the executable files called $1 that are nearest to the top
    find . -path ./.stage -prune -o -type f -perm -u+x -printf '%f\t%d\t%p\n' |
        name=$1 awk -F '\t' '$1 == ENVIRON["name"] { print $2 "\t" $3 }' | sort -n |
        while IFS=$tab read -r depth path; do # a script of libtool runs the program of its name in .libs
            head -n 5 -- "$path" | grep -aq 'temporary wrapper script for' || printf '%s\t%s\n' "$depth" "$path"
        done | awk -F '\t' 'NR == 1 { top = $1 } $1 == top { print $2 }'
}
loaded() { # libraries that $1 loads: name, path; of those that are found by their path it is the name, too
    LC_ALL=C ldd "$1" 2>/dev/null | sed -n 's/^[[:space:]]*\(.*\/.*\) (0x[0-9a-f]*)$/\1/p' |
        sed -e 's/ => /\t/' -e t -e 's/.*/&\t&/'
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
    mkdir -p -- "${2%/*}" && cp -pL -- "$1" "$2" && chmod u+w -- "$2" || exit
    move "$2"
}
for program do
    to=$0/$program
    [ ! -e "$to" ] || continue
    from=$(built "${program##*/}")
    [ -n "$from" ] || continue
    [ "$(printf '%s\n' "$from" | wc -l)" = 1 ] ||
        fail "$program is not installed, and several files of the build have its name: $(printf '%s\n' "$from" | paste -s -d ' ')"
    echo "perfbisect: $program is not installed, and copied from the build: $from"
    copy "$from" "$to"
    loaded "$from" | while IFS=$tab read -r name path; do
        of_the_build "$(realpath -- "$path")" || continue
        [ "$name" != "$path" ] || fail "$program loads a library of its build by its path: $path"
        [ -e "${to%/*}/$name" ] || copy "$path" "${to%/*}/$name"
    done || exit
    loaded "$to" | while IFS=$tab read -r name path; do
        ! of_the_build "$(realpath -- "$path")" || fail "$program still loads a library of its build: $path"
    done || exit
done
"""


def copying(builder: Builder) -> list[list[str]]:
    """The command that brings programs that a tree builds and does not install, as many a benchmark, to {prefix}.

    The folder of a build is emptied for the next one, and a program finds shared libraries in it by its RUNPATH. So a program
    that is copied from it brings these libraries along, beside itself, and in each of these files the RUNPATH is changed
    where it stands: ``$ORIGIN`` is no longer than the folder of the build, or the ``$ORIGIN/…``, that it replaces.
    """
    script = COPY.replace("{", "{{").replace("}", "}}")
    return [["sh", "-c", script, "{prefix}", *builder.programs]] if builder.programs else []
