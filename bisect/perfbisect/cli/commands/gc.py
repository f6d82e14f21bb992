"""`bisect gc`: removes old builds and datasets, which perfbisect can make again."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import (
    CommandOptions,
    history_option,
    host_argument,
    json_option,
    options_command,
    say,
    say_object,
    waiting_option,
)
from perfbisect.cli.options.measurement import announce_recipe_files, inventory_option
from perfbisect.cli.options.param_types import BYTES
from perfbisect.wording.quantities import count, moment, size

if TYPE_CHECKING:
    from perfbisect.lab.building.shared_store import StoredObject
    from perfbisect.lab.upkeep import StoredItem


MANY = ("jobs", "logs")  # categories that are printed in a single line each
ACTIVE = 30 * 86400.0  # seconds for which a hunt without a verdict keeps its builds and data


@options_command()
@host_argument
@click.option("--keep", type=BYTES, help="Total size to keep: 20G, 500M, 0. Default: `keep` of the host in hosts.toml.")
@click.option(
    "--shared",
    "of_shared",
    is_flag=True,
    help="Instead, remove the least recently used builds from the folder of shared builds.",
)
@click.option("--dry-run", is_flag=True, help="List what would be removed. Remove nothing.")
@inventory_option
@json_option()
@waiting_option
@history_option
def gc(given: CommandOptions) -> int:
    """Remove old builds and datasets from HOST (default: local) until the size of the remaining files is at most
    --keep.

    \b
    Examples:
      bisect gc --dry-run              print what would be removed
      bisect gc spare --keep 20G       keep at most 20 GB on host spare
      bisect gc --keep 0               remove everything that no unfinished hunt needs
      bisect gc --shared --keep 200G   keep at most 200 GB of shared builds

    \b
    `bisect gc` removes builds, datasets, jobs and logs below the host's root folder, the least recently used
    first. Builds and datasets that hunts without a verdict need are kept for 30 days. The size of the compiler
    cache is limited by ccache_size in hosts.toml. Machines that a killed session has leased are released.
    Exit status: 0, or 4 if a machine could not be released.
    """
    from contextlib import nullcontext

    from perfbisect.cli.sessions import leases_with_messages
    from perfbisect.errors import ENVIRONMENT
    from perfbisect.host import jobs
    from perfbisect.host.leases import records_with_running
    from perfbisect.host.lock import hold_lock
    from perfbisect.host.registry import connect
    from perfbisect.lab import upkeep
    from perfbisect.recipes.configuration import size_in_bytes
    from perfbisect.recipes.inventory import load_host

    if given.of_shared:
        return remove_shared_builds(given)
    dry_run = given.dry_run
    entry = load_host(given.host, given.hosts or "")
    if not given.as_json:
        announce_recipe_files(hosts=[entry])
    limit = size_in_bytes(entry.keep) if given.keep is None else given.keep
    # While this process holds the lock, no session measures, so nothing that is in use is removed.
    with (
        nullcontext()
        if dry_run and not entry.leased
        else leases_with_messages([given.host], given.hosts or "", with_build_hosts=False, purpose="bisect gc"),
        connect(entry) as connected,
        nullcontext() if dry_run else hold_lock(connected, "a clean-up", given.waiting),
    ):
        items = upkeep.removable_items(connected)
        running_jobs = [job.id for job in (*jobs.running_jobs(connected), *jobs.leaderless_jobs(connected))]
        pinned = keys_of_unfinished_hunts(given.history, read_only=dry_run) | {
            *running_jobs,
            *(item.name for item in items if running_jobs and item.top_folder in upkeep.IN_USE),
        }
        removed = upkeep.items_to_remove(items, limit, pinned)
        if not dry_run:
            upkeep.remove_items(connected, removed)
    stays = sum(item.size for item in items) - sum(item.size for item in removed)
    freed_size = size(sum(item.size for item in removed)) if removed else "Nothing"
    freed = f"{freed_size} {removal_verb(removed, dry_run)} freed on host {given.host}"
    print_removed(removed, stays, given, freed, removed_table(removed))
    if stays > limit and not given.as_json:
        limit_source = f"`keep` of host {given.host}" if given.keep is None else "--keep"
        pinned_size = sum(item.size for item in items if item.name in pinned)
        say(
            f"This is more than the limit of {size(limit)} ({limit_source}), because hunts without a verdict (see `bisect history`) and running jobs need"
            f" {size(pinned_size)}."
        )
    # If a leased machine could not be released, which was printed already, the machine's record remains, although its
    # session does not run.
    unreleased = (not dry_run or entry.leased) and any(not runs for _, runs in records_with_running())
    return ENVIRONMENT if unreleased else 0


def remove_shared_builds(given: CommandOptions) -> int:
    """Remove builds from the folder of shared builds until its size is at most --keep; return the exit status."""
    from perfbisect.lab.upkeep import prune_shared_builds
    from perfbisect.recipes.configuration import load_configuration, size_in_bytes

    shared = load_configuration().shared
    limit = size_in_bytes(shared.keep) if given.keep is None else given.keep
    removed, remaining = prune_shared_builds(shared.builds or "", limit, time.time(), dry_run=given.dry_run)
    freed = size(sum(entry.size for entry in removed))
    freed_builds = f"{freed} ({count(len(removed), 'shared build')})" if removed else "No shared build"
    text = f"{freed_builds} {removal_verb(removed, given.dry_run)} removed from {shared.builds}"
    print_removed(removed, remaining, given, text)
    return 0


def removal_verb(removed: Sequence[object], dry_run: bool) -> str:
    """The verb of the sentence about removed items: "would be" for --dry-run, "were" if items were removed, "had to be"
    if no item was removed."""
    return "would be" if dry_run else "were" if removed else "had to be"


def print_removed(
    removed: "Sequence[StoredItem] | Sequence[StoredObject]",
    bytes_left: int,
    given: CommandOptions,
    items_text: str,
    table: Iterable[str] = (),
) -> None:
    """Print the items that were removed (or, with --dry-run, would be removed), and how many bytes remain."""
    dry_run = given.dry_run
    left = f"perfbisect's files there {'would then' if dry_run else 'now'} have {size(bytes_left)}"
    if given.as_json:
        freed = sum(item.size for item in removed)
        say_object({"removed": not dry_run, "items": removed, "bytes": freed, "left": bytes_left})
    else:
        say("\n".join([*table, f"{items_text}; {left}."]))


def keys_of_unfinished_hunts(history: Path | None, *, read_only: bool) -> frozenset[str]:
    """The keys of the builds and datasets that unfinished hunts in the history need; empty if the default history does
    not exist.

    Raises UsageError if the user names a history (``history``) that does not exist.
    """
    from perfbisect.errors import UsageError
    from perfbisect.store.connection import default_history_path, is_default_history
    from perfbisect.store.history import History
    from perfbisect.store.prior_data import read_needed_keys

    if (history is None or is_default_history(history)) and not default_history_path().exists():
        return frozenset()
    if history and not history.exists():
        raise UsageError(
            f"The history {history} does not exist, so gc cannot know which builds unfinished hunts need.",
            "Give the file that `bisect run` got with --history, or omit --history.",
        )
    with closing(History.open(history, read_only=read_only)) as opened:
        return read_needed_keys(opened, time.time() - ACTIVE)


def removed_table(removed: "Sequence[StoredItem]") -> Iterator[str]:
    """The table of the removed items. It has a single row for all jobs, and a single row for all logs."""
    from perfbisect.wording.table import table

    rows = [(moment(item.used), size(item.size), item.path) for item in removed if item.top_folder not in MANY]
    for kind in MANY:
        if group := [item for item in removed if item.top_folder == kind]:
            until = max(item.used for item in group)
            rows.append(
                (moment(until), size(sum(item.size for item in group)), f"{kind}/ ({count(len(group), 'item')})")
            )
    if rows:
        yield from (*table(("last used", "size", "path"), rows, right=("size",)), "")
