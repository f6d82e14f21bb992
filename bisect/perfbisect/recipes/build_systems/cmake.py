"""CMake.

A Release configuration, because projects leave out checks in it, with the variant's options in place of its -O3. Ninja
is used where it is installed.
"""

import re
from pathlib import PurePosixPath

from perfbisect.recipes.build_systems.plan import STAGED, Commands, Plan

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
_CONFIGURE = 'command -v ninja >/dev/null && set -- -G Ninja "$@"; exec "$0" "$@"'
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


def commands(plan: Plan) -> Commands:
    """How a tree with a CMakeLists.txt is built."""
    folder = "{prefix}/build" if plan.in_place else "."
    shared = ("-DBUILD_SHARED_LIBS=ON",) if PurePosixPath(plan.library).suffix == ".so" else ()
    variables = tuple(found[1] for option in plan.requested if (found := _VARIABLE.match(option)))
    configure = (
        *(("sh", "-c", _LOGGED) if variables else ()), "sh", "-c", _CONFIGURE, "cmake", "-S", plan.source, "-B", folder,
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
        *plan.options,
    )  # fmt: skip
    build: tuple[str, ...] = ("cmake", "--build", folder, "--parallel", "{jobs}")
    if plan.targets:
        build = (*build, "--target", *plan.targets)
    elif plan.programs and not plan.in_place:
        names = tuple(PurePosixPath(program).name for program in plan.programs)
        build = ("sh", "-c", _BUILD_PROGRAMS, "{jobs}", folder, *names)
    install = (
        ("find", ".", "-name", "cmake_install.cmake", "-exec", "sed", "-i", "-E", _OPTIONAL, "{{}}", "+"),
        ("sh", "-c", STAGED, "{prefix}", "cmake", "-P", "cmake_install.cmake"),
    )
    refuse = (("sh", "-c", _REFUSE, _LOG, *variables),) if variables else ()
    return Commands((*plan.copied, configure, *refuse), (build,), () if plan.in_place else install)
