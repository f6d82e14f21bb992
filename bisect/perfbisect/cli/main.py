"""The command line: translates arguments into settings, runs a verb such as a hunt, and sets the exit status.

Each verb is a module that is imported when the verb is used, so that `bisect --help` and shell completion are fast;
therefore this module contains the help text of each verb for the list of verbs.
"""

import importlib
import locale
import mmap
import os
import signal
import stat
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from types import FrameType

import click

from perfbisect import __version__
from perfbisect.errors import (
    BUG,
    ENVIRONMENT,
    INTERRUPTED,
    USAGE,
    Interrupted,
    PerfBisectError,
    StdoutClosed,
    as_perfbisect_error,
)
from perfbisect.masking import mask_credentials
from perfbisect.ui.stream import make_streams_safe, note
from perfbisect.wording.text import printable

VERBS: Mapping[str, str] = {
    "run": "Find the commit between two revisions that changed the speed.",
    "batch": "Carry out the hunts of a file, in parallel on several hosts.",
    "resume": "Continue an interrupted hunt or comparison, or all of them.",
    "why": "Measure why the culprit of a hunt is slower.",
    "watch": "Show hunts and comparisons that run in other terminals.",
    "replay": "Repeat the decisions of a stored hunt, with other settings.",
    "compare": "Measure several builds relative to the first.",
    "nightly": "Measure the tip of a branch each night, and find the commits of new drops.",
    "steps": "Find steps in time series of other tools, and print commands that find their commits.",
    "prove": "Measure how much speed a revert of the culprit regains.",
    "narrow": "Find the part of the culprit's diff that changed the speed.",
    "history": "List hunts, comparisons, proofs and A/A tests; export and import them.",
    "show": "Print the report of a hunt, a comparison, a proof or an A/A test.",
    "report": "Write the report of a hunt or comparison, or all reports, as HTML pages.",
    "push": "Send the history to the central history of a team.",
    "query": "Run an SQL query on the history.",
    "serve": "Browse the history in a web browser.",
    "init": "Write the recipes of a clone: a builder and a workload.",
    "builders": "List the builders: recipes that build and start a system.",
    "workloads": "List the workloads: recipes of microbenchmarks.",
    "hosts": "List the hosts, their fitness to measure, and leased machines.",
    "doctor": "Check whether a host is fit to measure, and print fixes.",
    "noise": "Measure the noise of a host: a build compared with itself (an A/A test).",
    "gc": "Remove old builds and datasets from a host.",
    "simulate": "Simulate hunts: their cost, and how often their verdict is right.",
    "demo": "Find a planted slowdown in the history of a small storage engine.",
}
IN = {  # verb → its module, if their names differ
    "builders": "recipes", "workloads": "recipes", "init": "recipes", "why": "resume", "noise": "trials", "prove": "trials",
    "compare": "trials", "push": "history", "show": "report", "replay": "watch", "steps": "run", "narrow": "trials",
}  # fmt: skip


HABITS = {  # command of git bisect → the command of perfbisect for the same purpose
    "start": "run GOOD BAD", "good": "run GOOD BAD", "bad": "run GOOD BAD", "skip": "run GOOD BAD --skip REV", "next": "resume",
    "log": "show", "status": "history", "visualize": "report", "view": "report", "reset": "history (perfbisect never changes your clone, so it has no reset)",
}  # fmt: skip


