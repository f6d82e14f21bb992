"""This machine as a host."""

import contextlib
import errno
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from perfbisect.errors import CommandFailed, EnvironmentFailure
from perfbisect.host.programs import absent
from perfbisect.host.protocol import Result

TIMED_OUT = 124  # the status that coreutils' timeout has for it
_NO_SPACE = os.strerror(errno.ENOSPC)


@dataclass(frozen=True, slots=True)
class LocalHost:
    """Commands run as children of this process, each in a session of its own.

    A session of its own means that Ctrl-C in the terminal reaches us and not the command, and that a command
    which takes too long is killed together with its children.
    """

    name: str
    root: PurePosixPath

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: PurePosixPath | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout: float = 60.0,
        check: bool = True,
    ) -> Result:
        """Run ``argv`` and wait for it; see ``Host.run``."""
        try:
            process = subprocess.Popen(
                argv,
                cwd=cwd,
                env={**os.environ, **(env or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise _not_started(self.name, argv, cwd, error) from error
        with process:
            status, stdout, stderr = _finish(process, stdin, timeout)
        result = Result(tuple(argv), status, stdout, stderr)
        if not result.ok and _NO_SPACE in stderr:
            raise no_space(self.name, _last_line(stderr))
        if check and not result.ok:
            raise _failed(self.name, result, timeout)
        return result


def no_space(host: str, detail: str) -> EnvironmentFailure:
    """The error for a full disk; ``detail`` is what the failing program said."""
    return EnvironmentFailure(
        f"no space left on host {host}: {detail}",
        f"Free some with `bisect gc {host} --keep SIZE`: builds and datasets are made anew when they are needed.",
    )


def _finish(process: subprocess.Popen[str], stdin: str, timeout: float) -> tuple[int, str, str]:
    """Wait for the end of ``process``; whatever interrupts the waiting, nothing of it stays alive."""
    try:
        stdout, stderr = process.communicate(stdin, timeout)
    except subprocess.TimeoutExpired:
        _kill_group(process)
        with contextlib.suppress(subprocess.TimeoutExpired):  # somebody outside the group may hold the pipes
            process.communicate(timeout=1)
        return TIMED_OUT, "", f"not finished after {timeout:g} s"
    except BaseException:
        _kill_group(process)
        raise
    return process.returncode, stdout, stderr


def _kill_group(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _not_started(host: str, argv: Sequence[str], cwd: PurePosixPath | None, error: OSError) -> EnvironmentFailure:
    if cwd is not None and not Path(cwd).is_dir():
        return EnvironmentFailure(f"there is no folder {cwd} on host {host}", "It may have been removed; start again.")
    if isinstance(error, FileNotFoundError):
        return absent([argv[0]], host)
    return EnvironmentFailure(f"{argv[0]} does not start on host {host}: {error.strerror}")


def _failed(host: str, result: Result, timeout: float) -> CommandFailed:
    said = _last_line(result.stderr) or _last_line(result.stdout) or "it said nothing"
    end = f"took more than {timeout:g} s" if result.status == TIMED_OUT else f"ended with status {result.status}"
    command = shlex.join(result.argv)
    shown = command if len(command) <= 200 else f"{command[:199]}…"
    return CommandFailed(
        f"on host {host}, {shown} {end}: {said}", status=result.status, output=result.stdout + result.stderr
    )


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""
