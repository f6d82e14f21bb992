"""Every host of hosts.toml, checked at once: those that build for others for that, all others for measurements."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from perfbisect.core.domain.facts import HostFacts
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.host.facts import read_fingerprint
from perfbisect.host.registry import connect
from perfbisect.lab.build import build_store
from perfbisect.lab.checks.build_hosts import BuildSide, differing, read_side
from perfbisect.lab.checks.finding import CheckRequest, Finding, Level
from perfbisect.lab.checks.preflight import build_findings, findings, inspect_host
from perfbisect.recipes.builder import Builder, Variant
from perfbisect.recipes.builder_reader import variant_of
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.lease_names import parse
from perfbisect.recipes.workload import Workload

AT_ONCE = 16  # hosts, most of whose time is waiting for an answer


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the hosts are checked for, as in ``CheckRequest``."""

    metric: str = "qps"
    builder: Builder | None = None
    variant: str = ""
    workloads: tuple[Workload, ...] | None = None

    @property
    def settings(self) -> Variant:
        """The compiler settings of the builds; usual ones where the system is not known."""
        return variant_of(self.builder, self.variant or self.builder.variant) if self.builder else Variant()


@dataclass(frozen=True, slots=True)
class Checked:
    """A host, and what was found there; without ``facts`` it cannot be used."""

    name: str
    builds_for: tuple[str, ...]  # other hosts that name it in their `build_hosts`
    facts: HostFacts | None = None
    findings: tuple[Finding, ...] = ()
    side: BuildSide | None = field(default=None, repr=False)

    @property
    def refused(self) -> bool:
        """Whether it cannot do what it is for."""
        return any(finding.level is Level.REFUSED for finding in self.findings)


def check_all(entries: Sequence[HostEntry], wanted: Wanted) -> tuple[tuple[Checked, ...], tuple[Finding, ...]]:
    """What was found on each host, and how the build hosts of one differ."""
    with ThreadPoolExecutor(AT_ONCE, "doctor") as pool:
        checked = tuple(pool.map(lambda entry: check(entry, entries, wanted), entries))
    return checked, tuple(differences(entries, checked, wanted))


def check(entry: HostEntry, entries: Sequence[HostEntry], wanted: Wanted) -> Checked:
    """Check one host. Names of build hosts that do not exist are refused."""
    builds_for = tuple(other.name for other in entries if entry.name in other.built_elsewhere)
    found = [*unknown(entry, entries)]
    checked = Checked(entry.name, builds_for, None, tuple(found))
    try:
        with connect(entry) as host:
            if builds_for:
                request = CheckRequest.to_build(host, entry, wanted.builder, wanted.variant)
            else:
                request = CheckRequest(host, entry, wanted.metric, wanted.builder, wanted.variant, wanted.workloads)
            inspection = inspect_host(request)
            checked = replace(checked, facts=read_fingerprint(host, inspection.answers))
            found += build_findings(inspection) if builds_for else findings(inspection)
            side = read_side(host, wanted.settings) if builds_for or entry.builds else None
            return replace(checked, findings=tuple(found), side=side)
    except (EnvironmentFailure, UsageError) as failure:
        topic = "settings" if isinstance(failure, UsageError) else "reach"
        return replace(checked, findings=(*found, Finding(Level.REFUSED, topic, str(failure), failure.advice)))


def unknown(entry: HostEntry, entries: Sequence[HostEntry]) -> Iterator[Finding]:
    """Build hosts that are not in hosts.toml. Those on lease are none of it, and are not leased for a check of all."""
    names = {each.name for each in entries}
    for name in entry.built_elsewhere:
        if name not in names and not parse(name):
            text = f"{name}, which is to build for host {entry.name}, is not in hosts.toml"
            yield Finding(Level.REFUSED, "build hosts", text, f"Correct `hosts.{entry.name}.build_hosts`.")


def differences(entries: Sequence[HostEntry], checked: Sequence[Checked], wanted: Wanted) -> Iterator[Finding]:
    """How the build hosts of each host differ, as far as they can be reached."""
    sides = {each.name: each.side for each in checked if each.side}
    native = wanted.builder is not None and build_store.for_processor(wanted.builder, wanted.settings)
    for entry in entries:
        known = [side for name in entry.built_on if (side := sides.get(name))]
        yield from differing(entry.name, known, native=native)
