"""Markdown that has no markup, mentions or links but its own."""

import re

import pytest

from perfbisect.report.markdown import escape, fenced

MENTIONS = (
    "@user", "(@org/team)", "owner/repo#12", "#7", "!3", "GH-9", "https://evil.example/x", "www.evil.example",
    "_www.evil.example", "www.evil.example_", "x@-evil.example", "$(x)$", "$\\alpha$", "$$", ":tada:", ":+1:",
    "x@evil.example", "http://a_b_c/`d`", "user@0123456789abcdef", "ftp://x", "~label", "%2", "$4", "&5",
)  # fmt: skip


def test_it_neither_mentions_nor_links() -> None:
    for mention in MENTIONS:
        found = re.fullmatch(r"see (`+) ?(.*?) ?\1 now", escape(f"see {mention} now"))
        assert found, mention
        assert found[2] == mention


def test_it_has_no_markup_of_others() -> None:
    for text in ("<img src=x onerror=y>", "[a](javascript:b)", "![a](b)", "a|b", "`c`", "*d* _e_", "&lt;"):
        shown = re.sub(r"\\[\\`*_\[\]<>|#~&]", "", escape(text))
        assert not set("`*_[]<>|&") & set(re.sub(r"(`+).*?\1", "", shown)), text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("in `f_1`, by `g<x> @u`", "in `f_1`, by `g<x> @u`"),
        ("a ` b, ``c``, `d|e`", r"a \` b, \`\`c\`\`, \`d\|e\`"),
    ],
)
def test_a_span_of_code_stays_one_in_markdown(text: str, shown: str) -> None:
    assert escape(text) == shown


def test_a_block_of_code_ends_where_it_should() -> None:
    block = list(fenced(["a", "```", "````", "<b>"], "sh"))
    assert block[0] == "`````sh"
    assert block[-1] == "`````"
