"""Checks all hosts in hosts.toml in parallel: whether build hosts can build, and whether all other hosts can measure.

All build hosts of a host must make the same binary from a commit, because otherwise their builds could not be compared.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from perfbisect.core.domain.facts import HostFacts
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.host.facts import (
    BOOT,
    CORES,
    CPU,
    TOOLS,
    Fact,
    fact_from_command,
    first_line,
    read_facts,
    read_fingerprint,
)
from perfbisect.host.protocol import Host
from perfbisect.host.registry import connect
from perfbisect.lab.building.plan import is_processor_specific
from perfbisect.lab.building.toolchain import Toolchain, toolchain
from perfbisect.lab.checks import CheckRequest, Finding, Severity, refused
from perfbisect.lab.checks.preflight import build_host_findings, inspect_host, measurement_findings
from perfbisect.recipes.builder import Builder, Variant
from perfbisect.recipes.builder_reader import find_variant
from perfbisect.recipes.inventory import HostEntry, parse_leased_host_name
from perfbisect.recipes.workload import Workload
from perfbisect.wording.quantities import count
from perfbisect.wording.text import listed


@fact_from_command("cat", "/etc/os-release")
def DISTRIBUTION(text: str) -> str | None:
    """The name and the release of the distribution; None if /etc/os-release lacks them."""
    release = re.search(r'^PRETTY_NAME=["\']?([^"\'\n]+)', text, re.MULTILINE)
    return release[1].strip() if release else None


ARCHITECTURE = Fact(("uname", "-m"), first_line)
C_LIBRARY = Fact(("getconf", "GNU_LIBC_VERSION"), first_line)

LEAVE_OUT = "or keep only one of these hosts in `build_hosts` of {host} in hosts.toml."
EQUAL_PROGRAMS = f"Only the commits of two builds may differ. Install the same versions on each build host, {LEAVE_OUT}"
UNLIKE = "Different headers and libraries lead to different builds. Install the same system on each build host."
COMPILERS = ("C compiler", "C++ compiler", "linker")
PROCESSOR, NATIVE = "processors", "processors, and the variant compiles for the processor of the host"
# Property that may differ between build hosts → (severity of the difference, advice).
DIFFERENCES: Mapping[str, tuple[Severity, str]] = {
    "architectures": (Severity.REFUSED, f"Choose others, {LEAVE_OUT}"),
    **dict.fromkeys(COMPILERS, (Severity.REFUSED, EQUAL_PROGRAMS)),
    "root folders, and builds contain these paths": (
        Severity.REFUSED,
        "Set the same `root` for all these build hosts in hosts.toml.",
    ),
    PROCESSOR: (Severity.NOTE, ""),
    NATIVE: (Severity.REFUSED, f"Choose a variant that does not depend on the processor, {LEAVE_OUT}"),
    "systems": (Severity.WARNING, UNLIKE),
    "versions of ccache": (Severity.NOTE, "One version may not find the results of the other version."),
    "numbers of cores": (Severity.NOTE, "The host with the fewest cores needs the most time for a build."),
}


@dataclass(frozen=True, slots=True)
class BuildHostProperties:
    """The properties of a build host that decide which binaries it makes and how fast it builds. The keys of ``values``
    are the keys of DIFFERENCES; the value of an unknown property is ""."""

    name: str
    values: Mapping[str, str]
    folder: str = ""  # boot ID, device and inode of the root; two equal values are one folder of one machine

    @property
    def toolchain_versions(self) -> tuple[str, ...]:
        """The first lines of the version texts of the C compiler, the C++ compiler and the linker; unknown versions are
        left out."""
        return tuple(filter(None, (self.values[tool] for tool in COMPILERS)))


def read_build_host_properties(host: Host, variant: Variant) -> BuildHostProperties:
    """The properties of a host that builds ``variant``. If the compiler of the variant is missing, its properties are
    ""."""
    inode = Fact(("stat", "-L", "-c", "%d:%i", str(host.root)), first_line)
    answers = read_facts(host, (ARCHITECTURE, DISTRIBUTION, C_LIBRARY, CPU, CORES, TOOLS["ccache"], BOOT, inode))
    try:
        tools = toolchain(host, variant)
    except EnvironmentFailure:  # tool_findings reports this error
        tools = Toolchain("", "", "")
    cpu, cores = answers.get(CPU) or "", answers.get(CORES)
    release = ", ".join(filter(None, (answers.get(DISTRIBUTION), answers.get(C_LIBRARY))))
    native = f"{cpu or 'unknown'} ({tools.processor[:6]})" if tools.processor else ""
    values = (
        answers.get(ARCHITECTURE) or "", *(tools.identity.splitlines() + [""] * 3)[:3], str(host.root), cpu, native,
        release, answers.get(TOOLS["ccache"]) or "", count(cores, "core") if cores else "",
    )  # fmt: skip
    root_id = f"{boot} {inode_of_root}" if (boot := answers.get(BOOT)) and (inode_of_root := answers.get(inode)) else ""
    return BuildHostProperties(host.name, dict(zip(DIFFERENCES, values, strict=True)), root_id)


def build_host_differences(host: str, sides: Sequence[BuildHostProperties], *, native: bool) -> Iterator[Finding]:
    """Findings about differences between the build hosts of ``host``. A finding refuses the build hosts if the
    difference leads to different binaries of the same commit.

    ``native`` is true if the build hosts compile for their own processor.
    """
    for names in _hosts_by_value((side.folder, side.name) for side in sides).values():
        if len(names) > 1:
            text = f"{listed(names)}, which build for {host}, are the same machine with the same root folder"
            yield refused("build hosts", text, f"Keep only one of them in `build_hosts` of {host}.")
    said_already: set[str] = set()
    for subject, (level, advice) in DIFFERENCES.items():
        names_of = _hosts_by_value((side.values[subject], side.name) for side in sides)
        text = ", ".join(f"{value} on {listed(who)}" for value, who in names_of.items())  # "12 on b1 and b3, 13 on b2"
        # If the C++ compilers differ like the C compilers, which is usual, the same sentence is printed only once.
        if len(names_of) < 2 or text in said_already or subject == (PROCESSOR if native else NATIVE):
            continue
        said_already.add(text)
        called = "compilers" if subject in COMPILERS else subject
        text = f"the build hosts of {host} have different {called}: {text}"
        yield Finding(level, "build hosts", text, advice.format(host=host))


def _hosts_by_value(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """A map from each value to the names of the hosts that have this value. Empty values are left out."""
    names: dict[str, list[str]] = {}
    for value, name in pairs:
        if value:
            names.setdefault(value, []).append(name)
    return names


AT_ONCE = 16  # hosts that are checked at the same time, because a check mostly waits for answers


@dataclass(frozen=True, slots=True)
class CheckScope:
    """The metric, the builder and the workloads for which all hosts are checked; see ``CheckRequest``."""

    metric: str = "qps"
    builder: Builder | None = None
    variant: str = ""
    workloads: tuple[Workload, ...] | None = None

    @property
    def full_variant(self) -> Variant:
        """The compiler settings of the builds; the default settings if no builder is given."""
        return find_variant(self.builder, self.variant or self.builder.variant) if self.builder else Variant()


@dataclass(frozen=True, slots=True)
class CheckedHost:
    """A host and the findings about it. A host without ``facts`` cannot be used."""

    name: str
    builds_for: tuple[str, ...]  # other hosts that name it in their `build_hosts`
    facts: HostFacts | None = None
    findings: tuple[Finding, ...] = ()
    side: BuildHostProperties | None = field(default=None, repr=False)

    @property
    def has_refusal(self) -> bool:
        """Whether a check found that the host cannot build or measure."""
        return any(finding.level is Severity.REFUSED for finding in self.findings)


def check_all(entries: Sequence[HostEntry], scope: CheckScope) -> tuple[tuple[CheckedHost, ...], tuple[Finding, ...]]:
    """The findings about each host, and the findings about differences between the build hosts of a host."""
    with ThreadPoolExecutor(AT_ONCE, "doctor") as pool:
        checked = tuple(pool.map(lambda entry: check_host(entry, entries, scope), entries))
    return checked, tuple(all_build_host_differences(entries, checked, scope))


def check_host(entry: HostEntry, entries: Sequence[HostEntry], scope: CheckScope) -> CheckedHost:
    """Check one host. The host is refused if its entry in hosts.toml names an unknown build host."""
    builds_for = tuple(measuring.name for measuring in entries if entry.name in measuring.build_hosts_except_itself)
    results = [*unknown_build_hosts(entry, entries)]
    checked = CheckedHost(entry.name, builds_for)
    try:
        with connect(entry) as host:
            if builds_for:
                request = CheckRequest.for_build_host(host, entry, scope.builder, scope.variant)
            else:
                request = CheckRequest(host, entry, scope.metric, scope.builder, scope.variant, scope.workloads)
            inspection = inspect_host(request)
            checked = replace(checked, facts=read_fingerprint(host, inspection.answers))
            results += build_host_findings(inspection) if builds_for else measurement_findings(inspection)
            side = read_build_host_properties(host, scope.full_variant) if builds_for or entry.builds_itself else None
            return replace(checked, findings=tuple(results), side=side)
    except (EnvironmentFailure, UsageError) as failure:
        topic = "settings" if isinstance(failure, UsageError) else "reach"
        return replace(checked, findings=(*results, refused(topic, str(failure), failure.advice)))


def unknown_build_hosts(entry: HostEntry, entries: Sequence[HostEntry]) -> Iterator[Finding]:
    """Findings that refuse build hosts that are missing in hosts.toml. Leased build hosts cause no finding, because
    they are never in hosts.toml."""
    names = {entry_of_host.name for entry_of_host in entries}
    for name in entry.build_hosts_except_itself:
        if name not in names and not parse_leased_host_name(name):
            text = f"{name}, a build host of {entry.name}, is not in hosts.toml"
            yield refused("build hosts", text, f"Correct `hosts.{entry.name}.build_hosts`.")


def all_build_host_differences(
    entries: Sequence[HostEntry], checked: Sequence[CheckedHost], scope: CheckScope
) -> Iterator[Finding]:
    """Findings about how the build hosts of each host differ. Build hosts that cannot be reached are left out."""
    sides = {host.name: host.side for host in checked if host.side}
    native = scope.builder is not None and is_processor_specific(scope.builder, scope.full_variant)
    for entry in entries:
        reachable = [side for name in entry.all_build_hosts if (side := sides.get(name))]
        yield from build_host_differences(entry.name, reachable, native=native)
