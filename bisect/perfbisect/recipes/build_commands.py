"""The build commands for recipes whose section ``[build]`` names a build system, such as cmake, but no commands: the
commands, the environment, and the programs that the commands need.

The commands run in the empty folder ``{build}``. If the recipe sets ``in_place``, the tree is copied to {prefix} and
built there; nothing is installed, because the copy is the result. The module ``programs`` has the commands for programs
that a tree builds but does not install.
"""

import re
from collections.abc import Collection

from perfbisect.recipes.builder import Build, Builder
from perfbisect.recipes.programs import (
    CARGO_TARGETS,
    CMAKE_TARGETS,
    GO_TARGETS,
    MAKE_TARGETS,
    MESON_TARGETS,
    measured_program_build_command,
)

# Nothing is fetched during a build, because downloads differ from day to day.
OFFLINE = {
    "http_proxy": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
    "ftp_proxy": "http://127.0.0.1:9",
    "all_proxy": "http://127.0.0.1:9",
    "GIT_ALLOW_PROTOCOL": "file",
    "PIP_NO_INDEX": "1",
    "npm_config_offline": "true",
}

# Runs its arguments, a command that installs files, so that only files below the folder $0 are installed: files for
# other folders of the system go to a stage, and are removed. A tree that ignores DESTDIR installs directly to $0.
STAGED = """\
stage=$PWD/.stage
DESTDIR=$stage "$@" || exit
if [ -d "$stage$0" ]; then mkdir -p "$0" && cp -al "$stage$0/." "$0" && rm -rf "$stage"; fi
"""


# cmake only warns of variables that a tree does not use. $0 is the log, then variables.
_REFUSE = """\
for variable do
    if awk '/Manually-specified variables were not used/ {{ on = 1 }} on' "$0" | grep -qxF "    $variable"; then
        echo "error: this tree does not know the option -D$variable of --configure"
        exit 1
    fi
done
"""
_LOG = ".perfbisect.log"  # differs from names of the tree's folders
_LOGGED = f'{{{{ "$0" "$@" 2>&1 || : >{_LOG}.failed; }}}} | tee {_LOG}; [ ! -e {_LOG}.failed ]'
_VARIABLE = re.compile(r"-D([^:=]+)")
_CMAKE_CONFIGURE = 'command -v ninja >/dev/null && set -- -G Ninja "$@"; exec "$0" "$@"'
# Files that were not built are left out; otherwise cmake's installation ends at the first missing file.
_OPTIONAL = r"s/^( *file\(INSTALL DESTINATION .* TYPE [A-Z_]+)( |$)/\1 OPTIONAL\2/"


def _tree_and_command_prefix(build: Build) -> tuple[str, list[str]]:
    """The folder with the source tree, and the words to put before a command so that the command runs in this folder;
    no words if the recipe does not set ``in_place``."""
    return ("{prefix}", ["env", "-C", "{prefix}"]) if build.in_place else ("{source}", [])


def _build_command(builder: Builder, build: Build, system: str, argv: list[str], folder: str = ".") -> list[str]:
    """The command that builds the recipe's targets. If the recipe has no targets, the command builds the programs that
    the recipe or the workload starts."""
    if build.targets:
        return [*argv, *build.targets]
    return measured_program_build_command(builder, build, system, argv, folder)


def cmake_commands(builder: Builder, build: Build, _: Collection[str]) -> Build:
    """The commands of a cmake build of the type Release, because most projects disable assertions in this type. The
    variant's compiler options replace the option -O3 of this build type.

    Ninja is used if it is installed.
    """
    source, folder = _tree_and_command_prefix(build)[0], "{prefix}/build" if build.in_place else "."
    shared = ["-DBUILD_SHARED_LIBS=ON"] if builder.library.endswith(".so") else []
    variables = [match[1] for option in builder.requested if (match := _VARIABLE.match(option))]
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
        # Compilers warn of more each year: a tree that turns warnings into errors would not build with a newer compiler.
        "-DCMAKE_C_FLAGS_RELEASE={cflags} -DNDEBUG -Wno-error",
        "-DCMAKE_CXX_FLAGS_RELEASE={cflags} -DNDEBUG -Wno-error",
        "-DCMAKE_EXE_LINKER_FLAGS_RELEASE={ldflags}",
        "-DCMAKE_SHARED_LINKER_FLAGS_RELEASE={ldflags}",
        "-DCMAKE_MODULE_LINKER_FLAGS_RELEASE={ldflags}",
        "-DFETCHCONTENT_FULLY_DISCONNECTED=ON",
        "-DCMAKE_POLICY_VERSION_MINIMUM=3.5",  # cmake 4 refuses trees that ask for less
        "-DBUILD_TESTING=OFF",
        *shared,
        *build.options,
    ]  # fmt: skip
    compile_ = ["cmake", "--build", folder, "--parallel", "{jobs}"]
    compile_targets = _build_command(
        builder, build, CMAKE_TARGETS, [*compile_, *(["--target"] if build.targets else [])], folder
    )
    install = [
        ["find", ".", "-name", "cmake_install.cmake", "-exec", "sed", "-i", "-E", _OPTIONAL, "{{}}", "+"],
        ["sh", "-c", STAGED, "{prefix}", "cmake", "-P", "cmake_install.cmake"],
    ]
    refuse = [["sh", "-c", _REFUSE, _LOG, *variables]] if variables else []
    return Build(configure=[configure, *refuse], compile=[compile_targets], install=install)


