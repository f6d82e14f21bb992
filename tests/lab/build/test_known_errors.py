"""Errors of the compilers that are here, and lines of those that are not; what is said to mend an error does."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from perfbisect.core.domain.settings import Flags
from perfbisect.lab.build.known_errors import HEADER, known_error
from perfbisect.lab.build.log_parser import BuildLog

SOURCES = {
    "a.c": ("uint64_t f(void);\n", HEADER, "--cflags '-include stdint.h'"),
    "max.c": ("int f(void) { return INT_MAX; }\n", HEADER, "--cflags '-include limits.h'"),
    "types.c": ("u_int8_t f(void);\n", HEADER, "--cflags '-D_DEFAULT_SOURCE -include sys/types.h'"),
    "a.cpp": ("uint64_t f();\n", HEADER, "--cxxflags '-include cstdint'"),
    "b.cpp": ("std::uint8_t f();\n", HEADER, "--cxxflags '-include cstdint'"),
    "c.cpp": ("int f() { return std::numeric_limits<int>::max(); }\n", HEADER, "--cxxflags '-include limits'"),
    "d.cpp": ("std::string text;\n", HEADER, "--cxxflags '-include string'"),
    "e.cpp": ("std::function<void()> call;\n", HEADER, "--cxxflags '-include functional'"),
    "f.cpp": ("void f(char *a) { memset(a, 0, 1); }\n", HEADER, "--cxxflags '-include cstring'"),
    "g.cpp": ("#include <iosfwd>\nstd::stringstream text;\n", HEADER, "--cxxflags '-include sstream'"),
    "h.cpp": (
        "void f(uint8_t x);\nstd::runtime_error e(\"x\");\nuint8_t again;\n", HEADER,
        "--cxxflags '-include cstdint -include stdexcept'",
    ),
    "unused.c": ("int f(void) { int x; return 0; }\n", "new warnings that are errors",
                 "--cflags -Wno-error=unused-variable --cxxflags -Wno-error=unused-variable"),
    "implicit.c": ("int f(void) { return g(); }\n", "declarations that C has wanted since C99",
                   "--cflags -Wno-error=implicit-function-declaration"),
    "convert.c": ("char *f(void) { return 3; }\n", "declarations that C has wanted since C99",
                  "--cflags -Wno-error=int-conversion"),
    "throw.cpp": ("void f() throw(int);\n", "dynamic exception specifications, which C++17 lacks",
                  "--cxxflags -std=gnu++14"),
    "register.cpp": ("#pragma GCC diagnostic error \"-Wregister\"\nint f() { register int x = 1; return x; }\n",
                     "new warnings that are errors", "--cflags -Wno-error=register --cxxflags -Wno-error=register"),
    "narrow.cpp": ("char c[] = {300};\n", "narrowing conversions", "--cxxflags -Wno-narrowing"),
}  # fmt: skip


def compiled(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    compiler = "g++" if path.suffix == ".cpp" else "gcc"
    argv = [
        compiler,
        "-Wall",
        "-Werror",
        "-Wno-error=overflow",
        "-Wno-error=deprecated",
        *(["-std=c99"] if path.name == "types.c" else []),
        *options,
        "-c",
        path.name,
        "-o",
        "made.o",
    ]
    return subprocess.run(
        argv, check=False, cwd=path.parent, capture_output=True, text=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"}
    )


def read(lines: str) -> BuildLog:
    log = BuildLog()
    for line in lines.splitlines():
        log.read(line)
    return log


@pytest.mark.tools
@pytest.mark.parametrize("name", SOURCES)
def test_an_error_of_this_compiler_is_known_and_its_option_mends_it(tmp_path: Path, name: str) -> None:
    if not shutil.which("g++"):
        pytest.skip("g++ is not installed")
    text, what, option = SOURCES[name]
    (tmp_path / name).write_text(text)
    known = read(compiled(tmp_path / name).stderr).known
    assert known
    assert (known.name, known.option) == (what, option)
    assert known.by_itself == ("-std" not in option and "narrowing" not in option)
    flags = known.flags.cxxflags if name.endswith(".cpp") else known.flags.cflags
    again = compiled(tmp_path / name, *flags.split())
    assert (again.returncode == 0) == (name != "register.cpp"), again.stderr  # that pragma is nobody's to mend


@pytest.mark.tools
def test_a_library_that_is_named_before_its_users(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text(
        "double fmax(double, double);\nint main(int c, char **v) { return fmax(c, 2.5 * c); }\n"
    )
    argv = ["gcc", "-fno-builtin", "-Wl,--as-needed", "-lm", "a.c"]
    log = read(subprocess.run(argv, check=False, cwd=tmp_path, capture_output=True, text=True).stderr)
    assert log.known
    assert (log.known.option, log.known.by_itself) == ("--ldflags -lm", False)
    subprocess.run([*argv, *log.known.flags.ldflags.split()], check=True, cwd=tmp_path)


@pytest.mark.tools
def test_a_variable_that_two_files_define(tmp_path: Path) -> None:
    for name in ("a.c", "b.c"):
        (tmp_path / name).write_text("int common;\nint main_of_" + name[0] + ";\n")
    argv = ["gcc", "-shared", "a.c", "b.c", "-o", "made"]
    log = read(subprocess.run(argv, check=False, cwd=tmp_path, capture_output=True, text=True).stderr)
    assert log.known
    assert log.known.option == "--cflags -fcommon"
    assert "multiple definition of" in log.why()
    assert subprocess.run([*argv, "-fcommon"], check=False, cwd=tmp_path).returncode == 0


# Lines of a build, each with the option that mends it.
REMEDIES = re.findall(r"(.*)\n=> (.*)\n", Path(__file__).with_name("remedies.txt").read_text())


@pytest.mark.parametrize(("line", "option"), REMEDIES)
def test_lines_of_other_programs(line: str, option: str) -> None:
    log = read(line)
    assert log.known
    assert log.known.option == option
    assert log.why() == line.strip()


def test_an_error_behind_one_that_is_not_known_is_not_the_reason() -> None:
    assert read("a.c:1:1: error: expected ';'\na.c:2:1: error: unknown type name 'uint64_t'").known is None
    assert (
        read("[perfbisect] configure: x\nx.c:1:1: error: unknown type name 'uint64_t'\n[perfbisect] compile: x").known
        is None
    )
    assert known_error("a.c:1:1: note: 'x' is defined in header '<hostile.h>'; did you forget") is None
    assert known_error("x.cpp:1:1: error: 'mine' was not declared in this scope") is None


def test_a_hostile_line_takes_no_longer_than_its_length_asks_for() -> None:
    for part in ("error: '", "note: '", "python", "[-Werror=", "evp_", ".c:", "std::", "a", "env:/"):
        assert read(part * 20_000 + " error: x").known is None


def test_options_that_are_there_are_not_added_again() -> None:
    flags = Flags("-include string_view").plus(Flags("-include string", "-O1")).plus(Flags("-include string"))
    assert flags == Flags("-include string_view -include string", "-O1")
