"""Incremental builds with real build systems, and changes that a stale object would hide."""

import platform
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from perfbisect.core.domain.facts import BuildFacts
from perfbisect.core.domain.settings import Flags
from perfbisect.host import jobs
from perfbisect.lab.building import incremental, links, pipeline
from perfbisect.recipes.builder import Build, Builder, Variant
from perfbisect.recipes.requested import quick_builder
from repos import Files, Repo
from sharing import Yard
from waiting import finish

pytestmark = [pytest.mark.tools, pytest.mark.own_ccache]

MAIN = '#include <stdio.h>\n#include "value.h"\nint part(void);\nint main(void) { printf("%d\\n", VALUE + part()); }\n'
SOURCES = {
    "main.c": MAIN,
    "part.c": '#include "rest.c"\nint part(void) { return REST; }\n',
    "rest.c": "#define REST 100\n",
    "value.h": "#define VALUE 1\n",
}
AM = "bin_PROGRAMS = tool\ntool_SOURCES = main.c part.c\n"
AC = "AC_INIT([tool], [1])\nAM_INIT_AUTOMAKE([foreign])\nAC_PROG_CC\nAC_CONFIG_FILES([Makefile])\nAC_OUTPUT\n"
INSTALL = "install: tool\n\tinstall -D tool $(DESTDIR)$(PREFIX)/bin/tool\n"
MAKE = f"tool: main.o part.o\n\t$(CC) $(CFLAGS) -o $@ $^\n{INSTALL}"
BY_HAND = "#!/bin/sh\nfor each do case $each in --prefix=*) prefix=${each#*=};; CC=*) cc=${each#*=};; esac; done\n"
BY_HAND += 'printf \'CC = %s\\nPREFIX = %s\\n\' "$cc" "$prefix" >config.mk\n'
TREES: dict[str, Files] = {
    "cmake": {
        "CMakeLists.txt": "cmake_minimum_required(VERSION 3.10)\nproject(tool C)\nfile(GLOB all *.c)\noption(TWICE \"\" OFF)\n"
        "list(FILTER all EXCLUDE REGEX rest)\nadd_executable(tool ${all})\ninstall(TARGETS tool)\n"
        "if(TWICE)\ntarget_compile_definitions(tool PRIVATE VALUE=222)\nendif()\n"
    },
    "meson": {"meson.build": "project('tool', 'c')\nexecutable('tool', 'main.c', 'part.c', install: true)\n"},
    "make": {"Makefile": MAKE},
    "make-tracked": {"Makefile": f"override CFLAGS += -MMD\n{MAKE}-include main.d part.d\n"},
    "autotools": {"configure.ac": AC, "Makefile.am": AM},
    "autotools-by-hand": {"configure": BY_HAND, "Makefile": f"include config.mk\noverride CFLAGS += -MMD\n{MAKE}-include main.d part.d\n"},
}  # fmt: skip
RECIPE = Builder(name="tool", summary="a tool", driver="tool", programs=["bin/tool"], build=Build(timeout=300.0))
NEEDS = {"autotools": "automake"}


@dataclass
class Series(Yard):
    """Builds one commit after the other."""

    more: dict[str, Any] = field(default_factory=dict)
    layouts: bool = False

    def next(self, files: Files, *, clean: bool = False) -> BuildFacts:
        """Commit these changes, and build the commit."""
        for name, text in files.items():
            if text and text.startswith("#!"):
                (self.git.path / name).write_text(text)
                (self.git.path / name).chmod(0o755)
        context = self.context(variants={"o2nofp": Variant(cflags="-O2")}, layouts=self.layouts, **self.more)
        return finish(pipeline.build_commit(context, self.git.commit(files), clean=clean))[1].facts

    def printed(self, facts: BuildFacts) -> int:
        return int(self.output(facts.key, self.more.get("programs", RECIPE.programs)[0]))


@pytest.fixture
def series(tmp_path: Path, git: Repo) -> Series:
    return Series(tmp_path, git, RECIPE)


