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
from perfbisect.host.protocol import Host, Result
from perfbisect.recipes.inventory import HostEntry


def connect(entry: HostEntry, _destination: str) -> "LocalHost":
    """This machine, where a relative root begins in the current folder; see ``registry.ConnectionModule``."""
    root = entry.root if entry.root.startswith("~") else Path(entry.root).absolute()
    return LocalHost(entry.name, PurePosixPath(root))


@dataclass(frozen=True, slots=True)
class LocalHost(Host):
    """Commands run as children of this process, each in a session of its own.

    So Ctrl-C in the terminal does not reach the command, and a command that exceeds its time limit is killed together
    with its children.
    """

    name: str
    root: PurePosixPath
    is_local = True

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
        near, far = socket.socketpair()
        with near:
            try:
                process = subprocess.Popen(
                    argv,
                    stdin=far.fileno(),
                    stdout=far.fileno(),
                    stderr=subprocess.PIPE,
                    text=True,
                    encoding="utf-8",
                    errors="replace",
                    start_new_session=True,
                )
            except OSError as error:
                raise _not_started(self.name, argv, None, error) from error
            finally:
                far.close()
            with process:
                try:
                    yield near
                    near.close()
                    _, stderr = process.communicate()
                except BaseException:
                    _kill_group(process)
                    raise
        judged(self.name, Result(tuple(argv), process.returncode, "", stderr), 0, True)


def _finish(process: subprocess.Popen[str], argv: tuple[str, ...], stdin: str, timeout: float) -> Result:
    """Wait for the end of ``process``. On a timeout or an exception its whole process group is killed."""
    try:
        stdout, stderr = process.communicate(stdin, timeout)
    except subprocess.TimeoutExpired:
        _kill_group(process)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process outside the group may keep the pipes open
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
