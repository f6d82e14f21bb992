"""Types of option values for click: durations, sizes, shares, paths with weights, names with values, commands, ids of
sessions."""

import re
import shlex
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import click

from perfbisect.core.domain.settings import AUTO
from perfbisect.errors import PerfBisectError


class WholeNumber(click.IntRange):
    """A type of option values: a whole number from ``min`` to ``max``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number that ``value`` contains."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is not a whole number from {self.min:,} to {self.max:,}.", param, ctx)


COUNT = WholeNumber(1, 1_000_000_000)  # a number of runs, builds, seconds, …
SMALLEST = 1e-6  # the smallest share above 0, far below the precision of any host
SEED = WholeNumber(0, 2**63 - 1)
MOST_TIMES = 1e6  # the largest factor
LONGEST_WAIT = 1e9  # seconds: 30 years


class ParsedParam(click.ParamType[Any]):
    """A type of option values: a function makes the value from the text that the user gives.

    The function raises ValueError for an invalid text. The error that the user sees is the text, followed by the
    message of the ValueError.
    """

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name, self.parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The parsed value; a value that is not text is returned unchanged."""
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except ValueError as wrong:
            self.fail(f"{value!r} {wrong}", param, ctx)


def parsed_number(text: str, message: str = "is not a number.") -> float:
    """The number that a text contains. Raises ValueError with ``message`` for a text that is no number."""
    try:
        return float(text if text.isascii() else "")  # refuses digits that are not ASCII
    except ValueError:
        raise ValueError(message) from None


_UNITS = {"s": 1 / 60, "m": 1.0, "h": 60.0, "d": 1440.0}  # unit → minutes
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?) ?(s|sec|m|min|h|d)")
_DURATIONS = re.compile(rf"(?:{_DURATION.pattern} ?)+")


def _parsed_minutes(text: str) -> float:
    from perfbisect.recipes.builder import LONGEST

    parts = _DURATION.findall(text) if _DURATIONS.fullmatch(text) else [(text, "m")]
    mistake = "is not a duration. Examples: 90s, 45m, 1h30m."
    minutes = sum(parsed_number(size, mistake) * _UNITS[unit[0]] for size, unit in parts)
    if not 0.001 <= 60 * minutes <= LONGEST:
        raise ValueError("is not between 1 millisecond and 30 years.")
    return minutes


def _parsed_bytes(text: str) -> int:
    from perfbisect.recipes.configuration import size_in_bytes

    try:
        return size_in_bytes(text)
    except ValueError:
        raise ValueError("is not a size. Examples: 20G, 500M.") from None


def _parsed_suspect(text: str) -> tuple[str, float]:
    from perfbisect.recipes.builder import WEIGHTS

    lowest, highest = WEIGHTS
    path, _, weight = text.rpartition("=")
    wrong = f"is not PATH=WEIGHT with a weight from {lowest:f} to {highest:.0f}, for example storage/innobase=4."
    if not path or not lowest <= parsed_number(weight, wrong) <= highest:
        raise ValueError(wrong)
    return path, float(weight)


def _parsed_workload_argument(text: str) -> tuple[str, str]:
    from perfbisect.core.domain.settings import TIMING

    name, sign, value = text.partition("=")
    if not name or not sign:
        raise ValueError("is not of the form NAME=VALUE, for example table-size=1000000.")
    if name in TIMING:
        raise ValueError(f"cannot be set here. Use the option --{name} {shlex.quote(value)}.")
    return name, value


def _parsed_command(text: str) -> tuple[str, ...]:
    from perfbisect.recipes.configuration import split_command

    try:
        return split_command(text)
    except ValueError as mistake:
        raise ValueError(f"cannot be run: {mistake}.") from mistake


def _split_words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"cannot be split into words ({str(error).lower()}). Use quotes as in a shell.") from error


