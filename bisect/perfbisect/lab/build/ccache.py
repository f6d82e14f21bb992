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
_REMOTE = ("remote_storage_hit", "secondary_storage_hit")  # the latter before 4.7
BUILT_IN = ("http", "redis", "redis+unix", "file")  # what ccache itself speaks
HELPERS = (4, 13)  # the first that has programs for other protocols
# Prints the counted events of the statistics log in the folder of a build, which may have any length.
EVENTS = f"grep -xE '{'|'.join((*_HITS, _MISS, *_REMOTE))}' ccache.log 2>/dev/null | sort | uniq -c"

# Only the setting of the remote store is replaced.
_SHARE = """\
mkdir -p "$1" && umask 077 && cd -- "$1" && touch ccache.conf && chmod 600 ccache.conf &&
{ grep -v -E '^(remote|secondary)_storage *=' ccache.conf; cat; } >ccache.conf.new || exit
mv -f ccache.conf.new ccache.conf
"""


NONE = "none"  # in place of an address
ADVICE = (
    'Install ccache 4.7 or later, or set `ccache_remote` of this host in hosts.toml to another address or to "none".'
)

# Standard input is the setting. Prints the events of the second compilation.
_TRY = """\
umask 077 && scratch=$(mktemp -d) && trap 'rm -rf "$scratch"' EXIT && cd -- "$scratch" && cat >ccache.conf || exit
echo 'int perfbisect;' >try.c
export CCACHE_CONFIGPATH="$scratch/ccache.conf" CCACHE_NOHASHDIR=1 CCACHE_NAMESPACE=perfbisect-try
CCACHE_DIR=$scratch/one CCACHE_RECACHE=1 ccache cc -c try.c -o try.o || exit
CCACHE_DIR=$scratch/two CCACHE_STATSLOG=$scratch/log ccache cc -c try.c -o try.o || exit
cat log
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
    setting = ""
    if remote not in ("", NONE):
        found = _version(host)
        if reason := unfit(found, remote):
            raise EnvironmentFailure(f"ccache on host {host.name} {reason}", ADVICE)
        setting = f"{_key(found)} = {remote}\n"
    host.run(["sh", "-c", _SHARE, "share", str(host.root / "ccache")], stdin=setting)


def unfit(version: tuple[int, int], remote: str) -> str:
    """Why a ccache cannot use that store, to be continued after its name; "" where it can."""
    known, scheme = ".".join(map(str, version)), remote.partition(":")[0]
    if version < (4, 5):  # the first with namespaces
        return f"is too old for a remote store: {known}"
    if scheme not in BUILT_IN and version < HELPERS:
        return f"has no helper programs, and so no {scheme}://, before {'.'.join(map(str, HELPERS))}: {known}"
    return ""


def _key(version: tuple[int, int]) -> str:
    return "remote_storage" if version >= (4, 7) else "secondary_storage"


def try_remote(host: Host, remote: str) -> str:
    """Compile one file on a host with an empty cache twice: for the store, and from it. Why that fails, "" if it does not.

    Nothing of the host's own cache is used. What is stored is a few hundred bytes, the same ones each time.
    """
    found = _version(host)
    if reason := unfit(found, remote):
        return f"ccache {reason}"
    tried = host.run(["sh", "-c", _TRY, "try"], stdin=f"{_key(found)} = {remote}\n", check=False, timeout=120)
    if not tried.ok:
        return f"ccache cannot compile a file with it: {next(iter(tried.stderr.splitlines()), 'no reason was printed')}"
    if "_storage_hit" not in tried.stdout:
        trouble = "_storage_error" in tried.stdout or "_storage_timeout" in tried.stdout
        return "ccache cannot reach it" if trouble else "ccache does not find there what it has stored"
    return ""


def _version(host: Host) -> tuple[int, int]:
    version = re.search(r"(\d+)\.(\d+)", host.run(["ccache", "--version"]).stdout)
    return (int(version[1]), int(version[2])) if version else (0, 0)


def statistics(work: PurePosixPath) -> PurePosixPath:
    """The file to which ccache logs the events of a build."""
    return work / "ccache.log"


def count(log: str) -> tuple[int, int, int]:
    """Hits, misses, and those of the hits that came from the remote store, by the events of a statistics log, counted: lines of a number and an event."""
    events = {event: int(number) for number, event in re.findall(r"^ *(\d{1,18}) (\w+)$", log, re.MULTILINE)}
    hits, remote = (sum(events.get(hit, 0) for hit in names) for names in (_HITS, _REMOTE))
    return hits, events.get(_MISS, 0), min(remote, hits)
