"""Tiny trees of every build system, built by real tools as a hunt builds a commit."""

import shutil
import subprocess
from pathlib import Path

import pytest

from perfbisect.core.domain.facts import BuildFacts
from perfbisect.errors import BuildFailed
from perfbisect.recipes.builder import Build, Builder, Variant
from repos import Repo
from sharing import Yard

pytestmark = pytest.mark.tools

MAIN = '#include <stdio.h>\nint part(void);\nint main(void) { printf("%d\\n", part()); return 0; }\n'
SOURCES = {"main.c": MAIN, "part.c": "int part(void) { return 1; }\n"}
CMAKE = """\
cmake_minimum_required(VERSION 3.10)
project(tool C)
add_executable(tool main.c part.c)
install(TARGETS tool RUNTIME DESTINATION bin)
install(FILES main.c DESTINATION OUTSIDE)
"""
MESON = """\
project('tool', 'c')
executable('tool', 'main.c', 'part.c', install: true)
install_data('main.c', install_dir: 'OUTSIDE')
"""
CONFIGURE_AC = """\
AC_INIT([tool], [1])
AM_INIT_AUTOMAKE([foreign subdir-objects])
AC_PROG_CC
AC_CONFIG_FILES([Makefile])
AC_OUTPUT
"""
MAKEFILE_AM = """\
bin_PROGRAMS = tool
tool_SOURCES = main.c part.c
outsidedir = OUTSIDE
outside_DATA = main.c
"""
MAKEFILE = """\
CFLAGS = -O3
tool: main.o part.o
\t$(CC) $(CFLAGS) -o $@ $^
install: tool
\tinstall -D tool $(DESTDIR)$(PREFIX)/bin/tool
\tinstall -D main.c $(DESTDIR)OUTSIDE/main.c
"""
TREES = {
    "cmake": {"CMakeLists.txt": CMAKE},
    "meson": {"meson.build": MESON},
    "autotools": {"configure.ac": CONFIGURE_AC, "Makefile.am": MAKEFILE_AM},
    "make": {"makefile": MAKEFILE},
}
TOOLS = {"cmake": ("cmake", "ninja"), "meson": ("meson", "ninja"), "autotools": ("autoreconf", "automake"), "make": ()}
RECIPE = Builder(name="tool", summary="a tool", driver="tool", programs=["bin/tool"], build=Build(timeout=300.0))

# Compiles, and adds its arguments to the file beside it.
RECORDER = '#!/bin/sh\nprintf "%s\\n" "$*" >>"$0.log"\nexec gcc "$@"\n'


class RecordingYard(Yard):
    """With a compiler that records its arguments."""

    @property
    def compiler(self) -> Path:
        return self.folder / "recorder"

    @property
    def outside(self) -> Path:
        return self.folder / "outside"

    def commit(self, files: dict[str, str]) -> str:
        self.git.write({name: content.replace("OUTSIDE", str(self.outside)) for name, content in files.items()})
        for name in files:
            (self.git.path / name).chmod(0o755)
        return self.git.commit()

    def made(self, sha: str, variant: Variant | None = None, **changes: object) -> BuildFacts:
        variant = variant or Variant(cc=str(self.compiler), cflags="-O2 -DVARIANT")
        return self.build(sha, variants={"o2nofp": variant}, **changes)

    def run(self, facts: BuildFacts, program: str = "bin/tool") -> str:
        return self.output(facts.key, program)

    def compiled(self) -> list[str]:
        """The arguments of the compilations of the tree's files."""
        lines = Path(f"{self.compiler}.log").read_text().splitlines()
        return [line for line in lines if " -c " in f" {line} " and ("main." in line or "part." in line)]


@pytest.fixture
def yard(tmp_path: Path, git: Repo, monkeypatch: pytest.MonkeyPatch) -> RecordingYard:
    for name in ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS"):
        monkeypatch.setenv(name, "-DOF_THE_USER")
    monkeypatch.setenv("CC", "false")
    yard = RecordingYard(tmp_path, git, RECIPE, jobs=2)
    yard.compiler.write_text(RECORDER)
    yard.compiler.chmod(0o755)
    return yard


def needs(*tools: str) -> None:
    if absent := [tool for tool in tools if shutil.which(tool) is None]:
        pytest.skip(f"{', '.join(absent)} is not installed")


@pytest.mark.parametrize("system", TREES)
def test_a_tree_is_built_by_its_system_with_the_options_of_the_variant(yard: RecordingYard, system: str) -> None:
    needs(*TOOLS[system])
    first = yard.made(yard.commit(SOURCES | TREES[system]))
    assert first.system == system
    assert yard.run(first) == "1"
    assert not yard.outside.exists(), "only {prefix} is written to"
    compiled = yard.compiled()
    assert compiled
    for line in compiled:
        words = line.split()
        assert [word for word in words if word.startswith("-O")][-1:] == ["-O2"], line
        assert "-DVARIANT" in words, line
        assert "-DOF_THE_USER" not in words, line
    if system in ("cmake", "meson"):
        assert not [line for line in compiled if "-O3" in line or "-O0" in line or " -g" in line]
        assert any("-DNDEBUG" in line for line in compiled)
    second = yard.made(yard.commit({"part.c": "int part(void) { return 2; }\n"}))
    assert yard.run(second) == "2"
    assert second.cache_hits >= 1
    assert second.cache_misses == 1
    assert first.binary != second.binary
    third = yard.made(yard.commit({"part.c": "int part(void) { return 2; } // two\n"}))
    assert third.binary == second.binary


