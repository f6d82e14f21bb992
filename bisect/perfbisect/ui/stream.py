"""Standard output and standard error: the one place through which everything printed passes.

``guard`` replaces both streams of the process by an ``Output``, so that also what click, warnings and tracebacks print is
made safe. Cursor movements and colours of this program are written behind it: by ``rewrite_line`` and by ``ui.terminal``.
"""

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

from perfbisect.errors import EnvironmentFailure, ReaderGone
from perfbisect.wording.glyphs import writable
from perfbisect.wording.text import safe

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

START_OF_LINE = "\r\x1b[K"  # and clear the line


class Bytes(io.RawIOBase):
    """What takes bytes for an Output: click completes words in bytes."""

    def __init__(self, output: "Output") -> None:
        self.output = output

    def write(self, data: "ReadableBuffer") -> int:
        """Write text in UTF-8, made safe."""
        self.output.write(bytes(data).decode(errors="backslashreplace"))
        return len(bytes(data))

    def flush(self) -> None:
        """Write what is buffered."""
        self.output.flush()

    def writable(self) -> bool:
        """It is."""
        return True


class Output(io.TextIOBase):
    """A stream on which text appears as `wording.text.safe` has it; signs that its encoding lacks appear as similar ones.

    Where standard output cannot be written, raises ReaderGone or EnvironmentFailure. Errors on standard error are ignored:
    they could not be reported.
    """

    def __init__(self, raw: TextIO, *, reported: bool) -> None:
        self.raw = raw
        self.reported = reported
        self.buffer = Bytes(self)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the stream behind."""
        return self.raw.encoding or "utf-8"

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """How the stream behind handles what its encoding lacks."""
        return self.raw.errors

    def write(self, text: str) -> int:
        """Write ``text``, made safe."""
        self.put_raw(writable(safe(text), self.encoding))
        return len(text)

    def put_raw(self, text: str) -> None:
        """Write ``text`` as it is: control sequences of this program."""
        try:
            self.raw.write(text)
        except OSError as failure:
            self._report(failure)

    def flush(self) -> None:
        """Write what is buffered."""
        try:
            self.raw.flush()
        except OSError as failure:
            self._report(failure)

    def fileno(self) -> int:
        """The descriptor of the stream behind."""
        return self.raw.fileno()

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self.raw.isatty()

    def writable(self) -> bool:
        """It is."""
        return True

    def _report(self, failure: OSError) -> None:
        if not self.reported:
            return
        if isinstance(failure, BrokenPipeError):
            raise ReaderGone from None
        raise EnvironmentFailure(
            f"Standard output cannot be written: {failure.strerror}", "Write it where there is space."
        ) from failure


def guarded(stream: TextIO, *, reported: bool = True) -> Output:
    """The stream as an Output."""
    known: object = stream
    return known if isinstance(known, Output) else Output(stream, reported=reported)


def guard() -> None:
    """Make everything safe that this process prints. Raises EnvironmentFailure where standard output is closed.

    Closed standard input and standard error become /dev/null, so that no other file gets their numbers.
    """
    closed = sys.stdout is None
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # until the process ends
    sys.stderr = cast("TextIO", guarded(sys.stderr, reported=False))
    if closed:
        raise EnvironmentFailure("Standard output is closed.", "Redirect it to a file, or to /dev/null.")
    sys.stdout = cast("TextIO", guarded(sys.stdout))


def put(text: str, stream: TextIO, end: str = "\n") -> None:
    """Write lines at once; ``end`` follows where they do not end with it.

    Raises ReaderGone or EnvironmentFailure where standard output cannot be written.
    """
    output = guarded(stream)
    output.write(text if text.endswith(end) else f"{text}{end}")
    output.flush()


def note(text: str) -> None:
    """Write lines to standard error at once."""
    put(text, cast("TextIO", guarded(sys.stderr, reported=False)))


def ask(question: str, most: int) -> int:
    """The number from 1 to ``most`` that the user of a terminal answers, by default 1."""
    import click

    return int(click.prompt(question, type=click.IntRange(1, most), default=1))


def rewrite_line(text: str) -> None:
    """Replace the line of the cursor, on a standard error that is a terminal."""
    output = guarded(sys.stderr, reported=False)
    output.put_raw(START_OF_LINE)
    output.write(text)
    output.flush()
