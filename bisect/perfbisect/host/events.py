"""What a host reports of its connection to those who subscribe."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class ConnectionState(StrEnum):
    """What has happened to a connection."""

    RETRYING = "retrying"  # it is lost, and is being opened again
    LOST = "lost"  # it could not be opened again in time
    RESTORED = "restored"


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """A change of the connection to a host, in a sentence for the user."""

    host: str
    state: ConnectionState
    text: str


Listener = Callable[[ConnectionEvent], None]
"""Called in the thread whose command needs the connection. An exception of it ends the attempts to reconnect."""

Unsubscribe = Callable[[], None]
