"""For `--dry-run`: the probable builds, runs, time and disk space of hunts that have not begun, and the commands that
the hunts would run for good and bad.

The commands are made by the modules that a hunt uses, but no command is run. On the hosts, perfbisect only reads facts:
memory, cores, compiler, counters of perf, the user and a free port. A checkout and small files, which are needed to
compose the commands, are made in a temporary folder of this machine. In the printed commands, the path of the host's
root folder replaces the path of this temporary folder.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import msgspec

from perfbisect.core.domain.settings import Settings
from perfbisect.core.search.decide import build_bounds, run_bounds
from perfbisect.errors import BuildFailed, EnvironmentFailure, UsageError
from perfbisect.host import jobs
from perfbisect.host.facts import CORES, MEMORY_MIB, read_fact
from perfbisect.host.local import LocalHost
from perfbisect.host.protocol import Host
from perfbisect.host.registry import connect
from perfbisect.hunt.patches import patches_of
from perfbisect.hunt.session import with_prior_knowledge
from perfbisect.hunt.setup import Recipes, read_hunt_range
from perfbisect.lab import GeneratorWithResult
from perfbisect.lab.building import checkout, prebuilt
from perfbisect.lab.building.checkout import with_common_patches
from perfbisect.lab.building.commit_build import check_out
from perfbisect.lab.building.log_parser import PhaseStopwatch
from perfbisect.lab.building.plan import BuildContext, BuildPlan, PgoBuildKind, plan_for, present_condition_paths
from perfbisect.lab.building.toolchain import COMPILERS, Toolchain, cache_namespace, toolchain
from perfbisect.lab.measure import perf, visit
from perfbisect.lab.servers import Installation, Service, configuration_text, host_placeholders, service_in
from perfbisect.lab.training import SECONDS
from perfbisect.lab.upkeep import expected_builds, needed_and_build_bytes
from perfbisect.lab.workload import dataset, lua
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.builder_reader import find_variant
from perfbisect.recipes.inventory import HostEntry, load_host
from perfbisect.recipes.requested import load_requested
from perfbisect.recipes.workload import Workload, load_training_workloads, qualified_name
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.git import temporary_folder
from perfbisect.repository.range import CommitRange
from perfbisect.store.history import History
from perfbisect.store.prior_data import latest_build_and_dataset_keys, read_typical_costs
from perfbisect.wording.quantities import estimate, extent, size, span_of
from perfbisect.wording.text import listed, shell_word, shell_words

DROPS = (0.5, 0.04)  # the largest and the smallest drop of a forecast, before the ends are measured

PID = 2**31 - 1  # placeholder for the processes of a server
IN_BACKGROUND = "&  # runs until it is stopped below; SERVER is its process id"


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """Successive commands of the printed script, with a title."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CommandListRequest:
    """A request to list the commands for a commit, with the hosts and recipes."""

    host: Host
    entry: HostEntry
    build_host: Host | None  # None: the host itself builds
    build_entry: HostEntry | None
    settings: Settings
    builder: Builder
    workload: Workload
    commit: str
    training: tuple[Workload, ...]  # workloads of the training, with profile-guided optimization


