"""`bisect batch`: carries out hunts over several ranges, systems and workloads, in parallel on several hosts. A TOML
file lists the hunts, with the options of `bisect run` as keys.
"""

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec
from msgspec import Meta

from perfbisect.cli.commands.run import requested_settings, run
from perfbisect.cli.options.common import (
    FOLDER,
    CommandOptions,
    history_option,
    options_command,
    output_width,
    plain_option,
    say,
)
from perfbisect.cli.options.completion import complete_id
from perfbisect.cli.options.param_types import FileOrBatchParam
from perfbisect.cli.sessions import run_and_print_hunts, view_opener
from perfbisect.core.domain.settings import Settings
from perfbisect.errors import PerfBisectError, RecipeError, UsageError
from perfbisect.hunt.batch import LEASED, build_sharing_key
from perfbisect.hunt.slurm import SlurmJob
from perfbisect.recipes.toml import Location, convert_table, read_table
from perfbisect.report.command_line import bisect_command
from perfbisect.store.batches import PlannedHunt
from perfbisect.store.history import History
from perfbisect.ui.stream import note
from perfbisect.wording.quantities import count
from perfbisect.wording.text import printable


@options_command()
@click.argument("file", metavar="FILE|BATCH", type=FileOrBatchParam("b"), shell_complete=complete_id)
@click.option("--dry-run", is_flag=True, help="Check FILE and print its hunts. Begin no hunt.")
@click.option("--anew", is_flag=True, help="Begin all hunts again. Continue no unfinished batch.")
@click.option("--submit", type=click.Choice(["slurm"]), metavar="slurm", help="Submit each hunt as a job to Slurm.")
@click.option("--cancel", is_flag=True, help="Cancel the Slurm jobs of BATCH.")
@plain_option
@click.option(
    "--page", metavar="FOLDER", type=FOLDER,
    help="At the end, write HTML pages of all hunts to FOLDER.",
)  # fmt: skip
@history_option
def batch(given: CommandOptions) -> int:
    """Carry out the hunts of FILE, in parallel on several hosts. If a hunt fails, the other hunts continue.

    To continue an interrupted batch, repeat the command, or run `bisect resume --all`. `bisect batch b3` shows the
    Slurm jobs of batch b3.

    \b
    Examples:
      bisect batch hunts.toml --dry-run        check the file
      bisect batch hunts.toml                  begin or continue the hunts of the file
      bisect batch hunts.toml --page pages/    an index and a page for each hunt
      bisect resume --all                      continue after Ctrl-C
      bisect batch hunts.toml --submit slurm   submit each hunt as a Slurm job
      bisect batch b3                          print the Slurm jobs of batch b3

    \b
    FILE has the options of `bisect run` as keys, without --:
      [defaults]
      builder = "sqlite"
      any-host = ["c8-1", "c8-2"]     # each hunt on one of these hosts; host = [...]: each hunt on all hosts
      max-time = "2h"
      slurm = ["--constraint=quiet"]  # options of sbatch

    \b
      [[hunt]]
      good = "3.41.0"
      bad = "3.42.0"
      workload = ["scan", "update-index"]      # a hunt for each workload

    \b
      [[hunt]]
      good = "3.44.0"
      bad = "3.45.0"
      workload = "point-select"
      set = {table-size = 100000}

    \b
    Each hunt runs as `bisect run` in the folder of FILE. A hunt prefers the host that already has builds of its range.
    Exit status: the highest exit status of the hunts.
    """
    history, submit, page = given.history, given.submit, given.page
    if isinstance(given.file, str):
        if given.dry_run or given.anew or submit or page:
            raise click.UsageError(
                f"{given.file} is the id of a batch. With an id, only --cancel is allowed; the other options need a FILE."
            )
        show_or_cancel_jobs(given.file, history, cancel=given.cancel)
        return 0
    if given.cancel or (submit and page):
        raise click.UsageError(
            "--cancel needs the id of a batch. Example: bisect batch b3 --cancel"
            if given.cancel
            else "--submit and --page exclude each other. After the end of the jobs, write the pages with: bisect report BATCH (BATCH: the id of the batch, such as b3)"
        )
    from perfbisect.hunt.batch import tasks_of
    from perfbisect.hunt.slurm import check_slurm_command
    from perfbisect.hunt.slurm import submit as submit_all
    from perfbisect.store.batches import all_batches, begin_batch, continue_batch, read_batch
    from perfbisect.store.connection import default_history_path

    file, path = given.file.absolute(), (history or default_history_path()).absolute()
    page = page.absolute() if page else None
    with chdir(file.parent):  # relative paths in the file start at the file's folder
        entries = read_batch_file(file)
        targets = ["on " + " or ".join(" and ".join(hosts) for hosts in entry.planned.hosts) for entry in entries]
        if submit:  # checked before anything begins: sbatch arguments may be refused for some hosts
            targets = [shlex.join(["sbatch", *entry.sbatch_options()]) for entry in entries]
        if given.dry_run:
            for target, entry in zip(targets, entries, strict=True):
                say(f"{target}: bisect run {shlex.join(entry.planned.arguments)}")
            return 0
        if submit:
            check_slurm_command()
        planned = [entry.planned for entry in entries]
        with closing(History.open(path)) as opened:
            of_file = (batch_of_file for batch_of_file in all_batches(opened) if batch_of_file.file == str(file))
            matching = [batch for batch in of_file if [hunt.planned for hunt in batch.hunts] == planned]
            for latest in matching[-1:]:
                see = (
                    f"To see its hunts: {bisect_command('watch' if latest.running else 'batch', latest.name, history)}"
                )
                if latest.running:
                    raise UsageError(f"Another process carries out this file, as batch {latest.name}.", see)
                if latest.is_submitted and not (submit or given.anew or latest.ended):
                    raise UsageError(
                        f"This file was submitted to Slurm, as batch {latest.name}. To begin all hunts anew, add --anew.",
                        see,
                    )
            if matching and not given.anew:
                number = latest.id
                continue_batch(opened, number)
                done = f"All hunts of batch {latest.name} have verdicts. To begin all hunts anew, add --anew."
                note(done if latest.ended else f"Continuing batch {latest.name}.")
            else:
                number = begin_batch(opened, file, planned, time.time())
            if submit:
                submitted = submit_all(opened, number, entries)
                unchanged = len(entries) - submitted
                also = (
                    f"; {unchanged} not submitted again, because they wait, run, or have a verdict" if unchanged else ""
                )
                say(
                    f"{count(submitted, 'hunt')} submitted{also}.\nTo see the jobs: {bisect_command('batch', f'b{number}', history)}"
                )
                return 0
            tasks = tasks_of(read_batch(opened, number), opened, [entry.range for entry in entries])
            view = view_opener(history, "plain" if given.plain else None)({})
            status = run_and_print_hunts(tasks, opened, history, bisect_command("batch", str(file), history), view)
            if page:
                from perfbisect.cli.commands.report import write_all_pages

                write_all_pages(opened, page, history, {task.hunt for task in tasks if task.hunt is not None})
    return status


