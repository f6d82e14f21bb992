"""Standard output and standard error. All text that the program prints passes through this module, which makes the text
safe.

``make_streams_safe`` replaces both streams of the process by a ``SafeOutput``, so that texts of click, warnings and
tracebacks are made safe, too. Only perfbisect's own cursor movements and colours are written unchanged, by
``replace_line`` and ``ui.live``.
"""

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

from perfbisect.errors import EnvironmentFailure, StdoutClosed
from perfbisect.wording.glyphs import writable
from perfbisect.wording.text import safe

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

START_OF_LINE = "\r\x1b[K"  # moves the cursor to the start of the line, and clears the line


class BytesToText(io.RawIOBase):
    """A binary stream that writes to a SafeOutput, because click writes the completions for a shell as bytes."""

    def __init__(self, output: "SafeOutput") -> None:
        self.output = output

    def write(self, data: "ReadableBuffer") -> int:
        """Write UTF-8 text, made safe; return the number of bytes."""
        self.output.write(bytes(data).decode(errors="backslashreplace"))
        return len(bytes(data))

    def flush(self) -> None:
        """Write what is buffered."""
        self.output.flush()

    def writable(self) -> bool:
        """True: always writable."""
        return True


class SafeOutput(io.TextIOBase):
    """A stream that makes text safe (`wording.text.safe`). Characters that the stream's encoding lacks are replaced by
    similar characters.

    If ``raises`` is true, a failed write raises StdoutClosed or EnvironmentFailure. If ``raises`` is false, a failed
    write is ignored, as on standard error, where no error message could be printed.
    """

    def __init__(self, raw: TextIO, *, raises: bool) -> None:
        self.raw = raw
        self.reported = raises
        self.buffer = BytesToText(self)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the underlying stream."""
        return self.raw.encoding or "utf-8"

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """The error handler of the underlying stream for characters that its encoding lacks."""
        return self.raw.errors

    def write(self, text: str) -> int:
        """Make ``text`` safe and write it; returns the length of ``text``."""
        self.write_unchanged(writable(safe(text), self.encoding))
        return len(text)

    def write_unchanged(self, text: str) -> None:
        """Write ``text`` without making it safe; only for perfbisect's own control sequences."""
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
        """The file descriptor of the underlying stream."""
        return self.raw.fileno()

    def isatty(self) -> bool:
        """Whether the underlying stream is a terminal."""
        return self.raw.isatty()

    def writable(self) -> bool:
        """True: always writable."""
        return True

    def _report(self, failure: OSError) -> None:
        if not self.reported:
            return
        if isinstance(failure, BrokenPipeError):
            raise StdoutClosed from None
        raise EnvironmentFailure(
            f"Standard output cannot be written: {failure.strerror}", "Redirect the output to a disk with free space."
        ) from failure


def safe_output(stream: TextIO, *, raises: bool = True) -> SafeOutput:
    """The stream as a SafeOutput; a stream that already is a SafeOutput is returned unchanged."""
    output: object = stream
    return output if isinstance(output, SafeOutput) else SafeOutput(stream, raises=raises)


def make_streams_safe() -> None:
    """Make all text that this process prints safe. Raises EnvironmentFailure if standard output is closed.

    If standard input or standard error is closed, it is connected to /dev/null, so that no other file gets its
    descriptor.
    """
    closed = sys.stdout is None
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # until the process ends
    sys.stderr = cast("TextIO", safe_output(sys.stderr, raises=False))
    if closed:
        raise EnvironmentFailure("Standard output is closed.", "Redirect the output to a file or to /dev/null.")
    sys.stdout = cast("TextIO", safe_output(sys.stdout))


def write_line(text: str, stream: TextIO, line_end: str = "\n") -> None:
    """Write ``text`` and flush; append ``line_end`` unless the text ends with it.

    Raises StdoutClosed or EnvironmentFailure if standard output cannot be written.
    """
    output = safe_output(stream)
    output.write(text if text.endswith(line_end) else f"{text}{line_end}")
    output.flush()


def note(text: str) -> None:
    """Write ``text`` to standard error and flush."""
    write_line(text, cast("TextIO", safe_output(sys.stderr, raises=False)))


def ask(question: str, highest: int) -> int:
    """Ask the user for a number from 1 to ``highest``. Returns the number, or 1 if the user enters nothing."""
    import click

    return int(click.prompt(question, type=click.IntRange(1, highest), default=1))


def replace_line(text: str) -> None:
    """Replace the line of the terminal in which the cursor is by ``text``. Standard error must be a terminal."""
    output = safe_output(sys.stderr, raises=False)
    output.write_unchanged(START_OF_LINE)
    output.write(text)
    output.flush()
