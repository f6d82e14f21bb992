"""Finds the needs of a build or a measurement that a host lacks, and the packages that provide them. A need is a
program, a header or a library.

The form of a name shows the kind of the need: a program ("bison"), a header ("openssl/ssl.h"), a library for pkg-config
("libzstd.pc"), or a shared library that programs are linked with ("libaio.so.1").
"""

import shlex
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from perfbisect.errors import EnvironmentFailure
from perfbisect.host.protocol import Host

HEADERS = (".h", ".hh", ".hpp")
LIBRARY = ".pc"
LINKED = ".so."


class Package(NamedTuple):
    """A package's name on each family of systems."""

    debian: str  # Debian and Ubuntu
    fedora: str  # Fedora, RHEL and their relatives
    ubuntu: str = ""  # if Ubuntu has a different name


@cache
def known_packages() -> Mapping[str, Package]:
    """A map from each need in ``packages.toml`` to its package. A program that is not listed is assumed to be in a
    package of the same name."""
    return msgspec.toml.decode(Path(__file__).with_name("packages.toml").read_bytes(), type=dict[str, Package])


def packages_and_unknown_needs(
    needs: Iterable[str], system: str, recipe_packages: Mapping[str, Package]
) -> tuple[list[str], list[str]]:
    """The packages for ``system`` ("debian", "ubuntu", "fedora") that provide ``needs``, and the needs without a known
    package.

    The packages of a recipe, ``recipe_packages``, take precedence over ``known_packages``. On Fedora, no header or
    library is unknown, because dnf finds the package of a file.
    """
    names: list[str] = []
    unknown: list[str] = []
    for need in needs:
        named = recipe_packages.get(need) or known_packages().get(need)
        name = "" if named is None else named.fedora if system == "fedora" else _of_debian(named, system)
        if not name and (need.endswith((*HEADERS, LIBRARY)) or LINKED in need):
            if system != "fedora":
                unknown.append(need)
                continue
            file = f"'{need}()(64bit)'" if LINKED in need else f"/usr/include/{need}"
            name = f"'pkgconfig({need.removesuffix(LIBRARY)})'" if need.endswith(LIBRARY) else file
        names.append(name or need)
    return list(dict.fromkeys(names)), unknown


def how_to_install(needs: Iterable[str], system: str = "", recipe_packages: Mapping[str, Package] | None = None) -> str:
    """One or two sentences with the command that installs the packages for ``needs``.

    ``system`` is "debian", "ubuntu" or "fedora" (see ``system_family``); if it is "", the commands for both families
    are given.
    """
    names = list(needs)
    debian, unknown = packages_and_unknown_needs(names, system or "debian", recipe_packages or {})
    fedora, _ = packages_and_unknown_needs(names, "fedora", recipe_packages or {})
    if system == "fedora":
        return f"Install with: sudo dnf install {' '.join(fedora)}"
    hunt = f"To find the packages of {', '.join(unknown)}: apt-file search {unknown[0]}" if unknown else ""
    if system:
        command = f"Install with: sudo apt-get install {' '.join(debian)}" if debian else ""
        return ". ".join(filter(None, (command, hunt)))
    apt = f"apt-get install {' '.join(debian)} (Debian, Ubuntu), or " if debian else ""
    return ". ".join(
        filter(None, (f"Install with: {apt}dnf install {' '.join(fedora)} (Fedora, RHEL)", hunt and f"{hunt} (Debian)"))
    )


def how_to_install_build_dependencies(
    source_package: Package, system: str = "", *, has_source_lines: bool = True
) -> str:
    """A sentence with the command that installs all packages that the distribution needs to build its package
    ``source_package``.

    The result is "" if the name of the package on ``system`` is unknown. ``has_source_lines`` says whether apt is
    configured with source packages (lines ``deb-src``), which this command needs.
    """
    first = "" if has_source_lines else " (needs a `deb-src` line in /etc/apt)"
    apt = f"apt-get build-dep {_of_debian(source_package, system)}" if source_package.debian else ""
    dnf = f"dnf builddep {source_package.fedora}" if source_package.fedora else ""
    begin = "To install all build dependencies of the distribution's package"
    if system:
        command = dnf if system == "fedora" else apt and f"{apt}{first}"
        return f"{begin}: sudo {command}" if command else ""
    both = " or ".join(filter(None, (apt and f"{apt} (Debian, Ubuntu)", dnf and f"{dnf} (Fedora, RHEL)")))
    return f"{begin}: {both}" if both else ""


