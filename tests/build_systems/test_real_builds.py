"""Small trees of each build system, built by real tools like a commit of a hunt, with options of variant and user.

Programs that a tree does not install are copied with their shared libraries. Builds are linked in other layouts.
"""

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from perfbisect.core.domain.facts import BuildFacts
from perfbisect.core.domain.settings import Flags
from perfbisect.errors import BuildFailed
from perfbisect.lab.building import build_store, links
from perfbisect.recipes.builder import Build, Builder, Variant
from program import executable
from repos import Files, Repo, files_of
from sharing import Yard

pytestmark = pytest.mark.tools

OWN = range(8)
BENCH = (
    "#include <stdio.h>\nint outer(void);\n"
    + "".join(f"int own{n}(int x) {{ return x + {n}; }}\n" for n in OWN)
    + "int main(int many, char **words)\n{\n    int sum = outer();\n"
    + "".join(f"    sum += many > 9 ? own{n}(sum) : 0;\n" for n in OWN)
    + '    printf("%d\\n", sum);\n    return 0;\n}\n'
)
PARTS = "".join(f"int part{n}(int x) {{ return x * {n + 3}; }}\n" for n in OWN)


def inner(value: int) -> str:
    """The source of a library of many functions. The program prints ``value`` + 10."""
    return f"{PARTS}int inner(void) {{ return {value}; }}\n"


# The program loads `outer`, which loads `inner`, from different folders. Some trees install `outer`, none `inner`.
BENCHMARK = {
    "bench.c": BENCH,
    "outer.c": "int inner(void);\nint second(void) { return 10; }\nint outer(void) { return inner() + second(); }\n",
    "inner.c": inner(1),
}
BESIDE = Path(__file__).parent / "trees"
TREES = {folder.name: files_of(folder) for folder in sorted((BESIDE / "uninstalled").iterdir())}
LISTS = TREES["cmake"]["CMakeLists.txt"]
TREES["cmake-relative"] = {"CMakeLists.txt": "set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)\n" + LISTS}
NEEDS = {"autotools": "libtoolize", "commands": "make"}
BIN = "bin/bench"
RECIPE = Builder(name="tool", summary="a tool", driver="tool", programs=["bin/tool"], build=Build(timeout=300.0))
INSTALLED = {folder.name: files_of(folder) for folder in sorted((BESIDE / "installed").iterdir())}
SOURCES, CMAKE, MAKE = INSTALLED["sources"], INSTALLED["cmake"]["CMakeLists.txt"], INSTALLED["make"]["makefile"]

# A compiler that appends its arguments to a log file.
RECORDER = '#!/bin/sh\nprintf "%s\\n" "$*" >>"$0.log"\nexec gcc "$@"\n'


