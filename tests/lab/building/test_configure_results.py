"""Clean builds by cmake that reuse the results of configure checks of an earlier build, without another outcome."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from perfbisect.lab.building import pipeline
from perfbisect.lab.building.configure_results import cmake_index_and_folder
from perfbisect.recipes.builder import Build, Builder, Variant
from perfbisect.recipes.requested import command_words, quick_builder
from repos import Files, Repo
from sharing import Yard
from waiting import finish

pytestmark = [pytest.mark.tools, pytest.mark.own_ccache]

LISTS = """cmake_minimum_required(VERSION 3.10)
project(tool C)
include(CheckFunctionExists)
include(CheckCSourceCompiles)
include(CheckTypeSize)
{}
configure_file(config.h.in config.h)
include_directories(${{CMAKE_CURRENT_BINARY_DIR}})
add_executable(tool main.c)
install(TARGETS tool)
"""
LOOKS = "check_function_exists(qsort HAVE_QSORT)\ncheck_type_size(long LONG)"
BESIDES = f"if(NOT DEFINED HAVE_QSORT)\n{LOOKS}\nset(HAVE_MORE 10)\nendif()"
READS = f'{LOOKS}\nfile(READ part.c text)\ncheck_c_source_compiles("${{text}}" HAVE_MORE)'
TRIES = f"{LOOKS}\ntry_compile(HAVE_MORE ${{CMAKE_BINARY_DIR}} ${{CMAKE_SOURCE_DIR}}/part.c)"
MAIN = '#include <stdio.h>\n#include "config.h"\nint main(void) {{ printf("%d\\n", {} + QSORT + MORE + 0); }}\n'
SOURCES: Files = {
    "main.c": MAIN.format(100),
    "part.c": "int main(void) { return 0; }\n",
    "config.h.in": "#cmakedefine01 HAVE_QSORT\n#cmakedefine01 HAVE_MORE\n#define QSORT HAVE_QSORT\n#define MORE (10 * HAVE_MORE)\n",
}
QUESTIONS = {"The C compiler identification", "Looking for qsort", "Check size of long"}
BROKEN = "int main(void) { return nothing; }\n"


CASES: dict[str, tuple[str, Files, tuple[int, int], bool]] = {
    "found": (LOOKS, {}, (101, 201), True),
    "a check does more": (BESIDES, {}, (111, 211), False),
    "a source is read": (READS, {"part.c": BROKEN}, (111, 201), False),
    "a source is tried": (TRIES, {"part.c": BROKEN}, (111, 201), False),
    "other checks": (LOOKS, {"CMakeLists.txt": LISTS.format("")}, (101, 200), False),
}
COMMANDS = ("cmake -B ./build/ -DX=1 .", "cmake --build build")


@pytest.mark.parametrize(
    ("case", "commands", "in_place"),
    [
        *((case, (), in_place) for case in CASES for in_place in (False, True)),
        ("found", COMMANDS, True),
        ("a check does more", COMMANDS, True),
        pytest.param("found", (COMMANDS[0], *COMMANDS), True, id="found-configured-twice"),
    ],
)
def test_configure_results_are_reused_if_the_checks_are_the_same(
    tmp_path: Path, git: Repo, case: str, commands: tuple[str, ...], in_place: bool
) -> None:
    checks, change, values, found = CASES[case]
    program = "build/tool" if in_place else "bin/tool"
    build = Build(timeout=300.0, in_place=in_place)
    recipe = Builder(name="tool", summary="", driver="tool", programs=[program], build=build)
    if commands:
        recipe = msgspec.structs.replace(quick_builder(commands, str(git.path)), programs=[program])
    yard = Yard(tmp_path, git, recipe)
    files = SOURCES | {"CMakeLists.txt": LISTS.format(checks), "build/notes": "of the tree\n"}
    context = yard.context(variants={"o2nofp": Variant(cflags="-O2")})
    another = replace(context, session="another")
    printed, asked = [], []
    for session, each in (
        (context, files),
        (context, {"main.c": MAIN.format(200), "build/notes": "new\n", **change}),
        (another, {"new": ""}),
    ):
        facts = finish(pipeline.build_commit(session, git.commit(each)))[1].facts
        log = Path(facts.log).read_text(encoding="utf-8")
        printed.append(int(yard.output(facts.key, program)))
        asked.append({each for each in QUESTIONS if f"-- {each}" in log})
        assert not in_place or yard.installed(facts.key, "build/notes").read_text() == each.get("build/notes", "new\n")
    assert printed == [*values, values[1]]
    assert (asked[0], not asked[1]) == (QUESTIONS, found and len(commands) < 3)
    assert "The C compiler identification" in asked[2]


@pytest.mark.parametrize(
    ("command", "folder"),
    [
        ("cmake -S . -B build", "build"),
        ("/opt/bin/cmake -H. -Bout -G Ninja -DCMAKE_BUILD_TYPE=Release -Wno-dev", "out"),
        ("cmake -S /p/sub -B /p/b1 -D X=..", "b1"),
        *((other, "") for other in (
            "cmake .", "cmake ..", "cmake -B .", "cmake -B ../build", "cmake -B a/b", "cmake -B /tmp/b", "cmake -S /src -B b",
            "cmake -S ../x -B b", "cmake --preset x -B b", "cmake --fresh -B b", "cmake -C x.cmake -B b", "cmake -P x -B b",
            "cmake --build build", "cmake", "make -B build", "env CC=gcc cmake -B build",
        )),
    ],
)  # fmt: skip
def test_only_plain_cmake_configure_commands_are_recognised(command: str, folder: str) -> None:
    for variables in ([], ["PERFBISECT_FILES=1"]):
        at, found = cmake_index_and_folder(["env", "-C", "/p", *variables, *command_words(command)], "/p")
        assert (at, found) == (3 + len(variables), folder)
