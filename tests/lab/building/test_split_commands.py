"""Commands that compile several sources, or also link: split for ccache if the files stay the same, else unchanged."""

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from perfbisect.lab.building import links, toolchain
from perfbisect.recipes.builder import Build, Builder, Variant
from program import executable
from repos import Repo
from sharing import Yard
from waiting import until

pytestmark = [pytest.mark.tools, pytest.mark.own_ccache]

SCRIPT = Path(toolchain.__file__).parent / "recorder" / "cc"
TREE = {
    "main.c": "int one(void);\nint two(void);\nint main(void) { return one() - two(); }\n",
    "one.c": "#ifndef N\n#define N 1\n#endif\nstatic int own(int x) { return x + N; }\nint one(void) { return own(1); }\n",
    "sub/one.c": "static int own(int x) { return x + 4; }\nconst char *name = __FILE__;\nint two(void) { return own(2); }\n",
    "it's 1.cpp": "struct It { It(); int x; };\nstatic It it;\nIt::It() : x(1) {}\n",
    "low.S": "#define NAME low\n.globl NAME\nNAME:\nret\n.section .note.GNU-stack\n",
    "n.h": "#define N 7\n",
    "bad.c": "int bad(void) { return nothing; }\n",
    "worse.c": "int worse(void) { return }\n",
    "words": "-O2 main.c",
    "x.ld": "",
}
ALL = "main.c one.c sub/one.c"
# The output files are compared, whatever their names are.
SPLIT = [
    f"cc -O2 {ALL} -o program",
    f"cc {ALL}",
    f"cc -g -DN=3 -D M=4 -I . -include n.h -std=gnu99 -Wall -pipe {ALL} -oprogram",
    "cc -L. main.c -lone -Wl,--as-needed sub/one.c -l one -lm -pthread -s -no-pie -o program",
    "cc -fPIC -shared one.c sub/one.c -o lib.so -Wl,-soname,lib.so -z now -Xlinker --no-undefined -rdynamic",
    "cc -O1 low.S main.c two.o one.c -u low -o program -march=native",
    "cc -ffunction-sections -fstack-protector-strong -Wp,-D_FORTIFY_SOURCE=2 -Wa,--noexecstack -O2 one.c -shared -fPIC",
    f"cc -isystem . -idirafter . -iquote. -D_X=' ' -UX -pedantic -w -ansi -undef -fwrapv -mtune=generic -g3 -gdwarf-4 {ALL} -o x",
    'c++ -O2 "it\'s 1.cpp" main.c one.c sub/one.c -o "a program" -static-libgcc',
    "cc -c -MD -MP -MT x main.c one.c",
]  # fmt: skip
PASSED_ON = [f"ccache cc {words}" for words in (
    # one source, or none
    "-c main.c -o main.o", "main.o two.o -o program", "--version", "-v", "-print-search-dirs", "-dumpversion",
    # other outputs
    "-E main.c one.c", "-S main.c one.c", "-M main.c one.c", "-MM main.c", "-fsyntax-only main.c one.c", "'-###' main.c one.c",
    "-r one.c sub/one.c -o all.o", "main.c one.c -o program -save-temps", "-c main.c one.c -o main.o", "-c main.c one.c two.o",
    # files named by the object
    *(f"{word} main.c one.c -o program" for word in (
        "-MD", "-MMD -MF deps", "-Wp,-MD,deps", "-g -gsplit-dwarf", "--coverage", "-fprofile-use", "-fprofile-generate",
        "-ftest-coverage", "-fstack-usage", "-fdump-tree-all", "-ftime-trace", "-Wa,-al=list", "-fsave-optimization-record",
        "-fdiagnostics-format=sarif-file", "-fdiagnostics-add-output=sarif", "-c -MF deps",
    )),
    # at link time, languages, what is not in the command, and what is not known
    *(f"{word} main.c one.c -o program" for word in (
        "-flto", "-flto=auto", "-x c", "-xc++", "@words", "-specs=x", "-fplugin=x", "-mllvm -x", "-wrapper x", "--unknown", "-",
        "no.c", "n.h", "one.f90", "-Xclang x", "-Xassembler x", "-e main", "-Tx.ld", "-fmodules",
    )),
    "main.c one.c -o", "conftest.c -o conftest",
)] + ["cc main.c one.c -o program", "ccache nvcc main.c one.c -o program"]  # fmt: skip