def _of_debian(package: Package, system: str) -> str:
    return (system == "ubuntu" and package.ubuntu) or package.debian


def system_family(os_release: str) -> str | None:
    """The family of a system, from its /etc/os-release: "debian", "ubuntu" or "fedora"; None for any other system."""
    pairs = (line.strip().partition("=") for line in os_release.splitlines())
    fields = {key: value.strip().strip("\"'").lower().split() for key, _, value in pairs}
    names = [*fields.get("ID", []), *fields.get("ID_LIKE", [])]
    families = {"ubuntu": "ubuntu", "debian": "debian", "fedora": "fedora", "rhel": "fedora", "centos": "fedora"}
    return next((families[name] for name in names if name in families), None)


# These scripts print missing headers and missing libraries. $1 of the first script is the command of the preprocessor,
# because the preprocessor, unlike the compiler, accepts a header that requires another header before it.
_LACKING_HEADERS = """\
compiler=$1; shift
for header do
    printf '#include <%s>\\n' "$header" | sh -c "$compiler" >/dev/null 2>&1 || printf '%s\\n' "$header"
done
"""
_LACKING_LIBRARIES = """\
for library do
    pkg-config --exists -- "$library" 2>/dev/null || printf '%s.pc\\n' "$library"
done
"""


def missing_needs_error(
    needs: Iterable[str],
    host_name: str,
    system: str = "",
    recipe_packages: Mapping[str, Package] | None = None,
    extra_advice: str = "",
) -> EnvironmentFailure:
    """The error for ``needs`` that a host lacks; ``system`` and ``recipe_packages`` are arguments of
    ``how_to_install``.

    ``extra_advice`` is a sentence that is added to the advice.
    """
    names = list(dict.fromkeys(needs))
    verb = "is" if len(names) == 1 else "are"
    advice = ". ".join(filter(None, (how_to_install(names, system, recipe_packages), extra_advice)))
    return EnvironmentFailure(f"{', '.join(names)} {verb} not installed on host {host_name}", advice)


def missing_programs(host: Host, programs: Iterable[str]) -> tuple[str, ...]:
    """The programs among ``programs`` that the host does not have, in the order of ``programs``."""
    script = 'for program do command -v -- "$program" >/dev/null 2>&1 || printf "%s\\n" "$program"; done'
    return tuple(host.script(script, *dict.fromkeys(programs)).stdout.splitlines())


def missing_needs(host: Host, needs: Iterable[str], c: str, cxx: str) -> tuple[str, ...]:
    """The needs among ``needs`` (names of programs, headers and libraries) that the host does not have.

    ``c`` and ``cxx`` are the shell commands of the compilers, with options. If a compiler is missing, the compiler is
    reported and no header; if pkg-config is missing, pkg-config is reported and no library.
    """
    unique = list(dict.fromkeys(needs))
    headers = [need for need in unique if need.endswith(HEADERS)]
    libraries = [need for need in unique if need.endswith(LIBRARY)]
    tools = ["pkg-config"] if libraries else []
    lacks = [*missing_programs(host, [*(need for need in unique if need not in {*headers, *libraries}), *tools])]
    in_c = [header for header in headers if header.endswith(".h")]
    for compiler, language, names in ((c, "c", in_c), (cxx, "c++", [name for name in headers if name not in in_c])):
        if not names:
            continue
        if program := missing_programs(host, [shlex.split(compiler)[0]]):
            lacks += program
            continue
        call = f"{compiler} -E -x {language} -"
        lacks += host.script(_LACKING_HEADERS, call, *names, timeout=600).stdout.splitlines()
    if libraries and "pkg-config" not in lacks:
        names = [library.removesuffix(LIBRARY) for library in libraries]
        lacks += host.script(_LACKING_LIBRARIES, *names).stdout.splitlines()
    return tuple(dict.fromkeys(lacks))


def require_programs(host: Host, programs: Iterable[str]) -> None:
    """Raise EnvironmentFailure, which names the packages to install, if the host lacks any of ``programs``."""
    if names := missing_programs(host, programs):
        raise missing_needs_error(names, host.name)