def forecast_line(path: Path | None, hunts: Sequence[Settings], span: CommitRange, host: Host) -> str:
    """A line with the probable builds, runs, time and disk space of hunts over one range.

    The estimate uses the noise, and the durations of builds and runs, of earlier hunts in the history at ``path``.
    """
    policy, choices = hunts[0].policy, len(span.graph.candidates)
    builds, runs_text, more_parts = (
        build_bounds(choices, policy),
        "; number of runs: unknown until good and bad are measured",
        [],
    )
    with suppress(UsageError), closing(History.open(path, read_only=True)) as history:  # there may be no history yet
        costs = [read_typical_costs(history, settings) for settings in hunts]
        prior = with_prior_knowledge(history, hunts[0]).prior
        if prior.noise:
            drops = [max(drop, policy.min_effect) for drop in DROPS]
            runs = run_bounds(choices, drops, prior.noise, prior.build_cost, policy)
            runs_text = f" and {span_of(*runs, 'run')}{' of each workload' * (len(hunts) > 1)}"
            if costs[0].build_seconds and all(cost.run_seconds for cost in costs):
                run_seconds = sum(cost.run_seconds or 0.0 for cost in costs)
                minutes = [
                    (build_count * costs[0].build_seconds + run_count * run_seconds) / 60
                    for build_count, run_count in zip(builds, runs, strict=True)
                ]
                low, high = (estimate(min(duration, policy.max_minutes or duration)) for duration in minutes)
                more_parts.append(low if low == high else f"{low} to {high.removeprefix('about ')}")
        max_builds = expected_builds(len(span.candidates), policy.max_builds)
        if needed := needed_and_build_bytes(host, *latest_build_and_dataset_keys(history, hunts[0]), max_builds):
            more_parts.append(f"{size(int(needed[0]))} of disk space")
    first_part = f"{extent(span.commits, choices, span.merges)}; about {span_of(*builds, 'build')}{runs_text}"
    return "; ".join((first_part, *(more_parts or ["time and disk space: unknown until the first builds and runs"])))


def dry_run_lines(path: Path | None, hunts: Sequence[Settings]) -> Iterator[str]:
    """The lines that --dry-run prints for hunts over one range: the forecast, then a script with the commands.

    The script has all commands for bad. For good, and for further workloads, the script has only commands that differ
    from the commands for bad. The forecast uses earlier hunts in the history at ``path``.
    """
    settings, *further_hunts = hunts
    recipes = load_requested(settings)
    span, _ = read_hunt_range(settings, recipes[0])
    with connect(load_host(settings.host, settings.hosts_path)) as host:
        yield f"# {forecast_line(path, hunts, span, host)}"
    bad = commands_for_commit(settings, recipes, settings.bad_commit)
    yield " ".join(dict.fromkeys(("# bad:", settings.bad, settings.bad_commit)))
    yield from script_lines(bad)
    good = [group for group in commands_for_commit(settings, recipes, settings.good_commit) if group not in bad]
    yield ""
    revisions = " ".join(dict.fromkeys(("# good:", settings.good, settings.good_commit)))
    yield f"{revisions}: the same commands{', except:' * bool(good)}"
    yield from script_lines(good)
    for hunt in further_hunts:
        groups = commands_for_commit(hunt, load_requested(hunt), hunt.bad_commit)
        yield ""
        yield f"# Workload {hunt.workload}, with the same builds: the same commands, except:"
        yield from script_lines([group for group in groups if group not in bad])


def commands_for_commit(settings: Settings, recipes: Recipes, commit: str) -> tuple[CommandGroup, ...]:
    """The commands for a commit on the first host; if the first host makes no builds, also the commands on its first
    build host."""
    builder, workload = recipes
    entry = load_host(settings.host, settings.hosts_path)
    build_entry = None if entry.builds_itself else load_host(entry.build_hosts_except_itself[0], settings.hosts_path)
    with connect(entry) as host, connect(build_entry) if build_entry else nullcontext() as build_host:
        training = load_training_workloads(builder, settings.variant, [workload], settings.workloads_path)
        hosts = host, entry, build_host, build_entry
        return list_commands(CommandListRequest(*hosts, settings, builder, workload, commit, training))


def script_lines(groups: Sequence[CommandGroup]) -> Iterator[str]:
    """The lines of a script with the commands; the titles of the groups are comments."""
    for group in groups:
        yield ""
        yield f"# {group.title}"
        yield from group.lines