_QUOTED = re.compile(r"'[^']*'|\"(?:[^\"\\$`]|\\.)*\"|\\.")
_FOR_A_SHELL = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\.")  # $ and ` in double quotes are left to a shell
# Syntax that only a shell understands; patterns only in a word that is not an option.
_OF_SHELLS = re.compile(r"(?:^|(?<=\s))~/|&&|\|\|?|[;<>`&]|\$(?:\w+|[({])|(?:(?<=\s)(?!-)[^\s=]*)[*?]")


def _checked_without_shell(text: str) -> str:
    from perfbisect.recipes.placeholders import script_positions

    if not (words := _split_words(text)):
        raise ValueError("is empty. Give a program and its arguments.")
    quoted = _FOR_A_SHELL if [*script_positions(words)] else _QUOTED
    if syntax := _OF_SHELLS.search(quoted.sub("_", text)):
        sign = syntax[0].strip()
        word = "pipe" if sign == "|" else "shell command"
        inner = 'sh -c "{}"'.format(re.sub(r'(["\\])', r"\\\1", text))  # one word for the user's shell
        again = shlex.quote(inner)
        if "'" in inner and "!" not in inner:  # an interactive shell expands ! even in double quotes
            again = '"{}"'.format(re.sub(r'(["\\$`])', r"\\\1", inner))
        raise ValueError(
            f"contains {sign}, which only a shell understands, but the command runs without a shell. For a {word}: {again}."
            f" If {sign} is part of an argument of {words[0]}, quote this argument inside the command."
        )
    return text


def number_param(name: str, fits: Callable[[float], bool], message: str) -> ParsedParam:
    """An option type for numbers. ``fits`` says whether a number is allowed; ``message`` is the error for any other
    text."""

    def parse(text: str) -> float:
        if not fits(value := parsed_number(text, message)):
            raise ValueError(message)
        return value

    return ParsedParam(name, parse)


def pattern_param(name: str, pattern: str, message: str, convert: Callable[[re.Match[str]], Any]) -> ParsedParam:
    """An option type for texts that match ``pattern``. The function ``convert`` makes the option's value from the
    match; ``message`` is the error for any other text.
    """

    def parse(text: str) -> Any:
        if not (match := re.fullmatch(pattern, text)):
            raise ValueError(message)
        return convert(match)

    return ParsedParam(name, parse)


ANY = "cpnb"  # letters of the ids of sessions
BELOW = pattern_param(
    "PATH", r"(?:\./)?((?!/|(?:.*/)?\.\.(?:/|\Z))[^\t\n]*[^/\t\n])",
    "is not the relative path of a file in the build. Example: out-static/kvbench.", lambda match: match[1],
)  # fmt: skip
NAME = pattern_param(  # the name that a user gives to a hunt
    "NAME", rf"((?![{ANY}]?\d+\Z)\w[\w.:+/@ -]{{0,59}})?",
    "is not allowed as a name. A name begins with a letter or digit, has at most 60 letters, digits, blanks and"
    " . : + / @ - _, and is not an id such as 12 or c3.", lambda match: match[0],
)  # fmt: skip
MEMBER = pattern_param(  # a hunt of a batch: (batch, place in the batch, job in Slurm or "")
    "BATCH:PLACE", r"([0-9]{1,15}):([0-9]{1,15})(?::([0-9]+))?", "is not BATCH:PLACE, two numbers such as 3:0.",
    lambda match: (int(match[1]), int(match[2]), match[3] or ""),
)  # fmt: skip
SECONDS = number_param(
    "SECONDS", lambda seconds: 0 <= seconds <= LONGEST_WAIT, "is not a number of seconds from 0 to 1,000,000,000."
)
FACTOR = number_param(
    "FACTOR", lambda factor: 1 < factor <= MOST_TIMES, f"is not a number above 1 and at most {MOST_TIMES:,.0f}."
)
MINUTES = ParsedParam("TIME", _parsed_minutes)  # a bare number means minutes
BYTES = ParsedParam("SIZE", _parsed_bytes)  # a size as in hosts.toml
SUSPECT = ParsedParam("PATH=WEIGHT", _parsed_suspect)  # the weight of the commits that touch the path
ARG = ParsedParam("NAME=VALUE", _parsed_workload_argument)  # an argument of a workload, as the user wrote it
UNSPLIT = ParsedParam("COMMAND", _checked_without_shell)  # the command as the user wrote it
COMMAND = ParsedParam("COMMAND", _parsed_command)  # words, split as a shell splits a command; empty: no command
FLAGS = ParsedParam("FLAGS", lambda text: shlex.join(_split_words(text)))  # quoted: a shell reads plain words


