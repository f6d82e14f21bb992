"""The same hunt with several numbers of build hosts, each a machine in network namespaces of its own, over ssh.

sudo .venv/bin/python benchmarks/build_hosts/run.py --build 15 --counts 0,1,2,3

Before each build it sleeps, in place of a build that takes long on another machine: on one computer builds that compute
would take each other's time. 0 build hosts: the host that measures builds, too.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from machine import PLACE, PROJECT, Machine, why_not

PROGRAM = [sys.executable, "-c", "from perfbisect.cli.main import main; main()"]
BENCH = r"""
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include "work.h"

int main(void) {
    struct timespec from, to;
    volatile unsigned long sum = 1;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    for (long i = 0; i < 20000; i++)
        for (long j = 0; j < WORK; j++) sum = sum * 31 + j;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
    usleep(300000);
    printf("rate: %.1f\n", 20000 / ((to.tv_sec - from.tv_sec) + (to.tv_nsec - from.tv_nsec) / 1e9));
    return 0;
}
"""


def main() -> None:
    """Print one line for each number of build hosts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=float, default=15, help="seconds that a build sleeps")
    parser.add_argument("--counts", default="0,1,2,3", help="numbers of build hosts")
    parser.add_argument("--commits", type=int, default=64)
    parser.add_argument("--culprit", type=int, default=41)
    asked = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    print("build hosts  seconds  builds  ended  runs  culprit")
    for hosts in map(int, asked.counts.split(",")):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, ExitStack() as until_the_end:
            home = Path(folder, "home")
            home.mkdir()
            machines = [Machine(home / ".ssh", hidden=[PROJECT]) for _ in range(hosts)]
            for machine in machines:
                until_the_end.callback(machine.remove)
                machine.make_known()
            repository(Path(folder), asked.commits, asked.culprit)
            took, events = hunt(Path(folder), machines, asked)
            found = [event["verdict"].get("step", {}).get("candidate") for event in events if "verdict" in event]
            counts = [
                sum(event["event"] == name for event in events)
                for name in ("BuildFinished", "BuildCancelled", "RunFinished")
            ]
            print(
                f"{hosts:11}  {took:7.0f}  {counts[0]:6}  {counts[1]:5}  {counts[2]:4}  {'right' if found == [asked.culprit] else found}",
                flush=True,
            )


def repository(folder: Path, commits: int, culprit: int) -> None:
    """Make a repository of a small benchmark, which is three times slower from one commit on."""
    repo = folder / "repo"
    repo.mkdir()
    who = {f"GIT_{role}_{what}": "benchmark" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

    def git(*words: str) -> None:
        env = os.environ | {"HOME": str(folder / "home")} | who
        subprocess.run(["git", "-C", str(repo), *words], env=env, check=True, capture_output=True)

    git("init", "-q")
    (repo / "bench.c").write_text(BENCH)
    (repo / "Makefile").write_text("bench: bench.c work.h\n\t$(CC) -O1 -o $@ bench.c\n")
    for number in range(commits):
        work = (3000 if number >= culprit else 1000) + number % 2
        (repo / "work.h").write_text(f"/* {number} */\n#define WORK {work}\n")
        git("add", "-A")
        git("commit", "-qm", f"change {number}")
        git("tag", f"v{number}")


def hunt(folder: Path, machines: list[Machine], asked: argparse.Namespace) -> tuple[float, list[dict[str, object]]]:
    """Seconds that a hunt takes, and its events."""
    names = [f"b{number}" for number in range(1, len(machines) + 1)]
    entries = [f'[hosts.quiet]\nroot = "{folder}/quiet"\njobs = 1\nbuild_hosts = {json.dumps(names)}\n']
    for name, machine in zip(names, machines, strict=True):
        entries.append(f'[hosts.{name}]\naddress = "{machine.address}"\nroot = "{PLACE}"\njobs = 1\n')
    (folder / "hosts.toml").write_text("\n".join(entries))
    words = [
        "run", "v0", f"v{asked.commits - 1}", "--repo", f"{folder}/repo", "--build", f"sleep {asked.build:g}", "--build", "make",
        "--run", "./bench", "--rate", r"rate: ([\d.]+)", "--host", "quiet", "--hosts", f"{folder}/hosts.toml",
        "--history", f"{folder}/history.db", "--no-explain", "--json",
    ]  # fmt: skip
    env = os.environ | {"HOME": f"{folder}/home"}
    began = time.monotonic()
    ended = subprocess.run([*PROGRAM, *words], capture_output=True, text=True, check=False, env=env)
    took = time.monotonic() - began
    if ended.returncode:
        sys.exit(ended.stdout[-2000:] + ended.stderr)
    return took, [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]


if __name__ == "__main__":
    main()
