"""Numbers found in what commands print."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.recipes.output_pattern import check_pattern, find_number, steps, unit_in

OUTPUT = """\
warming up
ops/s: 100
ops/s: 1,234,567.5 (total)
took 1.5e-3 s
errors: 0
best nan, worst inf
"""
JSON = """\
{
"host": {"name": "a b", "ops/s": 12.5}, "ok": true, "none": null,
"runs": [{"ops": 7}, {"ops": "8,000"}, {"ops": -1}]}
"""


@pytest.mark.parametrize(
    ("pattern", "number"),
    [
        (r"ops/s: ([0-9,.]+)", 1_234_567.5),  # the last match
        (r"^ops/s: ([0-9,.]+)$", 100),  # lines have ends
        (r"took (\S+) s", 0.0015),
        (r"(?i)TOOK (?:about )?([0-9.]+e-\d)", 0.0015),
        (r"\(\w+\)\ntook ([0-9])", 1),  # over the end of a line
    ],
)
def test_a_pattern_finds_its_number(pattern: str, number: float) -> None:
    check_pattern(pattern)
    assert find_number(pattern, OUTPUT) == number


def test_stderr_is_looked_at_when_stdout_has_nothing() -> None:
    assert find_number(r"n=(\d+)", "n=1", "n=2") == 1
    assert find_number(r"n=(\d+)", "n", "n=2") == 2


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("$.runs[0].ops", 7),
        ("$.runs[1].ops", 8000),
        ("$.runs[-2].ops", 8000),
        ('$.host["ops/s"]', 12.5),
        ("$['host']['ops/s']", 12.5),
        ("$.host.ops/s", 12.5),
    ],
)
def test_a_path_finds_its_number(path: str, number: float) -> None:
    check_pattern(path)
    assert find_number(path, JSON) == number


@pytest.mark.parametrize(
    ("where", "unit"),
    [
        ("([0-9.]+) MB/s", "MB/s"),
        (r"(?:read|write):\s+([0-9.]+)\s*MB\/s", "MB/s"),
        (r"^ops/s: ([0-9,.]+)$", "ops/s"),
        (r"took (\S+) s", "s"),
        (r"1000 ops in (\d+)ms", "ms"),
        (r"tps = ([0-9.]+)", "tps"),
        (r"\(QPS\): ([0-9.]+)", "QPS"),
        ('$.host["ops/s"]', "ops/s"),
        ("$.runs[0].ops", "ops"),
        (r"n=(\d+)", ""),
        ("([0-9]+) rows", ""),
        ("", ""),
    ],
)
def test_a_pattern_says_its_unit(where: str, unit: str) -> None:
    assert unit_in(where) == unit


def test_json_may_be_the_last_line_that_is_some() -> None:
    assert find_number("$.n", 'loading\n{"n": 1}\n{"n": 2}\nbye') == 2
    assert find_number("$", "3.5") == 3.5


@pytest.mark.parametrize(
    ("where", "printed", "sentence"),
    [
        (r"tps: (\d+)", OUTPUT, r"it printed no metric: nothing in its output matches tps: (\d+)"),
        (r"tps: (\d+)", "", r"it printed no metric: nothing in its output matches tps: (\d+)"),
        (r"errors: (\d+)", OUTPUT, r"it printed '0' where errors: (\d+) matches, which is not a number above 0"),
        (r"best (\w+)", OUTPUT, "it printed 'nan' where"),
        (r"worst (\w+)", OUTPUT, "it printed 'inf' where"),
        (r"(took|never)", OUTPUT, "it printed 'took' where"),
        (r"ops: (.*)", "ops: 0,500", "it printed '0,500' where"),  # a decimal comma: no half is 500
        (r"ops: (.*)", "ops: 00,500", "it printed '00,500' where"),
        (r"took|(never)", OUTPUT, "it printed '' where"),
        (r"x(.*)", "x" + "y" * 100, "it printed '" + "y" * 59 + "…' where"),
        (r"x(\S+)", "x1,23", "it printed '1,23' where"),
        ("$.runs[2].ops", JSON, "it printed '-1' where $.runs[2].ops matches, which is not a number above 0"),
        ("$.runs[3].ops", JSON, "it printed no metric: its JSON has no $.runs[3].ops, since $.runs is a list of 3"),
        ("$.run", JSON, "it printed no metric: its JSON has no $.run, since $ has only host, ok, none, runs"),
        ("$.runs.ops", JSON, "since $.runs is a list of 3"),
        ("$.host.name.x", JSON, 'since $.host.name is "a b"'),
        ("$.none.x", JSON, "since $.none is null"),
        ("$.host", JSON, "it printed no metric: $.host in its JSON is a table, not a number"),
        ("$.ok", JSON, "it printed no metric: $.ok in its JSON is true, not a number"),
        ("$.none", JSON, "it printed no metric: $.none in its JSON is null, not a number"),
        ("$.host.name", JSON, "it printed 'a b' where $.host.name matches, which is not a number above 0"),
        ("$.n", '{"n": NaN}', "it printed 'nan' where"),
        ("$.n", OUTPUT, "it printed no metric: its output is not JSON"),
        ("$.n", "", "it printed no metric: its output is not JSON"),
    ],
)
def test_what_is_no_number_above_0_is_reported(where: str, printed: str, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        find_number(where, printed)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("path", ["$a", "$.", "$..a", "$.a[", "$.a[x]", "$[", "$[1", "$.a b", '$["a]', "$.a."])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="is not a path into JSON"):
        check_pattern(path)


@pytest.mark.parametrize("pattern", ["x(", "*", "[", "(?P<a", ""])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"is not a regular expression|has no groups"):
        check_pattern(pattern)


@given(st.lists(st.text(st.characters(blacklist_characters='"]'), max_size=5) | st.integers(-99, 99), max_size=5))
def test_any_keys_make_a_path(keys: list[str | int]) -> None:
    path = "$" + "".join(f"[{key}]" if isinstance(key, int) else f'["{key}"]' for key in keys)
    assert steps(path) == keys


@settings(max_examples=10)  # each is searched by a process of its own
@given(st.floats(min_value=1e-300, max_value=1e300))
def test_any_number_above_0_is_read_as_it_was_printed(number: float) -> None:
    assert find_number(r"n=(\S+)", f"n={number!r}") == number
    assert find_number("$.n", f'{{"n": {number!r}}}') == number


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(" * 5000 + ")" * 5000, "nested too deeply"),
        ("(a{99999999999})", "is not a regular expression"),
        ("$.a[" + "9" * 5000 + "]", "is not a path into JSON"),
    ],
    ids=lambda value: value[:12],
)
def test_a_pattern_that_python_cannot_hold_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_pattern(pattern)


def test_a_pattern_that_a_later_python_may_read_in_another_way_prints_nothing() -> None:
    check_pattern("([[a]+)")  # a FutureWarning, which is an error in tests
