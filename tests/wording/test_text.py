"""Escaped foreign text, quantities, tables, glyphs with and without Unicode, and long lists in query plans."""

import json
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from attacks import ATTACKS
from perfbisect.core.domain.events import Commit
from perfbisect.core.domain.orders import Interval
from perfbisect.wording.glyphs import ASCII, UNICODE, bar, dumbbell, glyphs_for, sparkline, writable
from perfbisect.wording.quantities import (
    chance,
    change,
    clock,
    count,
    duration,
    estimate,
    factor,
    figure,
    low_to_high,
    moment,
    percent,
    ratio,
    share,
    time_of_day,
)
from perfbisect.wording.reasons import LONG_LIST, factor_text, with_short_lists
from perfbisect.wording.table import columns, cut, table
from perfbisect.wording.text import (
    UNSAFE,
    advised,
    cited,
    listed,
    printable,
    printable_commit,
    safe,
    safe_json,
    shell_words,
)

ORDINARY = (
    "plain, with a\ttab", "Zoë Ö ñ ß", "日本語 한국어 中文", "ελληνικά кириллица עברית العربية", "हिन्दी ไทย தமிழ்",
    "e\u0301 combined", "✔️ ❤️ 🚀 ☎︎", "“quotes” – … × →", "a\nb", "C:\\x1b is text already",
)  # fmt: skip


def test_control_characters_of_a_commit_are_shown_as_escapes() -> None:
    assert printable("a\tb\r\nc\x1b[1m\x9b") == r"a b c\x1b[1m\x9b"
    assert printable_commit(Commit("ab", "\x1b1", "\x072", "\u202e3")) == Commit("ab", r"\x1b1", r"\x072", r"\u202e3")


def test_attacks_are_escaped_and_ordinary_text_is_unchanged() -> None:
    for attack in ATTACKS.values():
        shown, encoded = safe(attack), safe_json(json.dumps(attack, ensure_ascii=False))
        assert shown.isascii() and not UNSAFE.search(shown)
        assert all(sign in shown for sign in attack if sign.isascii() and sign.isprintable())
        assert json.loads(encoded) == attack and encoded.isascii()
    for text in ORDINARY:
        assert safe(text) == text
        assert safe_json(json.dumps(text, ensure_ascii=False)) == json.dumps(text, ensure_ascii=False)


def test_every_invisible_character_is_unsafe() -> None:
    """By the tables of this Python: control, format, surrogate, and separators of lines and paragraphs."""
    without = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    signs = map(chr, range(sys.maxunicode + 1))
    assert {sign for sign in signs if unicodedata.category(sign) in without and not UNSAFE.match(sign)} == {"\t", "\n"}


def test_printed_command_works_in_a_shell() -> None:
    odd = ["a b", "it's", "\x1b]0;x\x07", "new\nline", "\u202erev", "tab\t", "$(echo no)", "`x`", "é\\n"]
    line = shell_words(["printf", "%s\\0", *odd])
    assert "\n" not in line and not UNSAFE.search(line)
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == odd


def test_parts_of_sentences_are_joined() -> None:
    assert advised("the host is busy", "Inspection at `top`.") == "the host is busy. Inspection at `top`."
    assert advised("The host drifts.", "Wait.") == "The host drifts. Wait."
    assert advised("the host drifts", "") == "the host drifts"
    assert cited(Commit("ab" * 20, "2021-10-13", "A", "Subject")) == "ababababab (2021-10-13, “Subject”)"
    assert cited(Commit("ab" * 20, "", "", "")) == "ababababab", "as far as it is known"
    assert [listed(("a",)), listed(("a", "b")), listed(("a", "b", "c"))] == ["a", "a and b", "a, b and c"]


FORMS: list[tuple[Callable[[float], str], dict[float, str]]] = [
    (figure, {280_000.4: "280,000", 12345.4: "12,345", 999.7: "1,000", 100.0: "100", 87.12: "87.1", 48.0: "48.0",
              0.4419: "0.442", 0.0: "0.00"}),
    (percent, {0.0: "0.00 %", 3.1e-6: "0.00031 %", 0.000996: "0.10 %", 0.0043: "0.43 %", 0.0213: "2.1 %", 0.0999: "10 %", 0.29: "29 %", 0.0099: "0.99 %", 0.00996: "1.0 %"}),
    (factor, {0.756: "×0.756", 2.0: "×2.000", 0.0996: "×0.100", 0.00692: "×0.0069", 0.0: "×0.000"}),
    (share, {0.0: "0 %", 0.824: "82 %"}),
    (chance, {0.0: "<0.1 %", 0.004: "0.4 %", 0.0996: "10 %", 0.5: "50 %", 0.9899: "99 %", 0.995: "99.5 %",
              0.9999: "99.5 %", 1.0: "99.5 %"}),
    (change, {0.712: "a drop of 29 %", 1.0: "no change", 1.2: "a rise of 20 %", 2.0: "a rise of 100 %",
              0.0006231: "a drop to 1/1,605", 0.099: "a drop to 1/10", 12.2: "a rise to 12 times"}),
    (duration, {0.44: "0.4 s", 9.96: "10 s", 59.6: "1 min", 61: "1 min 1 s", 3600: "1 h", 12_345: "3 h 26 min"}),
    (clock, {-1.0: "0:00", 7.9: "0:07", 750.0: "12:30", 3723.0: "1:02:03"}),
    (estimate, {0.1: "about 10 s", 0.3: "about 20 s", 0.8: "about 1 min", 3.6: "about 4 min", 33.0: "about 35 min",
                58.0: "about 60 min", 59.9: "about 1 h", 81.0: "about 1 h 20 min", 119.0: "about 2 h",
                1000.0: "about 17 h"}),
]  # fmt: skip