def show_or_cancel_jobs(name: str, path: Path | None, *, cancel: bool) -> None:
    """Show the Slurm jobs of the batch ``name``; if ``cancel``, cancel these jobs."""
    from perfbisect.cli.commands.report import batch_lines
    from perfbisect.hunt import slurm
    from perfbisect.hunt.batch import hunt_output_file, title_of
    from perfbisect.hunt.slurm import needs_no_job, read_batch_and_jobs

    with closing(History.open(path)) as opened:
        read, states = read_batch_and_jobs(opened, int(name[1:]))
        if not read.is_submitted:
            text = f"Batch {name} has no Slurm jobs: it was not submitted."
            raise UsageError(text, f"To see its hunts: {bisect_command('show', name, path)}")
        again = f"{bisect_command('batch', read.file, path)} --submit slurm"
        if cancel:
            waiting = [job for job, state in states.items() if state.is_open]
            slurm.cancel(waiting)
            say(f"{count(len(waiting), 'job')} cancelled. To submit the hunts without a verdict again: {again}")
            return
        say("\n".join(batch_lines(read, opened, output_width(), states)))
        lacking = [hunt for hunt in read.hunts if not needs_no_job(hunt, states)]
        for hunt in lacking:
            if (log := hunt_output_file(opened, read.id, hunt.number)).exists():
                note(f"{printable(title_of(hunt.planned))}: the output of the job is in {log}")
        if lacking:
            note(f"To submit the hunts without a verdict again: {again}")


ENDS = ("good", "bad")
OWN = ("host", "any-host")  # keys with hosts: all listed hosts, or any listed host
BATCH_HAS = "Give it to `bisect batch` as an option."
NOT_HERE = {  # option of `bisect run` that is no key → why
    "history": BATCH_HAS,
    "plain": BATCH_HAS,
    "dry-run": BATCH_HAS,
    "help": BATCH_HAS,
    "help-all": "Use it on the command line: bisect run --help-all",
    "json": "A batch prints no JSON. For the JSON of a hunt: bisect show HUNT --json",
    "wait": "Remove it: a batch always waits for busy hosts.",
    "in-batch": "Remove it: `bisect batch` sets it.",
}

