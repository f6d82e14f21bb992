"""The shell behind a command that stops reading."""

import threading

import pytest

from perfbisect.errors import ConnectionLost
from perfbisect.host.shell import Shell

pytestmark = pytest.mark.tools

MUCH = b"x" * 300_000  # more than a pipe holds
DEAF = ["sh", "-c", "echo 'perfbisect: ready'; exec sleep 1000"]


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


def test_a_shell_that_stops_reading_can_be_closed_in_the_middle_of_a_write() -> None:
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