def list_commands(request: CommandListRequest) -> tuple[CommandGroup, ...]:
    """The commands that make the build, load the data, begin a visit, and measure a run."""
    with temporary_folder() as path:
        scratch, folder = LocalHost(request.host.name, PurePosixPath(path)), str(path)
        work = scratch.root / "work" / request.builder.work_name
        archives, plans = _archives_and_plans(request, scratch)
        build_groups = (archives, *_build_groups(request, work, *plans))
        groups = [(group, request.build_host or request.host) for group in build_groups]
        groups += [(group, request.host) for group in _visit_groups(request, scratch, work / "prefix", plans[-1])]
        with_roots = [(group.title, group.lines, str(host.root)) for group, host in groups if group.lines]
        return tuple(
            CommandGroup(title.replace(folder, root), tuple(line.replace(folder, root) for line in lines))
            for title, lines, root in with_roots
        )


def _archives_and_plans(request: CommandListRequest, scratch: LocalHost) -> tuple[CommandGroup, tuple[BuildPlan, ...]]:
    """A group that lists the archives that the commit needs, as comments; and the plans of the commit's build.

    With profile-guided optimization, there are two plans: for the instrumented build, then for the final build.
    """
    builder, commit = request.builder, request.commit
    host, entry = request.build_host or request.host, request.build_entry or request.entry
    repository, patches = open_repository(Path(request.settings.repository)), patches_of(request.settings, builder)
    steps = GeneratorWithResult(checkout.bring_mirror(scratch, repository, builder.work_name, [commit]))
    deque(steps, maxlen=0)
    name = request.settings.variant or builder.variant
    variant = find_variant(builder, name)
    tools, namespace = Toolchain("", "", ""), ""
    with suppress(EnvironmentFailure):  # the listing needs no compiler; `bisect doctor` lists missing tools
        tools = toolchain(host, variant)
        namespace = cache_namespace(host, tools.processor)
    entry = msgspec.structs.replace(entry, jobs=entry.jobs or read_fact(host, CORES) or 1)
    bare = steps.result
    context = BuildContext(scratch, entry, builder, name, variant, tools, bare, repository, namespace, patches)
    try:
        sources = with_common_patches(scratch, bare, commit, patches)
        check_out(context, sources, PhaseStopwatch())
        paths = present_condition_paths(context, sources.built_commit)
        kinds = (PgoBuildKind.INSTRUMENTED, PgoBuildKind.OPTIMISED) if request.training else (PgoBuildKind.PLAIN,)
        needed = prebuilt.needed_archives(scratch, bare, sources, builder, paths)
        archives = CommandGroup("archives", tuple(f"# {archive} from {archive.address}" for archive in needed.values()))
        sums = {name: archive.sha256 for name, archive in needed.items()}
        return archives, tuple(plan_for(replace(context, pgo_kind=kind), commit, paths, sums) for kind in kinds)
    except BuildFailed as failed:  # the new error names no log, because the log's folder is temporary
        raise EnvironmentFailure(str(failed)) from failed


def _build_groups(request: CommandListRequest, work: PurePosixPath, *plans: BuildPlan) -> Iterator[CommandGroup]:
    """Groups with the commit's submodules (as comments), with the environment of its build, and with the commands."""
    repository, builder = open_repository(Path(request.settings.repository)), request.builder
    listing = checkout.submodule_origin_lines(repository, request.commit, builder.ignore, builder.repository)
    yield CommandGroup(f"submodules, in {work / 'source'}", tuple(f"# {line}" for line in listing))
    location, build_hosts = f"in {work / 'build'}", " or ".join(request.entry.build_hosts_except_itself)
    if request.build_host:
        location = f"{location} on host {build_hosts}, which sends the result to host {request.host.name}"
    *instrumented, final = ((plan, tuple(shell_words(argv) for _, argv in plan.commands)) for plan in plans)
    path = [f'PATH="${COMPILERS}:$PATH"'] if COMPILERS in final[0].env else []
    env = (f"{name}={shell_word(value)}" for name, value in final[0].env.items())
    yield CommandGroup("environment of the build", (*env, *path))
    for _, commands in instrumented:
        yield CommandGroup(
            f"instrumented build for the profile-guided optimization, not measured, {location}", commands
        )
        names = listed([qualified_name(workload) for workload in request.training])
        yield CommandGroup("training", (f"# loading, and at most {SECONDS:g} s of {names}, as below",))
    yield CommandGroup(f"build, {location}", final[1])


