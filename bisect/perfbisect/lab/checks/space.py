"""Free space below the root folder, and in memory."""

from collections.abc import Iterator

from perfbisect.host.conditions import SWAP, reflinks
from perfbisect.host.facts import disk, free
from perfbisect.lab.checks.finding import Finding, Inspection, Level

GIB = 1 << 30
TOO_LITTLE = GIB // 4  # no build fits
LITTLE = 5 * GIB


def space(inspection: Inspection) -> Iterator[Finding]:
    """Free space, and the file system."""
    host = inspection.request.host
    left = inspection.answers.get(free(host.root))
    if left is not None:
        level = Level.REFUSED if left < TOO_LITTLE else Level.WARNING if left < LITTLE else Level.OK
        only = "only " if left < LITTLE else ""
        yield Finding(
            level,
            "disk",
            f"{only}{left / GIB:.1f} GiB are free below {host.root} on host {inspection.name}",
            f"Free some with `bisect gc {inspection.name}`, or set another root in hosts.toml." if only else "",
        )
    if inspection.answers.get(reflinks(host)) == "no":
        system = (inspection.answers.get(disk(host)) or "this file system").partition(",")[0]
        yield Finding(
            Level.NOTE,
            "disk",
            f"{system} on host {inspection.name} cannot share blocks between copies: each visit copies the whole dataset",
            "A root on XFS or Btrfs makes that instant.",
        )


def swap(inspection: Inspection) -> Iterator[Finding]:
    """Is memory swapped to disk?"""
    size, used = inspection.answers.get(SWAP) or (0, 0)
    if used:
        text = f"host {inspection.name} has {used:,} MiB in swap: memory is short, or was"
        yield Finding(Level.WARNING, "swap", text, "sudo swapoff -a")
    elif size:
        text = f"host {inspection.name} may swap: {size:,} MiB, none of it in use"
        yield Finding(Level.NOTE, "swap", text, "sudo swapoff -a")
