"""How long the builds of a hunt take: by hand in one tree, with another revision of perfbisect, and with this one.

python benchmarks/builds/run.py [--against DIR] [--json FILE] FOLDER:GOOD:BAD …

FOLDER is a clone. Builds the commits between two revisions that a hunt builds, in its order: each in turns by hand, with
the perfbisect of the work tree DIR, and with this one, each with files and compiler caches of its own. First with empty
caches, then all once more, without the builds but with the caches. Prints the seconds, and what they are beside the others'.
"""

import argparse
import inspect
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from perfbisect.core.domain.settings import QuickCommand, Settings
from perfbisect.errors import PerfBisectError
from perfbisect.host.registry import connect
from perfbisect.hunt.resolve import builder_of, resolve_commits
from perfbisect.lab import GeneratorWithResult
from perfbisect.lab.building import checkout, pipeline
from perfbisect.lab.building.plan import BuildContext, InstalledBuild
from perfbisect.recipes.build_systems import system_for_range
from perfbisect.recipes.inventory import load_host
from perfbisect.recipes.requested import RECIPE, requested_builder
from perfbisect.repository.discovery import open_repository

HOST = "local"
OURS = Path(__file__).resolve().parents[2]
SIDES = HAND, AGAINST, NOW = "by hand", "against", "now"
COLD, WARM = "cold", "warm"

# What a person runs once in a new tree, and after each checkout. BUILD is a folder beside the tree. Tests are left out of
# cmake's, as perfbisect does.
BY_HAND = {
    "cmake": ("cmake -S . -B $BUILD -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=OFF", "cmake --build $BUILD -j $JOBS"),
    "meson": ("meson setup --buildtype=release --wrap-mode=nodownload $BUILD", "ninja -C $BUILD -j $JOBS"),
    "autotools": ("[ -e configure ] || autoreconf -f -i; ./configure", "make -j $JOBS"),
    "make": ("", "make -j $JOBS"),
    "cargo": ("", "cargo build --release --offline -j $JOBS"),
    "go": ("", "mkdir -p $BUILD; go build -p $JOBS -o $BUILD/ ./..."),
}


@dataclass(frozen=True)
class Built:
    """One build of a commit, or its failure."""

    seconds: float
    error: str = ""
    how: str = ""  # "new tree": by hand, as it had failed in the old one; "incremental": in the tree of the last build
    hits: int = 0
    misses: int = 0
    phases: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Tree:
    """A clone and the two revisions between which is hunted."""

    folder: Path
    good: str
    bad: str

    def git(self, *arguments: str) -> list[str]:
        """The lines that git prints."""
        argv = ["git", "-C", str(self.folder), *arguments]
        return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()

    def system(self) -> str:
        """The build system of both ends."""
        found = system_for_range(self.git("ls-tree", "--name-only", end) for end in (self.good, self.bad))
        return found if found in BY_HAND else sys.exit(f"{self.folder}: both ends need the same build system")

    def hunted(self, count: int, seed: int) -> list[str]:
        """The first commits that hunts build: both ends, the middle, and the middles of halves that are drawn.

        A hunt that has come to its end is followed by another, into other halves.
        """
        ends = self.git("rev-parse", f"{self.good}^{{commit}}", f"{self.bad}^{{commit}}")
        commits = [ends[0], *self.git("rev-list", "--reverse", "--topo-order", f"{ends[0]}..{ends[1]}")]
        draw, low, high = random.Random(seed), 0, len(commits) - 1
        order = [low, high]
        while len(order) < min(count, len(commits)):
            if high - low < 2:
                low, high = 0, len(commits) - 1
            middle = (low + high) // 2
            if middle not in order:
                order.append(middle)
            low, high = draw.choice(((low, middle), (middle, high)))
        return [commits[place] for place in order]


