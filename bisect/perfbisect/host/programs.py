"""The programs that work on a host needs, and the package that brings each."""

from collections.abc import Iterable

from perfbisect.errors import EnvironmentFailure
from perfbisect.host.protocol import Host

# Debian's and Ubuntu's names; where the program is not listed the package has its name.
_PACKAGES = {
    "base64": "coreutils",
    "g++": "g++",
    "iostat": "sysstat",
    "nm": "binutils",
    "objcopy": "binutils",
    "objdump": "binutils",
    "perf": "linux-perf",
    "readelf": "binutils",
    "ninja": "ninja-build",
    "ps": "procps",
    "setsid": "util-linux",
    "flock": "util-linux",
    "taskset": "util-linux",
    "tclsh": "tcl",
    "timeout": "coreutils",
    "vmstat": "procps",
    "yacc": "bison",
}


def how_to_install(programs: Iterable[str]) -> str:
    """One sentence with the command that installs ``programs``."""
    packages = dict.fromkeys(_PACKAGES.get(program, program) for program in programs)
    return f"Install with: apt-get install {' '.join(packages)}"


def absent(programs: Iterable[str], host: str) -> EnvironmentFailure:
    """The error for programs that are not on the host of that name."""
    names = list(dict.fromkeys(programs))
    verb = "is" if len(names) == 1 else "are"
    return EnvironmentFailure(f"{', '.join(names)} {verb} not installed on host {host}", how_to_install(names))


def missing(host: Host, programs: Iterable[str]) -> tuple[str, ...]:
    """Those of ``programs`` that the host does not have, in the order given."""
    script = 'for program do command -v -- "$program" >/dev/null 2>&1 || printf "%s\\n" "$program"; done'
    return tuple(host.run(["sh", "-c", script, "sh", *dict.fromkeys(programs)]).stdout.splitlines())


def require(host: Host, programs: Iterable[str]) -> None:
    """Raise EnvironmentFailure, with the packages to install, unless the host has all ``programs``."""
    if names := missing(host, programs):
        raise absent(names, host.name)
