"""Real builds of a small program and its library, linked again with several seeds. See also tests/build_systems."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from perfbisect.lab.building import build_store, links
from perfbisect.lab.building.pipeline import build_commit
from perfbisect.recipes.builder import Build, Builder, Variant
from repos import Repo, files_of
from sharing import Yard
from waiting import finish

pytestmark = [pytest.mark.tools, pytest.mark.own_ccache]


SOURCES = files_of(Path(__file__).parent / "linked")
MAKE = SOURCES.pop("Makefile")
TOOL = "bin/tiny"
RECIPE = Builder(
    name="tiny",
    summary="a tiny program",
    driver="tiny",
    programs=["bin/tiny"],
    variants={"o2nofp": Variant(cflags="-O1")},
    build=Build(),
)


@pytest.fixture
def place(tmp_path: Path, git: Repo) -> Yard:
    return Yard(tmp_path, git, RECIPE)


def order(program: Path) -> list[str]:
    """The names of the test program's functions, in the order of their addresses."""
    printed = subprocess.run(["nm", "-n", "--defined-only", program], capture_output=True, text=True, check=True).stdout
    names = [line.split()[-1] for line in printed.splitlines()]
    return [name for name in names if re.fullmatch(r"part\d+|own\d+|whole", name)]  # mold adds part1$plt


@pytest.mark.parametrize("name", [links.LLD, links.GOLD, links.OBJECTS])
def test_linkers_other_than_mold_make_layouts(place: Yard, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are used if mold is missing. The last linker moves only object files, of which the program has three."""
    linker, program = links.LayoutLinker(name, ""), links.PROGRAMS[name][0]
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")
    monkeypatch.setattr(links, "find_linker", lambda _: linker)
    further = "int further(int x) { return x + 9; }\n" + "".join(f"int part9{n}(int x) {{ return x; }}\n" for n in "12")
    rule = MAKE.replace("program.o", "program.o further.o library.o").replace(" -lparts", "")
    facts = place.build(SOURCES | {"Makefile": rule, "further.c": further}, layouts=True)
    assert facts.fixed == ""
    keys = [links.link_layout(place.host, facts.key, seed, linker) for seed in range(1, 7)]
    orders = {tuple(order(place.installed(key, TOOL))) for key in keys}
    assert len(orders) > 2
    assert len({tuple(sorted(each)) for each in orders}) == 1
    assert len({place.output(key, TOOL) for key in [facts.key, *keys]}) == 1


def test_program_keeps_function_names_if_the_makefile_strips_it(place: Yard) -> None:
    for option in ("-s", "-Wl,-s", "-Wl,--strip-all"):
        facts = place.build(SOURCES | {"Makefile": MAKE.replace("-lparts", f"-lparts {option}")}, layouts=True)
        assert (order(place.installed(facts.key, TOOL)) != [], facts.fixed) == (True, "")


def test_link_whose_inputs_changed_afterwards_is_not_repeated(place: Yard) -> None:
    """Overwriting an archive after the link also changes the stored archive."""
    rule = MAKE.replace("install: tiny\n", "install: tiny\n\techo 'int whole(int x) { return 3; }' | gcc -O1 -xc -c -o w.o -\n"
                        "\tcp w.o w2.o && ar rcs new.a w.o && cat new.a >libparts.a\n")  # fmt: skip
    facts = place.build(SOURCES | {"Makefile": rule}, layouts=True)
    assert facts.linker == ""
    assert re.match(r"bin/tiny: the same link (fails|gives other code) the second time", facts.fixed)


def test_builds_with_lto_or_a_profile_are_not_linked_again() -> None:
    for variant in (Variant(cflags="-O1 -flto"), Variant(ldflags="-flto"), Variant(train="*")):
        assert "optimisation" in links.why_not_relinkable(variant)
    assert links.why_not_relinkable(Variant(cflags="-O2")) == ""


def test_build_for_layouts_is_separate_from_the_usual_build(place: Yard) -> None:
    sha = place.git.commit(SOURCES | {"Makefile": MAKE})
    usual, again = (finish(build_commit(place.context(layouts=wanted), sha))[1].facts for wanted in (False, True))
    assert usual.key != again.key
    assert (usual.linker, usual.fixed, "relink" in usual.phases, "relink" in again.phases) == ("", "", False, True)
    assert not (build_store.build_folder(place.host, usual.key) / "links").as_posix() in map(
        str, place.root.rglob("links")
    )
    assert (again.cache_hits, again.cache_misses) == (0, 2)  # a build for layouts has other options
    found = finish(build_commit(place.context(layouts=True), sha))[1].facts
    assert (found.reused, found.linker) == (True, again.linker)


def test_program_with_an_odd_name_is_built_and_not_linked_again(place: Yard) -> None:
    """The program may load a library with an odd name, so that the binary equals no other binary."""
    odd = r"""	cp tiny "$(PREFIX)/bin/$$(printf 'two\nlines')" && cp tiny "$(PREFIX)/bin/$$(printf 'caf\351')"
	cp tiny "$(PREFIX)/bin/$$(printf 'libcaf\351.so')"
"""
    files = SOURCES | {"Makefile": MAKE + odd}
    facts = place.build(files, layouts=True)
    assert (facts.binary, facts.fixed) == (facts.key, "")
    found = links.find_linker(place.host)
    assert found
    made = links.link_layout(place.host, facts.key, 1, found)
    programs = sorted(place.installed(made, TOOL).parent.iterdir())
    alone = [path.name for path in programs if path.stat().st_nlink == 1]
    assert alone == ["tiny"], "programs with odd names share files with the build"
    assert len(programs) == 4
    only = MAKE + odd.replace("cp tiny", "mv $(PREFIX)/bin/tiny", 1).partition(" && ")[0] + "\n"
    facts = place.build(files | {"Makefile": only}, programs=[], layouts=True)
    assert (facts.linker, facts.fixed) == ("", "./bin/two lines: a line ends in its name")


@pytest.mark.parametrize(
    ("installed", "fixed"),
    [
        ("mv bin/tiny run && echo '\043!/bin/sh' >bin/tiny && chmod +x bin/tiny", ""),  # may start the program
        ("rm bin/tiny && echo '\043!/bin/sh' >bin/tiny && chmod +x bin/tiny", links.NOT_COMPILED),
        ("mkdir CMakeFiles && mv bin/tiny CMakeFiles/a.out", "the link of no installed program was recorded"),
        ("objcopy --remove-section .note.gnu.build-id --add-section .go.buildinfo=version bin/tiny", links.GO),
    ],
)
def test_build_that_is_not_linked_again_has_the_reason(place: Yard, installed: str, fixed: str) -> None:
    """A script has no layout, cmake's own test programs do not count, and Go has another linker."""
    makefile = f"{MAKE}\techo 1 >$(PREFIX)/version && cd $(PREFIX) && {installed}\n"
    programs = [TOOL] if "chmod" in installed else []
    facts = place.build(SOURCES | {"Makefile": makefile}, programs=programs, layouts=True)
    assert (facts.fixed, bool(facts.linker)) == (fixed, not fixed)
