"""The commands that repeat, resume and show a session."""

import re
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.settings import TIMING, USUAL_HOST, ChangeDirection, Pairing, Patch, Policy, Settings
from perfbisect.store.connection import history_option
from perfbisect.wording.text import shell_words


def command_to_run(settings: Settings, history: Path | None) -> str:
    """The `bisect run` or `bisect narrow` command that repeats a hunt; options with their default value are omitted."""
    if settings.narrows:
        limit = [word for words in _changed_options(settings) if words[0] == "--max-time" for word in words]
        words = ["bisect", "narrow", str(settings.narrows), *limit]
    else:
        words = ["bisect", "run", settings.good, settings.bad]
        words += [*options_of_recipes(settings), *options_of_settings(settings)]
    return shell_words([*words, *history_option(history)])


def command_to_compare(settings: Settings, *builds: str) -> str:
    """The `bisect compare` command that measures ``builds`` with the settings of a hunt, on the hunt's first host."""
    options = _changed_options(replace(settings, further_hosts=()))
    how = [word for words in options if len(words) > 1 and not SEARCHES.match(FIELDS[words[0]]) for word in words]
    return shell_words(["bisect", "compare", *builds, *options_of_recipes(settings), *how])


def options_of_settings(settings: Settings) -> list[str]:
    """The options of a `bisect run` command with ``settings``. Good, bad, and the options for recipes and history are
    left out.
    """
    return [word for words in _changed_options(settings) for word in words]


FIELDS = {  # option → its field of Settings; of overrides one entry, or for --set the workload's arguments
    "--host": "hosts", "--repo": "repository", "--variant": "variant", "--pairing": "policy.pairing", "--metric": "metric",
    "--direction": "policy.direction", "--confidence": "policy.confidence", "--min-effect": "policy.min_effect",
    "--max-builds": "policy.max_builds", "--max-runs": "policy.max_runs", "--max-time": "policy.max_minutes",
    "--slow-after": "policy.slow_after", **{f"--{name}": "overrides" for name in TIMING},
    "--builders": "builders_path", "--workloads": "workloads_path", "--hosts": "hosts_path", "--set": "overrides",
    "--suspect": "suspects", "--configure": "configure", "--program": "programs", "--cflags": "flags.cflags",
    "--cxxflags": "flags.cxxflags", "--ldflags": "flags.ldflags", "--patch": "patches", "--skip": "skips",
    "--first-parent": "first_parent", "--retry-failed": "retry_failed", "--no-remedies": "remedies",
    "--all": "policy.all_steps", "--no-explain": "explain", "--no-layouts": "policy.layouts",
    "--clean-builds": "policy.incremental", "--no-counts": "counts",
}  # fmt: skip
OF_RECIPES = (
    "build",
    "then",
    "run",
    "rate",
    "cost",
    "unit",
    "operations",
    "only",
)  # fields that describe the build and the workload by commands instead of recipes
SEARCHES = re.compile(r"suspects|skips|policy\.(?!pairing)")  # fields that apply only to a search


def _changed_options(settings: Settings) -> Iterator[tuple[str, ...]]:
    """The words of each option that differs from its default: the option, followed by its value unless the option is a
    flag.
    """
    worse = ChangeDirection.DROP if find_metric(settings.metric).higher_is_better else ChangeDirection.RISE
    # If min_effect and min_counted are equal, the user gave --min-effect. A hunt by counts may have only min_effect.
    policy = settings.policy
    asked = policy.min_counted == policy.min_effect or (settings.prior.exact and not policy.min_counted)
    least = 0.0 if asked else Policy().min_effect
    layouts = settings.linkable or settings.policy.layouts
    usual = Settings(
        "", "", "", "", "", USUAL_HOST, settings.usual_variant, explain=True,
        metric=settings.metric if settings.choose_metric or settings.output or settings.outputs else "",
        policy=Policy(pairing=Pairing.AUTO, direction=worse, min_effect=least, layouts=layouts, incremental=True),
    )  # fmt: skip
    for option, name in FIELDS.items():
        value, default = attrgetter(name)(settings), attrgetter(name)(usual)
        if option == "--set":
            value = {key: value[key] for key in sorted(value) if key not in TIMING}
        elif name == "overrides":
            value = value.get(option[2:], default)
        if value != default:
            if option == "--max-time":
                value = f"{value:.0f}m" if value.is_integer() else f"{60 * value:.12g}s"
            yield from _option_words(option, value)


def _option_words(option: str, value: object) -> Iterator[tuple[str, ...]]:
    """The words of an option: only the option if it is a flag, otherwise the option with its value. An option with
    several values is repeated for each value."""
    match value:
        case bool():
            yield (option,)
        case dict() if option != "--skip":
            yield from (
                (option, f"{name}={entry:g}" if option == "--suspect" else f"{name}={entry}")
                for name, entry in value.items()
            )
        case tuple() | dict():
            yield from ((option, item.file if isinstance(item, Patch) else item) for item in value)
        case float() if option[2:] not in TIMING:
            yield option, f"{value:g}"
        case _:
            yield option, str(value)


def options_of_recipes(settings: Settings) -> list[str]:
    """The options that select builder and workload, or that give commands in place of recipes."""
    quick = settings.quick
    if quick is None:
        return ["--builder", settings.builder, "--workload", settings.workload]
    options = ["--builder", settings.builder] if quick.build is None and settings.builder else []
    options_of_command = (
        words for name in OF_RECIPES for words in _option_words(f"--{name}", getattr(quick, name) or ())
    )
    return [*options, *(word for words in options_of_command for word in words)]


def bisect_command(verb: str, argument: str | int, history: Path | None) -> str:
    """The bisect command that applies ``verb``, such as show or resume, to a session or a batch."""
    return shell_words(["bisect", verb, str(argument), *history_option(history)])
