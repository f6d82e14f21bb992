"""The compiler of a host, as the conditions of recipes and the keys of builds see it; and what else a build needs there."""

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from perfbisect.errors import CommandFailed, EnvironmentFailure
from perfbisect.host.facts import DEB_SRC, SYSTEM, Answers
from perfbisect.host.packages import Package, how_to_prepare, lacking, require
from perfbisect.host.protocol import Host
from perfbisect.recipes.builder import Build, Builder, Variant

_IDENTITY = """\
for program do
    command -v -- "$program" >/dev/null && "$program" --version 2>/dev/null | head -n 1 || echo "no $program"
done
"""
# Prints the commands that the compiler would run. Not every architecture has both options.
_NATIVE = """\
for option in -march=native -mcpu=native; do "$1" "$option" '-###' -E -x c /dev/null; done 2>&1 </dev/null; :
"""
_RESOLVED = re.compile(r'(-m[\w.=+-]+)|"-(?:target-cpu|target-feature|tune-cpu)" "([^"]+)"')
# Prints one of the files below these folders by which something is compiled for the processor of the host.
_MENTIONS = r"""
find "$@" -type f '(' -name '[Mm]akefile*' -o -name 'GNUmakefile' -o -name '*.mk' -o -name '*.make' -o -name '*.ninja' -o \
    -name '*.sh' -o -path '*/.cargo/config*' ')' -exec grep -lE -e '-m(arch|cpu|tune)=native|target-cpu=native' {} + 2>/dev/null |
    head -n 1
"""
_IS_NATIVE = re.compile(r"-m(?:arch|cpu|tune)=native|\btarget-cpu=native")


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The programs that turn a tree into a binary."""

    name: str  # "gcc" or "clang"
    version: str  # "12.2.0"
    identity: str  # first lines of the version texts of C compiler, C++ compiler and linker
    processor: str = ""  # a hash of what the C compiler takes for native; "" when it does not know


def toolchain(host: Host, variant: Variant) -> Toolchain:
    """The toolchain of a variant on a host. Raises EnvironmentFailure when its compiler is missing or broken."""
    require(host, [variant.cc])
    try:
        macros = host.run([variant.cc, "-E", "-dM", "-x", "c", "/dev/null"], env={"LC_ALL": "C"}).stdout
    except CommandFailed as failure:
        raise EnvironmentFailure(
            f"{variant.cc} on host {host.name} does not preprocess an empty file: {failure}", "Is it a C compiler?"
        ) from failure
    name, version = read_macros(macros)
    programs = dict.fromkeys((variant.cc, variant.cxx, "ld"))
    identity = host.run(["sh", "-c", _IDENTITY, "identity", *programs]).stdout
    resolved = host.run(["sh", "-c", _NATIVE, "native", variant.cc], env={"LC_ALL": "C"}).stdout
    return Toolchain(name, version, identity, read_processor(resolved))


def with_compiler(host: Host, tools: Toolchain, command: Sequence[str]) -> Toolchain:
    """The toolchain with a further compiler, whose version the command prints; an empty one adds none."""
    if not command:
        return tools
    return replace(tools, identity=tools.identity + host.run(command, check=False).stdout)


def is_native(options: str) -> bool:
    """Whether some of these options compile for the processor of the machine that compiles."""
    return bool(_IS_NATIVE.search(options))


def mentions_native(host: Host, folders: Sequence[PurePosixPath]) -> bool:
    """Whether what builds below these folders on the host may compile for its processor, as far as its files say."""
    argv = ["sh", "-c", _MENTIONS, "mentions", *map(str, folders)]
    return bool(host.run(argv, timeout=600).stdout)


def read_processor(commands: str) -> str:
    """A hash of the processor that a compiler's own commands are for; "" when they do not say.

    Without the sizes of caches, which differ between the cores of one processor.
    """
    words = {option or value for option, value in _RESOLVED.findall(commands)} - {"-march=native", "-mcpu=native"}
    return hashlib.sha256(" ".join(sorted(words)).encode()).hexdigest()[:16] if words else ""


def read_macros(macros: str) -> tuple[str, str]:
    """Name and version from a compiler's predefined macros; clang also claims to be an old gcc."""
    defined = dict(re.findall(r"^#define (__\w+__) (\d+)$", macros, re.MULTILINE))
    for name, parts in (
        ("clang", ("__clang_major__", "__clang_minor__", "__clang_patchlevel__")),
        ("gcc", ("__GNUC__", "__GNUC_MINOR__", "__GNUC_PATCHLEVEL__")),
    ):
        if parts[0] in defined:
            return name, ".".join(defined.get(part, "0") for part in parts)
    return "", ""


NEEDED = ("git", "ccache", "ld", "objcopy", "readelf")


def compilers(build: Build, variant: Variant) -> list[str]:
    """The compilers that a build certainly uses. Whether it uses those of its environment is unknown."""
    commands = repr((build.configure, build.compile, build.install))
    return [variant.cc, *([variant.cxx] if "{cxx}" in commands else [])]


def lacking_for(host: Host, programs: list[str], build: Build, variant: Variant) -> tuple[str, ...]:
    """What the host lacks of ``programs`` and of what the build needs besides."""
    flags = shlex.split(variant.cflags)
    c, cxx = (shlex.join([*shlex.split(compiler), *flags]) for compiler in (variant.cc, variant.cxx))
    return lacking(host, [*programs, *compilers(build, variant), *build.needs], c, cxx)


def own_packages(build: Build) -> Mapping[str, Package]:
    """The packages that a recipe names itself."""
    return {need: Package(named.debian, named.fedora) for need, named in build.packages.items()}


SYSTEM_FACTS = (SYSTEM, DEB_SRC)  # what ``how_to_build`` needs to know of a host


def how_to_build(builder: Builder, answers: Answers) -> str:
    """The command that installs what the distribution builds this system with; "" when the recipe does not name it."""
    source = Package(builder.debian, builder.fedora)
    return how_to_prepare(source, answers.get(SYSTEM) or "", described=bool(answers.get(DEB_SRC)))
