"""Conflicts between lines that only touch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.repository.adjacent_edits import MARKER, settle, settled

lines = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n"]), max_size=4)


def conflict(ours: bytes, base: bytes, theirs: bytes) -> bytes:
    """As git writes it."""
    head, middle, other, end = (sign * MARKER for sign in (b"<", b"|", b"=", b">"))
    return head + b" ours\n" + ours + middle + b" base\n" + base + other + b"\n" + theirs + end + b" theirs\n"


@pytest.mark.parametrize(
    ("ours", "base", "theirs", "result"),
    [
        ([b"old\n", b"new\n"], [b"old\n"], [], [b"new\n"]),
        ([b"before\n", b"old\n", b"after\n"], [b"old\n"], [b"changed\n"], [b"before\n", b"changed\n", b"after\n"]),
        ([b"changed\n"], [b"old\n"], [b"back\n", b"old\n"], [b"back\n", b"changed\n"]),
        ([b"mine\n"], [b"old\n"], [], None),
        ([b"mine\n"], [], [b"theirs\n"], None),
        ([b"old\n", b"x\n", b"old\n"], [b"old\n"], [], None),
    ],
    ids=["added behind", "added around", "reverted beside a change", "same line", "same place", "which one"],
)
def test_what_only_touches_is_settled(
    ours: list[bytes], base: list[bytes], theirs: list[bytes], result: list[bytes] | None
) -> None:
    assert settle(ours, base, theirs) == result
    whole = b"top\n" + conflict(b"".join(ours), b"".join(base), b"".join(theirs)) + b"bottom\n"
    assert settled(whole) == (None if result is None else b"top\n" + b"".join(result) + b"bottom\n")


def test_every_conflict_of_a_file_must_be_of_that_kind() -> None:
    good, bad = conflict(b"old\nnew\n", b"old\n", b""), conflict(b"mine\n", b"old\n", b"")
    assert settled(good + b"x\n" + good) == b"new\nx\nnew\n"
    assert settled(good + bad) is None
    assert settled(b"no conflict\n") == b"no conflict\n"


@given(before=lines, base=lines, after=lines, replacement=lines)
def test_what_was_added_stays_and_what_was_replaced_is_replaced(
    before: list[bytes], base: list[bytes], after: list[bytes], replacement: list[bytes]
) -> None:
    """Distinct signs tell the parts apart."""
    one = [line.upper() for line in before] + base + [line.upper() for line in after]
    found = settle(one, base, replacement)
    if base and found is not None:
        assert [line for line in found if line.isupper()] == [line.upper() for line in before + after]
