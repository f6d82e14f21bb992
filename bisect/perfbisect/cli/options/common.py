"""The options that most commands have (history, host, waiting, notification, view), and functions that write to
standard output."""

import shutil
import sys
import time
from collections.abc import Callable, Iterable
from functools import wraps
from inspect import cleandoc
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from perfbisect.cli.options.completion import complete_id, host_names
from perfbisect.cli.options.param_types import COMMAND, SessionIdParam
from perfbisect.ui.stream import note, replace_line, write_line
from perfbisect.wording.text import printable, safe_json

if TYPE_CHECKING:
    from rich.text import Text

    from perfbisect.host.lock import LockOwner

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

ALL_HELP = f"{__name__}.all_help"  # key in click's ``ctx.meta``: whether the help with all options is printed
EXAMPLES = 6  # lines of an epilog that `--help` shows: click's mark, the title, and four examples


class CommandOptions(SimpleNamespace):
    """The values of a command's arguments and options; the attributes have the names of click's parameters."""


def adding_options(*options: Decorator) -> Decorator:
    """A decorator that adds ``options`` to a command; `--help` shows them in this order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def options_command(
    command_class: type[click.Command] = click.Command, parent: click.Group | None = None, **click_options: Any
) -> Callable[[Callable[..., Any]], Any]:
    """A decorator that makes a click command from a function. The function gets the values of all options as
    ``CommandOptions``. The function's docstring is the help text of the command; its examples are shown after the
    options.

    ``click_options`` are further arguments of ``command_class``; ``parent`` is the click group to which the command is
    added.
    """

    def command_of(verb: Callable[[CommandOptions], Any]) -> click.Command:
        @wraps(verb)
        def called(**options: Any) -> Any:
            return verb(CommandOptions(**options))

        text, mark, examples = cleandoc(verb.__doc__ or "").partition("\b\nExamples:\n")
        command = click.command(cls=command_class, help=text, epilog=f"{mark}{examples}\n", **click_options)(called)
        if parent:
            parent.add_command(command)
        return command

    return command_of


def print_and_exit_option(show: Callable[[click.Context], None]) -> dict[str, Any]:
    """The arguments of ``click.option`` for an option, such as --help, that calls ``show`` and then ends the program,
    even if required arguments are missing."""

    def callback(ctx: click.Context, _param: click.Parameter, is_used: bool) -> None:
        if is_used and not ctx.resilient_parsing:
            show(ctx)
            ctx.exit()

    return {"is_flag": True, "is_eager": True, "expose_value": False, "callback": callback}


class LongCommand(click.Command):
    """A click command with many options: `--help` prints only the options ``common`` and the first examples;
    `--help-all` prints all options and examples."""

    def __init__(self, *args: Any, common: str, **how: Any) -> None:
        super().__init__(*args, **how)
        self.common = [*common.split(), "--help-all"]

        def print_all(ctx: click.Context) -> None:
            ctx.meta[ALL_HELP] = True
            say(ctx.get_help())

        text = "Show all options, examples and explanations."
        self.params.append(click.Option(["--help-all"], help=text, **print_and_exit_option(print_all)))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help of the common options; for ``--help-all``, also write the help of all other options."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        rows = {option.opts[0]: row for option in options if (row := option.get_help_record(ctx))}
        groups = {"Options": [rows.pop(name) for name in self.common]}
        if ctx.meta.get(ALL_HELP):
            groups["Further options"] = [*rows.values()]
        for title, group in groups.items():
            with formatter.section(title):
                formatter.write_dl(group)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first examples; for ``--help-all``, write the whole epilog (the text after the options)."""
        lines = (self.epilog or "").splitlines()
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("\n".join(lines if ctx.meta.get(ALL_HELP) else lines[:EXAMPLES]))


def notify_command(ctx: click.Context, _param: click.Parameter, value: tuple[str, ...] | None) -> tuple[str, ...]:
    """The command that notifies the user: from --notify or, without this option, from config.toml. Raises RecipeError
    for a mistake in config.toml."""
    from perfbisect.recipes.configuration import configuration_location, load_configuration, split_command

    if value is not None or ctx.resilient_parsing:  # the option is given, or a shell asks for completions
        return value or ()
    try:
        return split_command(load_configuration().notify)
    except ValueError as mistake:
        raise configuration_location().at("notify").mistake(f"is not a command: {mistake}.") from mistake


