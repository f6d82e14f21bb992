"""The commands that repeat, resume and show a hunt."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.settings import TIMING, USUAL_HOST, Direction, Pairing, Policy, Settings
from perfbisect.store.connection import default_place
from perfbisect.wording.text import shell_words


def command_to_run(settings: Settings, history: Path) -> str:
    """The `bisect run` that repeats a hunt; defaults are omitted."""
    words = ["bisect", "run", settings.good, settings.bad, *of_recipes(settings), *of_settings(settings)]
    return shell_words([*words, *history_option(history)])


def command_to_compare(settings: Settings, *builds: str) -> str:
    """The `bisect compare` that measures these builds as a hunt does, on its first host."""
    options = _options(replace(settings, further_hosts=()))
    how = [word for words in options if len(words) > 1 and words[0] not in OF_SEARCHES for word in words]
    return shell_words(["bisect", "compare", *builds, *of_recipes(settings), *how])


def of_settings(settings: Settings) -> list[str]:
    """The options of a `bisect run` but those of its ends, its recipes and its history."""
    return [word for words in _options(settings) for word in words]


NUMBERS = {  # option → its field of Policy
    "--confidence": "confidence",
    "--min-effect": "min_effect",
    "--max-builds": "max_builds",
    "--max-runs": "max_runs",
    "--max-time": "max_minutes",
    "--slow-after": "slow_after",
}
OF_SEARCHES = {"--direction", "--suspect", "--skip", *NUMBERS}  # with the flags, what only a search has


def _options(settings: Settings) -> Iterator[tuple[str, ...]]:
    policy, usual = settings.policy, Policy()
    yield from (("--host", name) for name in settings.hosts if settings.hosts != (USUAL_HOST,))
    yield "--repo", settings.repository
    if settings.variant != settings.usual_variant:
        yield "--variant", settings.variant
    if policy.pairing is not Pairing.AUTO:
        yield "--pairing", policy.pairing.value
    if not settings.choose_metric:
        yield "--metric", settings.metric
    direction = Direction.DROP if find_metric(settings.metric).higher_is_better else Direction.RISE
    if policy.direction is not direction:
        yield "--direction", policy.direction.value
    wide = settings.prior.exact and not policy.min_counted  # the smallest change of a time is asked for of a count
    for option, name in NUMBERS.items():
        value = getattr(policy, name)
        if value != getattr(usual, name) or (wide and name == "min_effect"):
            text = f"{value:g}" if isinstance(value, float) else str(value)
            yield option, _time(value) if name == "max_minutes" else text
    yield from ((f"--{name}", str(value)) for name, value in settings.overrides.items() if name in TIMING)
    for option in ("builders", "workloads", "hosts"):
        if path := getattr(settings, f"{option}_path"):
            yield f"--{option}", path
    for name in sorted(settings.overrides.keys() - set(TIMING)):
        yield "--set", f"{name}={settings.overrides[name]}"
    yield from (("--suspect", f"{path}={weight:g}") for path, weight in settings.suspects.items())
    yield from (("--configure", option) for option in settings.configure)
    yield from (("--program", path) for path in settings.programs)
    yield from settings.flags.options
    yield from (("--patch", patch.file) for patch in settings.patches)
    yield from (("--skip", text) for text in settings.skips)
    flags = {
        "--first-parent": settings.first_parent,
        "--retry-failed": settings.retry_failed,
        "--no-remedies": not settings.remedies,
        "--all": policy.all_steps,
        "--no-explain": not settings.explain,
        "--no-layouts": settings.linkable and not policy.layouts,
    }
    yield from ((flag,) for flag, given in flags.items() if given)


def _time(minutes: float) -> str:
    return f"{minutes:.0f}m" if minutes.is_integer() else f"{60 * minutes:.12g}s"


def of_recipes(settings: Settings) -> list[str]:
    """The options that select what is built and what is run."""
    quick = settings.quick
    if quick is None:
        return ["--builder", settings.builder, "--workload", settings.workload]
    options = (
        ("--builder", settings.builder if quick.build is None else ""),
        *(("--build", command) for command in quick.build or ()),
        *(("--then", command) for command in quick.then),
        ("--run", quick.run),
        ("--rate", quick.rate),
        ("--cost", quick.cost),
        ("--unit", quick.unit),
        ("--operations", quick.operations),
    )
    return [word for option in options if option[1] for word in option]


def command_on(verb: str, name: str | int, history: Path | None) -> str:
    """The command that shows, resumes, proves or reports a hunt or a trial."""
    return shell_words(["bisect", verb, str(name), *history_option(history)])


def history_option(history: Path | None) -> list[str]:
    """The option that names a history other than the default one (None)."""
    return [] if history in (None, default_place()) else ["--history", str(history)]