@pytest.fixture(params=TREES)
def begun(request: pytest.FixtureRequest, series: Series) -> tuple[Series, str]:
    """A series after a clean build of a tree, and the name of the tree."""
    system = request.param.partition("-")[0]
    if shutil.which(NEEDS.get(system, system)) is None:
        pytest.skip(f"{system} is not installed")
    facts = series.next(SOURCES | TREES[request.param])
    assert (facts.system, facts.incremental, series.printed(facts)) == (system, False, 101)
    return series, request.param


def test_incremental_build_contains_every_kind_of_change(begun: tuple[Series, str]) -> None:
    """Changes of sources, headers, new and deleted files, and the build file. A clean build makes the same binary."""
    series, tree = begun
    tracks = tree != "make"
    globs = "cmake" in tree

    def built(files: Files, value: int, *, incremental: bool) -> BuildFacts:
        facts = series.next(files)
        assert (series.printed(facts), facts.incremental) == (value, incremental)
        return facts

    built({"main.c": MAIN.replace("VALUE +", "10 + VALUE +")}, 111, incremental=True)
    facts = built({"value.h": "#define VALUE 2\n"}, 112, incremental=tracks)
    built({"rest.c": "#define REST 200\n"}, 212, incremental=tracks)
    built({"README.md": "text\n", "value.h": "#define VALUE 2\n"}, 212, incremental=True)
    if globs:
        built({"part.c": None, "other.c": "int part(void) { return 5; }\n"}, 17, incremental=True)
        lists = str(TREES["cmake"]["CMakeLists.txt"])
        built(
            {"CMakeLists.txt": lists.replace("OFF", "ON"), "value.h": "#ifndef VALUE\n#endif\n"}, 237, incremental=True
        )
    elif tree == "meson":
        text = str(TREES[tree]["meson.build"]).replace("part.c'", "other.c'")
        built({"meson.build": text, "other.c": "int part(void) { return 5; }\n"}, 17, incremental=True)
    else:
        name = "Makefile.am" if tree == "autotools" else "Makefile"
        text = str(TREES[tree][name]).replace("part", "other")
        built(
            {name: text, "other.c": "int part(void) { return 5; }\n"},
            17,
            incremental=tree in ("make-tracked", "autotools-by-hand"),
        )
    series.git("reset", "-q", "--hard", facts.commit)
    clean = finish(pipeline.build_commit(series.context(variants={"o2nofp": Variant(cflags="-O2")}), facts.commit))[
        1
    ].facts
    assert (clean.incremental, clean.binary == facts.binary, series.printed(clean)) == (False, True, 112)


@pytest.mark.parametrize("tree", ["make-tracked", "cmake", "autotools"])
def test_in_place_build_copies_the_tree_of_the_last_build(series: Series, tree: str) -> None:
    if shutil.which(NEEDS.get(tree, tree.partition("-")[0])) is None:
        pytest.skip(f"{tree} is not installed")
    program = "build/tool" if tree == "cmake" else "tool"
    how = structs.replace(RECIPE.build or Build(), in_place=True)
    series.more = {"programs": [program], "build": how}
    first = series.next(SOURCES | TREES[tree])
    second = series.next({"value.h": "#define VALUE 2\n"})
    assert (first.incremental, second.incremental) == (False, True)
    assert (series.printed(second), series.printed(first)) == (102, 101)


def test_each_incremental_build_keeps_the_objects_of_its_layouts(series: Series) -> None:
    """The objects from which an earlier build is linked again stay, although later builds write objects again."""
    archive = "override CFLAGS += -MMD\ntool: main.o libpart.a\n\t$(CC) -o $@ main.o -L. -lpart\n"
    archive += f"libpart.a: part.o\n\t$(AR) rcs $@ $^\n{INSTALL}-include main.d part.d\n"
    series.layouts = True
    first = series.next(SOURCES | {"Makefile": archive})
    second = series.next({"value.h": "#define VALUE 2\n", "rest.c": "#define REST 300\n"})
    third = series.next({"value.h": "#define VALUE 3\n"})
    assert [each.incremental for each in (first, second, third)] == [False, True, True]
    context = series.context(variants={"o2nofp": Variant(cflags="-O2")}, layouts=True)
    if context.recorder is None:
        pytest.skip("no linker")
    for facts, value in ((first, 101), (third, 303), (second, 302)):
        assert not facts.fixed
        made = links.link_layout(series.host, facts.key, 1, context.recorder.linker)
        assert int(series.output(made, "bin/tool")) == value


