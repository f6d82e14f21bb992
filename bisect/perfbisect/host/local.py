"""This machine as a host."""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from perfbisect.errors import EnvironmentFailure
from perfbisect.host.outcome import judged, no_folder, timed_out
from perfbisect.host.programs import absent
from perfbisect.host.protocol import Result


@dataclass(frozen=True, slots=True)
class LocalHost:
    """Commands run as children of this process, each in a session of its own.

    A session of its own means that Ctrl-C in the terminal reaches us and not the command, and that a command
    which takes too long is killed together with its children.
    """

    name: str
    root: PurePosixPath

    @property
    def here(self) -> bool:
        """It is the machine that we run on."""
        return True

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
            result = _finish(process, tuple(argv), stdin, timeout)
        return judged(self.name, result, timeout, check)

    @contextlib.contextmanager
    def stream(self, argv: Sequence[str]) -> Iterator[socket.socket]:
        """Run ``argv`` with its stdin and stdout on a socket; see ``Host.stream``."""
        ours, theirs = socket.socketpair()
        with ours:
            try:
                process = subprocess.Popen(
                    argv,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.PIPE,
                    text=True,
                    encoding="utf-8",
                    errors="replace",
                    start_new_session=True,
                )
            except OSError as error:
                raise _not_started(self.name, argv, None, error) from error
            finally:
                theirs.close()
            with process:
                try:
                    yield ours
                    ours.close()
                    _, said = process.communicate()
                except BaseException:
                    _kill_group(process)
                    raise
        judged(self.name, Result(tuple(argv), process.returncode, "", said), 0, True)


def _finish(process: subprocess.Popen[str], argv: tuple[str, ...], stdin: str, timeout: float) -> Result:
    """Wait for the end of ``process``; whatever interrupts the waiting, nothing of it stays alive."""
    try:
        stdout, stderr = process.communicate(stdin, timeout)
    except subprocess.TimeoutExpired:
        _kill_group(process)
        with contextlib.suppress(subprocess.TimeoutExpired):  # somebody outside the group may hold the pipes
            process.communicate(timeout=1)
        return timed_out(argv, timeout)
    except BaseException:
        _kill_group(process)
        raise
    return Result(argv, process.returncode, stdout, stderr)


def _kill_group(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _not_started(host: str, argv: Sequence[str], cwd: PurePosixPath | None, error: OSError) -> EnvironmentFailure:
    if cwd is not None and not Path(cwd).is_dir():
        return no_folder(host, cwd)
    if isinstance(error, FileNotFoundError):
        return absent([argv[0]], host)
    return EnvironmentFailure(f"{argv[0]} does not start on host {host}: {error.strerror}")
