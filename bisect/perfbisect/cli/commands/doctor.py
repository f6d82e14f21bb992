"""`bisect doctor`: check whether a host is fit to measure on."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import leasing, say, say_json
from perfbisect.cli.options.completion import builder_name, host_name, workload_name
from perfbisect.cli.options.measurement import announce, builders_option, inventory_option, workloads_option

if TYPE_CHECKING:
    from perfbisect.core.domain.facts import HostFacts
    from perfbisect.host.protocol import Host
    from perfbisect.lab.checks import Finding
    from perfbisect.lab.checks.all_hosts import Wanted
    from perfbisect.recipes.workload import Workload

SHOWN = 20  # names of what an adopted folder contains

EPILOG = """\b
Examples:
  bisect doctor
  bisect doctor spare --builder sqlite-amalgamation --workload update-index
  bisect doctor --all --builder mysql
  bisect doctor spare --json | jq '.findings[] | select(.level != "ok")'

\b
The same checks run before each hunt, which shows only refusals and warnings. With --all a host that others name in
their `build_hosts` is checked for builds alone.
Exit status: 0 fit, 4 measurements would be meaningless or impossible.
"""


@click.command(epilog=EPILOG)
@click.argument("host", default="local", shell_complete=host_name)
@click.option(
    "--builder", "-b", metavar="NAME", shell_complete=builder_name, help="Check whether it can be built there."
)
@click.option(
    "--workload", "-w", metavar="NAME", shell_complete=workload_name, help="Check whether it can be run there."
)
@click.option("--variant", metavar="NAME", default="", help="Compiler settings of the builder.")
@click.option(
    "--metric", default="qps", show_default=True, metavar="NAME", help="Check whether it can be measured there."
)
@click.option(
    "--adopt",
    is_flag=True,
    help="Let perfbisect have the root folder, although it contains other files: hunts and `bisect gc` may remove them.",
)
@click.option(
    "--all", "every", is_flag=True, help="Check all hosts of hosts.toml at once, and whether build hosts agree."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@builders_option
@workloads_option
@inventory_option
def doctor(
    host: str,
    builder: str | None,
    workload: str | None,
    variant: str,
    metric: str,
    adopt: bool,
    every: bool,
    as_json: bool,
    builders: Path | None,
    workloads: Path | None,
    hosts: Path | None,
) -> int:
    """Check HOST (default: local): what is missing, what adds noise, and the command that fixes each."""
    from perfbisect.core.domain.metrics import find_metric
    from perfbisect.errors import ENVIRONMENT, EnvironmentFailure
    from perfbisect.host import registry
    from perfbisect.host.facts import read_fingerprint
    from perfbisect.hunt.shared import shared_builds
    from perfbisect.lab.checks import CheckRequest, Finding, Level
    from perfbisect.lab.checks.all_hosts import Wanted
    from perfbisect.lab.checks.preflight import findings, inspect_host, shared_findings
    from perfbisect.recipes.builder_reader import load_builder
    from perfbisect.recipes.inventory import load_host
    from perfbisect.recipes.requested import foreign_files
    from perfbisect.recipes.workload import load_workload

    if workload and not builder:
        raise click.UsageError("A workload needs a system: give --builder, too.")
    find_metric(metric)
    recipe = load_builder(builder, builders or "") if builder else None
    chosen: tuple[Workload, ...] | None = None
    if recipe and workload:
        chosen = (load_workload(workload, recipe.driver, workloads or ""),)
    elif recipe and only_commands(recipe.driver, workloads):
        chosen = ()
    if every:
        if adopt or named_host():
            raise click.UsageError("--all checks every host, and changes none: leave out HOST and --adopt.")
        return doctor_all(Wanted(metric, recipe, variant, chosen), hosts, as_json)
    entry = load_host(host, hosts or "")
    if not as_json:
        announce(recipe, chosen or (), [entry])
    facts: HostFacts | None = None
    found: list[Finding] = []
    try:
        with ExitStack() as stack:
            stack.enter_context(leasing([host], hosts or "", builders=False, purpose="bisect doctor"))
            there, contents = registry.adopt(entry) if adopt else (registry.connect(entry), ())
            stack.enter_context(there)
            if adopt:
                found.append(adopted(there, contents))
            inspection = inspect_host(CheckRequest(there, entry, metric, recipe, variant, chosen))
            facts = read_fingerprint(there, inspection.answers)
            found.extend(findings(inspection))
            found.extend(shared_findings(shared_builds()))
    except EnvironmentFailure as failure:
        found.append(Finding(Level.REFUSED, "reach", str(failure), failure.advice))
    if as_json:
        say_json(as_object(facts, found, foreign_files(recipe, chosen or (), [entry])))
    else:
        say("\n".join(lines(host, facts, found)))
    return ENVIRONMENT if any(finding.level is Level.REFUSED for finding in found) else 0


def named_host() -> bool:
    """Whether a host is named on the command line."""
    return click.get_current_context().get_parameter_source("host") is not click.core.ParameterSource.DEFAULT


def doctor_all(wanted: "Wanted", hosts: Path | None, as_json: bool) -> int:
    """Check every host of the inventory; the exit status."""
    from perfbisect.cli.all_hosts import as_object, lines
    from perfbisect.errors import ENVIRONMENT
    from perfbisect.hunt.shared import shared_builds
    from perfbisect.lab.checks import Level
    from perfbisect.lab.checks.all_hosts import check_all
    from perfbisect.lab.checks.preflight import shared_findings
    from perfbisect.recipes.inventory import load_hosts

    entries = load_hosts(hosts or "")
    if not as_json:
        announce(wanted.builder, wanted.workloads or (), entries)
    checked, differences = check_all(entries, wanted)
    shared = tuple(shared_findings(shared_builds()))
    if as_json:
        say_json(as_object(checked, differences, shared))
    else:
        say("\n".join(lines(checked, differences, shared)))
    clash = any(finding.level is Level.REFUSED for finding in differences)
    return ENVIRONMENT if clash or any(host.refused for host in checked) else 0


def adopted(host: "Host", contents: Sequence[str]) -> "Finding":
    """What ``--adopt`` has done, and which files it concerns."""
    from perfbisect.host.registry import MARKER, REMOVED
    from perfbisect.lab.checks import Finding, Level
    from perfbisect.wording.text import listed

    folder = f"{host.root} on host {host.name}"
    if not contents:
        return Finding(Level.OK, "root", f"{folder} is perfbisect's own")
    endangered = [name for name in REMOVED if name in contents]
    risk = f"what is in {listed(endangered)} may be removed" if endangered else "none of these are removed"
    shown = [*contents[:SHOWN], *([f"{len(contents) - SHOWN:,} more"] if len(contents) > SHOWN else [])]
    return Finding(
        Level.NOTE,
        "root",
        f"{folder} is adopted; it contains {listed(shown)}, of which {risk}",
        f"To undo this, remove {host.root / MARKER} there before the next hunt.",
    )


def only_commands(driver: str, workloads: "Path | None") -> bool:
    """Whether no workload of a driver needs sysbench; false where a suite cannot be read."""
    from perfbisect.errors import RecipeError
    from perfbisect.recipes.workload import load_workloads

    try:
        return all(each.command for each in load_workloads(workloads or "") if each.driver == driver)
    except RecipeError:
        return False


def as_object(facts: "HostFacts | None", found: Sequence["Finding"], files: Mapping[str, Path]) -> str:
    """Everything as JSON; ``files`` are those of recipes from elsewhere."""
    import msgspec

    encoded = msgspec.json.encode({"host": facts, "findings": found, "files": files}, enc_hook=str)
    return msgspec.json.format(encoded, indent=2).decode()


def lines(name: str, facts: "HostFacts | None", found: Sequence["Finding"]) -> Iterator[str]:
    """The host, each finding with its fix, and a summary."""
    from perfbisect.lab.checks import Level
    from perfbisect.wording.quantities import count
    from perfbisect.wording.text import printable

    if facts:
        size = f"{count(facts.cores, 'core')}, {facts.memory_mib / 1024:.0f} GiB"
        yield printable(f"{name}: {facts.cpu}, {size}, kernel {facts.kernel}")
        yield ""
    wide = max(len(finding.topic) for finding in found)
    for finding in found:
        yield f"  {finding.level:8} {finding.topic:{wide}}  {printable(finding.text)}"
        if finding.advice:
            yield f"  {'':8} {'':{wide}}  {printable(finding.advice)}"
    tally = {level: sum(finding.level is level for finding in found) for level in Level}
    words = ", ".join(
        [
            f"{tally[Level.REFUSED]} refused",
            count(tally[Level.WARNING], "warning"),
            count(tally[Level.NOTE], "note"),
        ]
    )
    yield ""
    yield f"{name} is {'not fit to measure on' if tally[Level.REFUSED] else 'fit to measure on'}: {words}."