class ByHand:
    """A person's tree and compiler cache."""

    def __init__(self, tree: Tree, folder: Path, jobs: int) -> None:
        """Clone the repository. A compiler that is called by its name goes through ccache."""
        self.source, self.folder = folder / "source", folder
        self.first, self.then = BY_HAND[tree.system()]
        ccache = shutil.which("ccache") or sys.exit("ccache is missing")
        (folder / "bin").mkdir(parents=True)
        for name in ("cc", "gcc", "c++", "g++"):
            (folder / "bin" / name).symlink_to(ccache)
        self.env = own_home(folder) | {
            "BUILD": str(folder / "build"), "JOBS": str(jobs), "CCACHE_DIR": str(folder / "ccache"),
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        } | ({"CMAKE_GENERATOR": "Ninja"} if shutil.which("ninja") else {})  # fmt: skip
        clone = ["git", "clone", "-q", "--shared", "--no-checkout", str(tree.folder), str(self.source)]
        subprocess.run(clone, check=True)

    def build(self, commit: str, *, new: bool) -> Built:
        """Check out and build: as a person does, once more in an empty tree if that fails."""
        began = time.monotonic()
        failed = self.tried(commit, new=new)
        how = "new tree" if failed and not new else ""
        if how:
            failed = self.tried(commit, new=True)
        return Built(time.monotonic() - began, failed, how)

    def tried(self, commit: str, *, new: bool) -> str:
        """What is wrong after a build; "" where nothing is."""
        steps = ["git checkout -q -f --detach $COMMIT"]
        if new:
            steps = [*steps, "git clean -q -ffdx", "rm -rf $BUILD", self.first]
        log, script = self.folder / f"{commit[:10]}.log", "\n".join([*steps, self.then])
        with log.open("w") as said:
            argv, env = ["sh", "-ec", script], self.env | {"COMMIT": commit}
            status = subprocess.run(argv, cwd=self.source, env=env, stdout=said, stderr=said, check=False).returncode
        return f"status {status}, see {log}" if status else ""


def own_home(folder: Path) -> dict[str, str]:
    """An environment with a home of its own that has everything but caches, of which go and others keep some there."""
    home = folder / "home"
    home.mkdir(parents=True)
    for each in Path.home().iterdir():
        if each.name != ".cache":
            (home / each.name).symlink_to(each)
    caches = "CCACHE_", "GOCACHE", "XDG_CACHE_HOME"
    return {name: value for name, value in os.environ.items() if not name.startswith(caches)} | {"HOME": str(home)}


