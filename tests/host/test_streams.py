"""Streams over ssh whose connection goes."""

import socket

import pytest

from perfbisect.host import ssh


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


def test_who_reads_a_stream_is_reported_that_the_connection_has_gone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10)
        ssh._backward(Gone(), theirs)  # type: ignore[arg-type]
        assert ours.recv(99) == b"half of it"
        assert ours.recv(99) == b""


def test_who_writes_to_a_stream_is_reported_that_the_connection_has_gone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"some")
        ssh._forward(theirs, Gone())  # type: ignore[arg-type]
        with pytest.raises(BrokenPipeError):
            ours.sendall(b"more")


def test_what_came_before_the_connection_went_is_kept() -> None:
    assert ssh._read(Gone().recv, lambda: None) == b"half of it"
