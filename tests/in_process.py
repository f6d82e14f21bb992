"""The program in this process, by the same entry as the real one."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple
from unittest import mock

from perfbisect.cli.main import main


class Ended(NamedTuple):
    """How the program ended."""

    status: int
    out: str
    err: str


def run(*args: str) -> Ended:
    """Run it with these arguments. Its streams have the encodings that they have outside of tests."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)
    status: object = None
    with mock.patch.object(sys, "argv", ["bisect", *args]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as leave:
            status = leave.code
        out.flush()
    assert isinstance(status, int)
    return Ended(status, *(stream.buffer.getvalue().decode() for stream in (out, err)))  # type: ignore[attr-defined]
