"""`bisect doctor`: checks whether a host is fit for measurements."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import CommandOptions, host_argument, json_option, options_command, say, say_object
from perfbisect.cli.options.completion import builder_option, metric_names, workload_option
from perfbisect.cli.options.measurement import (
    announce_recipe_files,
    builders_option,
    inventory_option,
    workloads_option,
)
from perfbisect.lab.checks import Finding, Severity
from perfbisect.wording.text import printable

if TYPE_CHECKING:
    from perfbisect.core.domain.facts import HostFacts
    from perfbisect.host.protocol import Host
    from perfbisect.lab.checks.all_hosts import CheckedHost, CheckScope
    from perfbisect.recipes.workload import Workload

SHOWN = 20  # names of files in an adopted folder that are listed
SERIOUS = (Severity.REFUSED, Severity.WARNING)  # levels of findings that --all shows


@options_command()
@host_argument
@builder_option("Also check whether HOST can build this system.")
@workload_option("Also check whether HOST can run this workload.")
@click.option("--variant", metavar="NAME", default="", help="Variant of the builder: compiler settings.")
@click.option(
    "--metric",
    default="qps",
    show_default=True,
    metavar="NAME",
    shell_complete=metric_names,
    help="Check whether HOST can measure this metric.",
)
@click.option(
    "--adopt", is_flag=True,
    help="Use perfbisect's root folder on HOST although it contains other files. Hunts and `bisect gc` may then remove these files.",
)  # fmt: skip
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Check all hosts of hosts.toml, and whether the compilers of build hosts agree.",
)
@json_option()
@builders_option
@workloads_option
@inventory_option
def doctor(given: CommandOptions) -> int:
    """Check HOST (default: local) for missing programs and sources of noise. Each finding is printed with a command
    that fixes it.

    \b
    Examples:
      bisect doctor                         check this machine
      bisect doctor spare --builder sqlite-amalgamation --workload update-index   check host spare
      bisect doctor --all --builder mysql   check all hosts of hosts.toml
      bisect doctor spare --json | jq '.findings[] | select(.level != "ok")'   only problems

    \b
    Each hunt begins with the same checks, and shows only refusals and warnings. With --all, a build host is checked
    only for builds.
    Exit status: 0 the host is fit, 4 measurements would be meaningless or impossible.
    """
    from perfbisect.cli.sessions import leases_with_messages
    from perfbisect.core.domain.metrics import find_metric
    from perfbisect.errors import ENVIRONMENT, EnvironmentFailure
    from perfbisect.host import registry
    from perfbisect.host.facts import read_fingerprint
    from perfbisect.hunt.setup import shared_builds
    from perfbisect.lab.checks import CheckRequest
    from perfbisect.lab.checks.all_hosts import CheckScope
    from perfbisect.lab.checks.machine import pairing_noise_findings
    from perfbisect.lab.checks.preflight import inspect_host, measurement_findings, shared_build_findings
    from perfbisect.recipes.builder_reader import load_builder
    from perfbisect.recipes.inventory import load_host
    from perfbisect.recipes.requested import untrusted_recipe_files
    from perfbisect.recipes.workload import load_workload

    if given.workload and not given.builder:
        raise click.UsageError("--workload needs --builder, the system that runs the workload.")
    find_metric(given.metric)
    recipe = load_builder(given.builder, given.builders or "") if given.builder else None
    chosen: tuple[Workload, ...] | None = None
    if recipe and given.workload:
        chosen = (load_workload(given.workload, recipe.driver, given.workloads or ""),)
    elif recipe and needs_no_sysbench(recipe.driver, given.workloads):
        chosen = ()
    if given.every:
        named = click.get_current_context().get_parameter_source("host")
        if given.adopt or named is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError("--all checks all hosts and changes no host, so it excludes HOST and --adopt.")
        return check_all_hosts(CheckScope(given.metric, recipe, given.variant, chosen), given)
    host, hosts = given.host, given.hosts or ""
    entry = load_host(host, hosts)
    if not given.as_json:
        announce_recipe_files(recipe, chosen or (), [entry])
    facts: HostFacts | None = None
    results: list[Finding] = []
    try:
        with ExitStack() as stack:
            stack.enter_context(leases_with_messages([host], hosts, with_build_hosts=False, purpose="bisect doctor"))
            opened, contents = registry.connect_and_adopt_root(entry) if given.adopt else (registry.connect(entry), ())
            stack.enter_context(opened)
            if given.adopt:
                results.append(adoption_finding(opened, contents))
            inspection = inspect_host(CheckRequest(opened, entry, given.metric, recipe, given.variant, chosen))
            facts = read_fingerprint(opened, inspection.answers)
            results += [*measurement_findings(inspection), *pairing_noise_findings(inspection)]
            results += shared_build_findings(shared_builds())
    except EnvironmentFailure as failure:
        results.append(Finding(Severity.REFUSED, "reach", str(failure), failure.advice))
    if given.as_json:
        say_object({"host": facts, "findings": results, "files": untrusted_recipe_files(recipe, chosen or (), [entry])})
    else:
        say("\n".join(host_lines(host, facts, results)))
    return ENVIRONMENT if level_count(results, Severity.REFUSED) else 0


def level_count(results: Iterable[Finding], level: Severity) -> int:
    """The number of findings with the severity ``level``."""
    return sum(finding.level is level for finding in results)


def check_all_hosts(scope: "CheckScope", given: CommandOptions) -> int:
    """Check all hosts of hosts.toml, and print the result; return the exit status."""
    from perfbisect.errors import ENVIRONMENT
    from perfbisect.hunt.setup import shared_builds
    from perfbisect.lab.checks.all_hosts import check_all
    from perfbisect.lab.checks.preflight import shared_build_findings
    from perfbisect.recipes.inventory import load_hosts

    entries = load_hosts(given.hosts or "")
    if not given.as_json:
        announce_recipe_files(scope.builder, scope.workloads or (), entries)
    checked, differences = check_all(entries, scope)
    shared = tuple(shared_build_findings(shared_builds()))
    if given.as_json:
        every = [
            {
                "name": host.name, "builds_for": host.builds_for, "verdict": fitness_word(host), "host": host.facts,
                "compiler": host.side.toolchain_versions if host.side else (), "findings": host.findings,
            }
            for host in checked
        ]  # fmt: skip
        say_object({"hosts": every, "build_hosts": differences, "shared": shared})
    else:
        say("\n".join(all_hosts_lines(checked, differences, shared)))
    return ENVIRONMENT if level_count(differences, Severity.REFUSED) or any(host.has_refusal for host in checked) else 0


def all_hosts_lines(
    checked: "Sequence[CheckedHost]", differences: Sequence[Finding], shared: Sequence[Finding]
) -> Iterator[str]:
    """The output of `bisect doctor --all`: a table of the hosts, the problems of each host, differences between a host
    and its build hosts, findings about the store of shared builds, and a summary."""
    from perfbisect.wording.quantities import count
    from perfbisect.wording.table import table
    from perfbisect.wording.text import listed

    head = ("host", "for", "verdict", "warnings", "cores", "ccache", "compiler", "processor")
    yield from table(head, [host_row(host) for host in checked], right=("warnings", "cores"))
    of_hosts = [(host.name, [finding for finding in host.findings if finding.level in SERIOUS]) for host in checked]
    for title, findings in (*of_hosts, ("build hosts", differences), ("shared builds", shared)):
        if findings:
            yield from ("", f"{printable(title)}:", *finding_lines(findings))
    parts = []
    if unfit := [host.name for host in checked if host.has_refusal]:
        parts.append(f"{printable(listed(unfit))} {'is' if len(unfit) == 1 else 'are'} not fit")
    if clash := level_count(differences, Severity.REFUSED):
        parts.append(f"{count(clash, 'problem')} with build hosts must be solved")
    end = f": {'; '.join(parts)}." if parts else ", all fit. `bisect doctor HOST` also prints notes."
    yield from ("", f"{count(len(checked), 'host')}{end}")


def fitness_word(host: "CheckedHost") -> str:
    """The result of a host's checks in words: "cannot be used", "not fit" or "fit"."""
    return "cannot be used" if host.facts is None else "not fit" if host.has_refusal else "fit"


