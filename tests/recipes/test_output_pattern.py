"""Numbers that patterns find in outputs; and outputs that are too long or too deeply nested, or without a number."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.errors import EnvironmentFailure
from perfbisect.recipes import output_pattern
from perfbisect.recipes.output_pattern import check_pattern, find_number, steps_of_path, unit_in

OUTPUT, JSON = (Path(__file__).with_name(f"printed.{kind}").read_text() for kind in ("txt", "json"))


def patterns(kind: str) -> dict[str, str]:
    """The patterns and paths in a section of patterns.txt, and what they find in OUTPUT or JSON."""
    _, _, rest = Path(__file__).with_name("patterns.txt").read_text().partition(f"## {kind}\n")
    rows = [line.split(" →") for line in rest.partition("\n\n")[0].splitlines()]
    assert rows
    return {where: found.strip() for where, found in rows}


def printed(where: str) -> str:
    return JSON if where[0] == "$" else OUTPUT


def test_pattern_or_path_finds_its_number() -> None:
    """The last match counts. ^ and $ match in each line, and a match may span lines."""
    for where, number in patterns("number").items():
        check_pattern(where)
        assert find_number(where, printed(where)) == float(number)


def test_stderr_and_the_last_json_line_are_searched() -> None:
    assert find_number(r"n=(\d+)", "n=1", "n=2") == 1
    assert find_number(r"n=(\d+)", "n", "n=2") == 2
    assert find_number("$.n", 'loading\n{"n": 1}\n{"n": 2}\nbye') == 2
    assert find_number("$", "3.5") == 3.5


def test_unit_is_read_from_the_pattern() -> None:
    assert {where: unit_in(where) for where in patterns("unit")} == patterns("unit")
    assert unit_in("") == ""


def test_output_without_a_positive_number_is_an_error() -> None:
    asked = [(where, printed(where), sentence) for where, sentence in patterns("no number").items()]
    asked += [
        ("ops: (.*)", "ops: 0,500", "the output has '0,500' where"),
        ("x(.*)", f"x{90 * 'y'}", f"the output has '{59 * 'y'}…' where"),
        ("x(\\S+)", "x1,23", "the output has '1,23' where"),
        *(("$.n", output, "the output has no metric: the output is not JSON") for output in (OUTPUT, "")),
    ]
    for where, output, sentence in asked:
        with pytest.raises(ValueError) as caught:
            find_number(where, output)
        assert sentence in str(caught.value)


def test_invalid_pattern_is_refused() -> None:
    wrong = patterns("no pattern") | {"": "has no groups", "$.a[" + "9" * 5000 + "]": "is not a path into JSON"}
    for pattern, why in {**wrong, "(" * 5000 + ")" * 5000: "nested too deeply"}.items():
        with pytest.raises(ValueError, match=why):
            check_pattern(pattern)


@given(st.lists(st.text(st.characters(blacklist_characters='"]'), max_size=5) | st.integers(-99, 99), max_size=5))
def test_path_may_have_any_keys(keys: list[str | int]) -> None:
    path = "$" + "".join(f"[{key}]" if isinstance(key, int) else f'["{key}"]' for key in keys)
    assert steps_of_path(path) == keys


@settings(max_examples=10)  # each search starts a process
@given(st.floats(min_value=1e-300, max_value=1e300))
def test_any_positive_number_is_read_exactly(number: float) -> None:
    assert find_number(r"n=(\S+)", f"n={number!r}") == number
    assert find_number("$.n", f'{{"n": {number!r}}}') == number


def test_pattern_with_a_future_warning_prints_no_warning() -> None:
    check_pattern("([[a]+)")  # a FutureWarning, which is an error in tests


NUMBERS = [
    "inf", "-inf", "nan", "NaN", "Infinity", "1e400", "1e-400", "-1", "-0", "0", "0.0", "0e5", "1_000", "1__0", "0x10", "١٢",
    "１２", "²", "1e", "e5", "1e+", ".", "+", "--1", "1.2.3", "1,23", "1 000", "1'000", "", "True", "None", "1f", "12%",
    "-1e400", "-Infinity", "-" + "1" * 5_000, "1" * 5_000, "0." + "0" * 5_000 + "1", "1" * 5_000 + "e-4990", "1e" + "9" * 5_000, "9" * 309 + "0",
]  # fmt: skip
OF_JSON = {"1e400", "-1e400", "NaN", "Infinity", "-Infinity", "0", "-0", "1" * 5_000, "-" + "1" * 5_000, "0.0"}


def test_text_that_is_no_finite_positive_number_is_an_error() -> None:
    asked = [(r"n=<(.*)>", f"n=<{text}>\n") for text in ("", "nan", "１２", "1" * 5_000)]
    asked += [("$.n", json.dumps({"n": text})) for text in NUMBERS] + [("$.n", f'{{"n": {text}}}') for text in OF_JSON]
    for where, output in asked:
        with pytest.raises(ValueError, match=r"where .* matches, which is not a number above 0"):
            find_number(where, output)
    texts = {"1e308": 1e308, "+1.5E+3": 1500, ".5": 0.5, "7.": 7, "1,234.5": 1234.5, "4.9e-324": 5e-324}
    assert {text: find_number("$.n", json.dumps({"n": text})) for text in texts} == texts


DEEP = ["[" * 200_000, "[" * 200_000 + "]" * 200_000, '{"n":' * 200_000, "[" * 5_000 + "]" * 5_000, "[{" * 100_000]


def test_deeply_nested_json_is_an_error() -> None:
    for text in DEEP:
        for where in ("$.n", "$[0]", "$"):
            with pytest.raises(ValueError, match="the output has no metric: "):
                find_number(where, text)
        assert find_number("$.n", f'{text}\n{{"n": 3}}\n{text}') == 3
    with pytest.raises(ValueError, match="the output is JSON that is nested too deeply"):
        find_number("$.n", "[" * 200_000)


@pytest.mark.parametrize(("pattern", "text"), [(r"^(?:a+)+(b)$", "a" * 60), (r"(?:\s*\S*)*ops: (\d+)", "word " * 100)])
def test_search_that_takes_too_long_is_an_error(pattern: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_pattern, "LONGEST", 0.5)
    with pytest.raises(ValueError, match=r"^the search of the output for .* took more than 0.5 s$"):
        find_number(pattern, f"{text}\n")


FAILURES = {
    "raise MemoryError('no memory')": r"status 1, MemoryError: no memory$",
    "import os; os.kill(os.getpid(), 9)": r"status -9$",
    "import sys; sys.exit('\\x1b]0;owned\\u2026')": r"status 1, ",
    "": "on this machine: No such file or directory",
}


@pytest.mark.parametrize("does", FAILURES)
def test_search_that_fails_or_does_not_start_is_an_error(
    does: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output_pattern, "_SEARCH", does)
    if not does:
        monkeypatch.setattr(sys, "executable", "/nowhere/gone")
    with pytest.raises(EnvironmentFailure, match=FAILURES[does]):
        find_number(r"(\d+) ops", "7 ops")
    assert capfd.readouterr() == ("", ""), "the error has the output of the search"


def test_search_in_the_longest_output_ends() -> None:
    assert find_number(r"(\d+) ops", "12 ops\n" * 1_400_000) == 12
    assert find_number(r"(\d+) ops", "x" * 10_000_000 + " 7 ops") == 7
