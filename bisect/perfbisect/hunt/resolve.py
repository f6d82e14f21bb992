"""Completes the settings of a hunt or a trial from its recipes and its repository: metric, variant, clone, commits."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.settings import AUTO, ChangeDirection, Settings
from perfbisect.errors import UsageError
from perfbisect.lab.workload.command import PERCENTILES
from perfbisect.recipes.build_systems import (
    command_to_build_program,
    has_commands,
    no_system_sentence,
    system_for_range,
    systems_in,
)
from perfbisect.recipes.builder import Build, Builder
from perfbisect.recipes.builder_reader import find_variant, required_build_section
from perfbisect.recipes.requested import (
    command_words,
    converted_overrides,
    load_requested,
    program_and_files,
    requested_builder,
)
from perfbisect.recipes.workload import Workload
from perfbisect.repository.commits import DOTS, resolve_commit, revision_or_range_ends, root_commit
from perfbisect.repository.discovery import Progress, cached_clone, open_repository
from perfbisect.repository.git import Repository
from perfbisect.repository.objects import small_file_texts, top_level_files, tree_files


def resolve_settings(
    settings: Settings, direction: ChangeDirection | None = None, *, clone_progress: Progress | None = None
) -> Settings:
    """The settings of a hunt, completed by the values that the recipe and the repository determine: metric, clone,
    variant, commits.

    ``direction`` is the direction of the hunted change; None means the direction in which the metric becomes worse.
    Wrong names (of a builder, workload, variant or metric) raise errors before a repository is cloned.
    """
    settings = with_default_repository(settings)
    builder, workload = load_requested(settings)
    if builder.installed:
        raise UsageError(
            f"Builder {builder.name} builds nothing, so there are no commits to search.",
            f"Compare hosts with `bisect compare --builder {builder.name} --host A --host B`, or measure a host with"
            " `bisect noise`.",
        )
    find_variant(builder, settings.variant)
    auto = settings.metric == AUTO
    metric = choose_metric("" if auto else settings.metric, [workload])
    if settings.policy.slow_after and not find_metric(metric).is_bounded_by_stopped_run(command=bool(workload.command)):
        raise UsageError(
            f"--slow-after cannot be used with the metric {metric} of workload {workload.name}, because the time after"
            f" which a run is stopped does not bound {metric}.",
            "Hunt by qps. If the workload is a command, qps and latency are of the whole command.",
        )
    settings = replace(
        settings,
        builder=settings.builder or builder.name,
        workload=settings.workload or workload.name,
        metric=metric,
        recognise=settings.recognise or recognises_output(settings, [workload]),
        # --metric auto may change the metric only in a hunt for the worse, and only without --slow-after, because
        # exactly counted runs are not stopped.
        choose_metric=auto and not direction and not settings.policy.slow_after,
        overrides=converted_overrides(workload, settings.overrides),
        policy=replace(settings.policy, direction=direction or worse_direction(metric)),
        suspects={**builder.suspects, **workload.suspects, **settings.suspects},
    )
    ends = settings.good, settings.bad
    settings, [good, bad] = resolve_commits(settings, builder, ends, clone_progress=clone_progress)
    return replace(settings, good_commit=good, bad_commit=bad, skips=resolve_skips(settings, builder))


def resolve_skips(settings: Settings, builder: Builder) -> dict[str, str]:
    """The commits that the options --skip name: a map from the text of each option to the same text with full hashes."""
    git = open_repository(Path(settings.repository))
    tags = builder.release_tags
    return {
        text: DOTS.join(resolve_commit(git, revision, tags) for revision in revision_or_range_ends(text))
        for text in settings.skips
    }


def choose_metric(requested: str, workloads: Sequence[Workload]) -> str:
    """The requested metric, by default the metric of the workloads.

    Raises UsageError if the workloads have different metrics, or if a workload does not print the metric.
    """
    if requested:
        find_metric(requested)
    workload_of = {workload.metric: workload.name for workload in workloads}
    if not requested and len(workload_of) > 1:
        metrics = ", ".join(f"{name} {metric}" for metric, name in workload_of.items())
        raise UsageError(
            f"These workloads have different metrics: {metrics}.",
            "Measure them separately, or give a --metric that all workloads have.",
        )
    name = requested or next(iter(workload_of))
    metric = find_metric(name)
    for workload in workloads:
        printed = workload.metric, *workload.latencies, *(PERCENTILES if workload.format else ())
        # The metric ``latency`` of a command is the command's duration, which is not read from the output.
        is_read = metric.from_output or (workload.command and metric.unit == "ms" and name != "latency")
        if is_read and name not in printed:
            in_recipe = f"in the suite.toml of a recipe, as `latencies = {{ {name} = '…' }}`"
            option = f"with --{name} or in the suite.toml of a recipe" if metric.from_output else in_recipe
            raise UsageError(
                f"The metric {name} needs a pattern that finds its value in the output of workload {workload.name}.",
                f"Give the pattern {option}, or choose another metric with --metric.",
            )
    return name


def recognises_output(settings: Settings, workloads: Sequence[Workload]) -> bool:
    """Whether perfbisect must look for results in known formats in the output of the command, because no option says
    where the result is.

    Raises UsageError if --only is given although the command's output is not searched for results.
    """
    may_recognise = settings.metric in ("", AUTO) and len(workloads) == 1 and not settings.policy.slow_after
    if may_recognise and workloads[0].has_unspecified_result:
        return True
    if settings.quick and settings.quick.only:
        reason = "--only has no effect, because the measured metric is not read from the output of the command."
        raise UsageError(reason, "Omit --only.")
    return False


def worse_direction(metric: str) -> ChangeDirection:
    """The direction of change in which a metric becomes worse."""
    return ChangeDirection.DROP if find_metric(metric).higher_is_better else ChangeDirection.RISE


def with_default_repository(settings: Settings) -> Settings:
    """The settings with a repository: if --build is given without a repository, the repository of the current folder."""
    if settings.quick and settings.quick.build is not None and not settings.repository:
        return replace(settings, repository=str(open_repository(Path.cwd(), is_named_by_user=False).folder))
    return settings


def builder_of(settings: Settings) -> Builder:
    """The requested builder. Raises RecipeError if the builder or its variant does not exist."""
    builder = requested_builder(settings)
    find_variant(builder, settings.variant)
    return builder


def resolve_commits(
    settings: Settings, builder: Builder, revisions: Sequence[str], *, clone_progress: Progress | None = None
) -> tuple[Settings, list[str]]:
    """The settings, completed by repository, variant and build system; and the commit hash of each revision.

    If the settings have no repository, the builder's repository is cloned. Raises UsageError if a tree has no build
    system, or not the system of the recipe.
    """
    repository = Path(settings.repository) if settings.repository else cached_clone(builder, revisions, clone_progress)
    git = open_repository(repository)
    commits = [resolve_commit(git, revision, builder.release_tags) for revision in revisions]
    resolved = replace(
        settings,
        repository=str(repository),
        variant=settings.variant or builder.variant,
        usual_variant=builder.variant,
        system=choose_system(git, builder, dict(zip(revisions, commits, strict=True)), settings),
        root=root_commit(git, commits[-1]) if settings.quick and settings.quick.build is not None else "",
    )
    return resolved, commits


def choose_system(git: Repository, builder: Builder, commits: Mapping[str, str], settings: Settings) -> str:
    """The build system for a range with these ends (revision → commit); "" if the build uses no build system.

    If the recipe gives build commands, no build system is used. If --run is given without a recipe and no tree has a
    build system, the trees are measured as they are checked out. Raises UsageError if a tree lacks the build system of
    the recipe, if a tree has no build system, and if options for a build system have no effect.
    """
    without_recipe = settings.quick is not None and settings.quick.build == ()  # with --run and without --build
    build = Build() if without_recipe else required_build_section(builder)
    option = "--configure" if settings.configure else "--program" if settings.programs else ""
    if has_commands(build):
        if option:
            raise UsageError(
                f"{option} has no effect, because {builder.name} is built by commands.", "Change these commands."
            )
        return ""
    trees = {revision: top_level_files(git, commit) for revision, commit in commits.items()}
    for revision, paths in trees.items():
        systems = systems_in(paths)
        if build.system and build.system not in systems:
            raise UsageError(
                f"{revision} cannot be built with {build.system}, which the recipe of {builder.name} names: the tree of"
                f" {revision} has {' and '.join(systems) or 'no build system'}.",
                "Check the repository, or extend the recipe: docs/builds.md.",
            )
        if not systems and not (without_recipe and not any(map(systems_in, trees.values()))):
            raise UsageError(
                f"{revision} cannot be built: {no_system_sentence()}.",
                "Give the commands that build the tree: with --build, or in the table [build] of a recipe.",
            )
    system = build.system or system_for_range(trees.values())
    quick = settings.quick if without_recipe else None
    started = program_and_files(command_words(quick.run), ()) if quick and not quick.then else []
    if started and min(len(systems_in(paths)) for paths in trees.values()) > 1:
        tree = tree_files(git, [*commits.values()][-1])
        text = "\n".join(small_file_texts(git, tree, ("Cargo.toml", "go.mod")).values())
        maker = command_to_build_program(started[0], tree.files, text).partition(" ")[0]
        system = maker if all(maker in systems_in(paths) for paths in trees.values()) else system
    if settings.flags.options:
        option = option or settings.flags.options[0][0]
    if option and not system:
        raise UsageError(f"{option} has no effect: {no_system_sentence()}.", f"Omit {option}.")
    return system
