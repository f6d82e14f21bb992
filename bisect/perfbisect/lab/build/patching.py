"""Patches, applied on a host to the commits that are built."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from perfbisect.core.domain.patch import Patch
from perfbisect.errors import CommandFailed
from perfbisect.host.protocol import Host
from perfbisect.lab.build import checkout
from perfbisect.lab.build.sealed_git import scripted
from perfbisect.recipes.versions import satisfies
from perfbisect.repository.patching import APPLY, encoded, outcome


@dataclass(frozen=True, slots=True)
class Sources:
    """A commit, and what is built of it."""

    sha: str
    commit: str  # that is checked out: the same, or one that git has made of it and of patches
    patches: Mapping[str, bool] = field(default_factory=dict)  # name → whether it was applied


def for_all(host: Host, bare: PurePosixPath, sha: str, patches: Sequence[Patch]) -> Sources:
    """A commit with the patches for all versions: what of it is known before it is checked out.

    Raises BuildFailed for a commit that git cannot read, and EnvironmentFailure, as a checkout does.
    """
    sources = Sources(sha, sha, {patch.name: False for patch in patches})
    return _with(host, bare, sources, [patch for patch in patches if not patch.version])


def for_version(host: Host, bare: PurePosixPath, sources: Sources, patches: Sequence[Patch], version: str) -> Sources:
    """The same with the patches for its version, too. They come last, as a version is read from a checkout."""
    fitting = [patch for patch in patches if patch.version and satisfies(version, patch.version)]
    return _with(host, bare, sources, fitting)


def _with(host: Host, bare: PurePosixPath, sources: Sources, patches: Sequence[Patch]) -> Sources:
    for patch in patches:
        try:
            done = scripted(host, APPLY, [str(bare), sources.commit], stdin=encoded(patch.content))
        except CommandFailed as failed:
            raise checkout.failure(host, bare, sources.sha, failed) from failed
        made, _ = outcome(done.stdout)
        if made:
            sources = replace(sources, commit=made, patches={**sources.patches, patch.name: True})
    return sources
