"""Disk space below a host's root folder: what can be built or loaded again, what is freed, what a hunt will need.

The time of a build's or a dataset's folder is that of its last use.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from perfbisect.core.domain.events import Warned
from perfbisect.host import jobs
from perfbisect.host.facts import free_bytes
from perfbisect.host.protocol import Host
from perfbisect.lab.checks.space import GIB, LITTLE

HEX = "[0-9a-f]"
# Folders whose entries can go one by one: the kind of entry for find, and the form of its name. Others are not
# perfbisect's, nor is what a symbolic link leads to.
CATEGORIES = {
    "builds": ("d", rf"{HEX}{{32}}(\.part)?"),
    "datasets": ("d", rf"{HEX}{{16}}(-{HEX}{{8}})?(\.part)?"),
    "jobs": ("d", jobs.ID),
    "logs": ("f", rf"[^[:cntrl:]]+-{HEX}{{10}}-{HEX}{{10}}\.log"),
    "work": ("d", r"[^[:cntrl:]]+"),
}
LINKS = "/links"  # of a build: its own entry, listed before it, so that what it takes counts once
VISIT = "visit"  # a folder that goes as a whole: the copy of the data that a session which was killed has left
IN_USE = ("work", VISIT)  # by builds and servers that a session has left running
LONG = 3600.0  # seconds: counting or removing millions of files

# $1 the folder, $2 the kind of its entries for find, $3 the form of their names: prints the entries, each with a NUL. Work
# folders have names of recipes, which may be anything: what they contain shows whose they are.
_ENTRIES = """\
entries() {
    [ ! -d "$1" ] || find "$1" -mindepth 1 -maxdepth 1 -type "$2" -regextype posix-extended -regex "$1/($3)" -print0 |
        if [ "$1" = work ]; then
            xargs -0 -r sh -c 'for each do [ ! -e "$each/source" ] && [ ! -e "$each/build" ] && [ ! -L "$each/prefix" ] ||
                printf "%s\\0" "$each"; done' work
        else cat; fi
}
"""
# For every entry: KiB, time of its last change or use, path.
_SIZES = (
    _ENTRIES
    + """\
cd -- "$1" || exit 1; shift
{
    [ ! -d builds ] || find builds -mindepth 2 -maxdepth 2 -type d -path '*/links' -regextype posix-extended -regex "builds/$1/.*" -print0
    shift
    while [ $# != 0 ]; do entries "$1" "$2" "$3"; shift 3; done
    [ ! -d visit ] || [ -L visit ] || printf 'visit\\0'
} | { du -sk --time --time-style=+%s --files0-from=- 2>/dev/null || true; }  # a job's folder may go meanwhile
"""
)
_OF_THESE = 'cd -- "$1" && shift && du -sk --time --time-style=+%s -- "$@" 2>/dev/null || true'
_REMOVE = 'cd -- "$1" && shift && rm -rf --one-file-system -- "$@"'


@dataclass(frozen=True, slots=True)
class Item:
    """One build without its links, or these; a dataset, job folder or log; a builder's checkout and build tree; the last
    visit's copy of the data.
    """

    path: str  # below the root: builds/KEY, builds/KEY/links
    size: int  # bytes on disk
    used: float  # seconds since the epoch, on the host's clock

    @property
    def category(self) -> str:
        """The folder that it is in."""
        return self.path.partition("/")[0]

    @property
    def name(self) -> str:
        """Its own name: a dataset's key, a job's id, the key of a build, also of its links."""
        return (self.path.removesuffix(LINKS) if self.links else self.path).rpartition("/")[2]

    @property
    def links(self) -> bool:
        """Whether it is what a build is linked again from: the build itself can do without."""
        return self.category == "builds" and self.path.endswith(LINKS)

    @property
    def left(self) -> bool:
        """Whether it is useless: left by a build or a visit that was interrupted."""
        return self.path == VISIT or self.name.endswith(".part")


def items(host: Host) -> tuple[Item, ...]:
    """Everything that can be freed: entries of the forms that perfbisect gives them."""
    forms = [word for name, (kind, form) in CATEGORIES.items() for word in (name, kind, form)]
    listed = host.run(["sh", "-c", _SIZES, "sizes", str(host.root), f"{HEX}{{32}}", *forms], timeout=LONG).stdout
    return tuple(read_items(listed))


def read_items(du: str) -> Iterable[Item]:
    """The lines of ``du -k --time``."""
    for line in du.split("\n")[:-1]:  # a name may contain other characters that end a line
        size, used, path = line.split("\t", 2)
        yield Item(path, int(size) * 1024, float(used))


def expendable(found: Iterable[Item], limit: int, pinned: Collection[str]) -> list[Item]:
    """What has to go, longest unused first, so that no more than ``limit`` bytes stay; ``pinned`` names stay.

    What a killed session left behind, the last step of a build or the copy of a visit, goes in any case. The links of
    builds go before any build: only a hunt in fresh layouts needs them, and builds again what lacks them. Where builds
    are made goes after all else: without that the next build checks everything out again.
    """
    known = sorted(
        found, key=lambda item: (not item.left, item.category == "work", not item.links, item.used, item.path)
    )
    total = sum(item.size for item in known)
    going = []
    for item in known:
        if item.name in pinned or (total <= limit and not item.left):
            continue
        going.append(item)
        total -= item.size
    return going


def remove(host: Host, items: Sequence[Item]) -> None:
    """Remove items. The caller holds the lock of the host."""
    for some in range(0, len(items), 200):
        paths = [f"./{item.path}" for item in items[some : some + 200]]
        host.run(["sh", "-c", _REMOVE, "remove", str(host.root), *paths], timeout=LONG)


def expected_builds(candidates: int, most: int) -> int:
    """How many builds a hunt will keep: halvings, the two ends, and some neighbours; ``most`` 0 is no limit."""
    expected = math.ceil(math.log2(max(candidates, 2))) + 4
    return min(expected, candidates, most or expected)


def too_little(host: Host, builds: Collection[str], datasets: Collection[str], expected: int) -> tuple[Warned, ...]:
    """A warning when earlier ``builds`` and ``datasets`` (keys) let expect that the disk will be full.

    As many builds as ``expected`` are counted and one copy of the data. No warning where nothing is known.
    """
    free = free_bytes(host)
    if free is None or not builds:
        return ()
    wanted = [*(f"builds/{key}" for key in builds), *(f"datasets/{key}" for key in datasets)]
    listed = host.run(["sh", "-c", _OF_THESE, "sizes", str(host.root), *wanted], timeout=LONG).stdout
    known = list(read_items(listed))
    sizes = [item.size for item in known if item.category == "builds"]
    if not sizes:
        return ()
    data = max((item.size for item in known if item.category == "datasets"), default=0)
    needed = expected * int(median(sizes)) + data
    if needed + LITTLE / 5 < free:
        return ()
    return (
        Warned(
            f"this hunt may need {needed / GIB:.1f} GiB on host {host.name} ({expected} builds of "
            f"{median(sizes) / GIB:.2f} GiB), and {free / GIB:.1f} GiB are free",
            f"Free some with `bisect gc {host.name} --keep SIZE`, or stop earlier with --max-builds.",
        ),
    )
