"""Programs, headers and libraries: which of those that are needed does a host lack?"""

import shlex
from collections.abc import Iterable, Mapping

from perfbisect.errors import EnvironmentFailure
from perfbisect.host.packages import LIBRARY, Package, how_to_install, is_header, is_library
from perfbisect.host.protocol import Host

# The preprocessor finds a header even if another has to be included before it. $1 is the preprocessor's command; missing
# headers and libraries are printed.
_HEADERS = """\
compiler=$1; shift
for header do
    printf '#include <%s>\\n' "$header" | sh -c "$compiler" >/dev/null 2>&1 || printf '%s\\n' "$header"
done
"""
_LIBRARIES = """\
for library do
    pkg-config --exists -- "$library" 2>/dev/null || printf '%s.pc\\n' "$library"
done
"""


def absent(
    needs: Iterable[str], host: str, system: str = "", own: Mapping[str, Package] | None = None, besides: str = ""
) -> EnvironmentFailure:
    """The error for what the host of that name lacks; ``system`` and ``own`` as in ``how_to_install``.

    ``besides`` is a sentence of advice that follows.
    """
    names = list(dict.fromkeys(needs))
    verb = "is" if len(names) == 1 else "are"
    advice = ". ".join(filter(None, (how_to_install(names, system, own), besides)))
    return EnvironmentFailure(f"{', '.join(names)} {verb} not installed on host {host}", advice)


def missing(host: Host, programs: Iterable[str]) -> tuple[str, ...]:
    """Those of ``programs`` that the host does not have, in the order given."""
    script = 'for program do command -v -- "$program" >/dev/null 2>&1 || printf "%s\\n" "$program"; done'
    return tuple(host.run(["sh", "-c", script, "sh", *dict.fromkeys(programs)]).stdout.splitlines())


def lacking(host: Host, needs: Iterable[str], c: str, cxx: str) -> tuple[str, ...]:
    """Those of ``needs`` (programs, headers, libraries as ``packages`` names them) that the host does not have.

    ``c`` and ``cxx`` are the shell commands of the compilers, options included. Without a
    compiler or pkg-config only that is reported, since nothing else can be checked.
    """
    wanted = list(dict.fromkeys(needs))
    headers = [need for need in wanted if is_header(need)]
    libraries = [need for need in wanted if is_library(need)]
    tools = ["pkg-config"] if libraries else []
    found = [*missing(host, [*(need for need in wanted if need not in {*headers, *libraries}), *tools])]
    in_c = [header for header in headers if header.endswith(".h")]
    for compiler, language, names in ((c, "c", in_c), (cxx, "c++", [name for name in headers if name not in in_c])):
        if not names:
            continue
        if program := missing(host, [shlex.split(compiler)[0]]):
            found += program
            continue
        call = f"{compiler} -E -x {language} -"
        found += host.run(["sh", "-c", _HEADERS, "headers", call, *names], timeout=600).stdout.splitlines()
    if libraries and "pkg-config" not in found:
        names = [library.removesuffix(LIBRARY) for library in libraries]
        found += host.run(["sh", "-c", _LIBRARIES, "libraries", *names]).stdout.splitlines()
    return tuple(dict.fromkeys(found))


def require(host: Host, programs: Iterable[str]) -> None:
    """Raise EnvironmentFailure, with the packages to install, unless the host has all ``programs``."""
    if names := missing(host, programs):
        raise absent(names, host.name)