STRICT = {
    "cmake": {
        "CMakeLists.txt": CMAKE.replace("add_exec", 'set(CMAKE_C_FLAGS "${CMAKE_C_FLAGS} -Wall -Werror")\nadd_exec')
    },
    "meson": {"meson.build": MESON.replace("'c')", "'c', default_options: ['warning_level=2', 'werror=true'])", 1)},
    "make": {"makefile": MAKEFILE.replace("-O3", "-O3 -Wall -Werror")},
}


@pytest.mark.parametrize("system", STRICT)
def test_warnings_of_a_newer_compiler_are_no_errors(yard: RecordingYard, system: str) -> None:
    needs(*TOOLS[system])
    warned = {"part.c": "int part(void) { int unused = 3; return 1; }\n"}
    assert yard.run(yard.made(yard.commit(SOURCES | STRICT[system] | warned))) == "1"
    assert any("-Werror" in line for line in yard.compiled()) or system == "meson"


LIBRARY = """\
cmake_minimum_required(VERSION 3.10)
project(tool C)
add_library(part SHARED part.c)
add_executable(tool main.c)
target_link_libraries(tool part)
add_executable(broken broken.c)
install(TARGETS tool part broken RUNTIME DESTINATION bin LIBRARY DESTINATION lib)
install(FILES "${CMAKE_BINARY_DIR}/absent" DESTINATION share PERMISSIONS OWNER_READ RENAME other)
"""


def test_cmake_builds_what_installs_the_programs_and_their_libraries_are_part_of_the_binary(
    yard: RecordingYard,
) -> None:
    needs("cmake")
    tree = SOURCES | {"CMakeLists.txt": LIBRARY, "broken.c": "#error broken\n"}
    first = yard.made(yard.commit(tree))
    second = yard.made(yard.commit({"part.c": "int part(void) { return 2; }\n"}))
    assert (yard.run(first), yard.run(second)) == ("1", "2")
    assert first.binary != second.binary, "the program is the same, and loads another library"
    with pytest.raises(BuildFailed, match=r"does not compile: .*#error broken"):
        yard.made(yard.commit({}), programs=[])


def test_link_time_optimisation(yard: RecordingYard) -> None:
    needs("cmake")
    lto = Variant(cc=str(yard.compiler), cflags="-O2 -flto=auto", ldflags="-flto=auto -Wl,-O1")
    assert yard.run(yard.made(yard.commit(SOURCES | TREES["cmake"]), lto)) == "1"
    assert "-Wl,-O1" in Path(f"{yard.compiler}.log").read_text()


WRITTEN_BY_HAND = """\
#!/bin/sh
printf '[%s]' "$@" >options
cp Makefile.in Makefile
"""
ODD = ["--with=a b", "--quote='\"", "--braces={{x}}", "--list=a;b", "--dollar=$HOME", "--lines=a\nb"]


def test_options_reach_a_configure_script_unharmed(yard: RecordingYard) -> None:
    makefile = "all:\n\ninstall:\n\tinstall -D options {}/options\n\tinstall -D main.c {}/bin/tool\n"
    prefix = str(yard.host.root / "work" / "tool" / "prefix")
    tree = SOURCES | {"configure": WRITTEN_BY_HAND, "Makefile.in": makefile.replace("{}", prefix)}
    built = yard.made(yard.commit(tree), build=Build(options=ODD))
    assert built.system == "autotools"
    given = (yard.installed(built.key) / "options").read_text()
    for option in ODD:
        assert f"[{option.replace('{{', '{').replace('}}', '}')}]" in given


def test_a_configure_script_of_the_tree_is_not_made_again(yard: RecordingYard) -> None:
    """Whatever the order in which git writes it and its source."""
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
    between = {"configure.a": "x" * 20_000_000}  # written after the script and before its source, for a while
    tree = {"configure": script, **between, "configure.ac": "AC_INIT\n", "tool.sh": "#!/bin/sh\necho 1\n"}
    assert yard.made(yard.commit(tree)).system == "autotools"


def test_options_reach_cmake_unharmed(yard: RecordingYard) -> None:
    needs("cmake")
    more = 'file(WRITE "${CMAKE_BINARY_DIR}/word" "${WORD}")\ninstall(FILES "${CMAKE_BINARY_DIR}/word" DESTINATION share)\n'
    built = yard.made(
        yard.commit(SOURCES | {"CMakeLists.txt": CMAKE + more}), build=Build(options=["-DWORD=a b';{{c}}$d\""])
    )
    assert (yard.installed(built.key) / "share" / "word").read_text() == "a b';{c}$d\""