class WaitingLine:
    """Shows on standard error why perfbisect waits: on a terminal, a line with a clock that is updated; otherwise, a
    new line for each reason."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.shown: set[str] = set()
        self.drawn = False  # whether the line is on the terminal now

    @property
    def waited_clock(self) -> str:
        """The time since perfbisect began to wait, such as 0:07."""
        from perfbisect.wording.quantities import clock

        return clock(time.monotonic() - self.began)

    def show_waiting(self, subject: str, end: str = "") -> None:
        """Show that perfbisect waits for ``subject``. If there is no terminal, print ``end`` after ``subject``."""
        from perfbisect.wording.table import cut

        if sys.stderr.isatty():
            line = printable(f"{self.waited_clock} waiting for {subject}")
            replace_line(cut(line, shutil.get_terminal_size().columns - 1))
            self.drawn = True
        elif subject not in self.shown:
            note(f"Waiting for {printable(subject)}{end}")
        self.shown.add(subject)

    def say(self, text: str) -> None:
        """Erase the line that says why perfbisect waits, and print a text instead."""
        self.erase()
        note(printable(text))

    def erase(self) -> None:
        """Erase the line that says why perfbisect waits, if it is on the screen."""
        if self.drawn:
            replace_line("")
        self.drawn = False

    def __call__(self, owner: "LockOwner | None") -> None:
        """Show that perfbisect waits for the session of ``owner``, which has a host's lock; if ``owner`` is None, show
        that the wait is over. ``host.lock`` calls this method."""
        if owner is not None:
            self.show_waiting(str(owner), ".")
        elif self.drawn:
            self.erase()
        else:
            note("The host is free.")


# A command gets the value of each of these options as the parameter with the option's name.
PATH = click.Path(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)  # an existing file
FOLDER = click.Path(file_okay=False, path_type=Path)
history_option = click.option(  # None: the default path. The option of a group may precede the name of a command
    "--history", metavar="FILE", type=FILE, is_eager=True,  # eager: is read before the ids of hunts
    callback=lambda ctx, _param, value: value or (ctx.parent.params.get("history") if ctx.parent else None),
    help="File that stores hunts and comparisons. Default: ~/.local/state/perfbisect/history.db.",
)  # fmt: skip
host_argument = click.argument("host", default="local", shell_complete=host_names)
explain_option = click.option(
    "--explain/--no-explain", default=True, show_default=True,
    help="Measure culprit and parent again for the reason: counters, profiles, query plans.",
)  # fmt: skip
waiting_option = click.option(  # the value is a WaitingLine; None without the option
    "--wait", "waiting", is_flag=True, callback=lambda _ctx, _param, wait: WaitingLine() if wait else None,
    help="If another hunt or comparison runs on the host, wait for its end instead of failing.",
)  # fmt: skip
notify_option = click.option(  # the value is the words of a command; () means no command
    "--notify", type=COMMAND, callback=notify_command,
    help="Command to run at the end; its standard input is the verdict as JSON.",
)  # fmt: skip
PLAIN = "Print plain lines instead of the live display."
plain_option = click.option("--plain", is_flag=True, help=PLAIN)
view_options = adding_options(  # of commands that hunt; the parameter is ``view: str | None``; the last option counts
    click.option("--plain", "view", flag_value="plain", default=None, help=PLAIN),
    click.option("--json", "view", flag_value="json", default=None, help="Print one JSON object for each event."),
)

# Options of commands that carry out hunts.
session_options = adding_options(waiting_option, notify_option, view_options, history_option)


def json_option(text: str = "Print one JSON object.") -> Decorator:
    """The option --json with the help text ``text``."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def id_argument(kinds: str = "") -> Decorator:
    """The argument HUNT: the id of a hunt, or of a trial whose id begins with a letter of ``kinds``; None (the latest
    session) if the user omits the argument."""
    return click.argument("hunt", type=SessionIdParam(kinds), required=False, shell_complete=complete_id)


def output_width() -> int | None:
    """The width of the terminal at standard output, in columns; None (no limit) for a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def say(text: str) -> None:
    """Write lines to standard output. Raises StdoutClosed or EnvironmentFailure if the text cannot be written."""
    write_line(text, sys.stdout)


def say_json(text: str, end: str = "\n") -> None:
    """Write JSON to standard output; control characters and other characters that are unsafe to print are written as
    JSON escapes."""
    write_line(safe_json(text), sys.stdout, end)


def say_object(value: Any) -> None:
    """Write a value as indented JSON. A part of the value that JSON cannot represent is written as text."""
    import msgspec

    say_json(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode())


def say_styled(lines: "Iterable[str | Text]") -> None:
    """Write lines to standard output, with colours if standard output is a terminal that can show colours."""
    if not sys.stdout.isatty():
        say("\n".join(map(str, lines)))
        return
    from perfbisect.ui.live import EscapingConsole

    terminal = EscapingConsole(sys.stdout)
    for line in lines:
        terminal.print(line, soft_wrap=True)


def show_clone_progress(step: str, done: int, total: int) -> None:
    """On a terminal, show the progress of git's clone on standard error."""
    if sys.stderr.isatty():
        replace_line(f"{step} {done}/{total}" + ("\n" if done == total else ""))
