"""`bisect builders`: list the builders."""

from pathlib import Path

import click

from perfbisect.cli.options.common import say, table
from perfbisect.cli.options.completion import builder_name
from perfbisect.cli.options.places import builders_option


@click.command(
    epilog="\b\nExamples:\n  bisect builders\n  bisect builders --show demo\n  bisect builders --builders ~/my-builders"
)
@click.option("--show", metavar="NAME", shell_complete=builder_name, help="Print one recipe, fully resolved, as TOML.")
@builders_option
def builders(show: str | None, builders: Path | None) -> None:
    """List the builders: how systems are built and run."""
    from perfbisect.recipes.build_systems import listing
    from perfbisect.recipes.builder_reader import load_builder, load_builders
    from perfbisect.recipes.toml import to_toml

    if show:
        builder = load_builder(show, builders or "")
        say("".join(f"# {folder}\n" for folder in (builder.folder, *builder.inherited)))
        say(to_toml(builder))
        for line in listing(builder):
            say(line)
        return
    table([(each.name, each.driver, each.summary) for each in load_builders(builders or "")])
