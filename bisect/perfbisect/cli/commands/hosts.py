"""`bisect hosts`: list the hosts of hosts.toml."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import say, table
from perfbisect.cli.options.completion import host_name
from perfbisect.cli.options.places import inventory_option

if TYPE_CHECKING:
    from perfbisect.recipes.inventory import HostEntry


def way(entry: "HostEntry") -> str:
    """How a host is reached, in short."""
    return entry.through[0] if entry.through else entry.address


@click.command(epilog="\b\nExamples:\n  bisect hosts\n  bisect hosts --show local")
@click.option(
    "--show", metavar="NAME", shell_complete=host_name, help="Print one host, or one lease, complete, as TOML."
)
@inventory_option
def hosts(show: str | None, hosts: Path | None) -> None:
    """List the hosts of hosts.toml, and what is leased now."""
    from perfbisect.host.lease_records import all_records
    from perfbisect.recipes.inventory import Inventory, load_host, load_hosts, load_leases
    from perfbisect.recipes.toml import to_toml
    from perfbisect.wording.text import printable

    if show:
        known = {each.name: each for each in load_leases(hosts or "")}
        if show in known:
            say(f"# {known[show].file}")
            say(to_toml(Inventory(leases={show: known[show]})))
            return
        host = load_host(show, hosts or "")
        say(f"# {host.file}")
        say(to_toml(Inventory(hosts={show: host})))
        return
    rows = [(each.name, way(each), each.summary) for each in load_hosts(hosts or "")]
    table([*rows, *((f"{each.name}:FEATURE", "leased", each.summary) for each in load_leases(hosts or ""))])
    for record, runs in all_records():
        say(f"Leased: {printable(str(record))}{'' if runs else ', which has ended. Give it back with: bisect gc'}")
