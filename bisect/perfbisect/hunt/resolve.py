"""Resolve the settings of a hunt or a trial against recipes and repository: metric, variant, clone, commits."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.settings import AUTO, Direction, Settings
from perfbisect.errors import UsageError
from perfbisect.lab.workload.command import PERCENTILES
from perfbisect.recipes.build_systems import for_range, has_commands, making, nothing_found, systems_in
from perfbisect.recipes.builder import Build, Builder
from perfbisect.recipes.builder_reader import build_of, variant_of
from perfbisect.recipes.requested import command_words, load_requested, program_of, requested_builder, typed_overrides
from perfbisect.recipes.workload import Workload
from perfbisect.repository.commits import DOTS, ends_of, first_commit, resolve
from perfbisect.repository.discovery import Progress, cached_clone, open_repository
from perfbisect.repository.git import Repository
from perfbisect.repository.objects import listing, texts_in, top_level


def resolve_settings(
    settings: Settings, direction: Direction | None = None, *, clone_progress: Progress | None = None
) -> Settings:
    """The settings with all that recipe and repository determine: metric, clone, variant, commits.

    ``direction`` None is the one that makes the metric worse. Mistakes in names are raised before anything is cloned.
    """
    settings = with_repository(settings)
    builder, workload = load_requested(settings)
    if builder.installed:
        raise UsageError(
            f"Nothing of {builder.name} is built, so there are no commits to hunt in.",
            f"Compare hosts with `bisect compare --builder {builder.name} --host A --host B`, or measure one with `bisect noise`.",
        )
    variant_of(builder, settings.variant)
    auto = settings.metric == AUTO
    metric = choose_metric("" if auto else settings.metric, [workload])
    if settings.policy.slow_after and not find_metric(metric).bounded(command=bool(workload.command)):
        raise UsageError(
            f"--slow-after cannot be used with {metric} of workload {workload.name}: the time after which a run is stopped"
            " says nothing of it.",
            "Hunt in qps; where the workload is a command, qps and latency are those of the whole command.",
        )
    settings = replace(
        settings,
        builder=settings.builder or builder.name,
        workload=settings.workload or workload.name,
        metric=metric,
        # What is hunted otherwise is a change for the worse, and runs are never stopped when they are counted.
        recognise=settings.recognise or recognises(settings, [workload]),
        choose_metric=auto and not direction and not settings.policy.slow_after,
        overrides=typed_overrides(workload, settings.overrides),
        policy=replace(settings.policy, direction=direction or worse_direction(metric)),
        suspects={**builder.suspects, **workload.suspects, **settings.suspects},
    )
    ends = settings.good, settings.bad
    settings, [good, bad] = resolve_commits(settings, builder, ends, clone_progress=clone_progress)
    return replace(settings, good_commit=good, bad_commit=bad, skips=resolve_skips(settings, builder))


def resolve_skips(settings: Settings, builder: Builder) -> dict[str, str]:
    """What --skip leaves out: each text as written → the same with full hashes."""
    git = open_repository(Path(settings.repository))
    return {
        text: DOTS.join(resolve(git, revision, builder.release_tags) for revision in ends_of(text))
        for text in settings.skips
    }


def choose_metric(requested: str, workloads: Sequence[Workload]) -> str:
    """The requested metric, by default that of the workloads. Raises UsageError for one that a workload does not print."""
    if requested:
        find_metric(requested)
    own = {workload.metric: workload.name for workload in workloads}
    if not requested and len(own) > 1:
        metrics = ", ".join(f"{name} {metric}" for metric, name in own.items())
        raise UsageError(
            f"These workloads have different metrics: {metrics}.",
            "Measure them separately, or give a --metric that all have.",
        )
    metric = requested or next(iter(own))
    asked = find_metric(metric)
    for workload in workloads:
        printed = workload.metric, *workload.latencies, *(PERCENTILES if workload.format else ())
        read = asked.from_output or (workload.command and asked.unit == "ms" and metric != "latency")  # that is timed
        if read and metric not in printed:
            of_recipe = f"of a recipe in suite.toml, as `latencies = {{ {metric} = '…' }}`"
            where = f"with --{metric} or in suite.toml" if asked.from_output else of_recipe
            raise UsageError(
                f"No pattern finds a {metric} in the output of workload {workload.name}, so it cannot be hunted.",
                f"Give the pattern {where}; or hunt another metric.",
            )
    return metric


def recognises(settings: Settings, workloads: Sequence[Workload]) -> bool:
    """Whether what is measured of the output of a command is to be recognised. Raises UsageError for --only where it is not."""
    asked = settings.metric in ("", AUTO) and len(workloads) == 1 and not settings.policy.slow_after
    if asked and workloads[0].recognisable:
        return True
    if settings.quick and settings.quick.only:
        raise UsageError(
            "--only has no effect: another metric than a result of the output is measured.", "Leave it out."
        )
    return False


def worse_direction(metric: str) -> Direction:
    """The direction in which a metric gets worse."""
    return Direction.DROP if find_metric(metric).higher_is_better else Direction.RISE


def with_repository(settings: Settings) -> Settings:
    """The settings of a command with the repository of the current folder, where none is given."""
    if settings.quick and settings.quick.build is not None and not settings.repository:
        return replace(settings, repository=str(open_repository(Path.cwd(), named=False).folder))
    return settings


def builder_of(settings: Settings) -> Builder:
    """The requested builder. Raises RecipeError where it or its variant does not exist."""
    builder = requested_builder(settings)
    variant_of(builder, settings.variant)
    return builder


def resolve_commits(
    settings: Settings, builder: Builder, revisions: Sequence[str], *, clone_progress: Progress | None = None
) -> tuple[Settings, list[str]]:
    """The settings with repository, variant and build system, and the commit of each revision.

    Clones a missing repository. Raises UsageError where the trees have no build system, or not the one that is needed.
    """
    repository = Path(settings.repository) if settings.repository else cached_clone(builder, revisions, clone_progress)
    git = open_repository(repository)
    commits = [resolve(git, revision, builder.release_tags) for revision in revisions]
    resolved = replace(
        settings,
        repository=str(repository),
        variant=settings.variant or builder.variant,
        usual_variant=builder.variant,
        system=choose_system(git, builder, dict(zip(revisions, commits, strict=True)), settings),
        root=first_commit(git, commits[-1]) if settings.quick and settings.quick.build is not None else "",
    )
    return resolved, commits


def choose_system(git: Repository, builder: Builder, commits: Mapping[str, str], settings: Settings) -> str:
    """The build system for a range with these ends (revision → commit); "" where the recipe has commands.

    A repository without any is measured as it is checked out, where no recipe says what it is.
    Raises UsageError for a tree without the system that the recipe names, without any, or with options for none.
    """
    alone = settings.quick is not None and settings.quick.build == ()  # --run without --build
    build = Build() if alone else build_of(builder)
    given = "--configure" if settings.configure else "--program" if settings.programs else ""
    if has_commands(build):
        if given:
            raise UsageError(f"{given} has no effect: {builder.name} is built by commands.", "Change these commands.")
        return ""
    trees = {revision: top_level(git, commit) for revision, commit in commits.items()}
    for revision, paths in trees.items():
        systems = systems_in(paths)
        if build.system and build.system not in systems:
            raise UsageError(
                f"{revision} cannot be built with {build.system}, as the recipe of {builder.name} says: its tree has"
                f" {' and '.join(systems) or 'no build system'}.",
                "Is it the right repository? Or extend the recipe: docs/builds.md.",
            )
        if not systems and not (alone and not any(map(systems_in, trees.values()))):
            raise UsageError(
                f"{revision} cannot be built: {nothing_found()}.",
                "Give the commands that build it: with --build, or in a recipe's [build].",
            )
    system = build.system or for_range(trees.values())
    quick = settings.quick if alone else None
    started = program_of(command_words(quick.run), ()) if quick and not quick.then else []
    if started and min(len(systems_in(paths)) for paths in trees.values()) > 1:
        tree = listing(git, [*commits.values()][-1])
        text = "\n".join(texts_in(git, tree, ("Cargo.toml", "go.mod")).values())
        maker = making(started[0], tree.files, text).partition(" ")[0]
        system = maker if all(maker in systems_in(paths) for paths in trees.values()) else system
    if settings.flags.options:
        given = given or settings.flags.options[0][0]
    if given and not system:
        raise UsageError(f"{given} has no effect: {nothing_found()}.", "Leave it out.")
    return system
