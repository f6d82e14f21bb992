"""ccache, set so that a fresh build folder finds what an earlier commit compiled, and counted for each build.

Only variables of the build and the file ``ccache.conf`` of the cache's own folder set it: neither the one of the system
nor one in the tree, which ccache reads from 4.13 on. No sloppiness is set. With ``pch_defines`` ccache finds a precompiled
header by its preprocessed text, which has no ``#define``: a commit that changes one would get the code of another.
"""

import re
from pathlib import PurePosixPath

from perfbisect.errors import EnvironmentFailure
from perfbisect.host.protocol import Host

_HITS = ("direct_cache_hit", "preprocessed_cache_hit")
_MISS = "cache_miss"
# Prints the counted events of the statistics log in the folder of a build, which may have any length.
EVENTS = f"grep -xE '{'|'.join((*_HITS, _MISS))}' ccache.log 2>/dev/null | sort | uniq -c"

# Only the setting of the remote store is replaced.
_SHARE = """\
mkdir -p "$1" && umask 077 && cd -- "$1" && touch ccache.conf && chmod 600 ccache.conf &&
{ grep -v -E '^(remote|secondary)_storage *=' ccache.conf; cat; } >ccache.conf.new || exit
mv -f ccache.conf.new ccache.conf
"""


def environment(root: PurePosixPath, work: PurePosixPath, size: str, namespace: str = "") -> dict[str, str]:
    """The variables of a build in ``work``; ``size`` bounds the cache, which all builds of the host share.

    Builds find only what was compiled in the same ``namespace``.
    """
    return {
        "CCACHE_DIR": str(root / "ccache"),
        "CCACHE_CONFIGPATH": str(root / "ccache" / "ccache.conf"),
        "CCACHE_BASEDIR": str(work),
        "CCACHE_NOHASHDIR": "1",
        "CCACHE_MAXSIZE": size,
        "CCACHE_STATSLOG": str(statistics(work)),
    } | ({"CCACHE_NAMESPACE": namespace} if namespace else {})


def namespace(host: Host, processor: str) -> str:
    """What keeps code for ``processor`` apart in a store that machines share; "" where ccache does that itself.

    Before 4.12 ``-march=native`` is hashed as these letters, and the build of a tree may add it by itself.
    """
    return processor if _version(host) < (4, 12) else ""


def share(host: Host, remote: str) -> None:
    """Let ccache of this host share the store at ``remote``, "" for none.

    The setting goes into ccache's own file, which only the user can read: an address may contain a password, and the
    environment and the commands of builds are logged.
    """
    key = ""
    if remote:
        found = _version(host)
        if found < (4, 5):  # the first with namespaces
            raise EnvironmentFailure(
                f"ccache on host {host.name} is too old for a remote store: {'.'.join(map(str, found))}",
                "Install ccache 4.7, or remove `ccache_remote` of this host from hosts.toml.",
            )
        key = "remote_storage" if found >= (4, 7) else "secondary_storage"
    host.run(["sh", "-c", _SHARE, "share", str(host.root / "ccache")], stdin=f"{key} = {remote}\n" if remote else "")


def _version(host: Host) -> tuple[int, int]:
    version = re.search(r"(\d+)\.(\d+)", host.run(["ccache", "--version"]).stdout)
    return (int(version[1]), int(version[2])) if version else (0, 0)


def statistics(work: PurePosixPath) -> PurePosixPath:
    """The file to which ccache logs the events of a build."""
    return work / "ccache.log"


def count(log: str) -> tuple[int, int]:
    """Hits and misses in the events of a statistics log, counted: lines of a number and an event."""
    events = {event: int(number) for number, event in re.findall(r"^ *(\d{1,18}) (\w+)$", log, re.MULTILINE)}
    return sum(events.get(hit, 0) for hit in _HITS), events.get(_MISS, 0)