def test_failed_incremental_build_is_repeated_in_an_empty_folder(series: Series) -> None:
    makefile = str(TREES["make-tracked"]["Makefile"]).replace("-o $@ $^", "-o $@ $^ && : >made")
    checked = makefile.replace("$(CC)", "! grep -q 2 value.h || [ ! -e made ] && $(CC)")
    series.next(SOURCES | {"Makefile": checked})
    facts = series.next({"value.h": "#define VALUE 2\n"})
    assert (facts.incremental, series.printed(facts)) == (False, 102)
    assert series.next({"value.h": "#define VALUE 3\n"}).incremental


def test_build_with_other_flags_begins_in_an_empty_folder(series: Series) -> None:
    series.next(SOURCES | TREES["make-tracked"])
    series.more = {"flags": Flags(cflags="-DOTHER")}
    assert not series.next({"value.h": "#define VALUE 2\n"}).incremental


@pytest.mark.parametrize(("commands", "incremental"), [(("make",), True), (("make", "sh -c 'make'"), False)])
def test_build_command_of_the_user_that_is_make_is_incremental(
    series: Series, commands: tuple[str, ...], incremental: bool
) -> None:
    recipe = quick_builder(commands, str(series.git.path))
    series.recipe = structs.replace(recipe, folder=series.recipe.folder, programs=["tool"])
    series.next(SOURCES | TREES["make-tracked"])
    facts = series.next({"value.h": "#define VALUE 2\n"})
    assert (facts.incremental, int(series.output(facts.key, "tool"))) == (incremental, 102)
    clean = series.next({}, clean=True)
    assert (clean.incremental, clean.binary == facts.binary, clean.key != facts.key) == (False, True, incremental)
    assert series.next({"README": "x"}, clean=True).binary != clean.binary


