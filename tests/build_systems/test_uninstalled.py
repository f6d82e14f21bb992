"""Programs that a tree builds and does not install, with shared libraries that it does not install either."""

import shutil
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from perfbisect.errors import BuildFailed
from perfbisect.lab.build import build_store, links
from perfbisect.recipes.builder import Build, Builder, Variant
from repos import Repo
from sharing import Yard

pytestmark = pytest.mark.tools

MANY = "".join(f"int own{n}(int x) {{ return x + {n}; }}\n" for n in range(8))
MAIN = (
    f"#include <stdio.h>\n{MANY}int outer(void);\nint main(int many, char **words)\n{{\n    int sum = outer();\n"
    + "".join(f"    sum += many > 9 ? own{n}(sum) : 0;\n" for n in range(8))
    + '    printf("%d\\n", sum);\n    return 0;\n}\n'
)
SOURCES = {
    "bench.c": MAIN,
    "outer.c": "int inner(void);\nint second(void) { return 10; }\nint outer(void) { return inner() + second(); }\n",
    "inner.c": "int third(void) { return 1; }\nint inner(void) { return third(); }\n",
    "LICENSE": "",
}
# The program loads `outer` and that `inner`, each from a folder of its own. Only `outer` is installed, by some.
CMAKE = """\
cmake_minimum_required(VERSION 3.10)
project(tool C)
add_library(inner SHARED inner.c)
add_library(outer SHARED outer.c)
set_target_properties(inner outer PROPERTIES VERSION 1.2.3 SOVERSION 1)
set_target_properties(inner PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/deep/er")
target_link_libraries(outer PRIVATE inner)
add_executable(bench bench.c)
target_link_libraries(bench outer)
install(TARGETS outer LIBRARY DESTINATION lib)
"""
RELATIVE = "set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)\n"
STATIC = """\
cmake_minimum_required(VERSION 3.10)
project(tool C)
add_library(parts STATIC outer.c inner.c)
add_executable(bench bench.c)
target_link_libraries(bench parts)
install(FILES LICENSE DESTINATION share)
"""
MESON = """\
project('tool', 'c')
subdir('lib')
executable('bench', 'bench.c', link_with: outer)
install_data('LICENSE', install_dir: 'share')
"""
MESON_LIB = """\
inner = shared_library('inner', '../inner.c')
outer = shared_library('outer', '../outer.c', link_with: inner, install: true)
"""
CONFIGURE_AC = """\
AC_INIT([tool], [1])
AC_CONFIG_MACRO_DIRS([m4])
AM_INIT_AUTOMAKE([foreign])
LT_INIT
AC_PROG_CC
AC_CONFIG_FILES([Makefile])
AC_OUTPUT
"""
MAKEFILE_AM = """\
ACLOCAL_AMFLAGS = -I m4
lib_LTLIBRARIES = libinner.la libouter.la
libinner_la_SOURCES = inner.c
libouter_la_SOURCES = outer.c
libouter_la_LIBADD = libinner.la
noinst_PROGRAMS = bench
bench_SOURCES = bench.c
bench_LDADD = libouter.la
"""
MAKEFILE = """\
bench: bench.o sub/libouter.so
	$(CC) -o $@ bench.o -Lsub -louter -Wl,-rpath,$(CURDIR)/sub:/usr/local/odd -Wl,-rpath-link,$(CURDIR)
sub/libouter.so: outer.c libinner.so
	mkdir -p sub && $(CC) $(CFLAGS) -fPIC -shared -o $@ outer.c -L. -linner -Wl,-rpath,'$$ORIGIN/..'
libinner.so: inner.c
	$(CC) $(CFLAGS) -fPIC -shared -o $@ $<
install:
	install -D LICENSE $(DESTDIR)$(PREFIX)/share/LICENSE
"""
AUTOTOOLS = {"configure.ac": CONFIGURE_AC, "Makefile.am": MAKEFILE_AM, "m4/.keep": ""}
TREES = {
    "cmake": {"CMakeLists.txt": CMAKE},
    "cmake, relative": {"CMakeLists.txt": RELATIVE + CMAKE},
    "cmake, static": {"CMakeLists.txt": STATIC},
    "meson": {"meson.build": MESON, "lib/meson.build": MESON_LIB},
    "autotools": AUTOTOOLS,
    "make": {"Makefile": MAKEFILE},
}
NEEDS = {"cmake": "cmake", "meson": "meson", "autotools": "libtoolize", "make": "make"}
TOOL = "bin/bench"
RECIPE = Builder(
    name="tool", summary="a tool", driver="tool", programs=["bin/bench"], build=Build(timeout=300.0),
    variants={"o2nofp": Variant(cflags="-O1")},
)  # fmt: skip


def runpath(place: Yard, key: str, name: str) -> str:
    file = place.installed(key, f"bin/{name}")
    printed = subprocess.run(["readelf", "-dW", file], capture_output=True, text=True, check=True).stdout
    return next((line.split("[")[1].rstrip("]") for line in printed.splitlines() if "PATH)" in line), "")


