"""The commands that repeat, resume and show a hunt."""

from pathlib import Path

from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.settings import AUTO, TIMING, Direction, Policy, Settings
from perfbisect.store.connection import default_place
from perfbisect.wording.text import shell_words


def command_to_run(settings: Settings, history: Path) -> str:
    """The `bisect run` that repeats a hunt; defaults are omitted."""
    words = ["bisect", "run", settings.good, settings.bad, *of_recipes(settings), *of_settings(settings)]
    return shell_words([*words, *history_option(history)])


def of_settings(settings: Settings) -> list[str]:
    """The options of a `bisect run` but those of its ends, its recipes and its history."""
    policy, usual = settings.policy, Policy()
    direction = Direction.DROP if find_metric(settings.metric).higher_is_better else Direction.RISE
    wide = settings.prior.exact and not policy.min_counted  # the smallest change of a time is asked for of a count
    words = [
        *(word for name in settings.hosts for word in ("--host", name)),
        "--repo", settings.repository, "--variant", settings.variant,
    ]  # fmt: skip
    options: list[tuple[str, str, bool]] = [
        (
            "--metric",
            AUTO if settings.choose_metric else settings.metric,
            True,
        ),  # which one is usual depends on the workload
        ("--direction", policy.direction.value, policy.direction is not direction),
        ("--confidence", f"{policy.confidence:g}", policy.confidence != usual.confidence),
        ("--min-effect", f"{policy.min_effect:g}", policy.min_effect != usual.min_effect or wide),
        ("--max-builds", str(policy.max_builds), policy.max_builds != usual.max_builds),
        ("--max-runs", str(policy.max_runs), policy.max_runs != usual.max_runs),
        ("--max-time", f"{policy.max_minutes:g}m", policy.max_minutes != usual.max_minutes),
        ("--slow-after", f"{policy.slow_after:g}", policy.slow_after != usual.slow_after),
        *((f"--{name}", str(value), True) for name, value in settings.overrides.items() if name in TIMING),
        ("--builders", settings.builders_path, bool(settings.builders_path)),
        ("--workloads", settings.workloads_path, bool(settings.workloads_path)),
        ("--hosts", settings.hosts_path, bool(settings.hosts_path)),
    ]
    for name, value, needed in options:
        words += [name, value] if needed else []
    for arg in sorted(settings.overrides.keys() - set(TIMING)):
        words += ["--set", f"{arg}={settings.overrides[arg]}"]
    for path, weight in settings.suspects.items():
        words += ["--suspect", f"{path}={weight:g}"]
    words += [word for option in settings.configure for word in ("--configure", option)]
    words += [word for patch in settings.patches for word in ("--patch", patch.file)]
    words += [word for text in settings.skips for word in ("--skip", text)]
    words += ["--first-parent"] if settings.first_parent else []
    words += ["--retry-failed"] if settings.retry_failed else []
    words += ["--all"] if policy.all_steps else []
    words += [] if settings.explain else ["--no-explain"]
    words += [] if policy.layouts else ["--no-layouts"]
    return words


def of_recipes(settings: Settings) -> list[str]:
    """The options that select what is built and what is run."""
    quick = settings.quick
    if quick is None:
        return ["--builder", settings.builder, "--workload", settings.workload]
    built = ["--builder", settings.builder] if quick.build is None else []
    options = [("--build", command) for command in quick.build or ()]
    options += [
        ("--run", quick.run),
        ("--rate", quick.rate),
        ("--cost", quick.cost),
        ("--operations", quick.operations),
    ]
    return [*built, *(word for option, text in options if text for word in (option, text))]


def command_to_resume(hunt: int, history: Path) -> str:
    """The `bisect resume` of this hunt."""
    return command_on("resume", str(hunt), history)


def command_on(verb: str, name: str, history: Path | None) -> str:
    """The command that shows, resumes, proves or reports a hunt or a trial."""
    return shell_words(["bisect", verb, name, *history_option(history)])


def command_to_show(name: str, history: Path | None) -> str:
    """The `bisect show` of a hunt, a comparison or an A/A."""
    return command_on("show", name, history)


def history_option(history: Path | None) -> list[str]:
    """The option that names a history other than the default one (None)."""
    return [] if history in (None, default_place()) else ["--history", str(history)]
