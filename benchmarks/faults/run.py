"""Hunts that are disturbed at random moments: is a run lost or doubled, a verdict wrong, anything left behind?

python benchmarks/faults/run.py --faults 1000 --hunts-at-once 4 --results benchmarks/faults/results.md

See benchmarks/README.md.
"""

import argparse
import shlex
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))  # the machine at the end of a link

from enclosure import enclose
from faults import Fault, chosen
from places import STATE_ROOM, Disk, Far, Here, Place
from table import repeat, summary

from hunt import Hunt, Outcome

BASE = Path("/var/tmp/hunts")  # in the namespace, a file system in memory
EVERY = 30.0  # seconds between two lines of progress


def arguments() -> argparse.Namespace:
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--seed", type=int, default=1, help="of the hunts and what is done to them (default: 1)")
    parser.add_argument("--hunt", type=int, help="only the hunt of that number, as in the list of what did not hold")
    parser.add_argument(
        "--hunts-at-once", type=int, default=4, metavar="K", help="every second one is over ssh (default: 4)"
    )
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="only faults that contain one of these words: kill,full"
    )
    parser.add_argument(
        "--where", choices=("both", "here", "far"), default="both", help="this machine, or one over ssh"
    )
    parser.add_argument("--minutes", type=float, default=0, help="begin no hunt after so long")
    parser.add_argument("--results", type=Path, metavar="FILE", help="write the summary to a file, too")
    parser.add_argument("--evidence", type=Path, metavar="FOLDER", help="keep the files of hunts that did not hold")
    return parser.parse_args()


class Campaign:
    """Hunts on several places at once, until enough faults have happened."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Nothing is started."""
        self.args = args
        self.outcomes: list[Outcome] = []
        self.began = time.monotonic()
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._numbers = iter([args.hunt]) if args.hunt is not None else iter(range(1_000_000))

    def faults(self) -> int:
        """How many have happened in hunts that have ended."""
        return sum(outcome.faults.total() for outcome in self.outcomes)

    def wanted(self) -> bool:
        """Whether another hunt is to begin."""
        late = self.args.minutes and time.monotonic() - self.began > 60 * self.args.minutes
        return not (late or self.stopping.is_set() or self.faults() >= self.args.faults)

    def work(self, slot: int) -> None:
        """Hunt on one place, again and again."""
        folder = BASE / str(slot)
        folder.mkdir(parents=True)
        far = self.args.where == "far" or (self.args.where == "both" and slot % 2 == 1)
        place: Place = Far(folder, BASE) if far else Here(folder)
        state = Disk(folder / "state", STATE_ROOM)
        faults = [fault for fault in chosen(filter(None, self.args.only.split(","))) if far or not fault.far]
        while self.wanted():
            with self._lock:
                number = next(self._numbers, None)
            if number is None:
                break
            self._hunt(number, place, state, folder / "hunt", faults)
        place.remove()
        state.remove()

    def _hunt(self, number: int, place: Place, state: Disk, folder: Path, faults: Sequence[Fault]) -> None:
        seed = f"{self.args.seed}-{number}"
        try:
            outcome = Hunt(seed, place, state, folder, faults).play()
        except Exception:  # noqa: BLE001 - of the benchmark itself; no further hunt begins
            self.stopping.set()
            troubles = [f"the benchmark failed: {traceback.format_exc()}"]
            outcome = Outcome(seed, place.name == "far", Counter(), Counter(), 0, 0, 0, 0, False, troubles)
        if outcome.troubles and self.args.evidence:
            self._keep(self.args.evidence / seed, outcome, place, state, folder)
        for leftover in (folder, *state.folder.iterdir()):
            shutil.rmtree(leftover, ignore_errors=True)
        with self._lock:
            self.outcomes.append(outcome)
            for trouble in outcome.troubles:
                print(f"{repeat(outcome)}: {trouble}", flush=True)

    def _keep(self, into: Path, outcome: Outcome, place: Place, state: Disk, folder: Path) -> None:
        large = shutil.ignore_patterns("ccache", "prefix", "repo")
        for source in (folder, state.folder, place.side, place.root):
            with suppress(OSError, shutil.Error):
                shutil.copytree(source, into / source.name, ignore=large, symlinks=True, dirs_exist_ok=True)
        (into / "troubles").write_text("\n".join(outcome.troubles) + "\n")

    def progress(self) -> str:
        """A line."""
        seconds = time.monotonic() - self.began
        rate = self.faults() / seconds if seconds else 0.0
        left = (self.args.faults - self.faults()) / rate / 60 if rate else 0.0
        wrong = sum(bool(outcome.troubles) for outcome in self.outcomes)
        return (
            f"{seconds / 60:.1f} minutes: {self.faults()} faults in {len(self.outcomes)} hunts, {wrong} of them did not hold;"
            f" {60 * rate:.0f} faults a minute, about {left:.0f} minutes left"
        )


def watch(campaign: Campaign, threads: Sequence[threading.Thread]) -> Iterator[str]:
    """Lines of progress until all threads have ended; Ctrl-C lets the hunts that are under way end."""
    last = time.monotonic()
    while any(thread.is_alive() for thread in threads):
        try:
            time.sleep(0.5)
            if time.monotonic() - last > EVERY:
                last = time.monotonic()
                yield campaign.progress()
        except KeyboardInterrupt:
            if campaign.stopping.is_set():
                return
            campaign.stopping.set()
            yield "No further hunt begins; again to stop at once."


def command(args: argparse.Namespace) -> str:
    """The command with everything that decides what is done."""
    number = [] if args.hunt is None else ["--hunt", str(args.hunt)]
    only = ["--only", args.only] if args.only else []
    words = ["--faults", str(args.faults), "--seed", str(args.seed), *number, *only, "--where", args.where]
    return shlex.join(["python", "benchmarks/faults/run.py", *words, "--hunts-at-once", str(args.hunts_at_once)])


def main() -> None:
    """Disturb hunts, and print what held."""
    args = arguments()
    enclose()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    campaign = Campaign(args)
    slots = range(1 if args.hunt is not None else args.hunts_at_once)
    threads = [threading.Thread(target=campaign.work, args=(slot,), daemon=True) for slot in slots]
    for thread in threads:
        thread.start()
    for line in watch(campaign, threads):
        print(line, file=sys.stderr, flush=True)
    text = summary(campaign.outcomes, time.monotonic() - campaign.began, command(args))
    print(text)
    if args.results:
        args.results.write_text(text)
    sys.exit(any(outcome.troubles for outcome in campaign.outcomes))


if __name__ == "__main__":
    main()
