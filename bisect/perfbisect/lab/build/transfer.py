"""Sends a finished build from the host that built it to the one that measures it: a tar stream through the controller."""

from contextlib import suppress

from perfbisect.errors import ConnectionLost, EnvironmentFailure
from perfbisect.host.protocol import Host
from perfbisect.lab.build import build_store, integrity

ATTEMPTS = 3  # at a stream during which a connection broke off

READY = 'mkdir -p "${1%/*}" && rm -rf "$1.part" && mkdir "$1.part"'
_DONE = (
    f"{integrity.FUNCTIONS}"
    '[ ! -d "$1.part" ] || { find "$1.part" -type f -exec sync -- {} + && note "$1.part" && rm -rf "$1" && mv -T -- "$1.part" "$1"; }'
)


def ship(build_host: Host, builder: str, key: str, host: Host) -> None:
    """Send the build with that key to ``host``, unless it has it. Its links stay where it was built.

    Raises EnvironmentFailure when the build contains the path of its installation, which differs on ``host``, and
    BuildChanged where it is not as it was made.
    """
    place, there = build_store.folder(build_host, key), build_store.folder(host, key)
    if build_store.has(host, key):
        return
    build_store.check(build_host, key)
    if build_host.root != host.root:
        _refuse_rooted(build_host, builder, key, host)
    for left in reversed(range(ATTEMPTS)):
        build_host.run(["test", "-d", str(place)])  # which also waits for a lost connection, as the next command does
        host.run(["sh", "-c", READY, "ready", str(there)], timeout=600)
        try:
            _stream(
                build_host,
                ["tar", "-cf", "-", "-C", str(place), "--exclude=./links", "."],
                host,
                ["tar", "-xf", "-", "-C", f"{there}.part"],
            )
            break
        except ConnectionLost:
            if not left:
                raise
    host.run(["sh", "-c", _DONE, "done", str(there)], timeout=600)


def _stream(build_host: Host, pack: list[str], host: Host, unpack: list[str]) -> None:
    """What ``pack`` writes goes to ``unpack``.

    Both report how they ended. The error of the packing side comes first, since a truncated stream looks damaged to the
    other; unless the unpacking side has ended early.
    """
    with host.stream(unpack) as target, suppress(ConnectionError), build_host.stream(pack) as source:
        while chunk := source.recv(1 << 16):
            target.sendall(chunk)


def _refuse_rooted(build_host: Host, builder: str, key: str, host: Host) -> None:
    fixed = str(build_host.root / "work" / builder / "prefix")
    found = build_host.run(
        ["grep", "-rlF", "-m1", "-e", fixed, str(build_store.prefix(build_host, key))], check=False, timeout=600
    )
    if found.ok:
        raise EnvironmentFailure(
            f"builds of {builder} contain the path of their installation below {build_host.root} on host {build_host.name}, and the root"
            f" folder of host {host.name} is {host.root}",
            f"Give both hosts the same `root` in hosts.toml, or let {host.name} build for itself.",
        )
