import io

from perfbisect.ui.terminal import Terminal


def test_signs_that_the_encoding_lacks_are_replaced_by_similar_ones() -> None:
    written = io.BytesIO()
    terminal = Terminal(io.TextIOWrapper(written, encoding="ascii", write_through=True))
    terminal.print("0.9–1.1 × \x1b]0;title", soft_wrap=True)
    assert written.getvalue() == b"0.9-1.1 x \\x1b]0;title\n"
