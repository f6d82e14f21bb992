"""Foreign text, made safe and readable."""

from perfbisect.core.domain.events import Commit
from perfbisect.wording.text import advised, cited, listed, printable, printable_commit


def test_control_characters_are_shown_as_escapes() -> None:
    assert printable("a\tb\r\nc\x1b[1m\x9b") == r"a b c\x1b[1m\x9b"
    assert printable_commit(Commit("ab", "\x1b1", "\x072", "\u202e3")) == Commit("ab", r"\x1b1", r"\x072", r"\u202e3")


def test_a_warning_reads_as_sentences() -> None:
    assert advised("the host is busy", "Inspection at `top`.") == "the host is busy. Inspection at `top`."
    assert advised("The host drifts.", "Wait.") == "The host drifts. Wait."
    assert advised("the host drifts", "") == "the host drifts"


def test_a_commit_is_cited_as_far_as_it_is_known() -> None:
    assert cited(Commit("ab" * 20, "2021-10-13", "A", "Subject")) == "ababababab (2021-10-13, “Subject”)"
    assert cited(Commit("ab" * 20, "", "", "")) == "ababababab"


def test_names_in_a_sentence() -> None:
    assert [listed(("a",)), listed(("a", "b")), listed(("a", "b", "c"))] == ["a", "a and b", "a, b and c"]
