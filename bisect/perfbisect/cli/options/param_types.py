"""Types of option values: durations, sizes, shares, paths with weights, names with values, commands."""

import math
import re
from typing import Any

import click

COUNT = click.IntRange(1, 1_000_000_000)  # of runs, builds, seconds, …
SMALLEST = 1e-6  # share that is not nothing, far below what any host can show
SEED = click.IntRange(0, 2**63 - 1)
HUNT = click.IntRange(0, 2**63 - 1)  # the number of a hunt in the history


class Seconds(click.FloatRange):
    """Seconds, 0 or more, up to 30 years; NaN is neither less nor more, so a range alone lets it pass."""

    def __init__(self) -> None:
        super().__init__(0, 1_000_000_000)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds as a number."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return seconds


class Minutes(click.ParamType[float]):
    """A duration such as 90s, 45m or 2h; a bare number means minutes."""

    name = "TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Minutes as a number."""
        from perfbisect.recipes.builder import LONGEST

        if isinstance(value, float):
            return value
        text = str(value)
        unit = {"s": 1 / 60, "m": 1.0, "h": 60.0}.get(text[-1:], 0.0)
        try:
            minutes = float(text[:-1]) * unit if unit else float(text)
        except ValueError:
            self.fail(f"{text!r} is not a duration; write 90s, 45m or 2h.", param, ctx)
        if not 0.001 <= 60 * minutes <= LONGEST:
            self.fail(f"{text!r} is not a duration from a millisecond to 30 years.", param, ctx)
        return minutes


class Bytes(click.ParamType[int]):
    """A size such as 20G, 500M or 0, as in hosts.toml."""

    name = "SIZE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes."""
        from perfbisect.recipes.configuration import in_bytes

        if isinstance(value, int):
            return value
        try:
            return in_bytes(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a size; write 20G or 500M.", param, ctx)


class Suspect(click.ParamType[tuple[str, float]]):
    """A path and the weight of the commits that touch it: storage/innobase=4."""

    name = "PATH=WEIGHT"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        """The path and the weight."""
        from perfbisect.recipes.builder import WEIGHTS

        if isinstance(value, tuple):
            return value
        path, _, text = str(value).rpartition("=")
        try:
            weight = float(text)
        except ValueError:
            weight = 0.0
        least, most = WEIGHTS
        if not path or not least <= weight <= most:
            self.fail(
                f"{value!r} is not a path and a weight from {least:f} to {most:.0f}; write storage/innobase=4.",
                param,
                ctx,
            )
        return path, weight


class Option(click.ParamType[tuple[str, str]]):
    """An option of a workload and its value: table-size=1000000."""

    name = "NAME=VALUE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """The name and the value, both as written."""
        if isinstance(value, tuple):
            return value
        from perfbisect.core.domain.settings import TIMING

        name, sign, text = str(value).partition("=")
        if not name or not sign:
            self.fail(f"{value!r} is not an option with its value; write table-size=1000000.", param, ctx)
        if name in TIMING:
            self.fail(f"{name} has an option of its own: --{name} {text}.", param, ctx)
        return name, text


class Command(click.ParamType[tuple[str, ...]]):
    """A command with its arguments, split as a shell splits them; empty for none."""

    name = "COMMAND"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The arguments, the program first."""
        from perfbisect.recipes.configuration import words

        if isinstance(value, tuple):
            return value
        try:
            return words(str(value))
        except ValueError as mistake:
            self.fail(f"{value!r} cannot be run: {mistake}.", param, ctx)


class Multiple(click.ParamType[float]):
    """A factor above 1, of at most ``most``."""

    name = "FACTOR"
    most = 1e6

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The factor."""
        try:
            factor = float(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a number.", param, ctx)
        if not 1 < factor <= self.most:
            self.fail(f"{value!r} is not above 1 and at most {self.most:,.0f}.", param, ctx)
        return factor


class Percent(click.ParamType[float]):
    """A share such as 2% or 0.02, of at most ``most``; with ``none`` it may be 0, with ``whole`` 1."""

    name = "SHARE"

    def __init__(self, most: float = 1.0, *, none: bool = False, whole: bool = False) -> None:
        self.most, self.none, self.whole = most, none, whole

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The share as a fraction."""
        if isinstance(value, float):
            return value
        text = str(value)
        try:
            share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
        except ValueError:
            self.fail(f"{text!r} is not a share; write 2% or 0.02.", param, ctx)
        if not (SMALLEST <= share <= 1 - SMALLEST or (self.none and share == 0) or (self.whole and share == 1)):
            self.fail(f"{text!r} is not between {SMALLEST:.4%} and {1 - SMALLEST:.4%}.", param, ctx)
        if share > self.most:
            self.fail(
                f"{text!r} is more than {self.most:.1%}, the highest probability that a verdict states.", param, ctx
            )
        return share


ID = r"[cnp]?\d{1,15}"  # of a hunt or a trial
BATCH = r"b\d{1,15}"


class Which(click.ParamType[int | str]):
    """The id of a hunt (12), a comparison (c3), a proof (p5) or an A/A (n4)."""

    name = "ID"

    def __init__(self, *, batches: bool = False) -> None:
        self.batches = batches  # or a batch (b2)

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """A number for a hunt, text for a trial."""
        text = str(value)
        if not re.fullmatch(f"{ID}|{BATCH}" if self.batches else ID, text):
            batch = ", b2 for a batch" if self.batches else ""
            self.fail(
                f"{text!r} is not an id; write 12 for a hunt, c3 for a comparison, p5 for a proof, n4 for an A/A{batch}.",
                param,
                ctx,
            )
        return int(text) if text.isdecimal() else text


class Member(click.ParamType[tuple[int, int]]):
    """A hunt of a batch: its batch and its place there."""

    name = "BATCH:PLACE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Both numbers."""
        if not (found := re.fullmatch(r"(\d{1,15}):(\d{1,15})", str(value))):
            self.fail(f"{value!r} is no hunt of a batch.", param, ctx)
        return int(found[1]), int(found[2])
