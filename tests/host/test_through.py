"""Hosts that a command leads to: here `env`, which runs what is appended to it."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from perfbisect.errors import ConnectionLost, EnvironmentFailure
from perfbisect.host import through
from perfbisect.host.registry import connect
from perfbisect.host.through import Shell, ThroughHost
from perfbisect.recipes.inventory import HostEntry
from waiting import ended, until

pytestmark = pytest.mark.tools


@pytest.fixture
def host(tmp_path: Path) -> Iterator[ThroughHost]:
    made = connect(HostEntry(name="box", through=["env", "BOX=1"], root=str(tmp_path / "root")))
    assert isinstance(made, ThroughHost)
    yield made
    made.release()


def test_a_lost_shell_is_started_again_and_reported(host: ThroughHost) -> None:
    events: list[str] = []
    host.subscribe(events.append)
    once = host.root / "once"
    done = host.run(
        ["sh", "-c", f"[ -e {once} ] || {{ touch {once}; kill -9 {server(host)}; sleep 100; }}; echo again"]
    )
    assert done.stdout == "again\n"
    assert [event.split()[-1] for event in events] == ["s", "restored"]


def test_what_the_command_itself_prints_is_no_answer(host: ThroughHost) -> None:
    """Such as the notice of a scheduler, at any time; its last line may have no end yet."""
    events: list[str] = []
    host.subscribe(events.append)
    notice = "step 1.0 is told: 5 minutes left\n1 0 a b\n\nperfbisect: x\nno end"
    for number in range(3):
        done = host.run(
            ["sh", "-c", f"printf '{notice}' >/proc/{server(host)}/fd/1; echo {number}; exit 3"], check=False
        )
        assert (done.status, done.stdout) == (3, f"{number}\n")
    assert events == []


def test_what_the_command_says_is_read_where_it_goes_on_to_write(
    host: ThroughHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command and what reads share an open file, and so the place in it."""
    running = host.connection.open()
    errors = running._errors

    class Written:
        """The file, to which the command writes just before it is read."""

        def read(self) -> bytes:
            os.write(errors.fileno(), b"late\n")
            return errors.read()

        def __getattr__(self, name: str) -> object:
            return getattr(errors, name)

    os.write(errors.fileno(), b"early\n" * 1000)
    monkeypatch.setattr(running, "_errors", Written())
    assert running.said() == "early"
    os.write(errors.fileno(), b"end\n")
    assert os.pread(errors.fileno(), 1 << 16, 0) == b"early\n" * 1000 + b"end\n"


def test_a_greeting_before_the_shell_is_passed_over(tmp_path: Path) -> None:
    led = ["sh", "-c", 'printf "welcome\n\nto the node: "; exec "$@"', "led"]
    with connect(HostEntry(name="box", through=led, root=str(tmp_path / "root"))) as host:
        assert host.run(["echo", "on"]).stdout == "on\n"


def test_a_command_that_does_not_lead_there(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"box cannot be reached with sh: .*the allocation has expired"):
        connect(HostEntry(name="box", through=["sh", "-c", "echo the allocation has expired >&2"], root=str(tmp_path)))
    with pytest.raises(EnvironmentFailure, match="no-such-command does not start"):
        connect(HostEntry(name="box", through=["no-such-command"], root=str(tmp_path)))


def test_patience_ends(tmp_path: Path) -> None:
    switch = tmp_path / "on"
    switch.touch()
    led = ["sh", "-c", f'[ -e {switch} ] || {{ echo gone >&2; exit 1; }}; exec "$@"', "led"]
    host = connect(HostEntry(name="box", through=led, root=str(tmp_path / "root")))
    assert isinstance(host, ThroughHost)
    host.connection.patience = 0.0
    switch.unlink()
    os.kill(server(host), signal.SIGKILL)
    with pytest.raises(ConnectionLost, match="gone"):
        host.run(["true"], timeout=0.01)


def test_an_interruption_ends_the_command(host: ThroughHost, monkeypatch: pytest.MonkeyPatch) -> None:
    note = host.root / "pid"
    main = threading.get_ident()

    def interrupt() -> None:
        until(lambda: Path(note).exists() and Path(note).read_text().strip())
        signal.pthread_kill(main, signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            host.run(["sh", "-c", f"echo $$ >{note}; sleep 1000"], timeout=2000)
    until(lambda: ended(Path(note).read_text().strip()))
    assert host.run(["echo", "on"]).stdout == "on\n"


def test_a_stream_that_breaks_off_is_a_lost_connection(tmp_path: Path) -> None:
    led = ["sh", "-c", '[ "$4" = stream ] && { echo "step killed" >&2; exit 0; }; exec "$@"', "led"]
    host = connect(HostEntry(name="box", through=led, root=str(tmp_path / "root")))
    with host, pytest.raises(ConnectionLost, match="step killed"), host.stream(["true"]):
        pass


def test_nothing_is_left_of_it(host: ThroughHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    host.release()
    host.run(["true"])
    pid = server(host)
    assert list((tmp_path / "tmp").glob("perfbisect-shell-*"))
    host.release()
    assert ended(pid)
    assert not list((tmp_path / "tmp").glob("perfbisect-shell-*"))


def server(host: ThroughHost) -> int:
    """The process of its shell."""
    return host.connection.open()._process.pid


MUCH = b"x" * 300_000  # more than a pipe holds
DEAF = ["sh", "-c", "echo 'perfbisect: 0 0   end'; exec sleep 1000"]


def test_who_writes_to_a_shell_that_stops_reading_is_told_that_it_is_lost() -> None:
    failures: list[BaseException] = []

    def call() -> None:
        try:
            Shell("x", DEAF).call("true", MUCH, 0.5)
        except ConnectionLost as failure:
            failures.append(failure)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert "does not answer" in str(failures[0])


def test_a_shell_that_stops_reading_can_be_closed_in_the_middle_of_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(through, "ENDING", 0.5)
    shell = Shell("x", DEAF)
    shell.open()
    ended = threading.Event()

    def call() -> None:
        with pytest.raises(ConnectionLost):
            shell.call("true", MUCH, 1000)
        ended.set()

    threads = [threading.Thread(target=each, daemon=True) for each in (call, shell.close)]
    threads[0].start()
    ended.wait(0.5)  # as long as the pipe needs to be full
    threads[1].start()
    for thread in threads:
        thread.join(60)
    assert [thread.is_alive() for thread in threads] == [False, False]
    assert ended.is_set()


def test_what_is_larger_than_a_pipe_arrives() -> None:
    shell = Shell("x", ["env"])
    try:
        assert shell.call("wc -c", MUCH, 60) == (0, b"300000\n", b"")
    finally:
        shell.close()