BY_SED = "BUILT_SOURCES = value.h\nAM_CPPFLAGS = -I.\nvalue.h: value.h.in\n\tsed s/@ONE@/1/ $(srcdir)/value.h.in >$@\n"
AT_ONCE = "tool: main.c libpart.a\n\t$(CC) -o $@ main.c libpart.a\nlibpart.a: part.o\n\t$(AR) rcs $@ $^\n"
MOVED = "cmake_minimum_required(VERSION 3.10)\nproject(tool C)\nadd_subdirectory({})\n"
ONE = '#include <stdio.h>\nint main(void) {{ puts("{}"); }}\n'
ADDED = "override CFLAGS += -MMD -DVALUE={}\n" + MAKE + "-include main.d part.d\n"
# A tree, what changes in it, what the program prints then, and whether the build is incremental.
HIDDEN: dict[str, tuple[Files, Files, int, bool]] = {
    "a header of tests": (
        {"Makefile": MAKE, "main.c": MAIN.replace("value.h", "test/value.h"), "test/value.h": "#define VALUE 1\n"},
        {"test/value.h": "#define VALUE 2\n"}, 102, False,
    ),
    "a template of a header": (
        {"configure.ac": AC, "Makefile.am": AM + BY_SED, "value.h": None, "value.h.in": "#define VALUE @ONE@\n"},
        {"value.h.in": "#define VALUE 2\n"}, 102, True,
    ),
    "a template by a script of its own": (
        {"configure": BY_HAND + "cp Makefile.in Makefile\n", "Makefile.in": ADDED.format(1), "value.h": ""},
        {"Makefile.in": ADDED.format(1).replace("part", "other"), "other.c": "int part(void) { return 5; }\n"}, 6, False,
    ),
    "a program that is compiled and linked at once": (
        {"Makefile": f"override CFLAGS += -MMD\n{AT_ONCE}{INSTALL}-include part.d\n"},
        {"value.h": "#define VALUE 2\n"}, 102, True,
    ),
    "options": ({"Makefile": ADDED.format(1), "value.h": ""}, {"Makefile": ADDED.format(2)}, 102, False),
    "a program elsewhere": (
        {"CMakeLists.txt": MOVED.format("a"), "a/CMakeLists.txt": "add_executable(tool main.c)\n", "a/main.c": ONE.format(101)},
        {"CMakeLists.txt": MOVED.format("b"), "a/CMakeLists.txt": None, "a/main.c": None,
         "b/CMakeLists.txt": "add_executable(tool main.c)\n", "b/main.c": ONE.format(102)}, 102, True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", HIDDEN)
def test_changes_that_build_systems_miss_leave_no_stale_files(series: Series, change: str) -> None:
    tree, changed, value, in_tree = HIDDEN[change]
    if "configure.ac" in tree and shutil.which("automake") is None:
        pytest.skip("automake is not installed")
    if "a/main.c" in tree:
        series.more = {"programs": ["tool"]}
    assert (
        series.printed(series.next({name: text for name, text in (SOURCES | tree).items() if text is not None})) == 101
    )
    facts = series.next(changed)
    assert (series.printed(facts), facts.incremental) == (value, in_tree)


def test_removed_files_are_deleted_before_new_files_are_written(series: Series) -> None:
    """A link that leads out of the tree replaces a folder. No file in the target of the link is removed."""
    outside = series.folder / "outside"
    outside.mkdir()
    (outside / "notes").write_text("ours")
    series.next(SOURCES | TREES["make-tracked"] | {"data/notes": "theirs\n"})
    (series.git.path / "data" / "notes").unlink()
    (series.git.path / "data").rmdir()
    (series.git.path / "data").symlink_to(outside)
    facts = series.next({"value.h": "#define VALUE 2\n"})
    assert (facts.incremental, series.printed(facts), (outside / "notes").read_text()) == (True, 102, "ours")


def test_build_after_an_interrupted_checkout_is_not_incremental(
    series: Series, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tree may have a part of a checkout that git does not know."""
    series.next(SOURCES | TREES["cmake"])
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(incremental, "incremental_build", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        series.next({"more.c": "int more;\n"})
    assert not series.next({"more.c": None}).incremental


@pytest.mark.parametrize("clean", [False, True])
def test_running_build_of_a_killed_session_is_used_unless_clean(series: Series, clean: bool) -> None:
    slow = str(TREES["make-tracked"]["Makefile"]).replace("$(CC)", "sleep 3; $(CC)")
    series.next(SOURCES | {"Makefile": slow})
    context = series.context(variants={"o2nofp": Variant(cflags="-O2")})
    left = pipeline.build_commit(context, series.git.commit({"value.h": "#define VALUE 2\n"}), clean=False)
    while not jobs.running_jobs(series.host):
        next(left)
    facts = finish(pipeline.build_commit(context, series.git("rev-parse", "HEAD").strip(), clean=clean))[1].facts
    assert (facts.incremental, series.printed(facts)) == (not clean, 102)
    left.close()


def test_assembly_object_without_dependency_file_is_made_again(series: Series) -> None:
    code = '#include "value.h"\n.globl part\npart: mov $VALUE, %eax\nret\n.section .note.GNU-stack,"",@progbits\n'
    makefile = str(TREES["make-tracked"]["Makefile"]) + "part.o: part.S\n\t$(CC) -c -o $@ part.S\n"
    if platform.machine() != "x86_64":
        pytest.skip("assembly code of another processor")
    series.next({"main.c": MAIN, "value.h": SOURCES["value.h"], "Makefile": makefile, "part.S": code})
    facts = series.next({"value.h": "#define VALUE 2\n"})
    assert (facts.incremental, series.printed(facts)) == (True, 4)