Text = Annotated[str, Meta(min_length=1, description="a text that is not empty")] | int | float
Names = (
    Annotated[str, Meta(min_length=1, description="a name")]
    | Annotated[list[str], Meta(min_length=1, description="a list with at least one name")]
)
Sbatch = Annotated[str, Meta(pattern=r"^--?\w", description='an option of sbatch, such as "--constraint=quiet"')]


class BatchFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of a batch file."""

    defaults: dict[str, Any] = {}
    hunt: Annotated[list[dict[str, Any]], Meta(min_length=1, description="at least one table [[hunt]]")]


def run_options_as_keys() -> dict[str, click.Option]:
    """The options of `bisect run` that may be keys in a batch file, by the name of the key."""
    return {
        name.removeprefix("--"): option
        for option in run.params
        if isinstance(option, click.Option)
        for name in option.opts
        if name.startswith("--") and name.removeprefix("--") not in (*NOT_HERE, "host")
    }


def hunt_table_type() -> type[msgspec.Struct]:
    """The keys that a hunt may have in a batch file, with the types of the values, as a msgspec type."""
    kinds: dict[str, Any] = dict.fromkeys(ENDS, str) | dict.fromkeys(OWN, Names) | {"slurm": list[Sbatch]}
    for name, option in run_options_as_keys().items():
        value_type: Any = Text
        if isinstance(option.type, click.IntRange):
            lowest, highest = option.type.min, option.type.max
            value_type = Annotated[
                int, Meta(ge=lowest, le=highest, description=f"a whole number from {lowest:,} to {highest:,}")
            ]
        several = value_type | list[value_type] | dict[str, str | int | float | bool]  # dict: --set, --suspect
        kinds[name] = bool if option.is_flag else several if option.multiple else value_type
    kinds["workload"] = Names
    fields = [(name.replace("-", "_"), kind, None) for name, kind in kinds.items()]
    names = {name.replace("-", "_"): name for name in kinds}
    return msgspec.defstruct("Keys", fields, rename=names, forbid_unknown_fields=True)


def read_batch_file(path: Path) -> list[SlurmJob]:
    """The hunts of a batch file. Checks that their recipes and hosts exist.

    The working directory must be the folder of the batch file. Raises a RecipeError that names the table and the key of
    each mistake.
    """
    content = convert_table(read_table(path), BatchFile, Location(path))
    mistakes: list[RecipeError] = []
    tables = {Location(path, "defaults"): content.defaults}
    tables |= {Location(path, f"hunt {number}"): hunt_table for number, hunt_table in enumerate(content.hunt, 1)}
    wrong = {location for location, table in tables.items() if has_mistaken_keys(location, table, mistakes)}
    (of_defaults, defaults), *hunts = tables.items()
    jobs = []
    for location, hunt_table in hunts:
        hosts_own = {*OWN} & hunt_table.keys()  # these keys replace the hosts of [defaults]
        inherited = {key: value for key, value in defaults.items() if not (hosts_own and key in OWN)}
        values = inherited | hunt_table
        places = {key: location if key in hunt_table else of_defaults for key in values}
        workloads = values.get("workload")
        for workload in workloads if isinstance(workloads, list) else [workloads]:
            if not {location, of_defaults} & wrong:
                with collecting_mistakes(mistakes):
                    jobs.append(hunt_job(location, places, values | ({"workload": workload} if workload else {})))
    raise_mistakes(path, mistakes)
    return jobs


def has_mistaken_keys(location: Location, table: Mapping[str, object], mistakes: list[RecipeError]) -> bool:
    """Whether a table has an unknown key or a value of a wrong type. Adds each such mistake to ``mistakes``."""
    count_before = len(mistakes)
    for key, value in table.items():
        with collecting_mistakes(mistakes):
            if key in NOT_HERE:
                raise location.at(key).mistake("is not a key of a batch file.", NOT_HERE[key])
            convert_table({key: value}, hunt_table_type(), location)
    return len(mistakes) > count_before


@contextmanager
def collecting_mistakes(mistakes: list[RecipeError]) -> Iterator[None]:
    """Within the ``with`` block, a RecipeError is added to ``mistakes`` and not raised, so that the next mistakes are
    found, too."""
    try:
        yield
    except RecipeError as mistake:
        mistakes.append(mistake)


def raise_mistakes(path: Path, mistakes: Sequence[RecipeError]) -> None:
    """Raise a single RecipeError that lists all mistakes; if there are none, do nothing.

    Equal mistakes are listed only once, because a mistake in [defaults] is a mistake of several hunts.
    """
    by_sentence = {str(mistake): mistake for mistake in mistakes}
    if len(by_sentence) == 1:
        raise mistakes[0]
    if by_sentence:
        lines = [f"{sentence} {mistake.advice}".rstrip() for sentence, mistake in by_sentence.items()]
        raise RecipeError(f"{path} has {len(by_sentence)} mistakes:", "\n".join(map(printable, lines)))


def hunt_job(table: Location, location_by_key: Mapping[str, Location], values: Mapping[str, Any]) -> SlurmJob:
    """The hunt that the keys ``values`` describe; ``location_by_key`` has the location of each key in the file.

    Raises RecipeError for values that `bisect run` would refuse.
    """
    for end in ENDS:
        if end not in values:
            raise table.at(end).mistake("is missing.", f'Add a release or a git revision, such as: {end} = "8.0.28"')
    if "host" in values and "any-host" in values:
        raise table.mistake("has the keys host and any-host, which exclude each other.", "Remove one of the two keys.")
    key = "any-host" if "any-host" in values else "host"
    names_of_hosts = values.get(key, "local")
    names = dict.fromkeys([names_of_hosts] if isinstance(names_of_hosts, str) else names_of_hosts)
    choices = tuple((name,) for name in names) if key == "any-host" else (tuple(names),)
    keys = run_options_as_keys().items()
    arguments = [word for name, option in keys if name in values for word in run_arguments(name, option, values[name])]
    arguments += ["--", values["good"], values["bad"]]
    settings = checked_settings(table, location_by_key, choices, arguments)
    parts = (settings.repository, settings.builder, settings.variant, settings.quick, values["good"], values["bad"])
    folder = str(table.file.parent.absolute())
    planned, sharing_key = PlannedHunt(tuple(arguments), folder, choices), build_sharing_key(folder, parts)
    return SlurmJob(planned, tuple(values.get("slurm", ())), settings.policy.max_minutes, sharing_key)


def run_arguments(name: str, option: click.Option, value: Any) -> list[str]:
    """The arguments of `bisect run` that have the same meaning as a key and its value."""
    if option.is_flag:
        return [f"--{name}"] if value else [*option.secondary_opts[:1]]
    values = value if isinstance(value, list) else [value]
    if isinstance(value, dict):
        values = [f"{key}={str(part).lower() if isinstance(part, bool) else part}" for key, part in value.items()]
    return [f"--{name}={item}" for item in values]


def checked_settings(
    table: Location, location_by_key: Mapping[str, Location], choices: Sequence[Sequence[str]], arguments: list[str]
) -> Settings:
    """The settings of a hunt. If `bisect run` would refuse a value before the hunt begins, raises a RecipeError that
    names the key."""
    from perfbisect.recipes.builder_reader import load_builder
    from perfbisect.recipes.inventory import load_host
    from perfbisect.recipes.requested import load_requested

    def refused(option: str, why: str, advice: str = "") -> RecipeError:
        key = option.removeprefix("--") or asked
        return (location_by_key.get(key, table).at(key) if key else table).mistake(f"is refused: {why}", advice)

    asked = ""  # the key to name if an error does not say which option is wrong
    try:
        hosts = [f"--host={host}" for host in choices[0]]
        settings = requested_settings(CommandOptions(**run.make_context("run", [*hosts, *arguments]).params))
        if settings.repository and not Path(settings.repository).is_dir():
            raise UsageError(f"The folder {settings.repository} does not exist.", option="repo")
        asked = "any-host" if "any-host" in location_by_key else "host"
        for host in {host: None for hosts in choices for host in hosts if LEASED not in host}:
            load_host(host, settings.hosts_path)
        asked = "builder"
        if not settings.quick:
            load_builder(settings.builder, settings.builders_path)
        asked = "run" if settings.quick else "workload"
        if "," in settings.workload:
            text = "The text has several names of workloads."
            raise UsageError(text, "Write a list of names. Each name becomes a hunt.")
        load_requested(settings)
    except click.ClickException as mistake:
        param = getattr(mistake, "param", None)
        raise refused(param.opts[-1] if param else "", mistake.message) from mistake
    except PerfBisectError as failure:
        raise refused(failure.option, str(failure), failure.advice) from failure
    return settings