@dataclass
class Place:
    """A source tree in which compiler commands are run."""

    tree: Path
    path: str  # PATH without the recorder

    def run(self, words: Iterable[str], **more: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.tree.parent / 'compilers'}:{self.path}" if "PERFBISECT_PLAIN" not in more else self.path
        work = str(self.tree.parent)
        env = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        env |= {"CCACHE_DIR": f"{work}/cache", "CCACHE_BASEDIR": work, "CCACHE_NOHASHDIR": "1"}
        env |= {"PATH": path, "LC_ALL": "C"} | more
        return subprocess.run([*words], cwd=self.tree, env=env, capture_output=True, text=True, check=False)

    def made(self) -> dict[str, bytes]:
        """The new files since the last call, by path. The files are removed."""
        files = [path for path in self.tree.rglob("*") if path.is_file()]
        made = {str(path.relative_to(self.tree)): path for path in files}
        return {name: (path.read_bytes(), path.unlink())[0] for name, path in made.items() if name not in self.given}

    def __post_init__(self) -> None:
        for name, text in TREE.items():
            (self.tree / name).parent.mkdir(exist_ok=True, parents=True)
            (self.tree / name).write_text(text)
        self.given = set(TREE) | {"two.o", "libone.a"}

    def objects(self) -> list[Path]:
        return [*(self.tree.parent / "objects").iterdir()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    for name in ("ccache", "cc"):
        executable(tmp_path / "compilers" / name, SCRIPT.read_text())
    return Place(tmp_path / "tree", os.environ["PATH"])


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("command", SPLIT)
def test_split_command_makes_the_same_files(place: Place, command: str, compiler: str) -> None:
    """The second run finds all objects in the cache."""
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    if "two.o" in command or "one " in command:
        place.run(["sh", "-c", "gcc -c sub/one.c -o two.o && gcc -c one.c -DN=5 && ar rcs libone.a one.o && rm one.o"])
    named = {"cc": compiler, "c++": {"gcc": "g++", "clang": "clang++"}[compiler]}
    name, *words = shlex.split(command)
    plain = place.run([named[name], *words], PERFBISECT_PLAIN="1")
    assert plain.returncode == 0, plain.stderr
    expected = place.made()
    assert expected
    sources = sum(word in TREE and word != "n.h" for word in words)
    log = place.tree.parent / "log"
    for event in ("cache_miss", "direct_cache_hit"):
        split = place.run(["ccache", named[name], *words], CCACHE_STATSLOG=str(log))
        assert (split.returncode, split.stdout, split.stderr) == (0, plain.stdout, plain.stderr)
        assert place.made() == expected
        assert log.read_text().splitlines().count(event) == sources
        log.unlink()
    assert "-c" in words or place.objects() == []


@pytest.mark.parametrize("command", PASSED_ON)
def test_other_commands_reach_the_compiler_unchanged(place: Place, command: str) -> None:
    """Other commands include those without ccache and those of another compiler."""
    show = '#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\n'
    for name in ("ccache", "cc"):
        executable(place.tree.parent / "bin" / name, show)
    place.path = f"{place.tree.parent / 'bin'}:{place.path}"
    (place.tree / "conftest.c").write_text("")
    words = shlex.split(command)
    assert place.run(words).stdout.splitlines() == words


@pytest.mark.parametrize("words", ["main.c bad.c one.c worse.c -o program", "main.c one.c -o program"])
def test_failing_split_command_prints_the_same_errors(place: Place, words: str) -> None:
    """Each source is compiled, and no program is linked. Errors of a link differ only in the names of objects."""
    plain, split = (
        place.run([*before, "gcc", *words.split()], **more)
        for before, more in (([], {"PERFBISECT_PLAIN": "1"}), (["ccache"], {}))
    )
    assert split.returncode == plain.returncode == 1
    said = [[line for line in each.stderr.splitlines() if "ld: /" not in line] for each in (plain, split)]
    assert said[0] == said[1] != []
    assert (place.made(), place.objects()) == ({}, [])


def test_signal_leaves_no_objects(place: Place) -> None:
    work = place.tree.parent
    executable(work / "bin" / "ccache", "#!/bin/sh\nexec sleep 60\n")
    env = {"PATH": f"{work}/compilers:{work}/bin:{place.path}", "CCACHE_BASEDIR": str(work)}
    command = subprocess.Popen(["ccache", "gcc", "main.c"], cwd=place.tree, env=env, start_new_session=True)
    until(lambda: (work / "objects").exists() and place.objects())
    os.killpg(command.pid, signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM
    assert place.objects() == []


MAKEFILE = "bin/tool: main.c one.c sub/one.c\n\tmkdir -p bin && $(CC) $^ -o $@\n"
RECIPE = Builder(
    name="tool", summary="a tool", driver="tool", programs=["bin/tool"], variants={"o2nofp": Variant(cflags="-O1")}, build=Build()
)  # fmt: skip


def test_change_of_one_source_causes_one_cache_miss(tmp_path: Path, git: Repo) -> None:
    """One command compiles the tree, and the program is linked again from the objects."""
    yard = Yard(tmp_path, git, RECIPE)
    first = yard.build({name: TREE[name] for name in ALL.split()} | {"Makefile": MAKEFILE}, layouts=True)
    second = yard.build({"one.c": TREE["one.c"].replace("N 1", "N 2")}, layouts=True)
    assert (first.cache_hits, first.cache_misses) == (0, 3)
    assert (second.system, second.cache_hits, second.cache_misses, second.fixed) == ("make", 2, 1, "")
    found = links.find_linker(yard.host)
    assert found
    again = links.link_layout(yard.host, second.key, 1, found)
    for key in (second.key, again):
        assert subprocess.run([yard.installed(key, "bin/tool")], check=False).returncode == 253
