"""How text gets to standard output."""

from typing import TextIO

from perfbisect.errors import EnvironmentFailure


def put(text: str, stream: TextIO) -> None:
    """Write lines at once. Raises BrokenPipeError when the reader has gone, EnvironmentFailure for any other reason."""
    try:
        print(text, end="" if text.endswith("\n") else "\n", file=stream, flush=True)
    except BrokenPipeError:
        raise
    except OSError as failure:
        raise EnvironmentFailure(f"Standard output cannot be written: {failure.strerror}") from failure
