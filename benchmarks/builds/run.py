"""How long builds take: a cold one, those of its neighbours, and the same by hand.

python benchmarks/builds/run.py --repo DIR [--builder NAME] [--configure OPTION …] [--by-hand SCRIPT] REV REV…

Builds the revisions in their order on this machine, in a new root folder: the first with an empty compiler cache. With
--by-hand each is built once more, in turns, by a script of sh: in the folder BUILD, new each time, from the clone SOURCE
that has the revision checked out, into PREFIX, with JOBS jobs and a ccache of its own. Prints a line of a table.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from perfbisect.core.domain.facts import BuildFacts
from perfbisect.core.domain.settings import Quick, Settings
from perfbisect.host.registry import connect
from perfbisect.hunt.resolve import builder_of, resolve_commits
from perfbisect.lab import Work
from perfbisect.lab.building import checkout, pipeline
from perfbisect.lab.building.plan import BuildContext
from perfbisect.recipes.inventory import load_host
from perfbisect.recipes.requested import RECIPE, requested_builder
from perfbisect.repository.discovery import open_repository

HOST = "local"
HEADER = """\
| repository | system | cold, s | neighbour, s | cache hits | neighbour by hand, s | ratio, pair by pair |
|---|---|--:|--:|--:|--:|--:|"""


@dataclass(frozen=True)
class Pair:
    """One revision, built by perfbisect and by hand."""

    ours: BuildFacts
    by_hand: float | None  # seconds


class ByHand:
    """A person's clone, build folder and compiler cache."""

    def __init__(self, repository: Path, folder: Path, script: str, jobs: int) -> None:
        """Clone the repository. ``script`` builds."""
        self.source, self.folder, self.script = folder / "source", folder, script
        self.env = os.environ | {
            "SOURCE": str(self.source), "BUILD": str(folder / "build"), "PREFIX": str(folder / "prefix"),
            "JOBS": str(jobs), "CCACHE_DIR": str(folder / "ccache"),
        }  # fmt: skip
        subprocess.run(["git", "clone", "-q", "--shared", "--no-checkout", repository, self.source], check=True)

    def build(self, commit: str) -> float:
        """Seconds for the checkout, and everything that the script does."""
        for folder in ("build", "prefix"):
            shutil.rmtree(self.folder / folder, ignore_errors=True)
        (self.folder / "build").mkdir()
        began = time.monotonic()
        subprocess.run(["git", "checkout", "-q", "--force", "--detach", commit], cwd=self.source, check=True)
        with (self.folder / "log").open("w") as log:
            status = subprocess.run(
                ["sh", "-ec", self.script], cwd=self.folder / "build", env=self.env, stdout=log, stderr=log, check=False
            ).returncode
        if status:
            sys.exit(f"The build by hand ended with status {status}: see {log.name}")
        return time.monotonic() - began


def prepare(args: argparse.Namespace, root: Path) -> tuple[BuildContext, list[str]]:
    """What builds of the revisions need, and their commits."""
    hosts = root.parent / "hosts.toml"
    hosts.write_text(f'[hosts.{HOST}]\nroot = "{root}"\njobs = {args.jobs}\n')
    settings = Settings(
        good=args.revisions[0],
        bad=args.revisions[-1],
        host=HOST,
        builder=args.builder or RECIPE,
        workload="",
        repository=str(args.repo.resolve()),
        builders_path=args.builders,
        configure=tuple(args.configure),
        quick=None if args.builder else Quick(run="true", build=()),
    )
    settings, commits = resolve_commits(settings, builder_of(settings), args.revisions)
    builder = requested_builder(settings)
    entry = load_host(HOST, str(hosts))
    host = connect(entry)
    repository = open_repository(Path(settings.repository))
    mirror = Work(checkout.mirror(host, repository, builder.work_name, commits))
    list(mirror)
    return pipeline.build_context(host, entry, builder, settings.variant, mirror.result, repository), commits


def built(context: BuildContext, commit: str) -> BuildFacts:
    """Build a commit as a hunt does."""
    building = Work(pipeline.build(context, commit))
    list(building)
    return building.result.facts


def line(name: str, pairs: list[Pair]) -> str:
    """A row of the table: the cold build, then the medians of all others."""
    cold, *others = pairs
    hits, misses = sum(pair.ours.cache_hits for pair in others), sum(pair.ours.cache_misses for pair in others)
    ours = [pair.ours.seconds for pair in others]
    by_hand = [pair.by_hand for pair in others if pair.by_hand]
    ratios = sorted(pair.ours.seconds / pair.by_hand for pair in others if pair.by_hand)
    cells = [
        name,
        cold.ours.system or "commands",
        f"{cold.ours.seconds:.0f}",
        f"{median(ours):.1f}",
        f"{100 * hits / max(1, hits + misses):.0f} %",
        f"{median(by_hand):.1f}" if by_hand else "",
        f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}), {len(ratios)} pairs" if ratios else "",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Build everything, and print a row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repo", type=Path, required=True)
    parser.add_argument("--builder", help="a recipe; by default the repository is built as with `bisect run --run`")
    parser.add_argument("--builders", default="", help="a folder with recipes")
    parser.add_argument("--configure", action="append", default=[], metavar="OPTION")
    parser.add_argument("--by-hand", metavar="SCRIPT", help="builds the same by hand")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", type=Path, help="an empty folder to work in, which is kept")
    parser.add_argument("revisions", nargs="+", metavar="REV")
    args = parser.parse_args()
    if len(args.revisions) < 2:
        parser.error("give two revisions or more")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        context, commits = prepare(args, folder / "root")
        hand = ByHand(args.repo.resolve(), folder, args.by_hand, args.jobs) if args.by_hand else None
        pairs = []
        for number, commit in enumerate(commits):
            seconds = hand.build(commit) if hand and number % 2 else None  # who is first alternates
            ours = built(context, commit)
            if hand and seconds is None:
                seconds = hand.build(commit)
            pairs.append(Pair(ours, seconds))
            note = f", by hand {seconds:.1f} s" if seconds else ""
            print(f"{commit[:10]} {ours.seconds:.1f} s, {ours.cache_hits} of {ours.cache_hits + ours.cache_misses} from"
                  f" the cache{note}", file=sys.stderr)  # fmt: skip
    print(HEADER)
    print(line(args.repo.resolve().name, pairs))


if __name__ == "__main__":
    main()
