"""The part of a page about one commit."""

import pytest

from perfbisect.report.page.case import any_of, place_in
from perfbisect.report.page.diff import parsed

DIFF = """diff --git a/x.cc b/x.cc
--- a/x.cc
+++ b/x.cc
@@ -3,2 +3,2 @@ void Page::fill(int x)
 \tignored(1);
-\told(1);
+\tmore (2);
"""


@pytest.mark.parametrize(
    ("functions", "found"),
    [
        (("Tree::fill",), True),
        (("none", "ns::more"), True),
        (("insert", "old"), True),
        (("ignored", "ore", "mor", "x"), False),
        (("[libz.so.1]",), False),
        ((), False),
    ],
)
def test_hunks_of_the_functions_of_a_list(functions: tuple[str, ...], found: bool) -> None:
    [[hunk]] = [file.hunks for file in parsed(DIFF)]
    word = any_of(functions)
    assert (word is not None and place_in(hunk, word)) is found
