"""What hunts are going to do, said before they begin: the commands for both ends (`--dry-run`), builds, runs, time and disk.

The commands are composed by the modules that would run them, and none of them is run. The hosts are only asked for memory,
cores, compiler, what perf can count, the user and a free port. The checkout and small files, which would be copied there, go to
a temporary folder of this machine, whose path is then replaced by that of the host's root folder.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import msgspec

from perfbisect.core.domain.settings import Settings
from perfbisect.core.search.decide import likely_builds, likely_runs
from perfbisect.errors import BuildFailed, EnvironmentFailure, UsageError
from perfbisect.host import jobs
from perfbisect.host.facts import CORES, MEMORY_MIB, ask
from perfbisect.host.local import LocalHost
from perfbisect.host.protocol import Host
from perfbisect.host.registry import connect
from perfbisect.hunt.patches import patches_of
from perfbisect.hunt.session import with_prior_knowledge
from perfbisect.hunt.setup import Recipes, read_hunt_range
from perfbisect.lab import Work
from perfbisect.lab.building import checkout, prebuilt
from perfbisect.lab.building.checkout import for_all
from perfbisect.lab.building.commit_build import check_out
from perfbisect.lab.building.log_parser import Stopwatch
from perfbisect.lab.building.plan import BuildContext, BuildPhase, BuildPlan, plan_for, present
from perfbisect.lab.building.toolchain import COMPILERS, Toolchain, cache_namespace, toolchain
from perfbisect.lab.measure import perf, visit
from perfbisect.lab.servers import Installation, Service, configuration, placeholders, service_in
from perfbisect.lab.training import SECONDS
from perfbisect.lab.upkeep import expected_builds, space_needed
from perfbisect.lab.workload import dataset, lua
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.builder_reader import variant_of
from perfbisect.recipes.inventory import HostEntry, load_host
from perfbisect.recipes.requested import load_requested
from perfbisect.recipes.workload import Workload, full_name, load_training
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.git import temporary_folder
from perfbisect.repository.range import CommitRange
from perfbisect.store.history import History
from perfbisect.store.prior_data import read_costs, read_kept
from perfbisect.wording.quantities import estimate, extent, size, span_of
from perfbisect.wording.text import listed, shell_word, shell_words

DROPS = (0.5, 0.04)  # that a hunt is expected for before its ends are measured

PID = 2**31 - 1  # placeholder for the processes of a server
BESIDE = "&  # ends when it is stopped"


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """Consecutive commands."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListingRequest:
    """A commit, and how it would be built and measured."""

    host: Host
    entry: HostEntry
    build_host: Host | None  # that builds, if it is another
    build_entry: HostEntry | None
    settings: Settings
    builder: Builder
    workload: Workload
    commit: str
    training: tuple[Workload, ...]  # with which it is trained, where it is optimised with a profile


def forecast(path: Path | None, every: Sequence[Settings], span: CommitRange, host: Host) -> str:
    """A line about these hunts, by the earlier ones in the history at ``path``: their noise, and what builds and runs took."""
    policy, choices = every[0].policy, len(span.graph.candidates)
    builds, known, further = likely_builds(choices, policy), "; runs: not known before the ends are measured", []
    with suppress(UsageError), closing(History.open(path, read_only=True)) as history:  # there may be none yet
        costs, prior = [read_costs(history, each) for each in every], with_prior_knowledge(history, every[0]).prior
        if prior.noise:
            drops = [max(drop, policy.min_effect) for drop in DROPS]
            runs = likely_runs(choices, drops, prior.noise, prior.build_cost, policy)
            known = f" and {span_of(*runs, 'run')}{' of each workload' * (len(every) > 1)}"
            if costs[0].build and all(cost.run for cost in costs):
                run = sum(cost.run or 0.0 for cost in costs)
                minutes = [(made * costs[0].build + ran * run) / 60 for made, ran in zip(builds, runs, strict=True)]
                low, high = (estimate(min(each, policy.max_minutes or each)) for each in minutes)
                further.append(low if low == high else f"{low} to {high.removeprefix('about ')}")
        most = expected_builds(len(span.candidates), policy.max_builds)
        if needed := space_needed(host, *read_kept(history, every[0]), most):
            further.append(f"{size(int(needed[0]))} of disk")
    begin = f"{extent(span.commits, choices, span.merges)}; about {span_of(*builds, 'build')}{known}"
    return "; ".join((begin, *(further or ["time and disk are known after the first ones"])))


