"""The submodules of a commit on a host: their part in the identity of its tree, and their trees in its checkout.

Each of them has a bare repository of its own on the host, which borrows the objects on this machine and receives them by
git push on another one. Only trees travel: no build sees the history of a submodule.
"""

import hashlib
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from pathlib import PurePosixPath

from perfbisect.errors import BuildFailed
from perfbisect.host.protocol import Host
from perfbisect.lab import Steps
from perfbisect.lab.build.checkout import Part, cannot, mirror
from perfbisect.lab.build.log_parser import Progress
from perfbisect.masking import masked
from perfbisect.repository.git import Repository
from perfbisect.repository.submodules import Found, Submodule, Unavailable, find, look, origin_of, submodules

MOST = 1000  # submodules of one commit: those of a commit that was made to have no end are not counted


def with_submodules(tree: str, repository: Repository, sha: str, ignore: Sequence[str]) -> str:
    """The id of the filtered ``tree`` of a commit, together with those of its submodules that are checked out.

    Their hashes are in the tree's id already; what is ignored below them is not.
    """
    needed = submodules(repository, sha, ignore)
    if not needed:
        return tree
    parts = [tree, *(f"{part}" for each in needed for part in (each.path, each.commit, *each.ignore, ""))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def bring(
    host: Host, name: str, repository: Repository, sha: str, ignore: Sequence[str], upstream: str
) -> Generator[Progress, None, tuple[Part, ...]]:
    """Bring the submodules of a commit to the host, the inner ones as well; yields the stages "fetch" and "send".

    ``name`` is that of the repository on the host; ``upstream`` the address of the local ``repository`` if it has none
    configured. Raises BuildFailed when one cannot be had.
    """
    parts: list[Part] = []
    left = deque((repository, sha, upstream, "", each) for each in submodules(repository, sha, ignore))
    while left:
        parent, tree, address, prefix, submodule = left.popleft()
        path = prefix + submodule.path
        try:
            if len(parts) == MOST:
                raise Unavailable(f"it has more than {MOST} submodules")
            found = yield from _found(parent, tree, submodule, address)
        except Unavailable as failed:
            raise _cannot(host, sha, failed) from failed
        place = hashlib.sha256(path.encode()).hexdigest()[:16]
        bare = yield from _mirrored(host, found, f"{name}.git/modules/{place}")
        parts.append(Part(bare, found.tree, path, submodule.ignore))
        inner = submodules(found.repository, found.tree, submodule.ignore)
        left.extend((found.repository, found.tree, found.address, f"{path}/", each) for each in inner)
    return tuple(parts)


def listed(repository: Repository, sha: str, ignore: Sequence[str], upstream: str) -> Iterator[str]:
    """Where each submodule of a commit would come from, a line for each; inner ones are left out. Nothing is fetched."""
    for each in submodules(repository, sha, ignore):
        origin = origin_of(repository, sha, each, upstream)
        found, _ = look(origin, repository, each)
        if found:
            whence = f"from {found.repository.folder}"
        else:
            whence = f"cannot be had: {origin.refused}" if origin.refused else f"fetched from {origin.address}"
        yield masked(f"{each.path} at {each.commit[:10]}: {whence}")


def _found(parent: Repository, tree: str, submodule: Submodule, address: str) -> Generator[Progress, None, Found]:
    steps = Steps(find(parent, tree, submodule, address))
    for done, total in steps:
        yield Progress("fetch", done, total)
    return steps.result


def _mirrored(host: Host, found: Found, name: str) -> Generator[Progress, None, PurePosixPath]:
    steps = Steps(mirror(host, found.repository, name, [found.tree]))
    for done, total in steps:
        yield Progress("send", done, total)
    return steps.result


def _cannot(host: Host, sha: str, failed: Unavailable) -> BuildFailed:
    log = "".join(f"{line}\n" for line in (str(failed), failed.advice, *failed.tried))
    return cannot(host, sha, str(failed), masked(log), failed.advice)
