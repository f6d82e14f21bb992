"""Do all build hosts of a host make the same binary of a commit? Otherwise its builds could not be compared."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from perfbisect.errors import EnvironmentFailure
from perfbisect.host.facts import BOOT, CORES, CPU, TOOLS, Fact, ask_all, read_line
from perfbisect.host.protocol import Host
from perfbisect.lab.build.toolchain import Toolchain, toolchain
from perfbisect.lab.checks.finding import Finding, Level
from perfbisect.recipes.builder import Variant
from perfbisect.wording.quantities import count
from perfbisect.wording.text import listed


def read_release(text: str) -> str | None:
    """The name of the distribution and of its release, from os-release."""
    found = re.search(r'^PRETTY_NAME=["\']?([^"\'\n]+)', text, re.MULTILINE)
    return found[1].strip() if found else None


ARCHITECTURE = Fact(("uname", "-m"), read_line)
RELEASE = Fact(("cat", "/etc/os-release"), read_release)
C_LIBRARY = Fact(("getconf", "GNU_LIBC_VERSION"), read_line)
FACTS: tuple[Fact[object], ...] = (ARCHITECTURE, RELEASE, C_LIBRARY, CPU, CORES, TOOLS["ccache"])


@dataclass(frozen=True, slots=True)
class BuildSide:
    """What of a build host decides which binaries it makes, and how soon. Texts are "" where they are not known."""

    name: str
    root: str
    architecture: str
    release: str  # of its distribution and of its C library
    compiler: tuple[str, ...]  # first lines of the version texts of C compiler, C++ compiler and linker
    processor: str  # a hash of what the compiler takes for native
    cpu: str
    ccache: str
    cores: int
    folder: str = (
        ""  # the boot of the machine, and device and inode of the root: equal only for one folder of one machine
    )


def read_side(host: Host, variant: Variant) -> BuildSide:
    """The properties of a host that builds a variant; a compiler that it lacks is none."""
    inode = Fact(("stat", "-L", "-c", "%d:%i", str(host.root)), read_line)
    answers = ask_all(host, (*FACTS, BOOT, inode))
    try:
        tools = toolchain(host, variant)
    except EnvironmentFailure:  # reported by the check of its programs
        tools = Toolchain("", "", "")
    release = filter(None, (answers.get(RELEASE), answers.get(C_LIBRARY)))
    return BuildSide(
        host.name,
        str(host.root),
        answers.get(ARCHITECTURE) or "",
        ", ".join(release),
        tuple(tools.identity.splitlines()),
        tools.processor,
        answers.get(CPU) or "",
        answers.get(TOOLS["ccache"]) or "",
        answers.get(CORES) or 0,
        f"{boot} {place}" if (boot := answers.get(BOOT)) and (place := answers.get(inode)) else "",
    )


def differing(host: str, sides: Sequence[BuildSide], *, native: bool) -> Iterator[Finding]:
    """How the build hosts of ``host`` differ; refused is what makes other binaries of the same commit.

    ``native`` is whether they compile for the processor that they have.
    """
    leave_out = f"or leave all but one of them out of `build_hosts` of {host} in hosts.toml."
    same = f"A difference between two builds must come from their commits. Install the same on each, {leave_out}"

    def differ(level: Level, what: str, advice: str, value: Callable[[BuildSide], str]) -> Iterator[Finding]:
        if text := _by_value(sides, value):
            yield Finding(level, "build hosts", f"the build hosts of {host} have different {what}: {text}", advice)

    folders: dict[str, list[str]] = {}
    for side in sides:
        if side.folder:
            folders.setdefault(side.folder, []).append(side.name)
    for names in folders.values():
        if len(names) > 1:
            text = f"{listed(names)}, which build for {host}, are the same machine with the same root folder"
            yield Finding(
                Level.REFUSED, "build hosts", text, f"Leave all but one of them out of `build_hosts` of {host}."
            )
    yield from differ(Level.REFUSED, "architectures", f"Choose others, {leave_out}", lambda side: side.architecture)
    yield from _compilers(host, sides, same)
    yield from differ(
        Level.REFUSED,
        "root folders, which are part of what they build",
        "Give them the same `root` in hosts.toml.",
        lambda side: side.root,
    )
    if native:
        yield from differ(
            Level.REFUSED,
            "processors, and each would compile for its own",
            f"Choose a variant that does not depend on it, {leave_out}",
            lambda side: f"{side.cpu or 'unknown'} ({side.processor[:6]})" if side.processor else "",
        )
    else:
        yield from differ(Level.NOTE, "processors", "", lambda side: side.cpu)
    yield from differ(
        Level.WARNING,
        "systems",
        "Their headers and libraries may differ, and with them what is built: install the same system on each.",
        lambda side: side.release,
    )
    yield from differ(
        Level.NOTE, "versions of ccache", "They may not find each other's results.", lambda side: side.ccache
    )
    yield from differ(
        Level.NOTE,
        "numbers of cores",
        "The smallest takes longest for a build.",
        lambda side: count(side.cores, "core") if side.cores else "",
    )


def _compilers(host: str, sides: Sequence[BuildSide], advice: str) -> Iterator[Finding]:
    """Which of the compilers and linkers differ, each once."""
    rows = max((len(side.compiler) for side in sides), default=0)
    told: set[str] = set()
    for row in range(rows):

        def version(side: BuildSide, row: int = row) -> str:
            return side.compiler[row] if row < len(side.compiler) else ""

        text = _by_value(sides, version)
        if text and text not in told:
            told.add(text)
            yield Finding(
                Level.REFUSED, "build hosts", f"the build hosts of {host} have different compilers: {text}", advice
            )


def _by_value(sides: Collection[BuildSide], value: Callable[[BuildSide], str]) -> str:
    """The values with the hosts that have them: "gcc 12 on b1 and b3, gcc 13 on b2"; "" where all known ones are equal."""
    names: dict[str, list[str]] = {}
    for side in sides:
        if known := value(side):
            names.setdefault(known, []).append(side.name)
    return ", ".join(f"{known} on {listed(who)}" for known, who in names.items()) if len(names) > 1 else ""
