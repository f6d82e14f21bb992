"""A program that is slower where its functions lie badly, and executes the same instructions there.

Of 24 functions that are called in turns, those which lie a multiple of 4,096 bytes apart share one set of the instruction
cache, which has room for eight. They do where each is followed by 4,032 bytes that nothing calls; in any other order the
two parts of these bytes, of another size each time, spread the functions over all sets.
"""

FUNCTIONS = 24
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
    long rounds = ROUNDS;
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
MAKEFILE = "bench: main.o steps.o version.o\n\t$(CC) $(LDFLAGS) -o $@ $^\n%.o: %.c\n\t$(CC) -O2 -c $<\n"


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


def main(work: int, rounds: int = 1_000_000) -> str:
    """What calls them, and works in each round: the more, the less it matters where they lie."""
    declared = "\n".join(f"uint64_t step_{n}(uint64_t);" for n in range(FUNCTIONS))
    called = " ".join(f"x += step_{n}(i);" for n in range(FUNCTIONS))
    text = MAIN.replace("DECLARED", declared).replace("CALLED", called)
    return text.replace("WORK", str(work)).replace("ROUNDS", str(rounds))