# Meson takes compilers of more than one word only from a file. $0 is the file, then both compilers, after a =.
_NATIVE = """\
list() {{ for word do printf "'%s', " "$word"; done; }}
printf '[binaries]\\nc = [%s]\\ncpp = [%s]\\n' "$(list ${{1#=}})" "$(list ${{2#=}})" >"$0"
"""


def meson_commands(builder: Builder, build: Build, _: Collection[str]) -> Build:
    """The commands of a meson build of the type ``plain``, in which only the variant sets compiler options."""
    source, folder = _tree_and_command_prefix(build)[0], "{prefix}/build" if build.in_place else "."
    setup = [
        "meson", "setup", folder, source, "--native-file={build}/native.ini",
        "--prefix={prefix}", "--libdir=lib", "--buildtype=plain", "--wrap-mode=nodownload",
        "-Db_ndebug=true", "-Dwerror=false",
        "-Dc_args={cflags} -Wno-error", "-Dcpp_args={cflags} -Wno-error",
        "-Dc_link_args={ldflags}", "-Dcpp_link_args={ldflags}",
        *build.options,
    ]  # fmt: skip
    return Build(
        configure=[["sh", "-c", _NATIVE, "{build}/native.ini", "={cc}", "={cxx}"], setup],
        compile=[_build_command(builder, build, MESON_TARGETS, ["ninja", "-C", folder, "-j{jobs}"], folder)],
        install=[["sh", "-c", STAGED, "{prefix}", "meson", "install", "--no-rebuild"]],
    )


# git writes files in the order of their names, so a script may be older than its sources, and make would make it again
# and run it. Therefore these sources get an old time. $0 is the tree.
AGED = """\
find "$0" -type f '(' -name configure -o -name '*.ac' -o -name '*.am' -o -name '*.in' -o -name '*.m4' ')' \\
    -exec touch -d @315532800 {{}} + || exit
"""

# $0 is the tree; the arguments are options for its configure script. Harmless options are passed on only if the help of
# the script has them. An option of the recipe or of the user that the script does not know is an error.
_AUTOTOOLS_CONFIGURE = f"""\
{AGED}source=$0
if ! head -n 20 "$source/configure" | grep -q 'Generated by GNU Autoconf'; then
    [ "$source" -ef . ] || cp -a "$source/." . || exit
    source=.
fi
known=$("$source/configure" --help 2>/dev/null)
for option in UNNEEDED; do
    case $known in *"$option"*) set -- "$option" "$@";; esac
done
case $known in *--disable-option-checking*) # not for scripts of subfolders, which get the same options and know others
    grep -q '^ *ac_subdirs_all=' "$source/configure" || set -- --enable-option-checking=fatal "$@";;
esac
exec "$source/configure" "$@"
"""


def autotools_commands(builder: Builder, build: Build, paths: Collection[str]) -> Build:
    """The commands of a build by a configure script, which is made from configure.ac if the tree lacks the script.

    Scripts made by GNU Autoconf are run in a build folder outside of the tree. All other configure scripts may not
    support a separate build folder, so these scripts are run in a copy of the tree. If workloads load the shared
    library, the static library is not built.
    """
    source, in_tree = _tree_and_command_prefix(build)
    unneeded = ["--disable-silent-rules", "--disable-maintainer-mode"]
    if builder.library.endswith(".so") and not build.then:
        unneeded.append("--disable-static")
    script = _AUTOTOOLS_CONFIGURE.replace("UNNEEDED", " ".join(unneeded))
    options = [
        "--prefix={prefix}", "--libdir={prefix}/lib",
        "CC={cc}", "CXX={cxx}", "CFLAGS={cflags}", "CXXFLAGS={cflags}", "LDFLAGS={ldflags}",
        *build.options,
    ]  # fmt: skip
    generate = [] if "configure" in paths else [[*in_tree, "autoreconf", "-f", "-i", source]]
    return Build(
        configure=[*generate, [*in_tree, "sh", "-c", script, source, *options]],
        compile=[_build_command(builder, build, MAKE_TARGETS, [*in_tree, "make", "-j{jobs}"])],
        install=[["sh", "-c", STAGED, "{prefix}", "make", "install"]],
        needs=["autoreconf"] if generate else [],
    )


