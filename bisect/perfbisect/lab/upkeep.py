"""Frees disk space below a host's root folder and in the folder of shared builds, and removes the leftovers of killed
sessions.

Only files that perfbisect can make again are removed, longest unused first. The modification time of the folder of a
build or a dataset is the time of its last use. Shared builds in a bucket are removed by the lifecycle rules of the
bucket, not by perfbisect.
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

from perfbisect.core.domain.events import Warned
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.host import jobs
from perfbisect.host.facts import free_bytes
from perfbisect.host.protocol import Host
from perfbisect.lab import servers
from perfbisect.lab.building.commit_build import JOB_PREFIX
from perfbisect.lab.building.shared_store import Store, StoredObject
from perfbisect.lab.checks.machine import GIB, LITTLE
from perfbisect.lab.measure import visit
from perfbisect.masking import mask_credentials
from perfbisect.wording.text import listed

HEX = "[0-9a-f]"
# Folders whose entries can be removed singly: (kind of entry for find, form of its name). Other entries, and targets of symbolic
# links, are not perfbisect's.
CATEGORIES = {
    "builds": ("d", rf"{HEX}{{32}}(\.part)?"),
    "datasets": ("d", rf"{HEX}{{16}}(-{HEX}{{8}})?(\.part)?"),
    "jobs": ("d", jobs.ID),
    "logs": ("f", rf"[^[:cntrl:]]+-{HEX}{{10}}-{HEX}{{10}}\.log"),
    "work": ("d", r"[^[:cntrl:]]+"),
}
LINKS = "/links"  # folder of a build's links, listed as a separate entry before the build, so that du counts it once
VISIT = "visit"  # a folder that is removed as a whole: the copy of the data that a killed session has left
IN_USE = ("work", VISIT)  # folders whose entries are kept while a job runs, because a build or a server may use them
LONG = 3600.0  # most seconds for counting or removing millions of files

# $1 is the folder, $2 the kind of its entries for find, $3 the form of their names. Prints the entries, each with a NUL. Work
# folders have the names of recipes, which may be anything: their contents show that they are perfbisect's.
_ENTRIES = """\
entries() {
    [ ! -d "$1" ] || find "$1" -mindepth 1 -maxdepth 1 -type "$2" -regextype posix-extended -regex "$1/($3)" -print0 |
        if [ "$1" = work ]; then
            xargs -0 -r sh -c 'for each do [ ! -e "$each/source" ] && [ ! -e "$each/build" ] && [ ! -L "$each/prefix" ] ||
                printf "%s\\0" "$each"; done' work
        else cat; fi
}
"""
# For each entry: KiB, time of its last change or use, path.
_SIZES = f"""{_ENTRIES}cd -- "$1" || exit 1; shift
{{
    [ ! -d builds ] || find builds -mindepth 2 -maxdepth 2 -type d -path '*/links' -regextype posix-extended -regex "builds/$1/.*" -print0
    shift
    while [ $# != 0 ]; do entries "$1" "$2" "$3"; shift 3; done
    [ ! -d visit ] || [ -L visit ] || printf 'visit\\0'
}} | {{ du -sk --time --time-style=+%s --files0-from=- 2>/dev/null || true; }}  # a job's folder may go meanwhile
"""
_OF_THESE = 'cd -- "$1" && shift && du -sk --time --time-style=+%s -- "$@" 2>/dev/null || true'
_REMOVE = 'cd -- "$1" && shift && rm -rf --one-file-system -- "$@"'


@dataclass(frozen=True, slots=True)
class StoredItem:
    """A file or folder on a host that can be removed to free space: a build, the records of a build's linker runs, a
    dataset, a job folder, a log, a work folder (a builder's checkout and build tree), or the copy of the data that the
    last visit has left.
    """

    path: str  # path below the root, such as builds/KEY or builds/KEY/links
    size: int  # bytes on disk
    used: float  # seconds since the epoch, on the host's clock

    @property
    def top_folder(self) -> str:
        """The first folder of the item's path below the host's root folder, such as ``builds``."""
        return self.path.partition("/")[0]

    @property
    def name(self) -> str:
        """The name of the item: a dataset's key, a job's id, or a build's key, which is also the name of the records of
        the build's linker runs."""
        return (self.path.removesuffix(LINKS) if self.is_link_record else self.path).rpartition("/")[2]

    @property
    def is_link_record(self) -> bool:
        """Whether the item contains the records of a build's linker runs, which only randomized layouts need."""
        return self.top_folder == "builds" and self.path.endswith(LINKS)

    @property
    def is_leftover(self) -> bool:
        """Whether the item is useless because an interrupted build or visit has left it."""
        return self.path == VISIT or self.name.endswith(".part")


def removable_items(host: Host) -> tuple[StoredItem, ...]:
    """All files and folders of a host that can be removed to free space. Only names of the form that perfbisect itself
    uses are returned."""
    forms = [word for name, (kind, form) in CATEGORIES.items() for word in (name, kind, form)]
    listed = host.run(["sh", "-c", _SIZES, "sizes", str(host.root), f"{HEX}{{32}}", *forms], timeout=LONG).stdout
    return tuple(read_items(listed))


def read_items(du: str) -> Iterable[StoredItem]:
    """The items that are listed in ``du``, the output of ``du -k --time``."""
    for line in du.split("\n")[:-1]:  # not splitlines: a name may contain other line ends
        size, used, path = line.split("\t", 2)
        yield StoredItem(path, int(size) * 1024, float(used))


def items_to_remove(items: Iterable[StoredItem], limit_bytes: int, pinned_names: Collection[str]) -> list[StoredItem]:
    """The items to remove, longest unused first, so that at most ``limit_bytes`` remain. Items with a name in
    ``pinned_names`` are not removed.

    Incomplete files and the last visit's data, which a killed session has left, are always removed. Records of linker
    runs are removed before builds, because only a hunt in randomized layouts needs the records, and builds again if the
    records are missing. Work folders are removed last, because without its work folder a builder has to check out and
    build everything again.
    """
    in_order = sorted(
        items,
        key=lambda item: (
            not item.is_leftover,
            item.top_folder == "work",
            not item.is_link_record,
            item.used,
            item.path,
        ),
    )
    total, going = sum(item.size for item in in_order), list[StoredItem]()
    for item in (item for item in in_order if item.name not in pinned_names):
        if total > limit_bytes or item.is_leftover:
            going.append(item)
            total -= item.size
    return going


def remove_items(host: Host, items: Sequence[StoredItem]) -> None:
    """Remove items. The caller must hold the lock of the host."""
    for begin in range(0, len(items), 200):
        paths = [f"./{item.path}" for item in items[begin : begin + 200]]
        host.run(["sh", "-c", _REMOVE, "remove", str(host.root), *paths], timeout=LONG)


def expected_builds(candidates: int, limit: int) -> int:
    """The expected number of builds that a hunt makes: a build for each halving of the range, good, bad, and two more;
    at most ``limit``, if ``limit`` is not 0.
    """
    expected = math.ceil(math.log2(max(candidates, 2))) + 4
    return min(expected, candidates, limit or expected)


def disk_space_warnings(
    host: Host, build_keys: Collection[str], dataset_keys: Collection[str], build_count: int
) -> tuple[Warned, ...]:
    """A warning if the hunt will probably fill the disk. The needed space is estimated from the sizes of earlier builds
    and datasets.

    The result is empty if the sizes are unknown.
    """
    free, needs = free_bytes(host), needed_and_build_bytes(host, build_keys, dataset_keys, build_count)
    if free is None or needs is None or needs[0] + LITTLE / 5 < free:
        return ()
    needed, size_of_build = (size / GIB for size in needs)
    builds_of = f"{build_count} builds of {size_of_build:.2f} GiB"
    text = f"this hunt may need {needed:.1f} GiB on host {host.name} ({builds_of}), and {free / GIB:.1f} GiB are free"
    advice = f"Free space with `bisect gc {host.name} --keep SIZE`, or limit the builds with --max-builds."
    return (Warned(text, advice),)


def needed_and_build_bytes(
    host: Host, build_keys: Collection[str], dataset_keys: Collection[str], build_count: int
) -> tuple[float, float] | None:
    """Two numbers: the bytes that ``build_count`` builds and one copy of the data need, and the bytes of one build.

    The numbers are estimated from earlier builds and datasets; None if there are no earlier builds.
    """
    if not build_keys:
        return None
    paths = [*(f"builds/{key}" for key in build_keys), *(f"datasets/{key}" for key in dataset_keys)]
    stored = list(read_items(host.run(["sh", "-c", _OF_THESE, "sizes", str(host.root), *paths], timeout=LONG).stdout))
    sizes = [item.size for item in stored if item.top_folder == "builds"]
    if not sizes:
        return None
    data = max((item.size for item in stored if item.top_folder == "datasets"), default=0)
    return build_count * median(sizes) + data, median(sizes)


KEPT = 100  # logs of failed builds; and as many folders of failed or interrupted jobs

# $1 is the root, $2 how many logs stay, $3 the form of a log's name.
_LOGS = """\
cd -- "$1" && [ -d logs ] || exit 0
find logs -mindepth 1 -maxdepth 1 -type f -regextype posix-extended -regex "logs/($3)" -printf '%T@ %p\\0' |
    sort -zrn | tail -zn +"$(($2 + 1))" | cut -zd ' ' -f 2- | xargs -0 -r rm -f --
"""

_CALLED = {visit.NAME: "a load", servers.NAME: "a server", "prepare": "the loading of data"}


def tidy_after_killed_sessions(host: Host) -> Iterator[Warned]:
    """End the jobs that a killed session has left running, and warn about these jobs. Running builds are not ended,
    because the next session may need these builds.

    Also removes old job folders, old logs of failed builds, and temporary files of killed compilers.
    """
    running = jobs.running_jobs(host)
    builds = [job for job in running if job.name.startswith(JOB_PREFIX)]
    # ``dict.fromkeys`` drops duplicates: a job whose leader is killed between the two listings is in both listings.
    ended = dict.fromkeys((*jobs.leaderless_jobs(host), *(job for job in running if job not in builds)))
    for job in ended:
        jobs.kill(host, job, grace_seconds=5)
    if ended:
        many, were, have = ("a job", "was", "has") if len(ended) == 1 else (f"{len(ended)} jobs", "were", "have")
        names = listed(sorted(_CALLED.get(job.name, job.name) for job in ended))
        where = f"of an earlier session on host {host.name}"
        yield Warned(f"{many} {where}, {names}, {were} still running and {have} been ended")
    prune_job_folders(host)
    host.run(["sh", "-c", _LOGS, "logs", str(host.root), str(KEPT), CATEGORIES["logs"][1]], timeout=600)
    if not builds:  # compilers of running builds have files in ``tmp``
        host.run(["rm", "-rf", "--one-file-system", "--", str(host.root / "tmp")], timeout=600)


def prune_job_folders(host: Host, keep: int = KEPT) -> None:
    """Remove the folders of ended jobs, except the latest ``keep``."""
    script = 'cd -- "$1" && find jobs -mindepth 1 -maxdepth 1 -type d -printf "%f\\n"'  # find follows no link
    listed = host.run(["sh", "-c", script, "ids", str(host.root)], check=False).stdout.splitlines()
    alive = {job.id for job in jobs.running_jobs(host)}
    ids = sorted(name for name in listed if re.fullmatch(jobs.ID, name))  # in order of time, with which ids begin
    remove_items(host, [StoredItem(f"jobs/{job_id}", 0, 0.0) for job_id in ids[:-keep] if job_id not in alive])


INTERRUPTED = 86400.0  # seconds after which an unfinished upload counts as interrupted


def prune_shared_builds(address: str, quota: int, now: float, *, dry_run: bool) -> tuple[Sequence[StoredObject], int]:
    """In the store of shared builds at ``address``, remove the files of interrupted uploads, and the longest unused
    builds until at most ``quota`` bytes remain.

    Returns the removed objects, and how many bytes remain. If ``dry_run`` is true, nothing is removed, and the objects
    that would be removed are returned. Raises UsageError if the shared builds are not in a folder.
    """
    if not address:
        raise UsageError("No folder of shared builds is configured.", "Set `builds` below [shared] in config.toml.")
    try:
        store = Store(address)
        if not store.folder:
            text = f"`bisect gc` cannot remove shared builds in {mask_credentials(address)}."
            raise UsageError(text, "Set a lifecycle rule of the bucket, such as: expire objects after 90 days.")
        entries = store.all_files()
    except OSError as trouble:
        raise EnvironmentFailure(f"the shared builds cannot be read: {trouble.strerror or trouble}") from trouble
    removed, total = [], sum(entry.size for entry in entries)
    for entry in sorted(entries, key=lambda entry: (not entry.name.startswith("."), entry.used, entry.name)):
        part = entry.name.startswith(".")
        if (part and now - entry.used > INTERRUPTED) or (not part and total > quota):
            if not dry_run:
                with suppress(FileNotFoundError):
                    store.remove(entry.name)
            removed.append(entry)
            total -= entry.size
    return removed, total