@pytest.mark.parametrize(("form", "expected"), FORMS, ids=[form.__name__ for form, _ in FORMS])
def test_quantities_are_formatted(form: Callable[[float], str], expected: dict[float, str]) -> None:
    assert {value: form(value) for value in expected} == expected


def test_missing_values_counts_intervals_and_times_are_formatted() -> None:
    assert [figure(None), share(None), low_to_high(None)] == ["–", "–", "–"]
    assert [count(1, "run"), count(2300, "run"), count(0, "merge")] == ["1 run", "2,300 runs", "0 merges"]
    assert ratio(Interval(0.698, 0.712, 0.7264)) == "0.712 (0.698–0.726)"
    assert ratio(Interval(0.000424, 0.000623, 0.105)) == "0.000623 (0.000424–0.105)"
    assert [factor_text(Interval(size, size, size)) for size in (1.42, 0.5, 0.0712, 0.00692)] == [
        "×1.42",
        "×0.50",
        "×0.071",
        "×0.0069",
    ]
    assert factor_text(Interval(0.0068, 0.00692, 0.0071)) == "×0.0069"
    at = 1_700_000_000.7
    local = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    assert f"{moment(at)} {time_of_day(at)}" == f"{local[:16]} {local[11:]}"


def test_columns_of_tables_are_aligned_in_any_script() -> None:
    lines = table(("name", "n", "rest"), [("数据库", "1", "a"), ("e\u0301", "22", "b")], right=("n",))
    assert {cell_len(line) for line in lines[1:]} == {6 + 2 + 2 + 2 + 1}
    assert [cut("数据库", width) for width in (0, 1, 3, 4, 6)] == ["", "…", "数…", "数…", "数据库"]
    assert cut("abc", 3) == "abc"
    assert columns([("a", "b"), ("long", "")]) == ["a     b", "long"]
    assert columns([]) == []


def test_narrow_table_leaves_out_columns_before_it_cuts_text() -> None:
    a, b, c = (sign * size for sign, size in (("a", 10), ("b", 10), ("c", 30)))
    for width, line in ((44, f"{a}  {b}  {c[:19]}…"), (36, f"{a}  {c[:23]}…"), (None, f"{a}  {b}  {c}")):
        assert table(("one", "two", "three"), [(a, b, c)], width=width, drop=("two",))[1] == line


def test_unicode_and_ascii_glyphs_have_the_same_widths() -> None:
    assert glyphs_for("utf-8") == UNICODE
    assert [glyphs_for(each) for each in ("ascii", "latin-1", "no such thing")] == [ASCII] * 3
    assert "".join(astuple(ASCII)).isascii()
    for one, other in zip(astuple(UNICODE), astuple(ASCII), strict=True):
        assert cell_len(one) == len(one) and (len(one) == len(other) or one == UNICODE.arrow)


def test_replaced_characters_keep_the_length_of_the_text() -> None:
    text, shown = "“Füße” · 日本 … ok", {"ascii": "'F??e' | ?? ~ ok", "latin-1": "'Füße' · ?? ~ ok"}
    assert {encoding: writable(text, encoding) for encoding in ("utf-8", *shown)} == {"utf-8": text, **shown}


def test_sparklines_dumbbells_and_bars_are_drawn() -> None:
    """A sparkline starts at zero and shows the latest, a dumbbell joins two values, and a bar has one length."""
    assert sparkline([0.0, 50.0, 100.0], 100.0, 10, UNICODE) == "▁▅█"
    assert sparkline(list(range(100)), 100.0, 3, UNICODE) == "███"
    assert sparkline([], 0.0, 5, UNICODE) == ""
    drawn = {
        (2.0, 1.0): "●━━━━━━━○",
        (1.0, 1.5): "○━━━●────",
        (1.5, 2.0): "────○━━━●",
        (1.25, 1.25): "──●──────",
        (1.0, 1.1): "○●───────",
    }
    assert {each: "".join(dumbbell(*each, (1.0, 2.0), 9, UNICODE)) for each in drawn} == drawn
    assert dumbbell(3.0, 3.0, (3.0, 3.0), 9, ASCII) == ("", "@", "--------"), "all are equal"
    assert [bar(f, 4, ASCII) for f in (0.0, 0.5, 1.0, 7.0)] == [("", "----"), ("==", "--"), ("====", ""), ("====", "")]


def test_long_lists_of_values_are_shortened() -> None:
    """lists.txt has lines of query plans, each with its shortened form."""
    pairs = [each.splitlines() for each in Path(__file__).with_name("lists.txt").read_text().split("\n\n")]
    assert [with_short_lists(plan) for plan, _ in pairs] == [shown for _, shown in pairs]


@given(
    st.lists(st.integers(), min_size=LONG_LIST, max_size=60), st.lists(st.integers(), min_size=LONG_LIST, max_size=60)
)
def test_every_list_of_a_line_is_shortened(one: list[int], other: list[int]) -> None:
    line = "a IN ({}) OR b IN ({})"
    shown = line.format(*(", ".join(map(str, [*each[:3]])) + f", … {len(each) - 3} more" for each in (one, other)))
    assert with_short_lists(line.format(*(", ".join(map(str, each)) for each in (one, other)))) == shown
    assert with_short_lists(shown) == shown
