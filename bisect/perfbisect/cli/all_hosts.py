"""What `bisect doctor --all` prints."""

from collections.abc import Iterator, Sequence

import msgspec

from perfbisect.lab.checks import Finding, Level
from perfbisect.lab.checks.all_hosts import Checked
from perfbisect.wording.quantities import count
from perfbisect.wording.table import table
from perfbisect.wording.text import listed, printable


def verdict(host: Checked) -> str:
    """Whether a host can do what it is for."""
    if host.facts is None:
        return "cannot be used"
    return "not fit" if host.refused else "fit"


def lines(checked: Sequence[Checked], differences: Sequence[Finding], shared: Sequence[Finding]) -> Iterator[str]:
    """A table of the hosts, then what is wrong with each, how build hosts differ, the shared builds, and a summary."""
    head = ("host", "for", "verdict", "warnings", "cores", "ccache", "compiler", "processor")
    yield from table(head, [row(host) for host in checked], right=("warnings", "cores"))
    for host in checked:
        if told := [each for each in host.findings if each.level in (Level.REFUSED, Level.WARNING)]:
            yield from ("", f"{printable(host.name)}:", *texts(told))
    if differences:
        yield from ("", "build hosts:", *texts(differences))
    if shared:
        yield from ("", "shared builds:", *texts(shared))
    unfit = [host.name for host in checked if host.refused]
    clash = sum(finding.level is Level.REFUSED for finding in differences)
    yield ""
    if not unfit and not clash:
        yield f"{count(len(checked), 'host')}, all fit. What `bisect doctor HOST` says besides are notes."
        return
    parts = [f"{printable(listed(unfit))} {'is' if len(unfit) == 1 else 'are'} not fit"] if unfit else []
    parts += [f"{count(clash, 'problem')} with build hosts must be solved"] if clash else []
    yield f"{count(len(checked), 'host')}: {'; '.join(parts)}."


def row(host: Checked) -> tuple[str, ...]:
    """The line of a host in the table."""
    role = f"builds for {listed(host.builds_for)}" if host.builds_for else "measuring"
    warnings = sum(finding.level is Level.WARNING for finding in host.findings)
    if host.facts is None:
        return host.name, role, verdict(host), str(warnings), "", "", "", ""
    facts, compiler = host.facts, host.side.compiler[0] if host.side and host.side.compiler else host.facts.compiler
    return (
        host.name,
        role,
        verdict(host),
        str(warnings),
        str(facts.cores or ""),
        facts.tools.get("ccache", ""),
        compiler,
        facts.cpu,
    )


def texts(findings: Sequence[Finding]) -> Iterator[str]:
    """Each finding with its advice."""
    for finding in findings:
        yield f"  {finding.level:8} {printable(finding.text)}"
        if finding.advice:
            yield f"  {'':8} {printable(finding.advice)}"


def as_object(checked: Sequence[Checked], differences: Sequence[Finding], shared: Sequence[Finding]) -> str:
    """The same as JSON, with all findings."""
    hosts = [
        {
            "name": host.name,
            "builds_for": host.builds_for,
            "verdict": verdict(host),
            "host": host.facts,
            "compiler": host.side.compiler if host.side else (),
            "findings": host.findings,
        }
        for host in checked
    ]
    told = {"hosts": hosts, "build_hosts": differences, "shared": shared}
    encoded = msgspec.json.encode(told, enc_hook=str)
    return msgspec.json.format(encoded, indent=2).decode()
