"""Options that most verbs share: history, hosts, waiting, notification, views; and how verbs write to standard output."""

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

from perfbisect.cli.options.completion import any_id, host_name
from perfbisect.cli.options.param_types import COMMAND, Id
from perfbisect.ui.stream import note, put, rewrite_line
from perfbisect.wording.text import printable, safe_json

if TYPE_CHECKING:
    from rich.text import Text

    from perfbisect.host.lock import Owner

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

ALL_HELP = f"{__name__}.all_help"  # in the context of a command whose help is printed
EXAMPLES = 6  # lines of an epilog: click's mark, the title, and four examples


class Given(SimpleNamespace):
    """The arguments and options of a command, each by the name of its parameter."""


def added(*options: Decorator) -> Decorator:
    """Add these options to a command, in their order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def verb_command(
    kind: type[click.Command] = click.Command, parent: click.Group | None = None, **how: Any
) -> Callable[[Callable[..., Any]], Any]:
    """A command that calls its function with what is ``Given``. Its help is the docstring, whose examples stand behind the options.

    ``how`` are arguments of ``kind``, and it is a command of ``parent``.
    """

    def command_of(verb: Callable[[Given], Any]) -> click.Command:
        @wraps(verb)
        def called(**options: Any) -> Any:
            return verb(Given(**options))

        text, mark, examples = cleandoc(verb.__doc__ or "").partition("\b\nExamples:\n")
        command = click.command(cls=kind, help=text, epilog=f"{mark}{examples}\n", **how)(called)
        if parent:
            parent.add_command(command)
        return command

    return command_of


def telling(tell: Callable[[click.Context], None]) -> dict[str, Any]:
    """Arguments of an option that is given in place of what its command needs: ``tell`` prints, and the program exits."""

    def callback(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
        if wanted and not ctx.resilient_parsing:
            tell(ctx)
            ctx.exit()

    return {"is_flag": True, "is_eager": True, "expose_value": False, "callback": callback}


class LongCommand(click.Command):
    """A verb with more options than fit a screen: `--help` has the ``common`` ones and the first examples, `--help-all` all."""

    def __init__(self, *args: Any, common: str, **how: Any) -> None:
        super().__init__(*args, **how)
        self.common = [*common.split(), "--help-all"]

        def print_all(ctx: click.Context) -> None:
            ctx.meta[ALL_HELP] = True
            say(ctx.get_help())

        text = "Show all options, examples and what they mean."
        self.params.append(click.Option(["--help-all"], help=text, **telling(print_all)))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The common options, in their order; behind them the others, if wanted."""
        rows = {param.opts[0]: row for param in self.get_params(ctx) if (row := param.get_help_record(ctx))}
        groups = {"Options": [rows.pop(name) for name in self.common]}
        if ctx.meta.get(ALL_HELP):
            groups["Further options"] = [*rows.values()]
        for title, group in groups.items():
            with formatter.section(title):
                formatter.write_dl(group)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The first examples, or all of the epilog."""
        lines = (self.epilog or "").splitlines()
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("\n".join(lines if ctx.meta.get(ALL_HELP) else lines[:EXAMPLES]))


def or_configured(ctx: click.Context, _param: click.Parameter, value: tuple[str, ...] | None) -> tuple[str, ...]:
    """The command that is notified: the given one, else that of config.toml. Raises RecipeError for a mistake in that."""
    from perfbisect.recipes.configuration import load_configuration, place_of_configuration, split_command

    if value is not None or ctx.resilient_parsing:  # completion of a shell
        return value or ()
    try:
        return split_command(load_configuration().notify)
    except ValueError as mistake:
        raise place_of_configuration().at("notify").mistake(f"cannot be run: {mistake}.") from mistake


class WaitingLine:
    """What is waited for, on standard error: a line with a clock on a terminal, else a line for each change."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.shown: set[str] = set()
        self.drawn = False  # whether there is a line on the terminal

    @property
    def waited(self) -> str:
        """For how long, as a clock shows it."""
        from perfbisect.wording.quantities import clock

        return clock(time.monotonic() - self.began)

    def show(self, what: str, end: str = "") -> None:
        """``what`` is waited for; ``end`` is the end of the sentence where it is one."""
        from perfbisect.wording.table import cut

        if sys.stderr.isatty():
            rewrite_line(cut(printable(f"{self.waited} waiting for {what}"), shutil.get_terminal_size().columns - 1))
            self.drawn = True
        elif what not in self.shown:
            note(f"Waiting for {printable(what)}{end}")
        self.shown.add(what)

    def say(self, text: str) -> None:
        """Tell the user, in place of the line."""
        self.clear()
        note(printable(text))

    def clear(self) -> None:
        """Remove the line, if there is one."""
        if self.drawn:
            rewrite_line("")
        self.drawn = False

    def __call__(self, owner: "Owner | None") -> None:
        """Show that a session, its ``owner``, is waited for, or (None) that the wait is over; see ``host.lock``."""
        if owner is not None:
            self.show(str(owner), ".")
        elif self.drawn:
            self.clear()
        else:
            note("The host is free now.")


