"""The file of `bisect batch`: hunts in TOML, with the options of `bisect run` as keys."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from perfbisect.cli.commands.run import requested_settings, run
from perfbisect.core.domain.settings import Settings
from perfbisect.errors import PerfBisectError, RecipeError
from perfbisect.hunt.batch import LEASED, range_of
from perfbisect.hunt.submission import SlurmJob
from perfbisect.recipes.toml import hint, read_table, show
from perfbisect.store.batches import PlannedHunt
from perfbisect.wording.text import printable

ENDS = ("good", "bad")
OWN = ("host", "any-host")  # hosts: all of them, or any one
BATCH_HAS = "It is an option of `bisect batch`."
NOT_HERE = {  # options of `bisect run` that are no keys, and why
    "history": BATCH_HAS,
    "plain": BATCH_HAS,
    "dry-run": BATCH_HAS,
    "help": BATCH_HAS,
    "json": "A batch prints no JSON; `bisect show 12 --json` prints it of a hunt.",
    "wait": "A batch always waits for busy hosts.",
    "in-batch": "`bisect batch` sets it.",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a key stands."""

    path: Path
    table: str
    inherited: frozenset[str] = frozenset()  # keys that were written in [defaults]

    def of(self, key: str) -> str:
        """For messages: the file, the table and the key ("": none)."""
        table = "[defaults]" if key in self.inherited else self.table
        return f"{self.path}, {table}, {key}" if key else f"{self.path}, {table}"


def read_batch_file(path: Path) -> list[SlurmJob]:
    """The hunts of a file, checked: recipes and hosts exist. Must be called in the folder of the file.

    Raises RecipeError with the table and the key for each mistake.
    """
    content = read_table(path)
    for name in content:
        if name not in ("defaults", "hunt"):
            raise RecipeError(f"{path}: there is no table [{name}].", "It has [defaults] and [[hunt]].")
    defaults, hunts = content.get("defaults", {}), content.get("hunt", [])
    if not isinstance(defaults, dict) or not isinstance(hunts, list) or not hunts:
        raise RecipeError(f"{path} has no [[hunt]].", "See an example: bisect batch --help")
    mistakes: list[RecipeError] = []
    check_keys(Place(path, "[defaults]"), defaults, mistakes)
    found = []
    for number, own in enumerate(hunts, 1):
        if not isinstance(own, dict):
            raise RecipeError(f"{path}: hunt must be tables, written [[hunt]].")
        chosen = {key for key in OWN if key in own}  # in place of that of [defaults]
        values = {key: value for key, value in (defaults | own).items() if not chosen or key not in {*OWN} - chosen}
        place = Place(path, f"[[hunt]] {number}", frozenset(values) - frozenset(own))
        check_keys(place, own, mistakes)
        workloads = values.get("workload")
        for workload in workloads if isinstance(workloads, list) and workloads else [workloads]:
            with noted(mistakes):
                one = entry(place, values | ({"workload": workload} if workload else {}), mistakes)
                found += [one] if one else []
    raise_all(path, mistakes)
    return found


@contextmanager
def noted(mistakes: list[RecipeError]) -> Iterator[None]:
    """Keep a mistake, so that those after it are found, too."""
    try:
        yield
    except RecipeError as mistake:
        mistakes.append(mistake)


def raise_all(path: Path, mistakes: Sequence[RecipeError]) -> None:
    """Raise one RecipeError that tells all mistakes, each once: several hunts can have one from [defaults]."""
    each = {str(mistake): mistake for mistake in mistakes}
    if len(each) == 1:
        raise mistakes[0]
    if each:
        lines = [f"{sentence} {mistake.advice}".rstrip() for sentence, mistake in each.items()]
        raise RecipeError(f"{path} has {len(each)} mistakes:", "\n".join(map(printable, lines)))


def options() -> dict[str, click.Option]:
    """The options of `bisect run` that a file may have, by name."""
    return {
        name.removeprefix("--"): each
        for each in run.params
        if isinstance(each, click.Option)
        for name in each.opts
        if name.startswith("--") and name.removeprefix("--") not in (*NOT_HERE, "host")
    }


def check_keys(place: Place, table: Mapping[str, object], mistakes: list[RecipeError]) -> None:
    """Add a mistake for each key that is no option, and for each empty list of workloads: they would make no hunt."""
    allowed = [*ENDS, *OWN, "slurm", *options()]
    for key, value in table.items():
        if key in NOT_HERE:
            mistakes.append(RecipeError(f"{place.of('')}: {key} is no key of a file.", NOT_HERE[key]))
        elif key not in allowed:
            advice = hint(key, allowed).strip() or "Keys are the options of `bisect run` without --."
            mistakes.append(RecipeError(f"{place.of('')}: there is no key {key}.", advice))
        elif key == "workload" and value == []:
            mistakes.append(
                RecipeError(f"{place.of(key)} is an empty list, which makes no hunt.", "Name at least one workload.")
            )