def _visit_groups(
    request: CommandListRequest, scratch: LocalHost, prefix: PurePosixPath, plan: BuildPlan
) -> Iterator[CommandGroup]:
    """The configuration of the server, and the commands that load the data, begin a visit, and measure a run."""
    host, entry, workload = request.host, request.entry, request.workload
    size = read_fact(host, MEMORY_MIB) or 1, read_fact(host, CORES) or 1
    values = host_placeholders(scratch, entry, request.builder, *size)
    values |= {"commit": request.commit, "version": plan.version, "prefix": str(prefix)}
    system = Installation(request.commit, "", prefix, plan.builder, values)
    folder = dataset.visit_folder(host)
    service = service_in(host, system, folder, entry.server_cpus, write_config=False)
    if service:
        config_lines = tuple(configuration_text(plan.builder, service.values).splitlines())
        yield CommandGroup(f"configuration of the server, {service.values['config']}", config_lines)
    if format_command := plan.builder.dataset.format_command:
        lines = (
            _script_lines(service, [format_command])
            if service
            else [shell_words(dataset.print_data_format_argv(system, folder))]
        )
        title = "the format of the data: builds that print the same text share loaded data"
        yield CommandGroup(title, tuple(lines))
    loading = dataset.DatasetLoading(host, system, workload, folder, service, lua.place_scripts(scratch, workload))
    yield CommandGroup("loading the data", tuple(_loading_commands(loading)))
    bench = visit.RunContext(host, entry, workload, loading.placed, perf.can_count(host))
    timed = visit.timed_command(visit.Visit(bench, system, 0, folder, "", service), [PID] if service else [])
    line = _with_environment(timed.argv, timed.env, timed.cpus).replace(f"-p {PID}", "-p SERVER")
    yield CommandGroup(
        f"a visit (one start of the server, or runs of the program), in the folder {timed.cwd}, on a copy of the data",
        tuple(_with_server(service, line)),
    )


def _loading_commands(loading: dataset.DatasetLoading) -> Iterator[str]:
    """The commands that start the server, load the data, and stop the server."""
    service, workload = loading.service, loading.workload
    checks = [loading.workload_check_command()] if service and workload.check else []
    load, check = (
        [_with_environment(step.argv, step.env) for step in steps]
        for steps in (loading.prepare_step_commands(), checks)
    )
    if service is None:
        yield from load
        return
    recipe = service.recipe
    yield from _script_lines(service, recipe.initialise)
    create, settle = _script_lines(service, recipe.create), _script_lines(service, recipe.settle)
    yield from _with_server(replace(service, cpus=""), *create, *load, *settle, *check)


def _with_server(service: Service | None, *lines: str) -> Iterator[str]:
    """The commands that start the server, the commands ``lines``, and the command that stops the server; if there is no
    server, only ``lines``."""
    if service is None:
        yield from lines
        return
    [ready_check] = _script_lines(service, [service.recipe.ready])
    yield f"{_with_environment(service.argv(service.recipe.start), service.env, service.cpus)} {IN_BACKGROUND}"
    yield f"until {ready_check}; do sleep 0.1; done"
    yield from lines
    yield from _script_lines(service, [service.recipe.stop]) if service.recipe.stop else ["kill -s TERM SERVER"]


def _script_lines(service: Service, argvs: Iterable[Sequence[str]]) -> list[str]:
    """The commands ``argvs`` of the server's recipe as lines of a script, with their environment variables."""
    return [_with_environment(service.argv(argv), service.env) for argv in argvs]


def _with_environment(argv: Sequence[str], env: Mapping[str, str], cpus: str = "") -> str:
    """A command as a line of a script: its environment variables, taskset with its processors, and its words."""
    variables = [f"{name}={shell_word(value)}" for name, value in env.items()]
    return " ".join([*variables, shell_words([*jobs.taskset(cpus), *argv])])
