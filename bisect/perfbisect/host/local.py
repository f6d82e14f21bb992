"""This machine as a host."""

import contextlib
import os
import select
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from perfbisect.errors import EnvironmentFailure
from perfbisect.host.commands import PRINTED, judged, last_of, no_folder, timed_out, too_much
from perfbisect.host.packages import absent
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
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise _not_started(self.name, argv, cwd, error) from error
        with process:
            result = _finish(self.name, process, tuple(argv), stdin, timeout)
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
                    start_new_session=True,
                )
            except OSError as error:
                raise _not_started(self.name, argv, None, error) from error
            finally:
                far.close()
            with process, ThreadPoolExecutor(1) as pool:
                try:
                    errors = pool.submit(last_of, process.stderr.read1)  # type: ignore[union-attr]
                    yield near
                    near.close()
                    stderr = errors.result().decode(errors="replace")
                    process.wait()
                except BaseException:
                    _kill_group(process)
                    raise
        judged(self.name, Result(tuple(argv), process.returncode, "", stderr), 0, True)


def _finish(host: str, process: subprocess.Popen[bytes], argv: tuple[str, ...], stdin: str, timeout: float) -> Result:
    """Wait for the end of ``process``. On a timeout, too much output or an exception its process group is killed."""
    try:
        stdout, stderr = _communicate(process, stdin.encode(), time.monotonic() + timeout)
    except TimeoutError:
        _kill_group(process)
        return timed_out(argv, timeout)
    except _TooMuch:
        _kill_group(process)
        raise too_much(host, argv) from None
    except BaseException:
        _kill_group(process)
        raise
    return Result(argv, process.returncode, stdout.decode(errors="replace"), stderr.decode(errors="replace"))


class _TooMuch(Exception):
    """A stream is longer than PRINTED bytes."""


def _communicate(process: subprocess.Popen[bytes], stdin: bytes, deadline: float) -> tuple[bytes, bytes]:
    """As ``Popen.communicate``, with a bound for what it keeps. Raises TimeoutError and _TooMuch."""
    assert process.stdin
    assert process.stdout
    assert process.stderr
    came = {process.stdout: bytearray(), process.stderr: bytearray()}
    unsent = memoryview(stdin)
    with selectors.DefaultSelector() as open_pipes:
        for stream in came:
            open_pipes.register(stream, selectors.EVENT_READ)
        open_pipes.register(process.stdin, selectors.EVENT_WRITE)
        while open_pipes.get_map():
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError
            for key, _ in open_pipes.select(left):
                if key.fileobj is process.stdin:
                    with contextlib.suppress(BrokenPipeError):
                        unsent = unsent[process.stdin.write(unsent[: select.PIPE_BUF]) or 0 :]
                        if unsent:
                            continue
                    open_pipes.unregister(process.stdin)
                    process.stdin.close()
                elif data := os.read(key.fd, 1 << 16):
                    kept = came[key.fileobj]  # type: ignore[index]
                    kept += data
                    if len(kept) > PRINTED:
                        raise _TooMuch
                else:
                    open_pipes.unregister(key.fileobj)
    try:
        process.wait(max(0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise TimeoutError from error
    return bytes(came[process.stdout]), bytes(came[process.stderr])


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _not_started(host: str, argv: Sequence[str], cwd: PurePosixPath | None, error: OSError) -> EnvironmentFailure:
    if cwd is not None and not Path(cwd).is_dir():
        return no_folder(host, cwd)
    if isinstance(error, FileNotFoundError):
        return absent([argv[0]], host)
    return EnvironmentFailure(f"{argv[0]} does not start on host {host}: {error.strerror}")
