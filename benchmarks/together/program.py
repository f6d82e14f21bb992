"""What hunts for several results of one program cost by `bisect run`, beside each of them alone. See README.md.

The program of the planted histories prints 60 results. Its numbers vary by a known noise, whatever else the machine does.
"""

import argparse
import json
import random
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

PROGRAM = """#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "slow.h"
static unsigned long long state;
static double uniform(void)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return ((state >> 33) + 0.5) / 2147483648.0;
}
int main(int argc, char **argv)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    state = now.tv_nsec * 1000003ull + now.tv_sec;
    for (int i = 0; i < 100; i++) uniform();
    printf("Benchmark  Time  CPU  Iterations\\n");
    for (int i = 0; i < RESULTS; i++) {
        double noise = NOISE * sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
        printf("BM_%d  9 ns  %.4f ns  7\\n", i, 1000 * exp(noise) * (i < 3 && slow[i] ? 1 + RISE : 1));
    }
    return argc && !strcmp(argv[0], COMMIT);
}
"""
MAKEFILE = "bench: bench.c slow.h\n\t$(CC) -O1 $(CFLAGS) bench.c -o bench $(LDFLAGS) -lm\n"


@dataclass(frozen=True, slots=True)
class Cost:
    """What one `bisect run` took, by what it was for, and the commits that it named: of each result, by its name."""

    runs: Counter[str]
    builds: int
    named: dict[str, str]

    @property
    def hunted(self) -> int:
        """The runs of hunts, without those of the comparison of both ends."""
        return self.runs.total() - self.runs["compared"]


def plant(folder: Path, asked: argparse.Namespace, seed: int) -> dict[str, str]:
    """A history of commits in which three results get slower, by so many commits: the commit of each."""
    drawn = random.Random(seed).sample(range(1, asked.commits + 1), 3)
    culprits = [drawn[result % asked.culprits] for result in range(3)]
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-C", str(folder)]
    subprocess.run([*git, "init", "-q"], check=True)
    (folder / "bench.c").write_text(PROGRAM)
    (folder / "Makefile").write_text(MAKEFILE)
    found = {}
    for number in range(asked.commits + 1):
        slow = ", ".join(str(int(number >= culprit)) for culprit in culprits)
        constants = f"#define RESULTS {asked.results}\n#define NOISE {asked.noise}\n#define RISE {asked.rise}\n"
        (folder / "slow.h").write_text(
            f'{constants}#define COMMIT "{number}"\nstatic const int slow[3] = {{{slow}}};\n'
        )
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-qm", f"commit {number}"], check=True)
        sha = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
        found |= {f"BM_{result}": sha for result, culprit in enumerate(culprits) if culprit == number}
    return found


def hunt(folder: Path, asked: argparse.Namespace, *words: str) -> Cost:
    """`bisect run` over the whole history, with a history of its own."""
    program = [
        sys.executable,
        "-c",
        "from perfbisect.cli.main import main; main()",
        "run",
        f"HEAD~{asked.commits}",
        "HEAD",
    ]
    with tempfile.TemporaryDirectory() as temporary:
        history = Path(temporary) / "history.db"
        options = ["--build", "make", "--run", "./bench", "--no-explain", "--plain", "--history", str(history)]
        with (Path(temporary) / "said").open("w+") as said:
            done = subprocess.run(
                [*program, *options, *asked.option, *words], cwd=folder, stdout=said, stderr=said, check=False
            )
            if done.returncode > 2:
                said.seek(0)
                sys.exit(said.read())
        with closing(sqlite3.connect(history)) as db:
            named = dict(db.execute("SELECT workload, culprit FROM culprits"))
            [[builds]] = db.execute("SELECT sum(build_count) FROM sessions")
            return Cost(Counter(purposes(db)), builds, {name.split()[-1]: culprit for name, culprit in named.items()})


def purposes(db: sqlite3.Connection) -> Iterator[str]:
    """What each run was for; those that were entered in another log, too, once."""
    kinds = dict(db.execute("SELECT id, kind FROM sessions"))
    purpose = dict[int, str]()
    for session, kind, body in db.execute("SELECT session_id, kind, body FROM events ORDER BY id"):
        read = json.loads(body)
        if kind == "Decided":
            purpose[session] = read["order"].get("purpose", "")
        elif kind == "RunFinished" and not read["facts"].get("for_another"):
            layout = " in layouts" if read["facts"].get("layout") else ""
            yield "compared" if kinds[session] != "hunt" else f"{purpose.get(session, 'first')}{layout}"


def main() -> None:
    """Hunt in one planted history after another, and print what each took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rise", type=float, default=0.1, help="of each of three results, as a fraction (default: 0.1)"
    )
    parser.add_argument("--noise", type=float, default=0.01, help="s.d. of a result (default: 0.01)")
    parser.add_argument("--culprits", type=int, default=3, help="different ones of the three results (default: 3)")
    parser.add_argument("--commits", type=int, default=30)
    parser.add_argument("--results", type=int, default=60)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument(
        "--option", action="append", default=[], help="of bisect run, as in --option=--pairing=interleaved"
    )
    asked = parser.parse_args()
    ratios: list[float] = []
    for seed in asked.seeds:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            planted = plant(folder, asked, seed)
            together = hunt(folder, asked)
            alone = [hunt(folder, asked, "--only", name) for name in planted]
        dearest = max(each.runs.total() for each in alone)
        ratios.append(together.hunted / dearest)
        right = [[planted[name]] == [*each.named.values()] for name, each in zip(planted, alone, strict=True)]
        for name, each in zip(("together", *planted), (together, *alone), strict=True):
            print(f"  {name}: {each.runs.total()} runs, {each.builds} builds: {dict(each.runs)}", flush=True)
        print(
            f"seed {seed}: {sum(together.named.get(name) == sha for name, sha in planted.items())} of 3 named, {len(together.named)} in all;"
            f" alone {sum(right)} of 3; {together.hunted} runs of hunts and {together.runs['compared']} that compare the ends,"
            f" {dearest} of the dearest alone: × {ratios[-1]:.2f}, all × {together.runs.total() / dearest:.2f}",
            flush=True,
        )
    print(f"mean × {sum(ratios) / len(ratios):.2f}")


if __name__ == "__main__":
    main()
