"""The parser of build logs: progress, the first error, and the option that fixes a known error."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from perfbisect.core.domain.settings import Flags
from perfbisect.lab.building.log_parser import BuildLog, build_script, known_error
from perfbisect.lab.building.toolchain import cache_statistics, compiler_from_macros


def follow(*lines: str, expected: int = 0) -> BuildLog:
    output = BuildLog(expected=expected)
    for line in lines:
        output.read_line(line)
    return output


MANY = "9" * 5_000
PLAIN = ("[perfbisect] compile: make -j2", "ccache gcc -O2 -c -o a.o a.c", "  CC      b.o", "ar rcs lib.a a.o b.o")


@pytest.mark.parametrize(
    ("lines", "expected", "progress"),
    [
        (("[perfbisect] compile: ninja", "[12/345] Building C object a.o", "ninja: some remark"), 0, (12, 345)),
        (("[perfbisect] compile: make", "[  7%] Building CXX object a.o"), 0, (7, 100)),  # from cmake
        (PLAIN, 0, (2, 0)),
        (PLAIN, 7, (2, 7)),
        (PLAIN, 1, (2, 2)),
        *(
            (("[perfbisect] compile: make", odd), 0, (0, 0))
            for odd in (f"[{MANY}/{MANY}] x", f"[{MANY}%] x", "[ ١%] x", "[/] x", "[%] x")
        ),
    ],
)
def test_progress_of_each_build_tool_is_read(lines: tuple[str, ...], expected: int, progress: tuple[int, int]) -> None:
    output = follow(*lines, expected=expected)
    assert (output.stage, output.done, output.total) == ("compile", *progress)
    assert output.steps == 2 or lines != PLAIN


def test_log_parser_reports_progress_only_if_it_changes() -> None:
    """Otherwise, half a million equal lines of a build would be as many events."""
    output = follow("[perfbisect] compile: make")
    lines = ["[ 50%] Building a.o", "[ 50%] Building b.o", "a.c:1: warning: w", "[ 51%] Building c.o", "[ 51%] Linking"]
    assert [output.read_line(line) for line in lines] == [True, False, False, True, False]


UNITS = ["make", "/", "a/", " ", "make[1", "*** ", "make: *** [", "] Error ", "-c ", "error", "CMake Error", "[1/",
         ": not found", "x", "ccache: ", "error: '", "note: '", "python", "[-Werror=", "evp_", ".c:", "std::", "env:/"]  # fmt: skip


@pytest.mark.parametrize("unit", UNITS)
def test_long_log_line_is_parsed_in_linear_time_and_quoted_in_part(unit: str) -> None:
    """If the time grew with the square of the length, the test would not end."""
    log = follow(unit * (1_000_000 // len(unit)) + " error: x")
    assert len(log.failure_line()) < 1_500
    assert log.known is None


def test_new_build_stage_resets_progress_and_error() -> None:
    output = follow("[perfbisect] compile: make", "gcc -c a.c", "x.c:1: error: no", "[perfbisect] install: make")
    assert (output.stage, output.done, output.total, output.failure_line()) == (
        "install",
        0,
        0,
        "the command printed nothing",
    )


def test_errors_before_the_build_of_all_targets_are_ignored() -> None:
    alone = "Fatal error: can't create build/main.o: No such file or directory"
    output = follow("[perfbisect] compile: make", alone, "[perfbisect:again] ", "x.c:1:1: error: unknown type name 'x'")
    assert (output.failure_line(), output.errors) == ("x.c:1:1: error: unknown type name 'x'", 1)


# Outputs of builds, each with the error that the parser quotes.
REASONS = re.findall(r"((?:.*\n)+?)=> (.*)\n\n?", Path(__file__).with_name("reasons.txt").read_text())


@pytest.mark.parametrize(("printed", "reason"), REASONS)
def test_log_parser_quotes_the_first_error(printed: str, reason: str) -> None:
    output = follow("[perfbisect] compile: make", *printed.splitlines())
    assert output.failure_line() == reason
    assert not output.host_trouble


# Lines of builds that fail because of the host, each with the trouble of the host.
TROUBLES = re.findall(r"(.*)\n=> (.*)\n", Path(__file__).with_name("troubles.txt").read_text())


@pytest.mark.parametrize(("line", "trouble"), TROUBLES)
def test_log_parser_recognises_trouble_of_the_host(line: str, trouble: str) -> None:
    assert follow(line).host_trouble == f"{trouble}: {line}"


def test_cache_statistics_are_read_from_a_ccache_log() -> None:
    log = "      1 cache_miss\n      1 direct_cache_hit\n      1 preprocessed_cache_hit\n"
    found = [cache_statistics(text) for text in (log, log + "      1 remote_storage_hit\n", "1 cache_miss\n", "")]
    assert found == [(2, 1, 0), (2, 1, 1), (0, 1, 0), (0, 0, 0)]


def test_compiler_is_recognised_by_its_macros() -> None:
    gcc = "#define __GNUC__ 12\n#define __GNUC_MINOR__ 2\n#define __GNUC_PATCHLEVEL__ 0\n"
    assert compiler_from_macros(gcc) == ("gcc", "12.2.0")
    clang = "#define __clang_major__ 19\n#define __clang_minor__ 1\n#define __clang_patchlevel__ 7\n"
    assert compiler_from_macros("#define __GNUC__ 4\n" + clang) == ("clang", "19.1.7")
    assert compiler_from_macros("#define __TINYC__ 928\n") == ("", "")


def test_script_in_a_command_is_not_parsed_as_output() -> None:
    """The log line of the command contains the whole script."""
    argv = ["sh", "-c", 'if false; then\n    echo "error: not printed"\nfi\necho "error: the reason"; exit 1\n']
    done = subprocess.run(
        ["sh", "-c", build_script([("configure", argv)])], check=False, capture_output=True, text=True
    )
    log = follow(*done.stdout.splitlines())
    assert (done.returncode, log.stage, log.failure_line()) == (1, "configure", "error: the reason")


@pytest.mark.parametrize(
    ("moments", "seconds"),
    [
        ("configure 10.50 compile 12.00 install 20.25 compile 21.00 end 24.50", (1.5, 11.75, 0.75)),
        ("compile 5.00 end 4.00", (0, 0, 0)),  # printed by the source tree
        ("odd 1.00 compile 2.00 install  end 9e9 x", (0, 0, 0)),
    ],
)
def test_last_line_of_a_build_log_gives_the_seconds_of_each_stage(moments: str, seconds: tuple[float, ...]) -> None:
    log = follow("[perfbisect] compile: make", "x.c:1: error: no", f"[perfbisect:took] {moments}")
    assert log.phases == dict(zip(("configure", "compile", "install"), seconds, strict=True))
    assert log.failure_line() == "x.c:1: error: no"


SOURCES = tomllib.loads(Path(__file__).with_name("sources.toml").read_text())
STRICT = ["-Wall", "-Werror", "-Wno-error=overflow", "-Wno-error=deprecated"]


def printed(folder: Path, *argv: str) -> tuple[int, BuildLog]:
    """Run a compiler. Return its status and its parsed output."""
    done = subprocess.run(
        argv, check=False, cwd=folder, capture_output=True, text=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"}
    )
    return done.returncode, follow(*done.stderr.splitlines())


@pytest.mark.tools
@pytest.mark.parametrize("name", SOURCES)
def test_option_for_a_known_compiler_error_fixes_the_build(tmp_path: Path, name: str) -> None:
    if not shutil.which("g++"):
        pytest.skip("g++ is not installed")
    source = SOURCES[name]
    (tmp_path / name).write_text(f"{source['text']}\n")
    compiler = "g++" if name.endswith(".cpp") else "gcc"
    argv = [compiler, *STRICT, *["-std=c99"] * (name == "types.c"), "-c", name, "-o", "made.o"]
    known = printed(tmp_path, *argv)[1].known
    assert known
    assert (known.name, known.remedy) == (source["error"], source["option"])
    assert known.by_itself == ("-std" not in known.remedy and "narrowing" not in known.remedy)
    flags = known.flags.cxxflags if compiler == "g++" else known.flags.cflags
    status, again = printed(tmp_path, *argv, *flags.split())
    assert (status == 0) == (name != "register.cpp"), again.failure_line()  # no option fixes register.cpp


@pytest.mark.tools
@pytest.mark.parametrize(
    ("argv", "option"),
    [
        (["-fno-builtin", "-Wl,--as-needed", "-lm", "a.c"], "--ldflags -lm"),
        (["-shared", "b.c", "c.c", "-o", "made"], "--cflags -fcommon"),
    ],
)
def test_option_for_a_known_linker_error_fixes_the_build(tmp_path: Path, argv: list[str], option: str) -> None:
    """A library is listed before the file that uses it; or two files define one variable."""
    use = "double fmax(double, double);\nint main(int c, char **v) { return fmax(c, 2.5 * c); }\n"
    for name, text in {"a": use, "b": "int common;\nint main_of_b;\n", "c": "int common;\nint main_of_c;\n"}.items():
        (tmp_path / f"{name}.c").write_text(text)
    log = printed(tmp_path, "gcc", *argv)[1]
    assert log.known
    assert log.known.remedy == option
    assert not log.known.by_itself
    assert "multiple definition of" in log.failure_line() or "-lm" in option
    assert printed(tmp_path, "gcc", *argv, option.split()[1])[0] == 0


# Lines of a build, each with the option that fixes the error.
REMEDIES = re.findall(r"(.*)\n=> (.*)\n", Path(__file__).with_name("remedies.txt").read_text())


@pytest.mark.parametrize(("line", "option"), REMEDIES)
def test_options_for_errors_of_other_programs_are_known(line: str, option: str) -> None:
    log = follow(line)
    assert log.known
    assert (log.known.remedy, log.failure_line()) == (option, line.strip())


def test_known_error_after_an_unknown_error_is_ignored() -> None:
    unknown = "x.c:1:1: error: unknown type name 'uint64_t'"
    assert follow("a.c:1:1: error: expected ';'", unknown).known is None
    assert follow("[perfbisect] configure: x", unknown, "[perfbisect] compile: x").known is None
    assert known_error("a.c:1:1: note: 'x' is defined in header '<hostile.h>'; did you forget") is None
    assert known_error("x.cpp:1:1: error: 'mine' was not declared in this scope") is None


def test_flags_are_not_added_twice() -> None:
    flags = Flags("-include string_view").with_missing(Flags("-include string", "-O1"))
    flags = flags.with_missing(Flags("-include string"))
    assert flags == Flags("-include string_view -include string", "-O1")