# $0 is the folder of the compilers' scripts. The here-document copies the values unchanged; the values are quoted for a
# shell.
_MAKE_SCRIPT = """\
cat >"$0/{name}" <<'.' || exit
#!/bin/sh
case " $* " in *" -c "* | *" -E "* | *" -S "*) exec ccache {compiler} {{cflags}} "$@" -Wno-error;; esac
exec ccache {compiler} {{cflags}} "$@" -Wno-error {{ldflags}}
.
"""
_MAKE_COMPILERS = "\n".join((
    'mkdir -p "$0" || exit',
    _MAKE_SCRIPT.format(name="cc", compiler="{compiler}"),
    _MAKE_SCRIPT.format(name="cxx", compiler="{cxx_compiler}"),
    'chmod +x "$0/cc" "$0/cxx"',
))  # fmt: skip
# $0 is the folder {prefix}; the arguments are variables for make.
_MAKE_INSTALL = f"""\
if make -s -n install "$@" >/dev/null 2>&1; then
    set -- make install "$@"
    {STAGED}
else
    mkdir -p "$0" && cp -a . "$0"
fi
"""


def make_commands(builder: Builder, build: Build, _: Collection[str]) -> Build:
    """The commands for a tree that has only a Makefile. The tree is copied, and the copy is built.

    Makefiles have no common way to set the compiler's options: some Makefiles append to CFLAGS, others ignore CFLAGS.
    Therefore a script replaces the compiler, so that the variant's options are used with every Makefile. The script
    puts the variant's options before the tree's options, so that the tree's options have precedence. The script also
    prevents warnings from becoming errors, because newer compilers have more warnings. If `make -n install` succeeds,
    `make install` is run; otherwise the whole folder is the result.
    """
    in_tree = _tree_and_command_prefix(build)[1]
    compilers = "{prefix}/.perfbisect" if build.in_place else "{build}/.perfbisect"
    variables = [f"CC={compilers}/cc", f"CXX={compilers}/cxx", "PREFIX={prefix}", "prefix={prefix}", *build.options]
    copied = [] if build.in_place else [["cp", "-a", "{source}/.", "{build}"]]
    return Build(
        configure=[*copied, ["sh", "-c", _MAKE_COMPILERS, compilers]],
        compile=[_build_command(builder, build, MAKE_TARGETS, [*in_tree, "make", "-j{jobs}", *variables])],
        install=[["sh", "-c", _MAKE_INSTALL, "{prefix}", *variables]],
    )


_CARGO_INSTALL = """\
mkdir -p "$0/bin" "$0/lib" && cd release || exit
find . -maxdepth 1 -type f -perm -u+x ! -name '*.so' -exec cp -- {{}} "$0/bin" \\; &&
find . -maxdepth 1 -type f -name '*.so' -exec cp -- {{}} "$0/lib" \\;
"""


def cargo_commands(builder: Builder, build: Build, paths: Collection[str]) -> Build:
    """The commands of a cargo release build. Crates are read from the source tree (vendored) or from the host's cache.
    ``targets`` of the recipe are options such as ``--bin=NAME``."""
    target = "{prefix}/target" if build.in_place else "{build}"
    locked = ["--locked"] if "Cargo.lock" in paths else []
    argv = [
        "cargo", "build", "--release", "--offline", f"--manifest-path={_tree_and_command_prefix(build)[0]}/Cargo.toml",
        f"--target-dir={target}", "--jobs={jobs}", *build.options, *locked,
    ]  # fmt: skip
    return Build(
        compile=[_build_command(builder, build, CARGO_TARGETS, argv)],
        install=[["sh", "-c", _CARGO_INSTALL, "{prefix}"]],
        env={"CC": "{cc}", "CXX": "{cxx}", "CFLAGS": "{cflags}", "CXXFLAGS": "{cflags}", "CARGO_NET_OFFLINE": "true"},
    )


def go_commands(builder: Builder, build: Build, _: Collection[str]) -> Build:
    """The commands that build all programs of a Go module. Dependencies are read from the source tree (vendored) or
    from the host's cache. ``targets`` of the recipe are packages."""
    source = _tree_and_command_prefix(build)[0]
    argv = ["env", "-C", source, "go", "build", "-trimpath", "-o", "{prefix}/bin/", *build.options]
    packages = [] if build.targets else ["./..."]
    return Build(
        configure=[["mkdir", "-p", "{prefix}/bin/"]],
        compile=[_build_command(builder, build, GO_TARGETS, [*argv, *packages], "{prefix}")],
        env={
            "GOPROXY": "off", "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false -p={jobs}",
            "CC": "{cc}", "CXX": "{cxx}", "CGO_CFLAGS": "{cflags}", "CGO_CXXFLAGS": "{cflags}", "CGO_LDFLAGS": "{ldflags}",
        },
    )  # fmt: skip
