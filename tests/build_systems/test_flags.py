"""Options of the user for compilers, in small trees of every build system that set the same ones themselves."""

import os
import pwd
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from perfbisect.core.domain.settings import Flags, Quick, Settings
from perfbisect.lab.build.plan import build_fingerprint
from perfbisect.recipes.builder import Build, Builder, Variant
from perfbisect.recipes.requested import requested_builder
from repos import Repo
from sharing import Yard

pytestmark = pytest.mark.tools

# Each language prints what its own option says; the assembler would not take a header.
SOURCES = {
    "main.c": "#include <stdio.h>\nint part(void);\nint other(void);\n"
    'int main(void) { printf("%d %d %d %d\\n", C, part(), other(), (int)sizeof(uint16_t)); return 0; }\n',
    "part.cpp": 'extern "C" int part() { return CXX; }\n',
    "other.S": ".globl other\nother:\n mov $7, %eax\n ret\n.section .note.GNU-stack\n",
}
CMAKE = """\
cmake_minimum_required(VERSION 3.10)
project(tool C CXX ASM)
add_executable(tool main.c part.cpp other.S)
target_compile_options(tool PRIVATE -DC=1 -DCXX=1)
install(TARGETS tool RUNTIME DESTINATION bin)
"""
MESON = """\
project('tool', 'c', 'cpp')
executable('tool', 'main.c', 'part.cpp', 'other.S', c_args: '-DC=1', cpp_args: '-DCXX=1', install: true)
"""
AUTOTOOLS = {
    "configure.ac": "AC_INIT([tool], [1])\nAM_INIT_AUTOMAKE([foreign])\nAC_PROG_CC\nAC_PROG_CXX\nAM_PROG_AS\n"
    "AC_CONFIG_FILES([Makefile])\nAC_OUTPUT\n",
    "Makefile.am": "bin_PROGRAMS = tool\ntool_SOURCES = main.c part.cpp other.S\nAM_CPPFLAGS = -DC=1 -DCXX=1\n",
}
MAKE = """\
override CFLAGS = -DC=1
tool: main.o part.o other.o
	$(CXX) -o $@ $^
%.o: %.cpp
	COMPILER -DCXX=1 -c -o $@ $<
install: tool
	install -D tool $(DESTDIR)$(PREFIX)/bin/tool
"""
BUILD_RS = """\
use std::{env, process::Command};
fn main() {
    let script = "$CC $CFLAGS -DC=1 -c part.c -o $OUT_DIR/part.o && ar rcs $OUT_DIR/libpart.a $OUT_DIR/part.o";
    assert!(Command::new("sh").args(["-c", script]).status().unwrap().success());
    println!("cargo:rustc-link-search=native={}", env::var("OUT_DIR").unwrap());
    println!("cargo:rustc-link-lib=static=part");
}
"""
CARGO = {
    "Cargo.toml": '[package]\nname = "tool"\nversion = "0.1.0"\nedition = "2021"\nbuild = "build.rs"\n',
    "build.rs": BUILD_RS,
    "src/main.rs": 'extern "C" { fn part() -> i32; }\nfn main() { println!("{} 3 7 2", unsafe { part() }); }\n',
    "part.c": "int part(void) { return C + 0 * sizeof(uint16_t); }\n",
}
GO = {
    "go.mod": "module example.com/tool\n\ngo 1.18\n",
    "cmd/tool/main.go": 'package main\n\n// #cgo CFLAGS: -DC=1\n// int part(void) { return C; }\nimport "C"\n'
    'import "fmt"\n\nfunc main() { fmt.Println(C.part(), 3, 7, 2) }\n',
}
TREES = {
    "cargo": CARGO,
    "go": GO,
    "cmake": {"CMakeLists.txt": CMAKE},
    "meson": {"meson.build": MESON},
    "autotools": AUTOTOOLS,
    "make": {"Makefile": MAKE.replace("COMPILER", "$(CXX)")},
    "make, g++": {"Makefile": MAKE.replace("COMPILER", "g++")},
}
NEEDS = {"autotools": "autoreconf", "commands": "make"}
RECIPE = Builder(
    name="tool", summary="a tool", driver="tool", programs=["bin/tool"], build=Build(timeout=300.0),
    variants={"o2nofp": Variant(cflags="-O2 -DC=9 -DCXX=9")},
)  # fmt: skip
COMMANDS = Build(
    compile=[["sh", "-c", "cp -a {source}/. . && make CXX=c++ PREFIX={prefix} install"]], artifacts=["bin/tool"]
)
FLAGS = Flags("-UC '-DC=1 + 1' -include stdint.h", "-UCXX -DCXX=3", "-Wl,-rpath,/of/the/user")


@pytest.fixture
def yard(tmp_path: Path, git: Repo) -> Yard:
    return Yard(tmp_path, git, RECIPE, jobs=2)


@pytest.mark.parametrize("tree", [*TREES, "commands"])
def test_the_options_of_the_user_come_last_in_every_build_system(yard: Yard, tree: str) -> None:
    system = tree.partition(",")[0]
    if not shutil.which(needed := NEEDS.get(system, system)):
        pytest.skip(f"{needed} is not installed")
    sha = yard.git.commit(SOURCES | TREES.get(tree, TREES["make, g++"]))
    rustup = Path(pwd.getpwuid(os.getuid()).pw_dir) / ".rustup"
    builds = {"commands": COMMANDS, "cargo": Build(timeout=300.0, env={"RUSTUP_HOME": str(rustup)})}
    if tree == "cargo" and not rustup.exists():
        pytest.skip("cargo has no toolchain")
    changes = {"build": builds[tree]} if tree in builds else {}
    given = replace(FLAGS, cflags="-UC '-DC=1 + 1'") if tree == "go" else FLAGS  # go's own C takes no header
    built = yard.build(sha, flags=given, **changes)
    assert yard.output(built.key, "bin/tool") == "2 3 7 2"
    loads = subprocess.run(
        ["readelf", "-d", yard.installed(built.key, "bin/tool")], capture_output=True, check=True
    ).stdout
    assert b"/of/the/user" in loads
    assert built.flags == given.options
    if tree in ("cargo", "go"):  # the rest is C
        return
    second = yard.build({"part.cpp": SOURCES["part.cpp"] + "int more;\n"}, flags=FLAGS, **changes)
    assert second.key != built.key
    assert second.cache_hits > 0 or tree == "commands", "the compiler is found as before"
    other = yard.build(sha, flags=Flags(FLAGS.cflags, "-UCXX -DCXX=4", FLAGS.ldflags), **changes)
    assert yard.output(other.key, "bin/tool") == "2 4 7 2", "no build, and nothing in the cache, is taken for another"


def test_options_belong_to_what_a_build_is() -> None:
    settings = Settings("a", "b", "/repo", "", "", "h", quick=Quick("./x", ("make",)))
    plain, flagged = map(requested_builder, (settings, replace(settings, flags=FLAGS)))
    assert plain.name != flagged.name
    assert plain.home == flagged.home, "the sources are sent once"
    assert build_fingerprint(plain, Variant()) != build_fingerprint(flagged, Variant())
