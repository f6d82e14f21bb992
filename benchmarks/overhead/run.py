"""The time that perfbisect itself takes of a hunt: between the end of one action and the start of the next.

python benchmarks/overhead/run.py                              a demo hunt on this machine
python benchmarks/overhead/run.py --hosts FILE --host NAME     the same on a host of that hosts.toml
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

# An action ends with one of these events and begins with one of those.
ENDS = ("BuildFinished", "CandidateSkipped", "RunFinished")
STARTS = ("BuildStarted", "RunStarted")


def gaps(events: Iterable[Mapping[str, object]]) -> list[tuple[str, float]]:
    """(step, seconds) of every step from the end of an action to the start of the next on its host.

    The name of a step says what came before and after, and whether the search decided in between.
    """
    found, last, decided = [], {}, {}
    for event in events:
        name, at, host = str(event["event"]), float(str(event["at"])), str(event.get("host", ""))
        if name == "Decided":
            decided = dict.fromkeys(last, True)
        elif name in STARTS and host in last:
            before, since = last.pop(host)
            step = f"{before} to {'build' if name == 'BuildStarted' else 'run'}"
            found.append((f"{step}{', decided' if decided.get(host) else ''}", at - since))
        elif name in ENDS:
            last[host] = ("run" if name == "RunFinished" else "build", at)
            decided[host] = False
    return found


def table(events: Sequence[Mapping[str, object]]) -> str:
    """The gaps by step, and their share of the time from the first action to the last."""
    steps = gaps(events)
    times = [float(str(event["at"])) for event in events if event["event"] in (*STARTS, *ENDS)]
    wall = times[-1] - times[0]
    lines = ["| from … to | number | median, s | largest, s |", "|---|--:|--:|--:|"]
    for step in sorted({step for step, _ in steps}):
        seconds = [gap for each, gap in steps if each == step]
        lines.append(f"| {step} | {len(seconds)} | {median(seconds):.3f} | {max(seconds):.3f} |")
    total = sum(gap for _, gap in steps)
    lines.append(f"\n{total:.1f} s of {wall:.1f} s, {100 * total / wall:.1f} % of the wall time.")
    return "\n".join(lines)


def main() -> None:
    """Run a hunt, read its events, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", default="3")
    parser.add_argument("--host", default="local")
    parser.add_argument("--hosts", help="hosts.toml to use")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        demo = "from perfbisect.cli.main import main; main()"
        command = [sys.executable, "-c", demo, "demo", "--json", "--seed", args.seed]
        command += ["--folder", str(Path(folder) / "demo"), "--history", str(Path(folder) / "history.db")]
        command += ["--host", args.host, *(["--hosts", args.hosts] if args.hosts else [])]
        hunt = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if hunt.returncode:
        sys.exit(f"the hunt ended with status {hunt.returncode}")
    print(table([json.loads(line) for line in hunt.stdout.splitlines()]))


if __name__ == "__main__":
    main()