class RecordingYard(Yard):
    """A Yard with a compiler that records its arguments."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.compiler, self.outside = executable(self.folder / "recorder", RECORDER), self.folder / "outside"

    def commit(self, files: Files) -> str:
        self.git.write({name: str(content).replace("OUTSIDE", str(self.outside)) for name, content in files.items()})
        for name in files:
            (self.git.path / name).chmod(0o755)
        return self.git.commit()

    def made(self, what: str | Files, variant: Variant | None = None, **changes: object) -> BuildFacts:
        """The build of a commit, or of a new commit with these files."""
        variant = variant or Variant(cc=str(self.compiler), cflags="-O2 -DVARIANT")
        return self.build(what if isinstance(what, str) else self.commit(what), variants={"o2nofp": variant}, **changes)

    def run(self, facts: BuildFacts, program: str = "bin/tool") -> str:
        return self.output(facts.key, program)

    def compiled(self) -> list[str]:
        """The arguments of each compilation of a file of the tree."""
        lines = Path(f"{self.compiler}.log").read_text().splitlines()
        return [
            line for line in lines if " -c " in f" {line} " and re.search(r"(main|part|bench|outer|inner)\.c", line)
        ]


@pytest.fixture
def yard(tmp_path: Path, git: Repo, monkeypatch: pytest.MonkeyPatch) -> RecordingYard:
    for name in ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS"):
        monkeypatch.setenv(name, "-DOF_THE_USER")
    monkeypatch.setenv("CC", "false")
    return RecordingYard(tmp_path, git, RECIPE, jobs=2)


def quick(one: str, trees: Iterable[str]) -> list[Any]:
    """Parameters for a test, one for each tree. Only the test of the tree ``one`` is not slow."""
    return [pytest.param(tree, marks=[] if tree == one else pytest.mark.slow) for tree in trees]


def needs(*tools: str) -> None:
    if absent := [tool for tool in tools if shutil.which(tool) is None]:
        pytest.skip(f"{', '.join(absent)} is not installed")


def printed(*argv: str | Path) -> list[str]:
    """The lines that a tool prints."""
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()


def order(program: Path) -> tuple[str, ...]:
    """The functions `part0`, `own0`, … of a program with their sizes, in the order of their addresses."""
    rows = (line.split() for line in printed("nm", "-nS", "--defined-only", program))
    return tuple(f"{row[-1]} {row[-3]}" for row in rows if re.fullmatch(r"(part|own)\d", row[-1]))


def runpath(file: Path) -> str:
    lines = printed("readelf", "-dW", file)
    return next((line.split("[")[1].rstrip("]") for line in lines if "PATH)" in line), "")


@pytest.mark.parametrize("tree", quick("make", TREES))
def test_tree_is_built_by_its_build_system(yard: RecordingYard, tree: str) -> None:
    """A program that is not installed is copied with its libraries, and linked again in other layouts."""
    system = tree.partition("-")[0]
    needs(NEEDS.get(system, system))

    def made(files: Files) -> BuildFacts:
        return yard.made(files, programs=[BIN], layouts=True)

    first = made(BENCHMARK | TREES[tree])
    assert (first.system, yard.run(first, BIN)) == (system, "11")
    compiled = [line.split() for line in yard.compiled()]
    assert compiled
    for words in compiled:
        own = "-O3" if system == "make" and "-c" in words else "-O2"  # the Makefile adds -O3 to compilations
        assert [word for word in words if word.startswith("-O")][-1:] == [own], words
        assert ("-DVARIANT" in words, "-DOF_THE_USER" in words) == (True, False), words
        if system in ("cmake", "meson"):
            assert not {"-O3", "-O0", "-g"} & set(words)
    assert system not in ("cmake", "meson") or any("-DNDEBUG" in words for words in compiled)
    second = made({"inner.c": inner(5)})
    assert second.cache_hits >= 1
    assert second.cache_misses == (2 if system == "autotools" else 1), "libtool compiles twice"
    assert first.binary != second.binary
    shutil.rmtree(yard.root / "work" / "tool" / "build")
    assert (yard.run(first, BIN), yard.run(second, BIN)) == ("11", "15"), "each has its libraries"
    assert not yard.outside.exists(), "the build writes only to {prefix}"

    if system == "make":
        assert runpath(yard.installed(first.key, BIN)) == "$ORIGIN:/usr/local/odd", "the path keeps other folders"
    found = links.find_linker(yard.host)
    assert found
    assert (first.fixed, first.linker) == ("", found.version)
    again = [links.link_layout(yard.host, first.key, seed, found) for seed in (1, 2)]
    assert [yard.output(key, BIN) for key in again] == ["11", "11"]
    top = yard.installed(first.key)
    parts = [BIN, *(str(path.relative_to(top)) for path in top.rglob("libinner.so*") if not path.is_symlink())]
    assert len(parts) == (1 if tree == "cmake-static" else 2)
    for part in parts:
        orders = [order(yard.installed(key, part)) for key in (first.key, *again)]
        assert (len(set(orders)), len({*map(frozenset, orders)})) == (3, 1), "equal functions"
    once = yard.installed(again[0], BIN).read_bytes()
    build_store.remove_build_or_layout(yard.host, again[0])
    assert not yard.installed(again[0], BIN).exists()
    assert links.link_layout(yard.host, first.key, 1, found) == again[0]
    assert yard.installed(again[0], BIN).read_bytes() == once


def test_werror_of_a_makefile_does_not_fail_the_build(yard: RecordingYard) -> None:
    warning = {"part.c": "int part(void) { int unused = 3; return 1; }\n"}
    strict = {"makefile": MAKE.replace("-O3", "-O3 -Wall -Werror")}
    assert yard.run(yard.made(SOURCES | strict | warning)) == "1"
    assert any("-Werror" in line for line in yard.compiled())


@pytest.mark.slow
def test_binary_includes_the_libraries_that_a_cmake_program_loads(yard: RecordingYard) -> None:
    needs("cmake")
    first, second = map(yard.made, (SOURCES | INSTALLED["library"], {"part.c": "int part(void) { return 2; }\n"}))
    assert (yard.run(first), yard.run(second)) == ("1", "2")
    assert first.binary != second.binary, "the same program loads another library"
    with pytest.raises(BuildFailed, match=r"does not compile: .*#error broken"):
        yard.made({}, programs=[])


WRITTEN_BY_HAND = "#!/bin/sh\nprintf '[%s]' \"$@\" >options\ncp Makefile.in Makefile\n"
ODD = ["--with=a b", "--quote='\"", "--braces={{x}}", "--list=a;b", "--dollar=$HOME", "--lines=a\nb"]


def test_configure_script_gets_odd_options_unchanged(yard: RecordingYard) -> None:
    prefix = yard.host.root / "work" / "tool" / "prefix"
    makefile = f"all:\n\ninstall:\n\tinstall -D options {prefix}/options\n\tinstall -D main.c {prefix}/bin/tool\n"
    tree = SOURCES | {"configure": WRITTEN_BY_HAND, "Makefile.in": makefile}
    built = yard.made(tree, build=Build(options=ODD))
    assert built.system == "autotools"
    given = "".join(f"[{option}]" for option in ODD).replace("{{", "{").replace("}}", "}")
    assert given in (yard.installed(built.key) / "options").read_text()


def test_configure_script_of_the_tree_is_not_generated_again(yard: RecordingYard) -> None:
    """git may write the script before its source, which is then newer."""
    script = """\
