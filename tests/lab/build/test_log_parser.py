import re
import subprocess
from pathlib import Path

import pytest

from perfbisect.lab.build.log_parser import BuildLog, script
from perfbisect.lab.build.toolchain import count_cached, read_macros


def follow(*lines: str, expected: int = 0) -> BuildLog:
    output = BuildLog(expected=expected)
    for line in lines:
        output.read(line)
    return output


def progress(output: BuildLog) -> tuple[str, int, int]:
    return output.stage, output.done, output.total


def test_ninja_numbers_its_steps() -> None:
    output = follow("[perfbisect] compile: ninja -j2", "[12/345] Building C object a.o", "ninja: some remark")
    assert progress(output) == ("compile", 12, 345)


def test_make_from_cmake_tells_percents() -> None:
    assert progress(follow("[perfbisect] compile: make", "[  7%] Building CXX object a.o")) == ("compile", 7, 100)


def test_plain_make_is_counted() -> None:
    lines = ("[perfbisect] compile: make -j2", "ccache gcc -O2 -c -o a.o a.c", "  CC      b.o", "ar rcs lib.a a.o b.o")
    assert progress(follow(*lines)) == ("compile", 2, 0)
    assert progress(follow(*lines, expected=7)) == ("compile", 2, 7)
    assert progress(follow(*lines, expected=1)) == ("compile", 2, 2)
    assert follow(*lines).steps == 2


def test_progress_is_reported_where_it_changes() -> None:
    """Half a million equal lines of a build were as many events."""
    output = follow("[perfbisect] compile: make")
    lines = ["[ 50%] Building a.o", "[ 50%] Building b.o", "a.c:1: warning: w", "[ 51%] Building c.o", "[ 51%] Linking"]
    assert [output.read(line) for line in lines] == [True, False, False, True, False]


def test_odd_progress_is_none() -> None:
    many = "9" * 5_000
    for line in (f"[{many}/{many}] x", f"[{many}%] x", "[ ١%] x", "[/] x", "[%] x"):
        assert not follow("[perfbisect] compile: make").read(line)


UNITS = ("make", "/", "a/", " ", "make[1", "*** ", "make: *** [", "] Error ", "-c ", "error", "CMake Error", "[1/",
         ": not found", "x", "ccache: ")  # fmt: skip


@pytest.mark.parametrize("unit", UNITS)
def test_a_long_line_ends_and_is_quoted_in_part(unit: str) -> None:
    """One that takes the square of its length would not end."""
    assert len(follow(unit * (1_000_000 // len(unit)) + " error: x").why()) < 1_500


def test_each_stage_begins_anew() -> None:
    output = follow(
        "[perfbisect] compile: make", "gcc -c a.c", "x.c:1: error: no", "[perfbisect] install: make install"
    )
    assert progress(output) == ("install", 0, 0)
    assert output.why() == "it printed nothing"


def test_errors_of_a_target_alone_are_no_reason_where_all_is_built_then() -> None:
    alone = "Fatal error: can't create build/main.o: No such file or directory"
    output = follow("[perfbisect] compile: make", alone, "[perfbisect:again] ", "x.c:1:1: error: unknown type name 'x'")
    assert (output.why(), output.errors) == ("x.c:1:1: error: unknown type name 'x'", 1)


# Outputs of builds, each with the reason that is read from it.
REASONS = re.findall(r"((?:.*\n)+?)=> (.*)\n\n?", Path(__file__).with_name("reasons.txt").read_text())


@pytest.mark.parametrize(("printed", "reason"), REASONS)
def test_the_first_error_explains(printed: str, reason: str) -> None:
    output = follow("[perfbisect] compile: make", *printed.splitlines())
    assert output.why() == reason
    assert not output.host_trouble


@pytest.mark.parametrize(
    ("line", "trouble"),
    [
        ("a.s: fatal error: write failed: No space left on device", "no space left"),
        ("g++: fatal error: Killed signal terminated program cc1plus", "out of memory"),
        ("collect2: fatal error: ld terminated with signal 9 [Killed]", "out of memory"),
        ("collect2: fatal error: ld terminated with signal 15 [Terminated]", "killed from outside"),
        ("gcc: fatal error: Terminated signal terminated program cc1", "killed from outside"),
        ("make[2]: *** [src/Makefile:8: bench.o] Killed", "out of memory"),
        ("gmake: *** [Makefile:8: bench.o] Terminated", "killed from outside"),
        ("ccache: error: failed to create /x: Permission denied", "ccache does not work"),
    ],
)
def test_trouble_of_the_host_is_distinguished(line: str, trouble: str) -> None:
    assert follow(line).host_trouble == f"{trouble}: {line}"


def test_cache_statistics() -> None:
    log = "      1 cache_miss\n      1 direct_cache_hit\n      1 preprocessed_cache_hit\n"
    assert count_cached(log) == (2, 1, 0)
    assert count_cached(log + "      1 remote_storage_hit\n") == (2, 1, 1)
    assert count_cached("1 cache_miss\n") == (0, 1, 0)
    assert count_cached("") == (0, 0, 0)


def test_compilers_by_their_macros() -> None:
    gcc = "#define __GNUC__ 12\n#define __GNUC_MINOR__ 2\n#define __GNUC_PATCHLEVEL__ 0\n"
    assert read_macros(gcc) == ("gcc", "12.2.0")
    clang = "#define __clang_major__ 19\n#define __clang_minor__ 1\n#define __clang_patchlevel__ 7\n"
    assert read_macros("#define __GNUC__ 4\n" + clang) == ("clang", "19.1.7")
    assert read_macros("#define __TINYC__ 928\n") == ("", "")


def test_a_script_in_a_command_is_not_taken_for_output() -> None:
    """Its lines are a part of the line that says what is run."""
    argv = ["sh", "-c", 'if false; then\n    echo "error: not printed"\nfi\necho "error: the reason"; exit 1\n']
    done = subprocess.run(["sh", "-c", script([("configure", argv)])], check=False, capture_output=True, text=True)
    log = BuildLog()
    for line in done.stdout.splitlines():
        log.read(line)
    assert (log.stage, log.why()) == ("configure", "error: the reason")