def lines(path: Path | None, every: Sequence[Settings]) -> Iterator[str]:
    """What the hunts are likely to take, by the history at ``path``; the commands for the bad end, and those for the good end that differ; then those of further workloads that differ."""
    settings, *others = every
    recipes = load_requested(settings)
    span, _ = read_hunt_range(settings, recipes[0])
    with connect(load_host(settings.host, settings.hosts_path)) as host:
        yield f"# {forecast(path, every, span, host)}"
    bad = parts_of(settings, recipes, settings.bad_commit)
    yield f"# {settings.bad}, {settings.bad_commit}"
    yield from text(bad)
    good = [part for part in parts_of(settings, recipes, settings.good_commit) if part not in bad]
    yield ""
    if good:
        yield f"# {settings.good}, {settings.good_commit}: the same except"
        yield from text(good)
    else:
        yield f"# {settings.good}, {settings.good_commit}: the same"
    for other in others:
        yield ""
        yield f"# Workload {other.workload}, with the same builds: the same except"
        yield from text([part for part in parts_of(other, load_requested(other), other.bad_commit) if part not in bad])


def parts_of(settings: Settings, recipes: Recipes, commit: str) -> tuple[CommandGroup, ...]:
    """The commands for one commit, on the first host."""
    builder, workload = recipes
    entry = load_host(settings.host, settings.hosts_path)
    # All that build do it in the same way.
    build_entry = None if entry.builds else load_host(entry.built_elsewhere[0], settings.hosts_path)
    with connect(entry) as host, connect(build_entry) if build_entry else nullcontext() as build_host:
        training = load_training(builder, settings.variant, [workload], settings.workloads_path)
        where = host, entry, build_host, build_entry
        return list_commands(ListingRequest(*where, settings, builder, workload, commit, training))


def text(parts: Sequence[CommandGroup]) -> Iterator[str]:
    """The parts as a script with comments."""
    for part in parts:
        yield ""
        yield f"# {part.title}"
        yield from part.lines


def list_commands(request: ListingRequest) -> tuple[CommandGroup, ...]:
    """The commands of the build, of loading data, of a visit and of a run."""
    with temporary_folder() as path:
        scratch, folder = LocalHost(request.host.name, PurePosixPath(path)), str(path)
        work = scratch.root / "work" / request.builder.work_name
        beside, plans = _plans(request, scratch)
        parts = [(part, request.build_host or request.host) for part in (beside, *_build(request, work, *plans))]
        parts += [(part, request.host) for part in _measurement(request, scratch, work / "prefix", plans[-1])]
        there = [(part.title, part.lines, str(host.root)) for part, host in parts if part.lines]
        return tuple(
            CommandGroup(title.replace(folder, root), tuple(line.replace(folder, root) for line in lines))
            for title, lines, root in there
        )


def _plans(request: ListingRequest, scratch: LocalHost) -> tuple[CommandGroup, tuple[BuildPlan, ...]]:
    """The archives that the commit needs, and how it is built; where it is trained, how the build is made that counts, first."""
    builder, commit = request.builder, request.commit
    host, entry = request.build_host or request.host, request.build_entry or request.entry
    repository, patches = open_repository(Path(request.settings.repository)), patches_of(request.settings, builder)
    deque(steps := Work(checkout.mirror(scratch, repository, builder.work_name, [commit])), maxlen=0)
    name = request.settings.variant or builder.variant
    variant = variant_of(builder, name)
    tools, namespace = Toolchain("", "", ""), ""
    with suppress(EnvironmentFailure):  # `bisect doctor` shows what is missing
        tools = toolchain(host, variant)
        namespace = cache_namespace(host, tools.processor)
    entry = msgspec.structs.replace(entry, jobs=entry.jobs or ask(host, CORES) or 1)
    bare = steps.result
    context = BuildContext(scratch, entry, builder, name, variant, tools, bare, repository, namespace, patches)
    try:
        sources = for_all(scratch, bare, commit, patches)
        check_out(context, sources, Stopwatch())
        paths = present(context, sources.commit)
        phases = (BuildPhase.INSTRUMENTED, BuildPhase.OPTIMISED) if request.training else (BuildPhase.PLAIN,)
        needed = prebuilt.needed(scratch, bare, sources, builder, paths)
        beside = CommandGroup("archives", tuple(f"# {each} from {each.address}" for each in needed.values()))
        sums = {name: each.sha256 for name, each in needed.items()}
        return beside, tuple(plan_for(replace(context, phase=phase), commit, paths, sums) for phase in phases)
    except BuildFailed as failed:  # its log is as temporary as the folder
        raise EnvironmentFailure(str(failed)) from failed


