"""`bisect hosts`: list the hosts of hosts.toml."""

from pathlib import Path

import click

from perfbisect.cli.options.common import FOLDER, say, table
from perfbisect.cli.options.completion import host_name


@click.command(epilog="\b\nExamples:\n  bisect hosts\n  bisect hosts --show local")
@click.option("--show", metavar="NAME", shell_complete=host_name, help="Print one host, complete, as TOML.")
@click.option("--hosts", type=FOLDER, help="hosts.toml to use.")
def hosts(show: str | None, hosts: Path | None) -> None:
    """List the hosts of hosts.toml."""
    from perfbisect.recipes.find import load_host, load_hosts
    from perfbisect.recipes.inventory import Inventory
    from perfbisect.recipes.render import to_toml

    if show:
        say(to_toml(Inventory(hosts={show: load_host(show, hosts or "")})))
        return
    table([(each.name, each.address, each.summary) for each in load_hosts(hosts or "")])