def host_row(host: "CheckedHost") -> tuple[str, ...]:
    """The row of ``host`` in the table of all hosts."""
    from perfbisect.wording.text import listed

    role = f"builds for {listed(host.builds_for)}" if host.builds_for else "measuring"
    properties: tuple[str, ...] = ("", "", "", "")
    if facts := host.facts:
        compiler = host.side.toolchain_versions[0] if host.side and host.side.toolchain_versions else facts.compiler
        properties = (str(facts.cores or ""), facts.tools.get("ccache", ""), compiler, facts.cpu)
    return host.name, role, fitness_word(host), str(level_count(host.findings, Severity.WARNING)), *properties


def finding_lines(findings: Iterable[Finding], topic_width: int = 0) -> Iterator[str]:
    """The lines of the findings, with their advice; ``topic_width`` is the width of the column of topics, 0 for no such
    column."""
    for finding in findings:
        topic = f"{finding.topic:{topic_width}}  " if topic_width else ""
        yield f"  {finding.level:8} {topic}{printable(finding.text)}"
        if finding.advice:
            yield f"  {'':8} {' ' * len(topic)}{printable(finding.advice)}"


def adoption_finding(host: "Host", contents: Sequence[str]) -> Finding:
    """A finding that tells the user that perfbisect now uses a folder as its root folder, and which files in it
    perfbisect may remove."""
    from perfbisect.host.registry import MARKER, REMOVED
    from perfbisect.wording.text import listed

    folder = f"{host.root} on host {host.name}"
    if not contents:
        return Finding(Severity.OK, "root", f"{folder} already belongs to perfbisect")
    endangered = [name for name in REMOVED if name in contents]
    risk = f"may remove the contents of {listed(endangered)}" if endangered else "does not remove these files"
    shown = [*contents[:SHOWN], *([f"{len(contents) - SHOWN:,} more"] if len(contents) > SHOWN else [])]
    return Finding(
        Severity.NOTE,
        "root",
        f"{folder} is now used by perfbisect, which {risk}. It contains {listed(shown)}",
        f"To undo this, remove the file {host.root / MARKER} on the host before the next hunt.",
    )