def order(program: PurePosixPath) -> tuple[str, ...]:
    """Its functions by their addresses."""
    printed = subprocess.run(["nm", "-n", "--defined-only", program], capture_output=True, text=True, check=True).stdout
    return tuple(name for line in printed.splitlines() if (name := line.split()[-1]).startswith("own"))


@pytest.fixture
def place(tmp_path: Path, git: Repo) -> Yard:
    return Yard(tmp_path, git, RECIPE, jobs=2)


@pytest.mark.parametrize("tree", TREES)
def test_a_program_that_is_not_installed_is_copied_with_its_libraries(place: Yard, tree: str) -> None:
    system = tree.partition(",")[0]
    if not shutil.which(NEEDS[system]):
        pytest.skip(f"{NEEDS[system]} is not installed")
    first = place.build(SOURCES | TREES[tree], layouts=True)
    assert first.system == system
    second = place.build(
        {"inner.c": "int third(void) { return 5; }\nint inner(void) { return third(); }\n"}, layouts=True
    )
    assert first.binary != second.binary
    assert (place.output(first.key, TOOL), place.output(second.key, TOOL)) == ("11", "15"), (
        "each loads its own libraries"
    )
    shutil.rmtree(place.root / "work" / "tool" / "build")
    assert (place.output(first.key, TOOL), place.output(second.key, TOOL)) == ("11", "15")
    assert (first.fixed, first.linker != "") == ("", True)
    found = links.find_linker(place.host)
    assert found
    again = [links.link(place.host, first.key, seed, found) for seed in (1, 2)]
    assert [place.output(key, TOOL) for key in again] == ["11", "11"]
    orders = {order(build_store.prefix(place.host, key) / "bin" / "bench") for key in (first.key, *again)}
    assert len(orders) == 3


def test_a_linker_that_looks_for_the_libraries_of_libraries_finds_them(
    place: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ld.bfd does, which moves object files: the program has two, and loads `inner` only by `outer`."""
    if not shutil.which("cmake"):
        pytest.skip("cmake is not installed")
    linker = links.Linker(links.OBJECTS, "")
    monkeypatch.setattr(links, "find_linker", lambda _: linker)
    tree = {"CMakeLists.txt": CMAKE.replace("bench.c", "bench.c more.c"), "more.c": "int more(void) { return 2; }\n"}
    facts = place.build(SOURCES | tree, layouts=True)
    shutil.rmtree(place.root / "work" / "tool" / "build")
    assert facts.fixed == ""
    assert place.output(links.link(place.host, facts.key, 1, linker), TOOL) == "11"


def test_other_folders_of_the_runpath_stay(place: Yard) -> None:
    key = place.build(SOURCES | TREES["make"]).key
    assert runpath(place, key, "bench") == "$ORIGIN:/usr/local/odd"
    assert runpath(place, key, "libouter.so") == "$ORIGIN"


def test_what_is_installed_is_not_touched(place: Yard) -> None:
    """Whatever else the build has of that name."""
    rule = "install:\n\tinstall -D bench $(DESTDIR)$(PREFIX)/bin/bench\n\tmkdir a b && cp bench a && cp bench b\n"
    tree = {"Makefile": MAKEFILE.partition("install:")[0] + rule}
    key = place.build(SOURCES | tree).key
    assert runpath(place, key, "bench").startswith(str(place.root))
    assert not (build_store.prefix(place.host, key) / "bin" / "libouter.so").as_posix() in map(
        str, place.root.rglob("*")
    )


def test_the_file_nearest_to_the_top_is_taken(place: Yard) -> None:
    script = "install:\n\tmkdir -p x/y\n\tprintf '#!/bin/sh\\necho 7\\n' >x/bench\n\techo 'echo 8' >x/y/bench\n\techo 9 >bench\n"
    tree = {"Makefile": f"all:\n{script}\tchmod +x x/bench x/y/bench\n"}
    assert place.output(place.build(SOURCES | tree).key, TOOL) == "7", "one that cannot be executed is no program"


def test_several_files_of_a_program_s_name_are_an_error(place: Yard) -> None:
    rule = "all:\ninstall:\n\tmkdir a b && echo 1 >a/bench && echo 2 >b/bench && chmod +x a/bench b/bench\n"
    why = r"does not install: .*bin/bench is not installed, and several files of the build have its name: \./a/bench \./b/bench"
    with pytest.raises(BuildFailed, match=why):
        place.build(SOURCES | {"Makefile": rule})
    with pytest.raises(BuildFailed, match="it did not install bin/absent"):
        place.build({"Makefile": "all:\ninstall:\n"}, programs=["bin/absent"])


def test_a_library_that_is_loaded_by_its_path_cannot_be_brought_along(place: Yard) -> None:
    rule = "bench: outer.c inner.c\n\t$(CC) -fPIC -shared -o libx.so outer.c inner.c\n\t$(CC) -o $@ bench.c $(CURDIR)/libx.so\ninstall:\n"
    with pytest.raises(
        BuildFailed, match=r"does not install: .*bin/bench loads a library of its build by its path: build/libx"
    ):
        place.build(SOURCES | {"Makefile": rule})