class Verbs(click.Group):
    """A click group that imports the module of a command only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in the order of VERBS."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command of one verb."""
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"perfbisect.cli.commands.{IN.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command of a verb as click does; for a mistyped verb, the error suggests the nearest verb."""
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            from difflib import get_close_matches

            near = get_close_matches(args[0], VERBS, 1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            if args[0] in HABITS:
                hint = f" In place of 'git bisect {args[0]}', use: bisect {HABITS[args[0]]}"
            raise click.UsageError(f"There is no command '{args[0]}'.{hint}", ctx)
        name, command, remaining = super().resolve_command(ctx, args)
        if command and not ctx.resilient_parsing:
            refuse_empty_words(command, remaining)
        return name, command, remaining

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of verbs without importing their modules."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


EPILOG = """\b
Examples:
  bisect demo      a first hunt, of a minute or two
  bisect run 3.41.0 3.42.0 --builder sqlite --workload update-index
  bisect resume    continue the latest interrupted hunt
  bisect show      the report of the latest hunt
  bisect compare 8.0.28 8.0.29 --builder mysql --workload point,write
  bisect query 'select * from culprits'    the named commits of all hunts

\b
Exit status: 0 a commit is named, 1 there is nothing to find, 2 inconclusive,
3 usage or configuration error, 4 failure of the environment, 70 bug of
perfbisect, 130 interrupted (`bisect resume` continues the hunt).

\b
Tab completion: eval "$(_BISECT_COMPLETE=bash_source bisect)"   (or zsh_source, or fish_source)
"""


def refuse_empty_words(command: click.Command, words: Sequence[str]) -> None:
    """Raise UsageError for an empty word, as from an unset variable of a script. An empty word is allowed only after
    --notify.
    """
    options = {spelling for param in command.params if isinstance(param, click.Option) for spelling in param.opts}
    for previous, word in pairwise(["", *words]):
        option = word[:-1] if word else previous
        if (not word or (word.endswith("=") and option in options)) and option != "--notify":
            raise click.UsageError(
                f"{option if option in options else 'An argument'} is empty. Is a variable of your script unset?"
            )


@click.group(cls=Verbs, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="bisect")
def bisect() -> None:
    """Find the commit that made a database slower.

    You give a fast revision (good) and a slow revision (bad). A hunt builds commits between them, measures the builds
    with a microbenchmark, and names the commit that changed the speed (the culprit), with its probability. A comparison
    of the culprit with its parent is the proof. Builders, workloads and hosts are described by recipes in TOML files.
    """


def use_fixed_locale() -> None:
    """Make the behaviour of this program the same in every locale; its output keeps the encoding of the user's locale.

    If the encoding of file names is not UTF-8, the program starts again in Python's UTF-8 mode, in which file names and
    arguments keep their bytes. In a Turkish locale, sqlite3 would not recognise INSERT as a statement that changes
    data.
    """
    if sys.getfilesystemencoding() != "utf-8":
        os.environ.setdefault("PYTHONIOENCODING", getattr(sys.stdout, "encoding", "utf-8"))
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    with suppress(locale.Error):  # a system without this locale
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")


MEMORY = 192 << 20  # bytes that must be free to import numpy


class NumpyMemoryCheck:
    """An import hook that raises MemoryError if numpy is imported while too little memory is free, because the library
    of numpy would end the process.
    """

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        """The method that importlib calls."""
        if name == "numpy":
            try:
                mmap.mmap(-1, MEMORY).close()
            except OSError:
                raise MemoryError from None


def raise_interrupted(number: int, _frame: FrameType | None) -> None:
    """On SIGTERM and SIGHUP (the end of the terminal), stop cleanly and resumably, as on Ctrl-C."""
    if number == signal.SIGHUP:  # the shell may send SIGHUP again, which must not interrupt the clean stop
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        discard_output()
    raise KeyboardInterrupt


def discard_output() -> None:
    """Discard further output: writing to a terminal that has ended fails, and would interrupt the clean stop."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        with suppress(OSError):  # raised if the stream is closed
            if stat.S_ISCHR(os.fstat(stream).st_mode):  # isatty returns False if the terminal was closed
                os.dup2(nowhere, stream)
    os.close(nowhere)


def main() -> None:
    """Entry point of the `bisect` program: runs a verb, and turns every failure into a message and an exit status."""
    use_fixed_locale()
    os.umask(os.umask(0o022) | 0o002)  # other users must not change files of perfbisect
    if NumpyMemoryCheck not in sys.meta_path:
        sys.meta_path.insert(0, NumpyMemoryCheck)
    signal.signal(signal.SIGTERM, raise_interrupted)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # ignored, as under nohup
        signal.signal(signal.SIGHUP, raise_interrupted)
    # The matrices are small, so more threads would be no faster, and would disturb measurements on this machine.
    for library in ("OPENBLAS", "OMP", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    if os.environ.get("_BISECT_COMPLETE") == "fish_source":  # click's script for fish splits a completion at each comma
        from click.shell_completion import FishComplete

        FishComplete.source_template = FishComplete.source_template.replace('split ","', 'split --max 1 ","')
    try:
        make_streams_safe()
        status = bisect.main(prog_name="bisect", standalone_mode=False)
    except click.exceptions.Exit as leave:
        status = leave.exit_code
    except click.ClickException as mistake:
        mistake.show(sys.stderr)
        status = USAGE
    except (click.Abort, KeyboardInterrupt):
        note("Interrupted.")
        status = INTERRUPTED
    except StdoutClosed as gone:
        status = gone.exit_status
    except Interrupted as interruption:
        note(str(interruption))
        status = interruption.exit_status
    except (PerfBisectError, OSError) as trouble:  # OSError: a folder that cannot be written, for example
        failure = as_perfbisect_error(trouble)
        note(f"Error: {printable(str(failure))}")
        if failure.advice:
            note(failure.advice)
        status = failure.exit_status
    except MemoryError:
        note(f"Error: the system refuses this process more memory. perfbisect needs at least {MEMORY >> 20} MiB.")
        note(
            "Raise the memory limit (ulimit -v), or end other programs. If a hunt has begun, `bisect resume` continues it."
        )
        status = ENVIRONMENT
    except Exception:  # noqa: BLE001  # the only place that catches everything
        note(f"Error: this is a bug of perfbisect. Please report the bug with {write_traceback()}")
        status = BUG
    finally:
        flush_output()
    sys.exit(status or 0)


def flush_output() -> None:
    """Write the buffered output.

    If flushing fails, standard output is replaced, so that Python does not fail again at exit.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except PerfBisectError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_traceback() -> str:
    """Write the current traceback to a file, in the user's state folder if possible; returns its path.

    If no file can be written, returns the traceback itself.
    """
    text = f"perfbisect {__version__}\n{' '.join(sys.argv)}\n{traceback.format_exc()}"
    text = mask_credentials(text).encode(errors="backslashreplace").decode()  # arguments may not be UTF-8
    with suppress(OSError, PerfBisectError):  # PerfBisectError: there is no home folder
        from perfbisect.folders import state_folder

        folder = state_folder()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "error.log").write_text(text, encoding="utf-8")
        return str(folder / "error.log")
    with suppress(OSError):
        from tempfile import mkstemp  # imported here because the import is slow

        descriptor, path = mkstemp(prefix="perfbisect-", suffix=".log")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        return path
    return f"this:\n{text}"
