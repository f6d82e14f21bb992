"""A commit that only moves code, and slows a program down by that: real links show it, and real counts what it executes."""

import shutil
from pathlib import Path

import pytest

from program import bisect
from repos import Repo

pytestmark = [pytest.mark.e2e, pytest.mark.tools, pytest.mark.slow]

COMMITS, MOVED, SLOWER = 8, 3, 5
FUNCTIONS = 24
# Of 24 functions that are called in turns, those which lie a multiple of 4,096 bytes apart share one set of the instruction
# cache, which has room for eight. They do where each is followed by 4,032 bytes that nothing calls; in any other order the
# two parts of these bytes, of another size each time, spread the functions over all sets.
STEP = "ALIGNED uint64_t step_{n}(uint64_t x) {{ return (x ^ (x >> {shift})) * 0x9E3779B97F4A7C15u + {n}; }}\n"
ROOM = """\
ALIGNED void room_{n}(void) {{ __asm__ volatile (".skip {size}"); }}
ALIGNED void more_{n}(void) {{ __asm__ volatile (".skip {rest}"); }}
"""
LINE = 64  # bytes of the cache, and of the smallest function here
MAIN = r"""
#include <stdint.h>
#include <stdio.h>
#include <time.h>
DECLARED
int main(void) {
    struct timespec from, to;
    uint64_t x = 1;
    long rounds = 1000000;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    for (long i = 0; i < rounds; i++) {
        CALLED
        for (int turn = WORK; turn > 0; turn--) __asm__ volatile ("" : "+r"(turn));
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
    printf("rounds/s: %.0f\n", rounds / (to.tv_sec - from.tv_sec + (to.tv_nsec - from.tv_nsec) / 1e9));
    return x == 0;
}
"""
RUN = ["--build", "make", "--run", "./bench", "--rate", r"rounds/s: (\d+)", "--no-explain"]


def steps(moved: bool) -> str:
    """The functions that are called, and what lies between them or behind them: the same functions, in two orders.

    So whatever a processor makes of them, in layouts drawn at random both are equally fast.
    """

    def room(n: int) -> str:
        size = LINE * (1 + 2 * n)  # with what the compiler adds to 32 bytes less
        return ROOM.format(n=n, size=size - 32, rest=63 * LINE - size - 32)

    called = [STEP.format(n=n, shift=7 + n % 5) for n in range(FUNCTIONS)]
    rooms = [room(n) for n in range(FUNCTIONS)]
    head = f"#include <stdint.h>\n#define ALIGNED __attribute__((aligned({LINE})))\n"
    if moved:
        return head + "".join(step + beside for step, beside in zip(called, rooms, strict=True))
    return head + "".join([*called, *rooms])


def main(work: int) -> str:
    """What calls them, and works."""
    declared = "\n".join(f"uint64_t step_{n}(uint64_t);" for n in range(FUNCTIONS))
    called = " ".join(f"x += step_{n}(i);" for n in range(FUNCTIONS))
    return MAIN.replace("DECLARED", declared).replace("CALLED", called).replace("WORK", str(work))


@pytest.fixture
def repository(git: Repo) -> Path:
    """Its history: one commit moves the functions, a later one works more, the others change nothing that is executed."""
    git.write(
        {"Makefile": "bench: main.o steps.o version.o\n\t$(CC) $(LDFLAGS) -o $@ $^\n%.o: %.c\n\t$(CC) -O2 -c $<\n"}
    )
    git.history(
        {
            "steps.c": steps(number >= MOVED),
            "main.c": main(700 if number >= SLOWER else 500),
            "version.c": f"int version = {100 + number};\n",
        }
        for number in range(COMMITS)
    )
    return git.path


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind: apt-get install valgrind")
def test_a_commit_that_only_moves_code_is_no_culprit(tmp_path: Path, repository: Path) -> None:
    history = str(tmp_path / "history.db")
    ended = bisect("run", "v0", f"v{SLOWER - 1}", *RUN, "--plain", "--history", history, cwd=repository)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "Code placement: " in ended.stdout
    assert f"“change {MOVED}”" in ended.stdout
    assert "It moves code, and executes the same instructions as the code before it." in ended.stdout
    replayed = bisect("replay", "--history", history, cwd=repository).stdout
    assert "It moves code, and executes the same instructions" in replayed


def test_what_costs_more_is_named_in_spite_of_it(tmp_path: Path, repository: Path) -> None:
    history = str(tmp_path / "history.db")
    ended = bisect("run", "v0", f"v{COMMITS - 1}", *RUN, "--plain", "--history", history, cwd=repository)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"“change {SLOWER}”" in ended.stdout.partition("The culprit is ")[2].splitlines()[0]