def test_an_option_of_the_user_that_the_tree_does_not_know_is_an_error(yard: RecordingYard) -> None:
    needs("cmake")
    sha = yard.commit(SOURCES | {"CMakeLists.txt": CMAKE + 'option(KNOWN "x" OFF)\nmessage("${USED}")\n'})
    known = ["-DKNOWN=ON", "-DUSED:STRING=x"]
    assert yard.run(yard.made(sha, build=Build(options=known), requested=known)) == "1"
    assert yard.run(yard.made(sha, build=Build(options=["-DODD=1"]))) == "1", "recipes are for more than one release"
    with pytest.raises(BuildFailed, match=r"does not configure: .*does not know the option -DODD of --configure"):
        yard.made(sha, build=Build(options=["-DODD=2"]), requested=["-DODD=2"])


def test_a_makefile_gets_the_variant_s_options_as_they_are(yard: RecordingYard) -> None:
    odd = Variant(cc=str(yard.compiler), cflags="""-O2 '-DTEXT="a $b"'""", ldflags="'-Wl,-rpath,$ORIGIN/../lib'")
    makefile = "tool: main.o\n\t$(CC) -o $@ $^\ninstall: tool\n\tinstall -D tool $(DESTDIR)$(prefix)/bin/tool\n"
    main = "#include <stdio.h>\nint main(void) { puts(TEXT); return 0; }\n"
    built = yard.made(yard.commit({"main.c": main, "Makefile": makefile}), odd)
    assert yard.run(built) == "a $b"
    headers = subprocess.run(
        ["readelf", "-d", yard.installed(built.key) / "bin" / "tool"], capture_output=True, text=True, check=True
    ).stdout
    assert "[$ORIGIN/../lib]" in headers


def test_a_makefile_that_installs_nothing_leaves_its_folder(yard: RecordingYard) -> None:
    built = yard.made(yard.commit(SOURCES | {"Makefile": "tool: main.o part.o\n\t$(CC) -o $@ $^\n"}), programs=["tool"])
    assert yard.run(built, "tool") == "1"


def test_in_place_the_copy_of_the_tree_is_the_result(yard: RecordingYard) -> None:
    needs("cmake")
    sha = yard.commit(SOURCES | TREES["cmake"])
    built = yard.made(sha, programs=["build/tool"], build=Build(in_place=True))
    assert yard.run(built, "build/tool") == "1"
    assert (yard.installed(built.key) / "main.c").exists()
    assert not yard.outside.exists()


def test_each_commit_is_built_with_the_system_that_it_has(yard: RecordingYard) -> None:
    needs("cmake")
    older = yard.made(yard.commit(SOURCES | TREES["make"]))
    yard.git("rm", "-q", "makefile")
    newer = yard.made(yard.commit(TREES["cmake"]))
    assert (older.system, newer.system) == ("make", "cmake")
    yard.git("rm", "-q", "CMakeLists.txt")
    with pytest.raises(BuildFailed, match="does not configure: its tree has no build system"):
        yard.made(yard.commit({"Makefile/folder": "no system\n"}))


def test_the_system_of_the_range_goes_before_what_else_a_commit_has(yard: RecordingYard) -> None:
    sha = yard.commit(SOURCES | TREES["make"] | {"CMakeLists.txt": "message(FATAL_ERROR broken)\n"})
    assert yard.made(sha, build=Build(system="make")).system == "make"
    needs("cmake")
    with pytest.raises(BuildFailed, match="does not configure"):
        yard.made(sha)


def test_nothing_is_fetched(yard: RecordingYard) -> None:
    makefile = "tool: main.o part.o\n\tgit clone https://example.org/x.git\n"
    with pytest.raises(BuildFailed, match=r"does not compile: .*transport 'https' not allowed"):
        yard.made(yard.commit(SOURCES | {"Makefile": makefile}))


def test_go_commands(yard: RecordingYard) -> None:
    needs("go")
    tree = {"go.mod": "module example.org/tool\n\ngo 1.16\n"}
    for name in ("tool", "other"):
        tree[f"cmd/{name}/main.go"] = f'package main\n\nfunc main() {{ println("{name}") }}\n'
    built = yard.made(yard.commit(tree))
    assert built.system == "go"
    assert {path.name for path in (yard.installed(built.key) / "bin").iterdir()} == {"tool", "other"}


def test_a_cargo_workspace(yard: RecordingYard) -> None:
    needs("cargo")
    if subprocess.run(["cargo", "--version"], capture_output=True, check=False).returncode:
        pytest.skip("cargo has no toolchain in this home folder")
    tree = {
        "Cargo.toml": '[workspace]\nmembers = ["tool"]\nresolver = "2"\n',
        "tool/Cargo.toml": '[package]\nname = "tool"\nversion = "1.0.0"\nedition = "2021"\n',
        "tool/src/main.rs": 'fn main() { println!("3"); }\n',
    }
    built = yard.made(yard.commit(tree))
    assert built.system == "cargo"
    assert yard.run(built) == "3"
