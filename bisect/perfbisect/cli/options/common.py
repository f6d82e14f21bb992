"""Options that most verbs share, and what they print with: history, hosts and leases, waiting, notification, views."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from perfbisect.cli.options.completion import any_id, host_name
from perfbisect.cli.options.param_types import COMMAND, Id
from perfbisect.ui.stream import note, put, rewrite_line
from perfbisect.wording.text import printable, safe_json

if TYPE_CHECKING:
    from rich.text import Text

    from perfbisect.core.domain.settings import Settings
    from perfbisect.host.lock import Owner, WaitCallback
    from perfbisect.hunt.attempt import HuntOutcome, OpenView
    from perfbisect.hunt.watching import View


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

ALL_HELP = f"{__name__}.all_help"  # in the context of a command whose help is printed
EXAMPLES = 6  # lines of an epilog: click's mark, the title, and four examples


def added(*options: Decorator) -> Decorator:
    """Add these options to a command, in their order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


class LongCommand(click.Command):
    """A verb with more options than fit a screen: `--help` has the ``common`` ones and the first examples, `--help-all` all."""

    def __init__(self, *args: Any, common: str, **how: Any) -> None:
        super().__init__(*args, **how)
        self.common = [*common.split(), "--help-all"]
        self.params.append(
            click.Option(
                ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=self.print_all,
                help="Show all options, examples and what they mean.",
            )
        )  # fmt: skip

    def print_all(self, ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
        """Print the whole help and exit, if that is wanted."""
        if wanted and not ctx.resilient_parsing:
            ctx.meta[ALL_HELP] = True
            say(ctx.get_help())
            ctx.exit()

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


def each_host(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """The names of hosts; NAME*3 of a lease as three."""
    from perfbisect.recipes.inventory import expanded_names

    return expanded_names(value)


def or_configured(ctx: click.Context, _param: click.Parameter, value: tuple[str, ...] | None) -> tuple[str, ...]:
    """The command that is notified: the given one, else that of the user's configuration."""
    from perfbisect.recipes.configuration import configured_notification

    if value is None and not ctx.resilient_parsing:  # completion of a shell
        return configured_notification()
    return value or ()


def or_of_group(ctx: click.Context, _param: click.Parameter, value: Path | None) -> Path | None:
    """The history that is given to a command, or before its name to its group."""
    return value or (ctx.parent.params.get("history") if ctx.parent else None)


# Each is given to the command as a parameter of its name.
PATH = click.Path(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)  # a file
FOLDER = click.Path(file_okay=False, path_type=Path)
history_option = click.option(  # None: the default place
    "--history", metavar="FILE", type=FILE, callback=or_of_group, is_eager=True,  # before the names of hunts
    help="History to use. Default: perfbisect/history.db in the user's state folder.",
)  # fmt: skip
hosts_option = click.option(
    "--host", multiple=True, default=("local",), metavar="NAME", show_default=True, shell_complete=host_name,
    callback=each_host, help="Host to measure on. Repeatable: several hosts share the work.",
)  # fmt: skip
host_argument = click.argument("host", default="local", shell_complete=host_name)
explain_option = click.option(
    "--explain/--no-explain", default=True, show_default=True,
    help="Measure a culprit and its parent again for the reason: counters, profiles, plans.",
)  # fmt: skip
waiting_option = click.option(  # what shows who is waited for; None without it
    "--wait", "waiting", is_flag=True, callback=lambda _ctx, _param, wait: wait_callback() if wait else None,
    help="Wait for a host on which another session measures, instead of failing.",
)  # fmt: skip
notify_option = click.option(  # the arguments of a command; none for no command
    "--notify", type=COMMAND, callback=or_configured,
    help="Command that gets the verdict as JSON on its standard input, at the end.",
)  # fmt: skip
plain_option = click.option("--plain", is_flag=True, help="Plain lines, as when there is no terminal.")
view_options = added(  # of every verb that hunts: ``view: str | None``; of several the last counts
    *(
        click.option(f"--{name}", "view", flag_value=name, default=None, help=text)
        for name, text in {
            "plain": "Plain lines, as when there is no terminal.",
            "json": "One JSON object for each event.",
        }.items()
    )
)


def json_option(text: str = "One JSON object.") -> Decorator:
    """``--json``; ``text`` is its help."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def id_argument(kinds: str = "") -> Decorator:
    """``HUNT``: the id of a hunt, or of what else has a letter of ``kinds``; None for the latest one."""
    return click.argument("hunt", type=Id(kinds), required=False, shell_complete=any_id)


def lines_wanted(stream: TextIO | None = None) -> bool:
    """Whether a stream (None: standard output) is nothing that a screen can be drawn on."""
    return not (stream or sys.stdout).isatty() or os.environ.get("TERM") == "dumb"


def view_of(
    titles: Mapping[int, str],
    history: Path | None,
    view: str | None,
    *,
    together: bool = False,
    stream: TextIO | None = None,
    quiet: bool = False,
) -> "View":
    """The view of that name (None: the one that suits the stream) for sessions in ``history``; see ``ui.live``.

    Without a ``stream`` it is on standard output, and its last picture stays. ``quiet``: lines about what goes wrong, alone.
    """
    from perfbisect.report.command_line import command_on

    def report(hunt: int) -> str:
        return command_on("show", hunt, history)

    out = stream or sys.stdout
    if view or quiet or lines_wanted(out):
        from perfbisect.ui.lines import JsonLines, PlainLines

        if view == "json":
            return JsonLines(out, titles)
        return PlainLines(out, titles, report, together=together, quiet=quiet).reminding()
    from perfbisect.ui.live import LiveScreen
    from perfbisect.ui.terminal import Terminal

    return LiveScreen(Terminal(out), titles, report, together=together, keep=stream is None)


def open_view(history: Path | None, view: str | None, stream: TextIO | None = None) -> "OpenView":
    """What opens the view of that name for the hunts of one process."""
    return lambda titles: view_of(titles, history, view, together=len(titles) > 1, stream=stream)


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


def wait_callback() -> "WaitCallback":
    """Shows which session is waited for."""
    line = WaitingLine()

    def waiting(owner: "Owner | None") -> None:
        if owner is not None:
            line.show(str(owner), ".")
        elif line.drawn:
            line.clear()
        else:
            note("The host is free now.")

    return waiting


@contextmanager
def leasing(names: Sequence[str], hosts_path: str | Path, **how: Any) -> Iterator[None]:
    """Hold the leases of these hosts for a block, with what their scheduler says; ``how`` as of ``LeaseTerms``."""
    from perfbisect.hunt.leased_hosts import LeaseTerms, leased_hosts

    line = WaitingLine()

    def show(what: str, state: str) -> None:
        if state:
            line.show(f"{what}: {state}")
        else:
            line.say(f"{what} is leased, after {line.waited} in the queue.")

    with ExitStack() as stack:
        try:
            stack.enter_context(leased_hosts(names, hosts_path, show, line.say, LeaseTerms(**how)))
        finally:  # an error would stand behind it
            line.clear()
        yield


def leasing_for(
    settings: "Settings", history: Path | None, nodes: Mapping[str, str] | None = None, minutes: float = 0
) -> AbstractContextManager[None]:
    """Hold the leases of a session's hosts for a block; of machines that are fit, as far as the history knows."""
    from perfbisect.hunt.fitness import unfit_hosts

    purpose = f"{settings.builder} {settings.good}..{settings.bad}"
    how = {"nodes": nodes, "minutes": minutes, "unfit": partial(unfit_hosts, history)}
    return leasing(settings.hosts, settings.hosts_path, purpose=purpose, **how)


def say_failures(outcomes: "Sequence[HuntOutcome]", history: Path | None) -> int:
    """Say on standard error which hunts have no verdict, and why; returns the highest exit status."""
    from perfbisect.report.command_line import command_on

    for each in outcomes:
        if each.failure:
            note(f"Hunt {each.hunt} has failed: {printable(str(each.failure))}")
            again = command_on("resume", str(each.hunt), history)  # all of its batch that have no verdict
            note("\n".join(filter(None, (printable(each.failure.advice), f"Go on with: {again}"))))
    return max(each.status for each in outcomes)


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
