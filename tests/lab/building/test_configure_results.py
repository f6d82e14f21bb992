"""Clean builds by cmake that start with results of checks of an earlier one, and give the same as without."""

from dataclasses import replace
from pathlib import Path

import pytest

from perfbisect.lab.building import pipeline
from perfbisect.recipes.builder import Build, Builder, Variant
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


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("checks", "change", "values", "found"),
    [
        pytest.param(LOOKS, {}, (101, 201), True, id="found"),
        pytest.param(BESIDES, {}, (111, 211), False, id="a-check-does-more"),
        pytest.param(READS, {"part.c": BROKEN}, (111, 201), False, id="a-source-is-read"),
        pytest.param(TRIES, {"part.c": BROKEN}, (111, 201), False, id="a-source-is-tried"),
        pytest.param(LOOKS, {"CMakeLists.txt": LISTS.format("")}, (101, 200), False, id="other-checks"),
    ],
)
def test_what_configuring_found_is_used_where_it_would_be_found_again(
    tmp_path: Path, git: Repo, in_place: bool, checks: str, change: Files, values: tuple[int, int], found: bool
) -> None:
    program = "build/tool" if in_place else "bin/tool"
    build = Build(timeout=300.0, in_place=in_place)
    yard = Yard(tmp_path, git, Builder(name="tool", summary="", driver="tool", programs=[program], build=build))
    files = SOURCES | {"CMakeLists.txt": LISTS.format(checks), "build/notes": "of the tree\n"}
    context = yard.context(variants={"o2nofp": Variant(cflags="-O2")})
    another = replace(context, session="another")
    printed, asked = [], []
    for session, each in (
        (context, files),
        (context, {"main.c": MAIN.format(200), "build/notes": "new\n", **change}),
        (another, {"new": ""}),
    ):
        facts = finish(pipeline.build(session, git.commit(each)))[1].facts
        log = Path(facts.log).read_text(encoding="utf-8")
        printed.append(int(yard.output(facts.key, program)))
        asked.append({each for each in QUESTIONS if f"-- {each}" in log})
        assert not in_place or yard.installed(facts.key, "build/notes").read_text() == each.get("build/notes", "new\n")
    assert printed == [*values, values[1]]
    assert (asked[0], not asked[1]) == (QUESTIONS, found)
    assert "The C compiler identification" in asked[2]
