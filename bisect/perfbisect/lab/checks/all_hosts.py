"""Every host of hosts.toml, checked at once: those that build for others for that, all others for measurements.

All build hosts of a host must make the same binary of a commit: otherwise its builds could not be compared.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from perfbisect.core.domain.facts import HostFacts
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.host.facts import BOOT, CORES, CPU, TOOLS, Fact, ask_all, asked_by, read_fingerprint, read_line
from perfbisect.host.protocol import Host
from perfbisect.host.registry import connect
from perfbisect.lab.building.plan import for_processor
from perfbisect.lab.building.toolchain import Toolchain, toolchain
from perfbisect.lab.checks import CheckRequest, Finding, Level, refused
from perfbisect.lab.checks.preflight import build_findings, findings, inspect_host
from perfbisect.recipes.builder import Builder, Variant
from perfbisect.recipes.builder_reader import variant_of
from perfbisect.recipes.inventory import HostEntry, parse_lease_name
from perfbisect.recipes.workload import Workload
from perfbisect.wording.quantities import count
from perfbisect.wording.text import listed


@asked_by("cat", "/etc/os-release")
def RELEASE(text: str) -> str | None:
    """The name of the distribution and of its release."""
    found = re.search(r'^PRETTY_NAME=["\']?([^"\'\n]+)', text, re.MULTILINE)
    return found[1].strip() if found else None


ARCHITECTURE = Fact(("uname", "-m"), read_line)
C_LIBRARY = Fact(("getconf", "GNU_LIBC_VERSION"), read_line)

LEAVE_OUT = "or leave all but one of them out of `build_hosts` of {host} in hosts.toml."
SAME = f"A difference between two builds must come from their commits. Install the same on each, {LEAVE_OUT}"
UNLIKE = "Their headers and libraries may differ, and with them what is built: install the same system on each."
COMPILERS = ("C compiler", "C++ compiler", "linker")
PROCESSOR, NATIVE = "processors", "processors, and each would compile for its own"
# What may differ between build hosts, how much it matters, and advice. The three programs are all called compilers.
DIFFERENCES: Mapping[str, tuple[Level, str]] = {
    "architectures": (Level.REFUSED, f"Choose others, {LEAVE_OUT}"),
    **dict.fromkeys(COMPILERS, (Level.REFUSED, SAME)),
    "root folders, which are part of what they build": (Level.REFUSED, "Give them the same `root` in hosts.toml."),
    PROCESSOR: (Level.NOTE, ""),
    NATIVE: (Level.REFUSED, f"Choose a variant that does not depend on it, {LEAVE_OUT}"),
    "systems": (Level.WARNING, UNLIKE),
    "versions of ccache": (Level.NOTE, "They may not find each other's results."),
    "numbers of cores": (Level.NOTE, "The smallest takes longest for a build."),
}


@dataclass(frozen=True, slots=True)
class BuildSide:
    """What of a build host decides which binaries it makes, and how soon, by the keys of DIFFERENCES; "" is unknown."""

    name: str
    values: Mapping[str, str]
    folder: str = ""  # boot of the machine, device and inode of the root: equal only for one folder of one machine

    @property
    def compiler(self) -> tuple[str, ...]:
        """The first lines of the version texts of C compiler, C++ compiler and linker, as far as they are known."""
        return tuple(filter(None, (self.values[tool] for tool in COMPILERS)))


def read_side(host: Host, variant: Variant) -> BuildSide:
    """The properties of a host that builds a variant; a compiler that it lacks is none."""
    inode = Fact(("stat", "-L", "-c", "%d:%i", str(host.root)), read_line)
    answers = ask_all(host, (ARCHITECTURE, RELEASE, C_LIBRARY, CPU, CORES, TOOLS["ccache"], BOOT, inode))
    try:
        tools = toolchain(host, variant)
    except EnvironmentFailure:  # reported by the check of its programs
        tools = Toolchain("", "", "")
    cpu, cores = answers.get(CPU) or "", answers.get(CORES)
    release = ", ".join(filter(None, (answers.get(RELEASE), answers.get(C_LIBRARY))))
    native = f"{cpu or 'unknown'} ({tools.processor[:6]})" if tools.processor else ""
    known = (
        answers.get(ARCHITECTURE) or "", *(tools.identity.splitlines() + [""] * 3)[:3], str(host.root), cpu, native,
        release, answers.get(TOOLS["ccache"]) or "", count(cores, "core") if cores else "",
    )  # fmt: skip
    place = f"{boot} {found}" if (boot := answers.get(BOOT)) and (found := answers.get(inode)) else ""
    return BuildSide(host.name, dict(zip(DIFFERENCES, known, strict=True)), place)


def differing(host: str, sides: Sequence[BuildSide], *, native: bool) -> Iterator[Finding]:
    """How the build hosts of ``host`` differ; refused is what makes other binaries of the same commit.

    ``native`` is whether they compile for the processor that they have.
    """
    for names in _by_value((side.folder, side.name) for side in sides).values():
        if len(names) > 1:
            text = f"{listed(names)}, which build for {host}, are the same machine with the same root folder"
            yield refused("build hosts", text, f"Leave all but one of them out of `build_hosts` of {host}.")
    seen: set[str] = set()
    for what, (level, advice) in DIFFERENCES.items():
        names_of = _by_value((side.values[what], side.name) for side in sides)
        text = ", ".join(f"{known} on {listed(who)}" for known, who in names_of.items())  # "12 on b1 and b3, 13 on b2"
        # The C++ compiler often differs as the C compiler does.
        if len(names_of) < 2 or text in seen or what == (PROCESSOR if native else NATIVE):
            continue
        seen.add(text)
        called = "compilers" if what in COMPILERS else what
        text = f"the build hosts of {host} have different {called}: {text}"
        yield Finding(level, "build hosts", text, advice.format(host=host))


def _by_value(known: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Each value that is known with the names of the hosts that have it."""
    names: dict[str, list[str]] = {}
    for value, name in known:
        if value:
            names.setdefault(value, []).append(name)
    return names


