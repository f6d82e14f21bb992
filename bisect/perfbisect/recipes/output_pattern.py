"""Finds a number in the output of a command, by the only group of a regular expression or by a path into JSON.

A path begins with ``$``, with which no useful regular expression begins: ``$.results[0].ops``, ``$["ops/s"]``,
``$[-1].seconds``.

A search with a recipe's expression may take forever on output that the author of the recipe never saw: ``(a+)+b``
doubles its time with each character, and Python cannot interrupt a search. Therefore a separate process searches for
the expression, and is ended after LONGEST seconds. The start of this process costs some hundredths of a second for each
search.
"""

import json
import math
import re
import subprocess
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from perfbisect.errors import EnvironmentFailure
from perfbisect.masking import mask_credentials

_STEP = re.compile(r"""\.([^.\[\]"'\s]+)|\[(-?[0-9]{1,18})\]|\[(["'])((?:(?!\3)[^\]])*)\3\]""")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_UNIT = re.compile(
    r"(?<![\w/])(?:[a-zµ]{1,12}/[a-z]{1,12}|[nmuµ]?s|sec(?:onds?)?|[a-z]{0,8}[foqrt]ps|[kmgt]i?b)(?![\w/])",
    re.IGNORECASE,
)
_DIGITS = 400  # most digits of a number; no float has more digits before the decimal point
SHORT = 60  # most characters of an output that an error quotes


LONGEST = 30.0  # longest search in seconds; a suitable expression needs a thousandth
CAPTURED = 1000  # most characters of a match that are used

_SEARCH = f"""\
import json, re, sys
pattern, texts = json.load(sys.stdin)
for text in texts:
    last = None
    for last in re.finditer(pattern, text, re.MULTILINE):
        pass
    if last:
        print(json.dumps((last[1] or "")[:{CAPTURED}]))
        break
else:
    print("null")
"""


def check_pattern(pattern: str) -> None:
    """Raise ValueError, with the reason, for an expression or JSON path that can never find a number."""
    if pattern.startswith("$"):
        steps_of_path(pattern)
        return
    try:
        # Python warns about expressions that later versions may read differently.
        with warnings.catch_warnings(action="ignore"):
            groups = re.compile(pattern).groups
    except (re.error, OverflowError) as error:
        raise ValueError(f"is not a regular expression: {error}") from error
    except RecursionError as error:
        raise ValueError("is not a regular expression: it is nested too deeply") from error
    if groups != 1:
        raise ValueError(f"has {groups or 'no'} groups, but needs one group, around the number")


def find_number(pattern: str, stdout: str, stderr: str = "") -> float:
    """The finite number above 0 that the pattern or path ``pattern`` finds in a command's output.

    An expression is searched for in stdout, then in stderr; the last match is used, because totals are printed last. A
    path is applied to the whole of stdout if stdout is JSON, otherwise to the last line of stdout that is JSON. Raises
    ValueError with a sentence.
    """
    text = (
        _value_in_json(pattern, stdout) if pattern.startswith("$") else _number_by_expression(pattern, stdout, stderr)
    )
    if not (number := positive_number_or_zero(text)):
        raise ValueError(
            f"the output has {_shortened(str(text).strip())!r} where {pattern} matches, which is not a number above 0"
        )
    return number


def positive_number_or_zero(value: object) -> float:
    """``value`` as a finite number above 0; 0 if ``value`` is not such a number."""
    text = str(value).strip()
    plain = text.replace(",", "") if _THOUSANDS.fullmatch(text) else text
    number = float(plain) if len(plain) <= _DIGITS and _NUMBER.fullmatch(plain) else 0.0
    return number if 0 < number < math.inf else 0.0


def unit_in(pattern: str) -> str:
    """The unit that the text of an expression or path contains, preferably the unit after the number; "" if the text
    contains no unit.
    """
    parts = re.split(r"(?<!\\)\((?!\?)", pattern, maxsplit=1)
    plain = [re.sub(r"\\(?:[A-Za-z]|(?=/))", " ", part).replace(" /", "/") for part in parts]
    return next(iter(_UNIT.findall(plain[-1]) or _UNIT.findall(plain[0])[::-1]), "")


def steps_of_path(path: str) -> list[str | int]:
    """The keys and indices in a path into JSON. Raises ValueError if the path is invalid."""
    path_steps: list[str | int] = []
    at = 1
    while at < len(path):
        match = _STEP.match(path, at)
        if not match:
            raise ValueError(
                f'is not a path into JSON: "{path[at:]}" is invalid. Examples: $.results[0].ops, $["a key"]'
            )
        name, index, _, key = match.groups()
        path_steps.append(int(index) if index else name or key)
        at = match.end()
    return path_steps


class NoNumber(ValueError):
    """The error for an output that has no number where the number is searched for."""


def _number_by_expression(pattern: str, stdout: str, stderr: str) -> str:
    try:
        match = last_match(pattern, [stdout.removesuffix("\n"), stderr.removesuffix("\n")])
    except TimeoutError:
        raise ValueError(f"the search of the output for {pattern} took more than {LONGEST:g} s") from None
    if match is None:
        raise NoNumber(f"the output has no metric: no text matches the pattern {pattern}")
    return match


def _value_in_json(path: str, stdout: str) -> object:
    value, where = _json_document(stdout), "$"
    for step in steps_of_path(path):
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            problem = (
                f"has only {_shortened(', '.join(map(str, value)))}" if isinstance(value, dict) else _json_type(value)
            )
            raise NoNumber(f"the output has no metric: the JSON has no {path}, since {where} {problem}") from None
        where += f".{step}" if isinstance(step, str) else f"[{step}]"
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        return value
    raise NoNumber(f"the output has no metric: {path} in the JSON {_json_type(value)}, not a number")


def _json_document(stdout: str) -> Any:
    why = "is not JSON"
    for text in (stdout, *reversed(stdout.split("\n"))):
        try:
            return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) <= _DIGITS else math.inf)
        except RecursionError:
            why = "is JSON that is nested too deeply"
        except ValueError:
            continue
    raise NoNumber(f"the output has no metric: the output {why}")


def _json_type(value: object) -> str:
    if isinstance(value, list):
        return f"is a list of {len(value)} values"
    return "is a table" if isinstance(value, dict) else f"is {_shortened(json.dumps(value))}"


def _shortened(text: str) -> str:
    text = mask_credentials(text)
    return text if len(text) <= SHORT else f"{text[: SHORT - 1].rstrip()}…"


def last_match(pattern: str, texts: Sequence[str]) -> str | None:
    """The text of the group in the last match, in the first of ``texts`` that has a match; None if no text has a match.

    Raises TimeoutError if the search takes too long, and EnvironmentFailure if the process for the search fails.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-W", "ignore", "-c", _SEARCH],
            input=json.dumps([pattern, texts]),
            capture_output=True,
            timeout=LONGEST,
            check=False,
            encoding="ascii",
            errors="replace",
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError from error
    except OSError as error:
        raise _search_failure(error.strerror or str(error)) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise _search_failure(f"status {done.returncode}{f', {lines[-1]}' if lines else ''}")
    captured: str | None = json.loads(done.stdout)
    return captured


def _search_failure(why: str) -> EnvironmentFailure:
    text = f"the process that searches a benchmark's output failed on this machine: {why}"
    return EnvironmentFailure(text, "Free some memory if it is full. To continue: bisect resume")
