"""The folder of shared builds, kept below a size. A bucket has rules of its own for that."""

from collections.abc import Sequence
from contextlib import suppress

from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.lab.build.shared.manifest import ENDING
from perfbisect.lab.build.shared.stores import Entry, FolderStore, open_store
from perfbisect.masking import masked

LEFT = 86400.0  # seconds after which an upload that was not finished is one that was interrupted


def clean(address: str, limit: int, now: float, *, dry_run: bool) -> tuple[Sequence[Entry], int]:
    """Remove what was not used for longest until at most ``limit`` bytes are left, and what interrupted uploads have left.

    Returns what was removed, or with ``dry_run`` would be, and how many bytes are left. Raises UsageError where the shared
    builds are no folder.
    """
    if not address:
        raise UsageError("No builds are shared.", "`builds` below [shared] in config.toml names where they are kept.")
    try:
        store = open_store(address)
        if not isinstance(store, FolderStore):
            raise UsageError(
                f"Shared builds in {masked(address)} are not removed from here.",
                "Give the bucket a lifecycle rule, such as: expire objects after 90 days.",
            )
        entries = store.entries(ENDING)
    except OSError as trouble:
        raise EnvironmentFailure(f"the shared builds cannot be read: {trouble.strerror or trouble}") from trouble
    gone, total = [], sum(entry.size for entry in entries)
    for entry in sorted(entries, key=lambda entry: (not entry.name.startswith("."), entry.used, entry.name)):
        part = entry.name.startswith(".")
        if (part and now - entry.used > LEFT) or (not part and total > limit):
            if not dry_run:
                with suppress(FileNotFoundError):
                    store.remove(entry.name)
            gone.append(entry)
            total -= entry.size
    return gone, total
