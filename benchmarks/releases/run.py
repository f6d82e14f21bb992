"""Installed releases of a server side by side: the microbenchmarks and the Insert Benchmark, by `bisect compare`.

python benchmarks/releases/run.py RESULTS --builder postgres 10=/srv/postgresql-10.23 17=/srv/postgresql-17.0

The first release is the baseline. RESULTS is a folder: it keeps the history, and gets results.md, results.json, page.html
and the command. The same command goes on where it was stopped; --rounds is that of the first time.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

COMPARISON = "c1"  # the only one of the history
INCOMPLETE = 2  # status: some build cannot run some workload, which is among the results


@dataclass(frozen=True, slots=True)
class Results:
    """The folder of one comparison."""

    folder: Path

    def bisect(self, *words: str, quiet: bool = False) -> str:
        """What `bisect` prints if ``quiet``; else it prints for itself. Ends the script where that fails."""
        program = [sys.executable, "-c", "from perfbisect.cli.main import main; main()"]
        argv = [*program, *words, "--history", str(self.folder / "history.db")]
        done = subprocess.run(argv, stdout=subprocess.PIPE if quiet else None, text=True, check=False)
        if done.returncode not in (0, INCOMPLETE):
            sys.exit(done.returncode)
        return done.stdout or ""

    def measure(self, builds: Sequence[str], options: Sequence[str]) -> None:
        """Begin the comparison of the folders, or go on with it."""
        if not (self.folder / "history.db").exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "command").write_text(f"{shlex.join(['bisect', 'compare', *builds, *options])}\n")
            self.bisect("compare", *builds, *options)
            return
        state = json.loads(self.bisect("show", COMPARISON, "--json", quiet=True))
        subjects = state["settings"]["subjects"]
        before = ["+".join(filter(None, (f"{each['name']}={each['path']}", each["config"]))) for each in subjects]
        if before != list(builds):
            sys.exit(f"{self.folder} has results of {' '.join(before)}: choose another folder")
        if state["state"] != "done":
            self.bisect("resume", COMPARISON)

    def write(self) -> None:
        """The results in every form."""
        for option, name in (("--markdown", "results.md"), ("--json", "results.json")):
            (self.folder / name).write_text(self.bisect("show", COMPARISON, option, quiet=True))
        self.bisect("report", COMPARISON, "--output", str(self.folder / "page.html"), quiet=True)


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("releases", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--builder", required=True)
    parser.add_argument("--workloads", default="sysbench,insert-benchmark")
    parser.add_argument("--rounds", default="6")
    parser.add_argument("--seconds", default="5", help="of each run")
    parser.add_argument("--hosts", help="hosts.toml to use")
    parser.add_argument("--options", default="", help="further ones of `bisect compare`, as one word")
    args = parser.parse_args()
    builds = [
        f"{name}={Path(folder).absolute()}" for name, _, folder in (each.partition("=") for each in args.releases)
    ]
    options = ["--builder", args.builder, "--workload", args.workloads, "--visits", args.rounds, "--runs", "1"]
    options += ["--time", args.seconds, *(["--hosts", args.hosts] if args.hosts else []), *shlex.split(args.options)]
    results = Results(args.results)
    results.measure(builds, options)
    results.write()


if __name__ == "__main__":
    main()