def entry(place: Place, values: Mapping[str, Any], mistakes: list[RecipeError]) -> SlurmJob | None:
    """One hunt from its keys; None after values that are of a wrong type, each of which is added to ``mistakes``."""
    for end in ENDS:
        if not isinstance(values.get(end), str):
            found = "is missing" if end not in values else "must be text, in quotes"
            raise RecipeError(f"{place.of(end)} {found}.", f'Write it as a revision: {end} = "8.0.28"')
    if "host" in values and "any-host" in values:
        raise RecipeError(f"{place.of('')}: host and any-host exclude each other.")
    choices = hosts_of(place, values)
    arguments: list[str] = []
    noted_before = len(mistakes)
    for name, option in options().items():
        if name in values:
            with noted(mistakes):
                arguments += words(place, name, option, values[name])
    if noted_before != len(mistakes):
        return None
    arguments += ["--", values["good"], values["bad"]]
    settings = checked(place, choices, arguments, "any-host" if "any-host" in values else "host")
    parts = (settings.repository, settings.builder, settings.variant, settings.quick, values["good"], values["bad"])
    folder = str(place.path.parent.absolute())
    planned = PlannedHunt(tuple(arguments), folder, choices)
    return SlurmJob(planned, options_of_slurm(place, values), settings.policy.max_minutes, range_of(folder, parts))


def options_of_slurm(place: Place, values: Mapping[str, Any]) -> tuple[str, ...]:
    """The options of sbatch, as they are; each is one word, since anything else would be a script."""
    given = values.get("slurm", [])
    if not isinstance(given, list) or not all(re.fullmatch(r"--?\w.*", str(each), re.DOTALL) for each in given):
        example = 'Write slurm = ["--constraint=quiet", "--nice=100"].'
        raise RecipeError(f"{place.of('slurm')} must be a list of options of sbatch, each with its value.", example)
    return tuple(map(str, given))


def hosts_of(place: Place, values: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """The hosts that a hunt can be measured on: all of one of these."""

    def names(key: str) -> list[str]:
        given = values[key] if isinstance(values[key], list) else [values[key]]
        if not given or not all(isinstance(each, str) for each in given):
            raise RecipeError(f"{place.of(key)} must be the name of a host, or a list of them.")
        return given

    if "any-host" in values:
        return tuple((name,) for name in dict.fromkeys(names("any-host")))
    return (tuple(names("host")) if "host" in values else ("local",),)


def words(place: Place, name: str, option: click.Option, value: object) -> list[str]:
    """A key and its value as arguments of `bisect run`."""
    if option.is_flag:
        if not isinstance(value, bool):
            raise RecipeError(f"{place.of(name)} must be true or false, and is {show(value)}.")
        return [f"--{name}"] if value else [*option.secondary_opts[:1]]
    if isinstance(value, list) and not option.multiple:
        raise RecipeError(f"{place.of(name)} must be one value, and is a list.")
    values = value if isinstance(value, list) else [value]
    if isinstance(value, dict) and option.multiple:  # --set and --suspect: NAME=VALUE
        values = [f"{key}={str(part).lower() if isinstance(part, bool) else part}" for key, part in value.items()]
    for each in values:
        allowed = "a text that is not empty, or a number"
        if whole := isinstance(option.type, click.IntRange):
            allowed = f"a whole number from {option.type.min:,} to {option.type.max:,}"
        fits = re.fullmatch(r"-?\d+", str(each)) if whole else isinstance(each, str | int | float) and each != ""
        if isinstance(each, bool) or not fits:
            raise RecipeError(f"{place.of(name)} must be {allowed}, and is {show(each)}.")
    return [f"--{name}={each}" for each in values]


def checked(place: Place, choices: Sequence[Sequence[str]], arguments: list[str], key_of_hosts: str) -> Settings:
    """The settings of a hunt. Raises RecipeError with the key for what `bisect run` would refuse at once."""
    from perfbisect.recipes.builder_reader import load_builder
    from perfbisect.recipes.inventory import load_host
    from perfbisect.recipes.requested import load_requested

    hosts = [f"--host={host}" for host in choices[0]]
    with explained(place):
        settings = requested_settings(**run.make_context("run", [*hosts, *arguments]).params)
    if settings.repository and not Path(settings.repository).is_dir():
        raise RecipeError(f"{place.of('repo')}: there is no folder {settings.repository}.")
    with explained(place, key_of_hosts):
        for host in {host: None for hosts in choices for host in hosts if LEASED not in host}:
            load_host(host, settings.hosts_path)
    if not settings.quick:
        with explained(place, "builder"):
            load_builder(settings.builder, settings.builders_path)
    if "," in settings.workload:
        raise RecipeError(
            f"{place.of('workload')} names several workloads in one text.", "Write a list, which makes a hunt for each."
        )
    with explained(place, "run" if settings.quick else "workload"):
        load_requested(settings)
    return settings


@contextmanager
def explained(place: Place, key: str = "") -> Iterator[None]:
    """Name the table and the key in errors of `bisect run`: that of the option which alone is wrong, else ``key``."""
    try:
        yield
    except click.ClickException as mistake:
        param = getattr(mistake, "param", None)
        key = key or (param.opts[-1].removeprefix("--") if param else "")
        raise RecipeError(f"{place.of(key)}: {mistake.message}") from mistake
    except PerfBisectError as failure:
        raise RecipeError(f"{place.of(failure.option or key)}: {failure}", failure.advice) from failure
