"""Six hunts as a batch on two hosts, as a batch on one, and one after the other: wall time and builds.

python benchmarks/batch/run.py

Two ranges of 12 commits in a small repository, three workloads each. A build takes four seconds and a run half a second,
both of them sleep: so the figures depend little on what else the machine does. Both hosts are folders of this machine.
"""

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

PROGRAM = [sys.executable, "-P", "-c", "from perfbisect.cli.main import main; main()"]
BUILDER = """
summary = "a script"
driver = "script"
variants.o2nofp = {}
[build]
compile = [["sleep", "4"]]
install = [["install", "-D", "-m", "755", "{source}/run.sh", "{prefix}/run.sh"]]
artifacts = ["run.sh"]
"""
SUITE = """
summary = "the script, run with different arguments"
driver = "script"
[defaults]
group = "all"
summary = "prints a rate"
rate = 'rate (\\d+)'
warmup = 0
[workloads]
one.command = ["sh", "{prefix}/run.sh", "1"]
two.command = ["sh", "{prefix}/run.sh", "2"]
three.command = ["sh", "{prefix}/run.sh", "3"]
"""
RUN = """sleep 0.5
noise=$(($(od -An -N2 -tu2 /dev/urandom) % 21))
case $1 in
1) echo rate $(({one} + noise));;
2) echo rate $(({two} + noise));;
*) echo rate $(({three} + noise));;
esac
# {number}
"""
WORKLOADS = ("one", "two", "three")
COMMITS = 12
CULPRITS = {"one": 4, "two": 7, "three": 10}  # the commit of a range after which a workload is slower


def make(folder: Path) -> list[tuple[str, str]]:
    """Write the repository, recipes and hosts; returns the ends of the two ranges."""
    for path, text in (("builders/script/builder.toml", BUILDER), ("workloads/script/suite.toml", SUITE)):
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text(text)
    for host in ("a", "b", "c", "d"):
        (folder / host).mkdir()
    hosts = (f'[hosts.{host}]\naddress = "local"\nroot = "{folder}/{host}"\n' for host in ("a", "b", "c", "d"))
    (folder / "hosts.toml").write_text("".join(hosts))
    repo = folder / "repo"
    who = {f"GIT_{role}_{what}": "made" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", repo, *words], env=os.environ | who, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    subprocess.run(["git", "init", "-q", repo], check=True)
    hashes = []
    rate = dict.fromkeys(WORKLOADS, 2000)
    for number in range(2 * COMMITS):
        for name, culprit in CULPRITS.items():
            rate[name] = int(rate[name] * (0.7 if number % COMMITS == culprit else 1))
        (repo / "run.sh").write_text(RUN.format(number=number, **rate))
        git("add", ".")
        git("commit", "-qm", f"Change {number}")
        hashes.append(git("rev-parse", "HEAD"))
    return [(hashes[0], hashes[COMMITS - 1]), (hashes[COMMITS], hashes[-1])]


def measured(folder: Path, history: str, commands: list[list[str]]) -> str:
    """Run commands one after the other; returns seconds, builds and runs."""
    began = time.monotonic()
    for words in commands:
        done = subprocess.run(
            [*PROGRAM, *words, "--plain", "--history", history], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
    seconds = time.monotonic() - began
    with closing(sqlite3.connect(folder / history)) as connection:
        [(hunts, named)] = connection.execute(
            "SELECT count(*), (SELECT count(*) FROM verdicts WHERE kind = 'Found') FROM hunts"
        )
        [(made, used)] = connection.execute("SELECT sum(NOT reused), sum(reused) FROM builds")
        [(runs,)] = connection.execute("SELECT count(*) FROM runs")
    return f"{seconds:.0f} | {named} of {hunts} | {made} | {used} | {runs}"


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ranges = make(folder)
        common = ["--builder=script", "--repo=repo", "--no-layouts", "--no-explain", "--min-effect=10%"]
        table = "".join(f'[[hunt]]\ngood = "{good}"\nbad = "{bad}"\n' for good, bad in ranges)
        options = 'builder = "script"\nrepo = "repo"\nlayouts = false\nexplain = false\nmin-effect = "10%"\n'
        options += f"workload = [{', '.join(f'{chr(34)}{each}{chr(34)}' for each in WORKLOADS)}]\n"
        for file, hosts in (("two", 'any-host = ["a", "b"]'), ("one", 'host = "c"')):
            (folder / f"{file}.toml").write_text(f"[defaults]\n{options}{hosts}\n{table}")
        one_by_one = [
            ["run", *ends, *common, f"--workload={workload}", "--host=d"] for ends in ranges for workload in WORKLOADS
        ]
        print(
            "| six hunts | wall, s | named | builds made | used again | runs |\n|---|--:|--:|--:|--:|--:|", flush=True
        )
        for what, history, commands in (
            ("one after the other, one host", "d.db", one_by_one),
            ("batch, one host", "c.db", [["batch", "one.toml"]]),
            ("batch, two hosts", "ab.db", [["batch", "two.toml"]]),
        ):
            print(f"| {what} | {measured(folder, history, commands)} |", flush=True)


if __name__ == "__main__":
    main()