def _build(request: ListingRequest, work: PurePosixPath, *plans: BuildPlan) -> Iterator[CommandGroup]:
    repository, builder = open_repository(Path(request.settings.repository)), request.builder
    listing = checkout.listed_submodules(repository, request.commit, builder.ignore, builder.repository)
    yield CommandGroup(f"submodules, in {work / 'source'}", tuple(f"# {line}" for line in listing))
    where, others = f"in {work / 'build'}", " or ".join(request.entry.built_elsewhere)
    if request.build_host:
        where = f"{where} on host {others}, which sends the result to host {request.host.name}"
    *before, plan = ((each, tuple(shell_words(argv) for _, argv in each.commands)) for each in plans)
    path = [f'PATH="${COMPILERS}:$PATH"'] if COMPILERS in plan[0].env else []
    env = (f"{name}={shell_word(value)}" for name, value in plan[0].env.items())
    yield CommandGroup("environment of the build", (*env, *path))
    for _, counting in before:
        yield CommandGroup(f"build that counts what it executes, {where}", counting)
        names = listed([full_name(each) for each in request.training])
        yield CommandGroup("training", (f"# loading, and at most {SECONDS:g} s of {names}, as below",))
    yield CommandGroup(f"build, {where}", plan[1])


def _measurement(
    request: ListingRequest, scratch: LocalHost, prefix: PurePosixPath, plan: BuildPlan
) -> Iterator[CommandGroup]:
    host, entry, workload = request.host, request.entry, request.workload
    size = ask(host, MEMORY_MIB) or 1, ask(host, CORES) or 1
    values = placeholders(scratch, entry, request.builder, *size)
    values |= {"commit": request.commit, "version": plan.version, "prefix": str(prefix)}
    system = Installation(request.commit, "", prefix, plan.builder, values)
    folder = dataset.visit_folder(host)
    service = service_in(host, system, folder, entry.server_cpus, write=False)
    if service:
        written = tuple(configuration(plan.builder, service.values).splitlines())
        yield CommandGroup(f"configuration of the server, {service.values['config']}", written)
    if format_command := plan.builder.dataset.format_command:
        lines = _steps(service, [format_command]) if service else [shell_words(dataset.format_argv(system, folder))]
        yield CommandGroup("the format of its data: builds that print the same share loaded data", tuple(lines))
    loading = dataset.Loading(host, system, workload, folder, service, lua.place(scratch, workload))
    yield CommandGroup("loading the data", tuple(_loading(loading)))
    bench = visit.RunContext(host, entry, workload, loading.placed, perf.counts(host))
    timed = visit.timed(visit.Visit(bench, system, 0, folder, "", service), [PID] if service else [])
    line = _with_environment(timed.argv, timed.env, timed.cpus).replace(f"-p {PID}", "-p SERVER")
    yield CommandGroup(f"a visit, on a copy of that, in {timed.cwd}", tuple(_served(service, line)))


def _loading(loading: dataset.Loading) -> Iterator[str]:
    service, check = loading.service, [loading.check()] if loading.service and loading.workload.check else []
    load, asked = ([_with_environment(step.argv, step.env) for step in each] for each in (loading.commands(), check))
    if service is None:
        yield from load
        return
    recipe = service.recipe
    yield from _steps(service, recipe.initialise)
    before, after = _steps(service, recipe.create), _steps(service, recipe.settle)
    yield from _served(replace(service, cpus=""), *before, *load, *after, *asked)


def _served(service: Service | None, *lines: str) -> Iterator[str]:
    """Commands while the server runs, between its start and its stop."""
    if service is None:
        yield from lines
        return
    [ready] = _steps(service, [service.recipe.ready])
    yield f"{_with_environment(service.argv(service.recipe.start), service.env, service.cpus)} {BESIDE}"
    yield f"until {ready}; do sleep 0.1; done"
    yield from lines
    yield from _steps(service, [service.recipe.stop]) if service.recipe.stop else ["kill -s TERM SERVER"]


def _steps(service: Service, argvs: Iterable[Sequence[str]]) -> list[str]:
    """Commands of the server's recipe."""
    return [_with_environment(service.argv(argv), service.env) for argv in argvs]


def _with_environment(argv: Sequence[str], env: Mapping[str, str], cpus: str = "") -> str:
    """A command with its environment variables and processors."""
    set_first = [f"{name}={shell_word(value)}" for name, value in env.items()]
    return " ".join([*set_first, shell_words([*jobs.pinned(cpus), *argv])])
