"""All checks of a host: `bisect doctor` shows every finding; before a hunt only refusals and warnings count.

What cannot work is refused; what may distort the result is a warning with advice.
"""

from collections.abc import Iterable, Iterator

from perfbisect.core.domain.events import Warned
from perfbisect.host import facts
from perfbisect.host.facts import Fact, ask_all, fingerprint_facts
from perfbisect.lab.checks.finding import CheckRequest, Finding, Inspection, Level
from perfbisect.lab.checks.machine import (
    clock,
    clock_speed,
    counters,
    device,
    layout,
    load,
    others,
    sharing,
    space,
    swap,
)
from perfbisect.lab.checks.programs import check_pinning, compiler_cache, drivers, layouts, tools
from perfbisect.lab.workload import lua, sysbench
from perfbisect.recipes.workload import Workload

CHECKS = (
    tools,
    drivers,
    compiler_cache,
    space,
    counters,
    device,
    load,
    others,
    clock_speed,
    sharing,
    layout,
    layouts,
    swap,
    clock,
)
"""The most serious first."""
OF_BUILDS = (tools, compiler_cache, space, others, layouts)
"""Those of a host on which nothing is measured."""

FURTHER: tuple[Fact[object], ...] = (
    facts.ONLINE, facts.LOAD, facts.SYSTEM, facts.DEB_SRC, facts.SWAP, facts.STEAL, facts.THROTTLED,
    facts.TURBO_SWITCH, facts.CLOCK_SOURCE, facts.SYNCHRONISED, facts.PORTS, facts.DRIVERS,
)  # fmt: skip


def inspect_host(request: CheckRequest) -> Inspection:
    """Read the facts of the host that take no longer than one command."""
    host = request.host
    answers = ask_all(host, (*fingerprint_facts(host), *FURTHER, facts.free(host.root), facts.reflinks(host)))
    return Inspection(request, answers, answers.get(facts.SYSTEM) or "")


def findings(inspection: Inspection) -> Iterator[Finding]:
    """All findings.

    Raises UsageError for a workload that sysbench cannot run, and for settings in hosts.toml that do not fit the host.
    """
    for workload in inspection.request.workloads or ():
        check_workload(workload)
    check_pinning(inspection)
    for check in CHECKS:
        yield from check(inspection)


def build_findings(inspection: Inspection) -> Iterator[Finding]:
    """All findings about a host that builds for others: see ``CheckRequest.to_build``."""
    for check in OF_BUILDS:
        yield from check(inspection)


def check_workload(workload: Workload) -> None:
    """Raise UsageError for a workload that sysbench cannot run; a command cannot be checked beforehand."""
    if not workload.command:
        sysbench.command(workload, lua.measured(workload))
        lua.preparing(workload)


def warnings(found: Iterable[Finding]) -> tuple[Warned, ...]:
    """The warnings before a hunt. Raises EnvironmentFailure for the first refusal."""
    warned = []
    for finding in found:
        if finding.level is Level.REFUSED:
            raise finding.failure()
        if finding.level is Level.WARNING:
            warned.append(Warned(finding.text, finding.advice))
    return tuple(warned)
