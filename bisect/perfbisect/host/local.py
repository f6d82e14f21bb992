"""This machine as a host."""

import os
import select
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from perfbisect.errors import EnvironmentFailure
from perfbisect.host.packages import missing_needs_error
from perfbisect.host.protocol import (
    PRINTED,
    Command,
    Host,
    Result,
    StreamedCommand,
    missing_folder_error,
    too_much_output_error,
)
from perfbisect.recipes.inventory import HostEntry


def connect(entry: HostEntry, _destination: str) -> "LocalHost":
    """Returns a host that runs commands on this machine. A relative path of the root folder is relative to the current
    folder. See ``registry.Connect``."""
    root = entry.root if entry.root.startswith("~") else Path(entry.root).absolute()
    return LocalHost(entry.name, PurePosixPath(root))


@dataclass(frozen=True, slots=True)
class LocalHost(Host):
    """Runs commands on this machine, as child processes, each in its own session of processes (setsid).

    So Ctrl-C in the terminal does not reach a command. A command that exceeds its time limit is killed together with
    its child processes.
    """

    name: str
    root: PurePosixPath
    is_local = True

    def execute(self, command: Command) -> Result:
        """Run a command; see ``Host.execute``. After a timeout, too much output or an exception, all processes of the
        command have been killed.
        """
        with self._started(command, subprocess.PIPE) as process:
            try:
                streams = self._communicate(process, command)
            except BaseException as error:
                kill_process_group(process)
                if isinstance(error, TimeoutError):
                    return command.timeout_result()
                raise
        return command.result_of(process.returncode, *streams)

    @contextmanager
    def begin_stream(self, argv: tuple[str, ...], peer: socket.socket) -> Iterator[StreamedCommand]:
        """Start a command whose stdin and stdout are the socket ``peer``; see ``Host.begin_stream``."""
        with self._started(Command(argv), peer.fileno()) as process:
            peer.close()
            assert process.stderr
            yield StreamedCommand(
                process.stderr.read, lambda said: (process.wait(), said), lambda: kill_process_group(process)
            )

    def _started(self, command: Command, stream: int) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                command.argv,
                cwd=command.cwd or "/",  # the working directory of this process may be removed
                env={**os.environ, **command.added_env},
                stdin=stream,
                stdout=stream,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            program = command.argv[0]
            if command.cwd is not None and not Path(command.cwd).is_dir():
                raise missing_folder_error(self.name, command.cwd) from error
            if isinstance(error, FileNotFoundError):
                raise missing_needs_error([program], self.name) from error
            raise EnvironmentFailure(f"{program} does not start on host {self.name}: {error.strerror}") from error

    def _communicate(self, process: subprocess.Popen[bytes], command: Command) -> tuple[bytes, bytes]:
        """Does the same as ``Popen.communicate``, but limits the output that is kept. Raises TimeoutError and
        TooMuchOutput."""
        assert process.stdin
        assert process.stdout
        assert process.stderr
        deadline = time.monotonic() + command.timeout
        came = {process.stdout: bytearray(), process.stderr: bytearray()}
        unsent = memoryview(command.stdin)
        with selectors.DefaultSelector() as open_pipes:
            for stream in came:
                open_pipes.register(stream, selectors.EVENT_READ)
            open_pipes.register(process.stdin, selectors.EVENT_WRITE)
            while open_pipes.get_map():
                if (remaining := deadline - time.monotonic()) <= 0:
                    raise TimeoutError
                for key, _ in open_pipes.select(remaining):
                    if key.fileobj is process.stdin:
                        with suppress(BrokenPipeError):
                            unsent = unsent[process.stdin.write(unsent[: select.PIPE_BUF]) or 0 :]
                            if unsent:
                                continue
                        open_pipes.unregister(process.stdin)
                        process.stdin.close()
                    elif data := os.read(key.fd, 1 << 16):
                        received = came[key.fileobj]  # type: ignore[index]
                        received += data
                        if len(received) > PRINTED:
                            raise too_much_output_error(self.name, command.argv)
                    else:
                        open_pipes.unregister(key.fileobj)
        try:
            process.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise TimeoutError from error
        return bytes(came[process.stdout]), bytes(came[process.stderr])


def kill_process_group(process: subprocess.Popen[bytes]) -> None:
    """Kill all processes of the process group whose leader is ``process``."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def terminate_process_group(process: subprocess.Popen[bytes], grace: float) -> None:
    """End all processes of the process group whose leader is ``process``. SIGTERM is sent first, so that the process
    can end the programs that it started; SIGKILL is sent after ``grace`` seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace)