#!/bin/sh
# Generated by GNU Autoconf
for option do case $option in --prefix=*) prefix=${option#*=};; esac; done
cat >Makefile <<END
all: $(dirname "$0")/configure
$(dirname "$0")/configure: $(dirname "$0")/configure.ac
	@echo it would be made again; exit 1
install:
	install -D $(dirname "$0")/tool.sh \\$(DESTDIR)$prefix/bin/tool
END
"""
    between = {"configure.a": "x" * 20_000_000}  # git takes long to write this file between script and source
    tree = {"configure": script, **between, "configure.ac": "AC_INIT\n", "tool.sh": "#!/bin/sh\necho 1\n"}
    assert yard.made(tree).system == "autotools"


@pytest.mark.slow
def test_configure_script_of_a_subfolder_accepts_unknown_options(yard: RecordingYard) -> None:
    """The options for the tree are also given to the script of the subfolder."""
    needs("autoreconf")
    top = TREES["autotools"]["configure.ac"].replace("AC_CONFIG_MACRO_DIRS([m4])\n", "")
    yard.made(SOURCES | {
        "configure.ac": top.replace("LT_INIT", "AM_MAINTAINER_MODE\nAC_CONFIG_SUBDIRS([sub])"),
        "Makefile.am": "bin_PROGRAMS = tool\ntool_SOURCES = main.c part.c\n",
        "sub/configure.ac": "AC_INIT([sub], [1])\nAC_OUTPUT\n",
    })  # fmt: skip


def test_cmake_gets_odd_options_unchanged(yard: RecordingYard) -> None:
    """In an in-place build, the result is the copy of the tree."""
    needs("cmake")
    more = 'file(WRITE "${CMAKE_SOURCE_DIR}/word" "${WORD}")\n'
    how = Build(in_place=True, options=["-DWORD=a b';{{c}}$d\""])
    built = yard.made(SOURCES | {"CMakeLists.txt": CMAKE + more}, programs=["build/tool"], build=how)
    assert yard.run(built, "build/tool") == "1"
    assert (yard.installed(built.key) / "word").read_text() == "a b';{c}$d\""
    assert not yard.outside.exists()


@pytest.mark.slow
def test_configure_option_of_the_user_that_cmake_does_not_use_is_an_error(yard: RecordingYard) -> None:
    needs("cmake")
    sha = yard.commit(SOURCES | {"CMakeLists.txt": CMAKE + 'option(KNOWN "x" OFF)\nmessage("${USED}")\n'})
    known = ["-DKNOWN=ON", "-DUSED:STRING=x"]
    assert yard.run(yard.made(sha, build=Build(options=known), requested=known)) == "1"
    assert yard.run(yard.made(sha, build=Build(options=["-DODD=1"]))) == "1", "recipes may have unused options"
    with pytest.raises(BuildFailed, match=r"does not configure: .*does not know the option -DODD of --configure"):
        yard.made(sha, build=Build(options=["-DODD=2"]), requested=["-DODD=2"])


def test_makefile_gets_the_options_of_the_variant_unchanged(yard: RecordingYard) -> None:
    """Without a rule install, the build is the folder of the Makefile."""
    odd = Variant(cc=str(yard.compiler), cflags="""-O2 '-DTEXT="a $b"'""", ldflags="'-Wl,-rpath,$ORIGIN/../lib'")
    makefile = "tool: main.o\n\t$(CC) -o $@ $^\n"
    install = "install: tool\n\tinstall -D tool $(DESTDIR)$(prefix)/bin/tool\n"
    main = "#include <stdio.h>\nint main(void) { puts(TEXT); return 0; }\n"
    for rules, program in ((makefile + install, "bin/tool"), (makefile, "tool")):
        built = yard.made({"main.c": main, "Makefile": rules}, odd, programs=[program])
        assert yard.run(built, program) == "a $b"
        assert runpath(yard.installed(built.key, program)) == "$ORIGIN/../lib"


def test_commit_is_built_with_its_own_build_system(yard: RecordingYard) -> None:
    """If a commit has two systems, the system of the range is used."""
    needs("cmake")
    assert yard.made(SOURCES | {"makefile": MAKE}).system == "make"
    both = yard.commit({"CMakeLists.txt": "message(FATAL_ERROR broken)\n"})
    assert yard.made(both, build=Build(system="make")).system == "make"
    with pytest.raises(BuildFailed, match="does not configure"):
        yard.made(both)
    yard.git("rm", "-q", "makefile")
    assert yard.made({"CMakeLists.txt": CMAKE}).system == "cmake"
    yard.git("rm", "-q", "CMakeLists.txt")
    with pytest.raises(BuildFailed, match="does not configure: the tree has no build system"):
        yard.made({"Makefile/folder": "no system\n"})


def test_build_cannot_fetch_sources_over_https(yard: RecordingYard) -> None:
    makefile = "tool: main.o part.o\n\tgit clone https://example.org/x.git\n"
    with pytest.raises(BuildFailed, match=r"does not compile: .*transport 'https' not allowed"):
        yard.made(SOURCES | {"Makefile": makefile})


@pytest.mark.slow
def test_object_file_linker_finds_libraries_of_libraries(yard: RecordingYard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like ld.bfd, it moves object files. The program has two object files, and loads `inner` through `outer`."""
    needs("cmake")
    linker = links.LayoutLinker(links.OBJECTS, "")
    monkeypatch.setattr(links, "find_linker", lambda _: linker)
    more = {"CMakeLists.txt": LISTS.replace("bench.c", "bench.c more.c"), "more.c": "int more(void) { return 2; }\n"}
    facts = yard.made(BENCHMARK | more, programs=[BIN], layouts=True)
    shutil.rmtree(yard.root / "work" / "tool" / "build")
    assert facts.fixed == ""
    assert yard.output(links.link_layout(yard.host, facts.key, 1, linker), BIN) == "11"


def test_installed_program_is_not_replaced(yard: RecordingYard) -> None:
    """The build folder has other programs with the same name."""
    rule = "install:\n\tinstall -D bench $(DESTDIR)$(PREFIX)/bin/bench\n\tmkdir a b && cp bench a && cp bench b\n"
    tree = {"Makefile": TREES["make"]["makefile"].partition("install:")[0] + rule}
    key = yard.made(BENCHMARK | tree, programs=[BIN]).key
    assert runpath(yard.installed(key, BIN)).startswith(str(yard.root))
    assert not yard.installed(key, "bin/libouter.so").exists()


BY_PATH = "$(CC) -fPIC -shared -o libx.so outer.c inner.c && $(CC) -o bench bench.c $(CURDIR)/libx.so"
NEAREST = (
    "mkdir -p x/y && printf '#!/bin/sh\\necho 7\\n' >x/bench && echo 'echo 8' >x/y/bench && chmod +x x/bench x/y/bench"
)


def test_executable_with_the_shortest_path_is_copied(yard: RecordingYard) -> None:

    def made(rule: str) -> BuildFacts:
        return yard.made(BENCHMARK | {"Makefile": f"all:\ninstall:\n\t{rule}\n"}, programs=[BIN])

    assert yard.run(made(f"{NEAREST} && echo 9 >bench"), BIN) == "7"
    by_path = "bin/bench loads a library of its build by its path: build/libx"
    for rule, why in ((BY_PATH, by_path), ("", "the build did not install bin/bench")):
        with pytest.raises(BuildFailed, match=rf"does not install: .*{why}"):
            made(rule)


# The program prints a number for each language, set by an option. The assembler accepts no -include of a header.
FLAGGED = {folder.name: files_of(folder) for folder in sorted((BESIDE / "options").iterdir())}
FLAGGED_SOURCES = FLAGGED.pop("sources")
FLAGGED["make-g++"] = {"Makefile": FLAGGED["make"]["Makefile"].replace("COMPILER", "g++")}
FLAGGED["make"] = {"Makefile": FLAGGED["make"]["Makefile"].replace("COMPILER", "$(CXX)")}
FLAGGED["commands"] = FLAGGED["make-g++"]
FLAGGED_RECIPE = structs.replace(RECIPE, variants={"o2nofp": Variant(cflags="-O2 -DC=9 -DCXX=9")})
COMMANDS = Build(
    compile=[["sh", "-c", "cp -a {source}/. . && make CXX=c++ PREFIX={prefix} install"]], artifacts=["bin/tool"]
)
FLAGS = Flags("-UC '-DC=1 + 1' -include stdint.h", "-UCXX -DCXX=3", "-Wl,-rpath,/of/the/user")


@pytest.mark.parametrize("tree", quick("make", FLAGGED))
def test_options_of_the_user_override_those_of_any_build_system(tmp_path: Path, git: Repo, tree: str) -> None:
    """The trees set the same options to other values."""
    yard = Yard(tmp_path, git, FLAGGED_RECIPE, jobs=2)
    needs(NEEDS.get(system := tree.partition("-")[0], system))
    sha = yard.git.commit(FLAGGED_SOURCES | FLAGGED[tree])
    rustup = Path(pwd.getpwuid(os.getuid()).pw_dir) / ".rustup"
    builds = {"commands": COMMANDS, "cargo": Build(timeout=300.0, env={"RUSTUP_HOME": str(rustup)})}
    if tree == "cargo" and not rustup.exists():
        pytest.skip("cargo has no toolchain")
    changes = {"build": builds[tree]} if tree in builds else {}
    given = replace(FLAGS, cflags="-UC '-DC=1 + 1'") if tree == "go" else FLAGS  # cgo accepts no -include
    built = yard.build(sha, flags=given, **changes)
    assert yard.output(built.key, "bin/tool") == "2 3 7 2"
    assert runpath(yard.installed(built.key, "bin/tool")).endswith("/of/the/user")
    assert built.flags == given.options
    if tree in ("cargo", "go"):  # the lines below need C
        return
    second = yard.build({"part.cpp": FLAGGED_SOURCES["part.cpp"] + "int more;\n"}, flags=FLAGS, **changes)
    assert second.key != built.key
    assert second.cache_hits > 0 or tree == "commands", "the compiler cache still works"
    other = yard.build(sha, flags=Flags(FLAGS.cflags, "-UCXX -DCXX=4", FLAGS.ldflags), **changes)
    assert yard.output(other.key, "bin/tool") == "2 4 7 2", "no build or object for other flags is used"