class Product:
    """The builds of a perfbisect, in a process of its own."""

    def __init__(self, tree: Tree, folder: Path, jobs: int, work_tree: Path) -> None:
        """Start it, and send it the sources."""
        self.root, package = folder / "root", work_tree / "bisect"
        request = {"repository": str(tree.folder), "ends": [tree.good, tree.bad], "root": str(self.root), "jobs": jobs}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", json.dumps(request)],
            env=own_home(folder) | {"PYTHONPATH": str(package)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        if (loaded := self.answer()) != str(package / "perfbisect"):
            sys.exit(f"The perfbisect of {work_tree} was not loaded, but {loaded}")

    def answer(self) -> Any:
        """The next answer. Ends the program where there is none."""
        assert self.process.stdout
        return json.loads(self.process.stdout.readline() or sys.exit(f"A build process ended: {self.process.args}"))

    def build(self, commit: str, *, new: bool) -> Built:
        """Build a commit as an end of a range, or as a search does between the ends."""
        assert self.process.stdin
        print(json.dumps([commit, new]), file=self.process.stdin, flush=True)
        return Built(**self.answer())


def work(request: dict[str, Any]) -> None:
    """Build each commit that is asked for on standard input, until that ends; in the process of a ``Product``."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    context = prepare(**request)
    print(json.dumps(str(Path(inspect.getfile(pipeline)).parents[2])), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(asdict(built(context, *json.loads(line)))), file=answers, flush=True)


def prepare(repository: str, ends: list[str], root: str, jobs: int) -> BuildContext:
    """What builds of a range need: those of `bisect run --run COMMAND`."""
    Path(root).mkdir()
    hosts = Path(root).parent / "hosts.toml"
    hosts.write_text(f'[hosts.{HOST}]\nroot = "{root}"\njobs = {jobs}\n')
    quick = QuickCommand(run="true", build=())
    settings = Settings(*ends, host=HOST, builder=RECIPE, workload="", repository=repository, quick=quick)
    settings, commits = resolve_commits(settings, builder_of(settings), ends)
    builder, entry = requested_builder(settings), load_host(HOST, str(hosts))
    host, clone = connect(entry), open_repository(Path(settings.repository))
    mirror = GeneratorWithResult(checkout.bring_mirror(host, clone, builder.work_name, commits))
    list(mirror)
    return pipeline.build_context(host, entry, builder, settings.variant, mirror.result, clone)


def built(context: BuildContext, commit: str, new: bool) -> Built:
    """Build a commit as a hunt does: between the ends in the tree of the build before, where that is known."""
    build: Callable[..., Generator[Any, None, InstalledBuild]] = pipeline.build_commit
    choice = {"clean": new} if "clean" in inspect.signature(build).parameters else {}
    building, began = GeneratorWithResult(build(context, commit, **choice)), time.monotonic()
    try:
        list(building)
    except PerfBisectError as failure:
        return Built(time.monotonic() - began, str(failure))
    seconds, facts = time.monotonic() - began, building.result.facts
    how = "incremental" if getattr(facts, "incremental", False) else ""
    return Built(seconds, "", how, facts.cache_hits, facts.cache_misses, dict(getattr(facts, "phases", {})))


Row = dict[str, Built]  # of one commit, by the side that built it


def ratios(rows: Iterable[Row], other: str) -> list[float]:
    """The time of this perfbisect, divided by the other's, for each commit that both have built."""
    both = [(row[NOW], row[other]) for row in rows if NOW in row and other in row]
    return [now.seconds / than.seconds for now, than in both if not (now.error or than.error)]


def line(*titles: str, rows: Sequence[Row]) -> str:
    """A row of the table for some commits: the sums of their seconds, and the medians of the ratios."""
    cells = list(titles)
    for side in SIDES:
        found = [row[side] for row in rows if side in row]
        said = [("failed" if each.error else each.how) for each in found] if len(rows) == 1 else []
        cells.append(" ".join([f"{sum(each.seconds for each in found):.1f}", *said]).strip() if found else "")
    for other in (HAND, AGAINST):
        cells.append(f"{median(found):.2f}" if (found := ratios(rows, other)) else "")
    return f"| {' | '.join(cells)} |"


def measure(tree: Tree, folder: Path, args: argparse.Namespace, keep: Callable[..., None]) -> None:
    """Build the commits of a tree, print a table, and keep each build."""
    name, commits = tree.folder.name, tree.hunted(args.commits, args.seed)
    hand = ByHand(tree, folder / "hand", args.jobs)
    places = {AGAINST: args.against, NOW: OURS}
    products = {side: Product(tree, folder / side, args.jobs, place) for side, place in places.items() if place}
    for state in (COLD, WARM):
        rows: list[Row] = []
        for product in products.values():
            shutil.rmtree(product.root / "builds", ignore_errors=True)
        for number, commit in enumerate(commits):
            row = {HAND: hand.build(commit, new=number == 0)}
            row |= {side: product.build(commit, new=number < 2) for side, product in products.items()}
            for side, each in row.items():
                keep(name, state, side, commit=commit, build=each)
                if each.error:
                    print(f"{name} {commit[:10]} {side}: {each.error}", file=sys.stderr)
            rows.append(row)
            print(line(name, state, commit[:10], rows=[row]), flush=True)
        print(line(name, state, "all", rows=rows), flush=True)
    for product in products.values():
        product.process.communicate()  # it ends with its input


def main() -> None:
    """Measure each tree."""
    if sys.argv[1:2] == ["--worker"]:
        return work(json.loads(sys.argv[2]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="DIR", help="a work tree of another revision of perfbisect")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keeps every build there, with its phases")
    parser.add_argument("--commits", type=int, default=12, help="of each tree")
    parser.add_argument("--seed", type=int, default=1, help="chooses the halves")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", type=Path, help="an empty folder to work in, which is kept")
    parser.add_argument("trees", nargs="+", metavar="FOLDER:GOOD:BAD")
    args = parser.parse_args()
    args.against = args.against and args.against.resolve()
    builds: list[dict[str, Any]] = []

    def keep(tree: str, state: str, side: str, *, commit: str, build: Built) -> None:
        builds.append({"tree": tree, "state": state, "side": side, "commit": commit, **asdict(build)})
        if args.json:
            args.json.write_text(json.dumps(builds, indent=1) + "\n")

    print(f"| tree | caches | commit | {', s | '.join(SIDES)}, s | now / by hand | now / against |")
    print("|---|---|---|--:|--:|--:|--:|--:|")
    for text in args.trees:
        folder, good, bad = text.rsplit(":", 2)
        tree = Tree(Path(folder).resolve(), good, bad)
        with tempfile.TemporaryDirectory() as temporary:
            measure(tree, (args.folder or Path(temporary)).resolve() / tree.folder.name, args, keep)
    return None


if __name__ == "__main__":
    main()
