"""Streams over ssh whose connection goes."""

import socket
from collections.abc import Callable, Iterator

import pytest

from perfbisect.host import ssh
from perfbisect.host.protocol import copies

Copies = tuple[Callable[[], None], Callable[[], None]]


class Gone:
    """A channel whose connection goes while it reads: paramiko has to acknowledge what came, and cannot write."""

    def __init__(self) -> None:
        self.said = iter([b"half of it"])

    def recv(self, _: int) -> bytes:
        for data in self.said:
            return data
        raise EOFError

    def sendall(self, _: bytes) -> None:
        raise EOFError

    def shutdown_write(self) -> None:
        raise EOFError


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Copies]]:
    """Our end of a stream, and what copies it to a channel that goes, and back."""
    ours, theirs = socket.socketpair()
    gone = Gone()
    with ours, theirs:
        ours.settimeout(10)
        yield ours, copies(theirs, gone.recv, gone.sendall, gone.shutdown_write)


def test_who_reads_a_stream_is_reported_that_the_connection_has_gone(ends: tuple[socket.socket, Copies]) -> None:
    ours, (_, back) = ends
    back()
    assert ours.recv(99) == b"half of it"
    assert ours.recv(99) == b""


def test_who_writes_to_a_stream_is_reported_that_the_connection_has_gone(ends: tuple[socket.socket, Copies]) -> None:
    ours, (forth, _) = ends
    ours.sendall(b"some")
    forth()
    with pytest.raises(BrokenPipeError):
        ours.sendall(b"more")


def test_what_came_before_the_connection_went_is_kept() -> None:
    assert ssh._read(Gone().recv, lambda: None) == b"half of it"