def needs_no_sysbench(driver: str, workloads: "Path | None") -> bool:
    """Whether no workload for a database driver needs sysbench, because all are commands; False if a suite cannot be
    read."""
    from perfbisect.errors import RecipeError
    from perfbisect.recipes.workload import load_workloads

    try:
        return all(workload.command for workload in load_workloads(workloads or "") if workload.driver == driver)
    except RecipeError:
        return False


def host_lines(name: str, facts: "HostFacts | None", results: Sequence[Finding]) -> Iterator[str]:
    """The output of `bisect doctor HOST`: the facts of the host, the findings with the commands that fix them, and a
    summary."""
    from perfbisect.wording.quantities import count

    if facts:
        size = f"{count(facts.cores, 'core')}, {facts.memory_mib / 1024:.0f} GiB"
        yield printable(f"{name}: {facts.cpu}, {size}, kernel {facts.kernel}")
        yield ""
    yield from finding_lines(results, max(len(finding.topic) for finding in results))
    refused = level_count(results, Severity.REFUSED)
    yield ""
    yield (
        f"Host {name} is {'not fit' if refused else 'fit'} to measure on: {count(refused, 'refusal')},"
        f" {count(level_count(results, Severity.WARNING), 'warning')}, {count(level_count(results, Severity.NOTE), 'note')}."
    )
