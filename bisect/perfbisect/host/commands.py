"""Commands on a host of any kind: how much of what they print is kept, and what their end means.

A command can print without end. What is beyond the bounds here is never kept in memory or on a disk.
"""

import contextlib
import errno
import os
import shlex
from collections.abc import Callable

from perfbisect.errors import CommandFailed, EnvironmentFailure, TooMuchOutput
from perfbisect.host.protocol import Result

HEAD = 8 << 20  # bytes of each stream of a job that are kept from its beginning: several times the log of a long build
TAIL = 2 << 20  # bytes that are kept from its end, where totals and the reasons of failures are
PRINTED = 64 << 20  # bytes of each stream of a short command: git lists the tree of half a million files in less
LINE = 64 << 10  # characters of a line that are parsed for progress and errors: those of linkers are the longest
ARGUMENT = (128 << 10) - 1  # bytes of one argument or variable of a program: the limit of Linux


TIMED_OUT = 124  # the status of coreutils' timeout
_NO_SPACE = os.strerror(errno.ENOSPC)
_LAST = 1000  # characters of an output, in whose last line its reason is searched for


def judged(host: str, result: Result, timeout: float, check: bool) -> Result:
    """The result of a command, or the errors of ``Host.run``."""
    if not result.ok and _NO_SPACE in result.stderr:
        raise no_space(host, _last_line(result.stderr))
    if check and not result.ok:
        raise _failed(host, result, timeout)
    return result


def timed_out(argv: tuple[str, ...], timeout: float) -> Result:
    """The result of a command that was ended because it took too long."""
    return Result(argv, TIMED_OUT, "", f"not finished after {timeout:g} s")


def no_space(host: str, detail: str) -> EnvironmentFailure:
    """The error for a full disk; ``detail`` is the message of the failing program."""
    return EnvironmentFailure(
        f"no space left on host {host}: {detail}",
        f"Free some with `bisect gc {host} --keep SIZE`: builds and datasets are made again when they are needed.",
    )


def last_of(receive: Callable[[int], bytes]) -> bytes:
    """Read a stream to its end, or that of its connection; what it returns is its last bytes."""
    last = b""
    with contextlib.suppress(EOFError):
        while data := receive(1 << 16):
            last = (last + data)[-_LAST:]
    return last


def unwritten(host: str, job: str, reason: str) -> EnvironmentFailure:
    """The error for a job whose output could not be written, with the message of the program that writes it."""
    if _NO_SPACE in reason:
        return no_space(host, reason)
    return EnvironmentFailure(f"the output of job {job} on host {host} cannot be written: {reason}")


def too_much(host: str, argv: tuple[str, ...]) -> TooMuchOutput:
    """The error for a command that was ended because it printed without end."""
    return TooMuchOutput(f"on host {host}, {_shown(argv)} printed more than {PRINTED >> 20} MiB, and was ended")


def no_folder(host: str, folder: object) -> EnvironmentFailure:
    """The error for a missing working directory."""
    return EnvironmentFailure(
        f"folder {folder} does not exist on host {host}", "It may have been removed; start again."
    )


def no_root(host: str, root: object, why: str) -> EnvironmentFailure:
    """The error for a root folder that cannot be created."""
    return EnvironmentFailure(
        f"the root folder {root} of host {host} cannot be created: {why}",
        "Choose another `root` for this host in hosts.toml.",
    )


def _failed(host: str, result: Result, timeout: float) -> CommandFailed:
    output = _last_line(result.stderr) or _last_line(result.stdout) or "it printed nothing"
    end = f"took more than {timeout:g} s" if result.status == TIMED_OUT else f"ended with status {result.status}"
    return CommandFailed(
        f"on host {host}, {_shown(result.argv)} {end}: {output}",
        status=result.status,
        output=result.stdout + result.stderr,
    )


def _shown(argv: tuple[str, ...]) -> str:
    command = shlex.join(argv)
    return command if len(command) <= 200 else f"{command[:199]}…"


def _last_line(text: str) -> str:
    lines = text[-_LAST:].strip().splitlines()
    return lines[-1].strip() if lines else ""