class ShareParam(ParsedParam):
    """A share such as 2% or 0.02, at most ``most``. 0 is allowed if ``none`` is true, 1 if ``whole`` is true, and the
    word "auto", which stands for 0, if ``auto`` is true.
    """

    def __init__(self, most: float = 1.0, *, none: bool = False, whole: bool = False, auto: bool = False) -> None:
        def parse(text: str) -> float:
            if auto and text == AUTO:
                return 0.0
            percent = text.endswith("%")
            share = parsed_number(text.removesuffix("%"), "is not a share. Examples: 2%, 0.02.") / (
                100 if percent else 1
            )
            if not (SMALLEST <= share <= 1 - SMALLEST or (none and share == 0) or (whole and share == 1)):
                raise ValueError(f"is not between {SMALLEST:.4%} and {1 - SMALLEST:.4%}.")
            if share > most:
                raise ValueError(f"is more than {most:.1%}, the highest probability of a verdict.")
            return share

        super().__init__("SHARE", parse)


KINDS = {  # letter of ids → (example, kind of session)
    "": ("12", "a hunt"), "c": ("c3", "a comparison"), "p": ("p5", "a proof"), "n": ("n4", "an A/A test"), "b": ("b2", "a batch"),
}  # fmt: skip


def _latest_hunt_named(name: str, ctx: click.Context | None) -> int | None:
    """The number of the latest hunt with the name ``name``, in the history that the command's options select; None if
    no hunt has this name."""
    from perfbisect.store.history import History

    path = ctx.params.get("history") if ctx else None
    with suppress(PerfBisectError), closing(History.open(path, read_only=True)) as opened:
        return max((hunt.number for hunt in opened.hunts() if hunt.name == name), default=None)
    return None


class SessionIdParam(click.ParamType[int | str]):
    """An option type for the id of a session. The value is a number if the user gives the number or the name of a hunt;
    otherwise the value is a text such as c13, whose letter is one of ``kinds``.
    """

    name = "ID"

    def __init__(self, kinds: str = "") -> None:
        self.kinds = kinds

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """The number of a hunt, or the id of any other session as text."""
        from perfbisect.store.central import SESSION

        text, options = str(value), ctx.params if ctx else {}
        if "central" in options and (options["central"] or SESSION.fullmatch(text)):
            from perfbisect.recipes.configuration import required_central_address

            options["central"] = options["central"] or required_central_address()
            return text
        match = re.fullmatch(rf"([{ANY}]?)[0-9]{{1,15}}", text)
        if not match and (number := _latest_hunt_named(text, ctx)):
            return number
        if not match or match[1] not in ("", *self.kinds):
            reason = (
                f"is the id of {KINDS[match[1]][1]}, which this command does not accept"
                if match
                else "is not an id in this history, nor the name of a hunt (`bisect history` lists ids)"
            )
            if SESSION.fullmatch(text):
                reason = "is an id of a central history, but this command works only on your own history"
            examples = [" for ".join(KINDS[kind]) for kind in ("", *self.kinds)] + [
                "ORIGIN:12 for a hunt in a team's central history"
            ] * ("central" in options)
            self.fail(f"{text!r} {reason}. Examples of ids: {', '.join(examples)}.", param, ctx)
        return int(text) if text.isdecimal() else text


class FileOrBatchParam(SessionIdParam):
    """The path of an existing file, or the name of a batch as text. If a file has the name of a batch, the user must
    write ./b3."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path of a file, or the name of a batch as text."""
        if re.fullmatch("b[0-9]{1,15}", str(value)):
            return value
        return click.Path(exists=True, dir_okay=False, path_type=Path).convert(str(value), param, ctx)
