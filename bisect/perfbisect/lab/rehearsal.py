"""What a hunt would run for a commit, told command by command; nothing of it is run.

Everything is put together by those who would run it, for a scratch folder of this machine in place of the host's root
folder. Of the host itself only its memory, cores and compiler are asked.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from perfbisect.errors import EnvironmentFailure
from perfbisect.host.facts import CORES, MEMORY_MIB, ask
from perfbisect.host.local import LocalHost
from perfbisect.host.protocol import Host
from perfbisect.lab import build, command, dataset, recipe, scripts, settings, source, sysbench, visit
from perfbisect.lab.server import Service, disguise, driver_options, service_in
from perfbisect.lab.steps import Steps
from perfbisect.lab.system import System
from perfbisect.lab.toolchain import Toolchain, toolchain
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.lineage import variant_of
from perfbisect.recipes.placeholders import Values, fill
from perfbisect.recipes.workload import Workload

PID = 2**31 - 1  # stands for the processes of a server
BESIDE = "&  # ends when it is told to stop"


@dataclass(frozen=True, slots=True)
class Part:
    """Commands that are run one after the other."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is asked: a commit, and how it would be built and measured."""

    host: Host
    entry: HostEntry
    builder: Builder
    variant: str
    workload: Workload
    repository: Path
    commit: str


def rehearse(subject: Subject) -> tuple[Part, ...]:
    """The commands of the build, of loading data, of a visit and of a run."""
    with TemporaryDirectory(prefix="perfbisect-") as folder:
        scratch = LocalHost(subject.host.name, PurePosixPath(folder))
        parts = tuple(_parts(subject, scratch))
    root, pids = str(subject.host.root), ("-p " + str(PID), "-p SERVER")

    def there(line: str) -> str:
        return line.replace(folder, root).replace(*pids)

    return tuple(Part(there(part.title), tuple(map(there, part.lines))) for part in parts if part.lines)


def _parts(subject: Subject, scratch: LocalHost) -> Iterator[Part]:
    workload, entry = subject.workload, subject.entry
    plan, work = _plan(subject, scratch)
    yield Part("environment of the build", tuple(f"{name}={shlex.quote(value)}" for name, value in plan.env.items()))
    yield Part(f"build, in {work / 'build'}", _lines(argv for _, argv in plan.commands))
    cores = ask(subject.host, CORES) or 1
    values: Values = {
        "recipe": str(recipe.place(scratch, subject.builder)), "commit": subject.commit, "version": plan.version,
        "prefix": str(work / "prefix"), "jobs": entry.jobs or cores,
        **settings.sizes(entry, ask(subject.host, MEMORY_MIB) or 0, cores),
    }  # fmt: skip
    system = System(subject.commit, "", work / "prefix", plan.builder, values)
    folder = dataset.visit_folder(scratch)
    scratch.run(["mkdir", "-p", str(folder)])
    service = service_in(scratch, system, folder, entry.server_cpus)
    if service:
        service = replace(service, disguise=disguise(subject.host, service.recipe))
        written = settings.configuration(plan.builder, service.values)
        yield Part(f"configuration of the server, {service.values.get('config')}", tuple(written.splitlines()))
    yield Part("loading the data, once", tuple(_loading(scratch, system, workload, folder, service)))
    bench = visit.Bench(scratch, entry, workload, scripts.place(scratch, workload), True, False, False)
    timed = visit.timed(visit.Visit(bench, system, 0, folder, "", service), [PID] if service else [])
    yield Part("a visit, on a copy of that", tuple(_served(service, _told(timed.argv, timed.env))))


def _plan(subject: Subject, scratch: LocalHost) -> tuple[build.Plan, PurePosixPath]:
    """How the commit is built, and the folder of that."""
    builder, commit = subject.builder, subject.commit
    making = Steps(source.mirror(scratch, subject.repository, builder.place, [commit]))
    for _ in making:
        pass
    bare = making.result
    name = subject.variant or builder.variant
    variant = variant_of(builder, name)
    try:
        tools = toolchain(subject.host, variant)
    except EnvironmentFailure:  # `bisect doctor` tells what is missing
        tools = Toolchain("", "", "")
    shop = build.Workshop(scratch, subject.entry, builder, name, variant, tools, bare)
    source.checkout(scratch, bare, commit, shop.work / "source", builder.ignore)
    return build.plan_for(shop, commit, build.present(shop, commit)), shop.work


def _loading(
    scratch: LocalHost, system: System, workload: Workload, folder: PurePosixPath, service: Service | None
) -> Iterator[str]:
    placed = scripts.place(scratch, workload)
    loading = [
        *(fill(argv, command.values(system, workload, placed, folder, service)) for argv in workload.prepare_commands)
    ]
    env: Mapping[str, str] = {}
    if script := scripts.preparing(workload):
        there = scripts.on_host(placed, workload, script)
        loading.append(sysbench.prepare_command(workload, there, driver_options(system.builder, service)))
        env = scripts.environment(workload, placed, folder / "data", system.library)
    load = [_told(argv, env) for argv in loading]
    if service is None:
        yield from load
        return
    yield from _lines(service.argv(argv) for argv in service.recipe.initialise)
    create, settle = (
        _lines(service.argv(argv) for argv in argvs) for argvs in (service.recipe.create, service.recipe.settle)
    )
    yield from _served(service, *create, *load, *settle)


def _served(service: Service | None, *lines: str) -> Iterator[str]:
    """What is run while the server is up, and before and after that."""
    if service is None:
        yield from lines
        return
    yield f"{_told(service.argv(service.recipe.start), service.env)} {BESIDE}"
    yield f"until {shlex.join(service.argv(service.recipe.ready))}; do sleep 0.1; done"
    yield from lines
    yield shlex.join(service.argv(service.recipe.stop)) if service.recipe.stop else "kill -s TERM SERVER"


def _told(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """A command with the variables that it is given."""
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in env.items()), shlex.join(argv)])


def _lines(argvs: Iterator[Sequence[str]]) -> tuple[str, ...]:
    return tuple(shlex.join(argv) for argv in argvs)