AT_ONCE = 16  # hosts, most of whose time is waiting for an answer


@dataclass(frozen=True, slots=True)
class CheckScope:
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


def check_all(entries: Sequence[HostEntry], wanted: CheckScope) -> tuple[tuple[Checked, ...], tuple[Finding, ...]]:
    """What was found on each host, and how the build hosts of one differ."""
    with ThreadPoolExecutor(AT_ONCE, "doctor") as pool:
        checked = tuple(pool.map(lambda entry: check(entry, entries, wanted), entries))
    return checked, tuple(differences(entries, checked, wanted))


def check(entry: HostEntry, entries: Sequence[HostEntry], wanted: CheckScope) -> Checked:
    """Check one host. Names of build hosts that do not exist are refused."""
    builds_for = tuple(other.name for other in entries if entry.name in other.built_elsewhere)
    found = [*unknown(entry, entries)]
    checked = Checked(entry.name, builds_for)
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
        return replace(checked, findings=(*found, refused(topic, str(failure), failure.advice)))


def unknown(entry: HostEntry, entries: Sequence[HostEntry]) -> Iterator[Finding]:
    """Build hosts that are not in hosts.toml. Those on lease are none of it, and are not leased for a check of all."""
    names = {each.name for each in entries}
    for name in entry.built_elsewhere:
        if name not in names and not parse_lease_name(name):
            text = f"{name}, which is to build for host {entry.name}, is not in hosts.toml"
            yield refused("build hosts", text, f"Correct `hosts.{entry.name}.build_hosts`.")


def differences(entries: Sequence[HostEntry], checked: Sequence[Checked], wanted: CheckScope) -> Iterator[Finding]:
    """How the build hosts of each host differ, as far as they can be reached."""
    sides = {host.name: host.side for host in checked if host.side}
    native = wanted.builder is not None and for_processor(wanted.builder, wanted.settings)
    for entry in entries:
        known = [side for name in entry.built_on if (side := sides.get(name))]
        yield from differing(entry.name, known, native=native)
