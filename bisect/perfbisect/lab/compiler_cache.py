"""ccache, set so that a fresh build folder finds what an earlier commit compiled, and counted for each build."""

import re
from pathlib import PurePosixPath

_HITS = ("direct_cache_hit", "preprocessed_cache_hit")
_MISS = "cache_miss"


def environment(root: PurePosixPath, work: PurePosixPath, size: str) -> dict[str, str]:
    """The variables of a build in ``work``; ``size`` bounds the cache, which all builds of the host share."""
    return {
        "CCACHE_DIR": str(root / "ccache"),
        "CCACHE_BASEDIR": str(work),
        "CCACHE_NOHASHDIR": "1",
        "CCACHE_MAXSIZE": size,
        "CCACHE_STATSLOG": str(statistics(work)),
    }


def statistics(work: PurePosixPath) -> PurePosixPath:
    """Where ccache writes what it did during a build."""
    return work / "ccache.log"


def count(log: str) -> tuple[int, int]:
    """Hits and misses in a statistics log: one line for each event, after a comment that names the source."""
    events = re.findall(r"^\w+$", log, re.MULTILINE)
    return sum(event in _HITS for event in events), events.count(_MISS)
