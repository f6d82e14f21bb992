"""Tickets for the lock of a machine, like the tickets of other processes."""

import os
from pathlib import Path

import msgspec

from perfbisect.host.lock import LockOwner

# A process that this machine cannot see
ELSEWHERE = LockOwner(
    "another-boot pid:[1] 12 34", 12, "elsewhere", "hunt 6", "2026-01-02T03:04:05Z", "eve", "ab12", ""
)


def folder() -> Path:
    """The folder of the tickets of this test."""
    return Path(os.environ["PERFBISECT_LOCKS"])


def names() -> list[str]:
    """The names of all tickets."""
    return sorted(path.name for path in folder().iterdir()) if folder().exists() else []


def boot() -> str:
    """The id of the present boot of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def uptime() -> float:
    """Seconds since the machine was started."""
    return float(Path("/proc/uptime").read_text().split()[0])


def write_ticket(
    silence: float = 0,
    place: float = 1.0,
    content: str | None = None,
    of: str = "",
    name: str = "0" * 16,
    **owner: object,
) -> Path:
    """Write a ticket that has the lock; its last heartbeat was ``silence`` seconds ago."""
    folder().mkdir(exist_ok=True)
    path = folder() / f"perfbisect-lock.{name}"
    path.unlink(missing_ok=True)
    owner_text = msgspec.json.encode(msgspec.structs.replace(ELSEWHERE, **owner)).decode()
    path.write_text(f"{of or boot()} {place} {owner_text}" if content is None else content)
    path.chmod(0o444)
    at = uptime() - silence
    os.utime(path, (at, at))
    return path