# Each is given to the command as a parameter of its name.
PATH = click.Path(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)  # a file
FOLDER = click.Path(file_okay=False, path_type=Path)
history_option = click.option(  # None: the default place; a group of commands may have it before the name of one
    "--history", metavar="FILE", type=FILE, is_eager=True,  # before the names of hunts
    callback=lambda ctx, _param, value: value or (ctx.parent.params.get("history") if ctx.parent else None),
    help="History to use. Default: perfbisect/history.db in the user's state folder.",
)  # fmt: skip
host_argument = click.argument("host", default="local", shell_complete=host_name)
explain_option = click.option(
    "--explain/--no-explain", default=True, show_default=True,
    help="Measure a culprit and its parent again for the reason: counters, profiles, plans.",
)  # fmt: skip
waiting_option = click.option(  # what shows who is waited for; None without it
    "--wait", "waiting", is_flag=True, callback=lambda _ctx, _param, wait: WaitingLine() if wait else None,
    help="Wait for a host on which another session measures, instead of failing.",
)  # fmt: skip
notify_option = click.option(  # the arguments of a command; none for no command
    "--notify", type=COMMAND, callback=or_configured,
    help="Command that gets the verdict as JSON on its standard input, at the end.",
)  # fmt: skip
PLAIN = "Plain lines, as when there is no terminal."
plain_option = click.option("--plain", is_flag=True, help=PLAIN)
view_options = added(  # of every verb that hunts: ``view: str | None``; of several the last counts
    click.option("--plain", "view", flag_value="plain", default=None, help=PLAIN),
    click.option("--json", "view", flag_value="json", default=None, help="One JSON object for each event."),
)

session_options = added(waiting_option, notify_option, view_options, history_option)  # of a verb that carries out hunts


def json_option(text: str = "One JSON object.") -> Decorator:
    """``--json``; ``text`` is its help."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def id_argument(kinds: str = "") -> Decorator:
    """``HUNT``: the id of a hunt, or of what else has a letter of ``kinds``; None for the latest one."""
    return click.argument("hunt", type=Id(kinds), required=False, shell_complete=any_id)


def output_width() -> int | None:
    """Columns of the terminal that standard output goes to; None (no limit) for a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def say(text: str) -> None:
    """Write lines to standard output. Raises ReaderGone or EnvironmentFailure where that is impossible."""
    put(text, sys.stdout)


def say_json(text: str, end: str = "\n") -> None:
    """Write JSON to standard output; what would be unsafe to print is escaped as JSON does it."""
    put(safe_json(text), sys.stdout, end)


def say_object(value: Any) -> None:
    """Write a value as indented JSON; of what JSON has no form for, the text."""
    import msgspec

    say_json(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode())


def say_styled(lines: "Iterable[str | Text]") -> None:
    """Write lines to standard output, in their colours on a terminal that has them."""
    if not sys.stdout.isatty():
        say("\n".join(map(str, lines)))
        return
    from perfbisect.ui.terminal import Terminal

    terminal = Terminal(sys.stdout)
    for line in lines:
        terminal.print(line, soft_wrap=True)


def clone_progress(step: str, done: int, total: int) -> None:
    """Show on standard error, if it is a terminal, how far git has got with a clone."""
    if sys.stderr.isatty():
        rewrite_line(f"{step} {done}/{total}" + ("\n" if done == total else ""))
