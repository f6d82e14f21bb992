"""`bisect hosts`: list the hosts of hosts.toml."""

from pathlib import Path

import click

from perfbisect.cli.options.common import say, table
from perfbisect.cli.options.completion import host_name
from perfbisect.cli.options.places import inventory_option


@click.command(epilog="\b\nExamples:\n  bisect hosts\n  bisect hosts --show local")
@click.option("--show", metavar="NAME", shell_complete=host_name, help="Print one host, complete, as TOML.")
@inventory_option
def hosts(show: str | None, hosts: Path | None) -> None:
    """List the hosts of hosts.toml."""
    from perfbisect.recipes.find import load_host, load_hosts
    from perfbisect.recipes.inventory import Inventory
    from perfbisect.recipes.render import to_toml

    if show:
        host = load_host(show, hosts or "")
        say(f"# {host.file}")
        say(to_toml(Inventory(hosts={show: host})))
        return
    table([(each.name, each.address, each.summary) for each in load_hosts(hosts or "")])
