"""The programs that work on a host needs, and the package that brings each."""

from collections.abc import Iterable
from typing import NamedTuple

from perfbisect.errors import EnvironmentFailure
from perfbisect.host.protocol import Host


class Package(NamedTuple):
    """A package's name on each family of systems."""

    debian: str  # Debian and Ubuntu
    fedora: str  # Fedora, RHEL and their kin
    ubuntu: str = ""  # where Ubuntu has a name of its own


_BINUTILS = Package("binutils", "binutils")
_COREUTILS = Package("coreutils", "coreutils")
_PROCPS = Package("procps", "procps-ng")
_UTIL_LINUX = Package("util-linux", "util-linux")

# Where a program is not listed the package has its name.
_PACKAGES = {
    "aclocal": Package("automake", "automake"),
    "autoreconf": Package("autoconf", "autoconf"),
    "awk": Package("gawk", "gawk"),
    "base64": _COREUTILS,
    "cc": Package("gcc", "gcc"),
    "clang++": Package("clang", "clang"),
    "flock": _UTIL_LINUX,
    "g++": Package("g++", "gcc-c++"),
    "iostat": Package("sysstat", "sysstat"),
    "ld": _BINUTILS,
    "lscpu": _UTIL_LINUX,
    "ninja": Package("ninja-build", "ninja-build"),
    "nm": _BINUTILS,
    "objcopy": _BINUTILS,
    "objdump": _BINUTILS,
    "perf": Package("linux-perf", "perf", "linux-tools-generic"),
    "pkg-config": Package("pkg-config", "pkgconf-pkg-config"),
    "ps": _PROCPS,
    "readelf": _BINUTILS,
    "setpriv": _UTIL_LINUX,
    "setsid": _UTIL_LINUX,
    "taskset": _UTIL_LINUX,
    "tclsh": Package("tcl", "tcl"),
    "timeout": _COREUTILS,
    "vmstat": _PROCPS,
    "yacc": Package("bison", "byacc"),
}


def how_to_install(programs: Iterable[str], system: str = "") -> str:
    """One sentence with the command that installs ``programs``.

    ``system`` is "debian", "ubuntu" or "fedora" (see ``read_system``); "" when it is not known: both commands then.
    """
    wanted = [_PACKAGES.get(program, Package(program, program)) for program in programs]
    debian = " ".join(dict.fromkeys((system == "ubuntu" and each.ubuntu) or each.debian for each in wanted))
    fedora = " ".join(dict.fromkeys(each.fedora for each in wanted))
    if system == "fedora":
        return f"Install with: sudo dnf install {fedora}"
    if system:
        return f"Install with: sudo apt-get install {debian}"
    return f"Install with: apt-get install {debian} (Debian, Ubuntu), or dnf install {fedora} (Fedora, RHEL)"


def read_system(os_release: str) -> str | None:
    """The family of a system from its /etc/os-release: "debian", "ubuntu" or "fedora"; None for another."""
    pairs = (line.partition("=") for line in os_release.splitlines())
    said = {key: value.strip("\"'").split() for key, _, value in pairs}
    names = [*said.get("ID", []), *said.get("ID_LIKE", [])]
    families = {"ubuntu": "ubuntu", "debian": "debian", "fedora": "fedora", "rhel": "fedora", "centos": "fedora"}
    return next((families[name] for name in names if name in families), None)


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
