"""How much the layouts of one build differ, measured side by side: for engines that are libraries.

python benchmarks/layouts/run.py --builder NAME --rev REV --repo DIR --workload W,… [--variant V …] [--layouts N]

Builds the revision in each variant, links each build again in N layouts, and lets all of them run the workload at the
same time on one core. The scheduler switches between them every few milliseconds, so what disturbs the host disturbs
all of them alike, and a difference far below the noise of runs in turns can be seen. Prints a row of a table for each
workload: for each variant the s.d. between layouts with its 95 % interval and the range of the layouts, then the mean of
the layouts of each variant relative to the first.

The metric is cycles per operation in user mode, or CPU time per operation where perf cannot count cycles.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))  # what benchmarks share

from layout_effect import LayoutEffect, effect_of

from perfbisect.core.domain.settings import Patch, Settings
from perfbisect.host.registry import connect
from perfbisect.hunt.patches import patches_of
from perfbisect.hunt.resolve import builder_of, resolve_commits
from perfbisect.lab import GeneratorWithResult
from perfbisect.lab.building import build_store, checkout, links, pipeline
from perfbisect.lab.workload import lua, sysbench
from perfbisect.recipes.builder_reader import read_patch
from perfbisect.recipes.inventory import load_host
from perfbisect.recipes.requested import requested_builder
from perfbisect.recipes.workload import Workload, choose_workloads
from perfbisect.repository.discovery import open_repository

HOST = "local"
LIMIT = 600.0  # seconds in which a round has to end


@dataclass(frozen=True)
class Build:
    """A variant, as it was linked and in its layouts."""

    variant: str
    installed: tuple[Path, ...]  # the first is as it was linked
    library: str  # below each


def built(settings: Settings, variant: str, layouts: int, hosts: Path) -> Build:
    """Build the good end of ``settings`` in a variant, and link it again with the seeds 1 … ``layouts``."""
    settings = replace(settings, variant=variant)
    builder, entry = requested_builder(settings), load_host(HOST, str(hosts))
    host, repository = connect(entry), open_repository(Path(settings.repository))
    mirror = GeneratorWithResult(checkout.bring_mirror(host, repository, builder.work_name, [settings.good_commit]))
    list(mirror)
    context = pipeline.build_context(host, entry, builder, variant, mirror.result, repository, layouts=True)
    context = replace(context, patches=patches_of(settings, builder))
    building = GeneratorWithResult(pipeline.build_commit(context, settings.good_commit))
    list(building)
    facts = building.result.facts
    if facts.fixed or context.recorder is None:
        sys.exit(f"{variant}: it cannot be linked again: {facts.fixed or 'the host has no linker'}")
    made = [
        facts.key,
        *(links.link_layout(host, facts.key, seed, context.recorder.linker) for seed in range(1, layouts + 1)),
    ]
    return Build(variant, tuple(Path(build_store.build_folder(host, key)) / "prefix" for key in made), builder.library)


def started(
    argv: Sequence[str], env: Mapping[str, str], folder: Path, core: int, event: str
) -> "subprocess.Popen[str]":
    """One layout's process, waiting for its share of the core."""
    for name in ("control", "ack"):
        os.mkfifo(folder / name)
    counting = ["perf", "stat", "-x", ",", "-o", str(folder / "counters"), "-e", event, "--delay=-1"]
    fifos = f"fifo:{folder / 'control'},{folder / 'ack'}"
    return subprocess.Popen(
        ["taskset", "-c", str(core), *counting, "--control", fifos, "--", *argv],
        env=os.environ | dict(env) | {"PERFBISECT_CONTROL": f"{folder}/control", "PERFBISECT_ACK": f"{folder}/ack"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def side_by_side(installed: Sequence[Path], library: str, workload: Workload, place: "Place") -> list[float]:
    """The logarithm of the cost of an operation in each layout, all of them running at the same time."""
    with tempfile.TemporaryDirectory(dir=place.folder) as temporary:
        running = []
        for number, prefix in enumerate(installed):
            folder = Path(temporary, str(number))
            (folder / "data").mkdir(parents=True)
            env = lua.environment(
                workload, place.scripts, PurePosixPath(folder / "data"), PurePosixPath(prefix / library)
            )
            script = lua.prepare_script(workload)
            if script:
                load = sysbench.prepare_argv(workload, lua.script_path_on_host(place.scripts, workload, script))
                subprocess.run(load, env=os.environ | env, check=True, capture_output=True, timeout=LIMIT)
            run = sysbench.run_argv(
                workload, lua.script_path_on_host(place.scripts, workload, lua.timed_run_script(workload))
            )
            running.append((folder, started(run, env, folder, place.core, place.event)))
        costs = []
        for folder, process in running:
            printed, _ = process.communicate(timeout=LIMIT)
            if process.returncode:
                sys.exit(f"A run ended with status {process.returncode}:\n{printed}")
            operations = sysbench.parse_output(printed.splitlines(), workload.operation).operations
            costs.append(math.log(float((folder / "counters").read_text().splitlines()[-1].split(",")[0]) / operations))
        return costs


@dataclass(frozen=True)
class Place:
    """Where the runs are made, and what is counted."""

    folder: Path
    scripts: PurePosixPath
    core: int
    event: str


def compared(
    builds: Sequence[Build], workload: Workload, place: Place, rounds: int
) -> list[tuple[LayoutEffect, float]]:
    """The effect of layout in each variant, and the mean of its layouts relative to the first variant's."""
    everything = [prefix for build in builds for prefix in build.installed]
    measured = [side_by_side(everything, builds[0].library, workload, place) for _ in range(rounds)]
    found: list[tuple[LayoutEffect, float]] = []
    first, begin = 0.0, 0
    for build in builds:
        own = range(begin, begin + len(build.installed))
        begin = own.stop
        effect = effect_of({(k - own.start, at): each[k] for at, each in enumerate(measured) for k in own})
        level = sum(each[k] for each in measured for k in own[1:]) / (rounds * (len(own) - 1))
        first = level if not found else first
        found.append((effect, math.exp(level - first)))
    return found


def counted() -> str:
    """The event of perf that is the cost of an operation."""
    tried = subprocess.run(
        ["perf", "stat", "-x", ",", "-e", "cycles:u", "true"], capture_output=True, text=True, check=False
    )
    return "cycles:u" if tried.returncode == 0 and "<not" not in tried.stderr else "task-clock:u"


def cells(effect: LayoutEffect) -> str:
    """Two cells of the table."""
    return (
        f"{100 * effect.sd:.1f} % ({100 * effect.low:.1f} to {100 * effect.high:.1f})"
        f" | {effect.lowest:.3f} to {effect.highest:.3f}"
    )


def main() -> None:
    """Build, link, measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repo", type=Path, required=True)
    parser.add_argument("--rev", required=True)
    parser.add_argument("--builder", required=True)
    parser.add_argument("--builders", default="", help="a folder with recipes")
    parser.add_argument("--patch", action="append", type=Path, default=[])
    parser.add_argument("--configure", action="append", default=[], metavar="OPTION")
    parser.add_argument(
        "--variant", action="append", default=[], help="repeatable (default: o2nofp and o2nofp-aligned)"
    )
    parser.add_argument("--workload", required=True, help="names or groups, separated by commas")
    parser.add_argument("--layouts", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=1, help="of CPU time for each layout in a round, about")
    parser.add_argument("--core", type=int, default=(os.cpu_count() or 1) - 1)
    parser.add_argument("--root", type=Path, help="a root folder, which is kept")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = (args.root or Path(temporary, "root")).resolve()
        hosts = Path(temporary, "hosts.toml")
        hosts.write_text(f'[hosts.{HOST}]\naddress = "local"\nroot = "{root}"\n')
        settings = Settings(
            good=args.rev, bad=args.rev, host=HOST, builder=args.builder, workload="",
            repository=str(args.repo.resolve()), builders_path=args.builders,
            patches=tuple(Patch(path.name, read_patch(path)) for path in args.patch), configure=tuple(args.configure),
        )  # fmt: skip
        settings, (commit,) = resolve_commits(settings, builder_of(settings), [args.rev])
        settings = replace(settings, good_commit=commit)
        variants = args.variant or ["o2nofp", "o2nofp-aligned"]
        builds = [built(settings, variant, args.layouts, hosts) for variant in variants]
        host, event = connect(load_host(HOST, str(hosts))), counted()
        length = args.seconds * sum(len(build.installed) for build in builds)
        print(f"{event}, {args.layouts} layouts, {args.rounds} rounds", file=sys.stderr)
        header = "".join(f" {name}: s.d. | layouts |" for name in variants)
        ratios = "".join(f" {name} to {variants[0]} |" for name in variants[1:])
        print(f"| workload |{header}{ratios}")
        print("|---|" + "---|" * (2 * len(variants)) + "--:|" * (len(variants) - 1))
        for name, workload in choose_workloads(args.workload, builder_of(settings).driver).items():
            workload = msgspec.structs.replace(workload, time=float(length))
            place = Place(Path(temporary), lua.place_scripts(host, workload), args.core, event)
            found = compared(builds, workload, place, args.rounds)
            row = " | ".join(cells(effect) for effect, _ in found) + "".join(
                f" | {ratio:.3f}" for _, ratio in found[1:]
            )
            print(f"| {name} | {row} |", flush=True)


if __name__ == "__main__":
    main()
