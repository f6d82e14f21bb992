"""The programs, headers and libraries that a build needs on its host."""

import shlex
from collections.abc import Mapping

from perfbisect.host.conditions import DEB_SRC, SYSTEM
from perfbisect.host.facts import Answers
from perfbisect.host.packages import Package, how_to_prepare
from perfbisect.host.programs import lacking
from perfbisect.host.protocol import Host
from perfbisect.recipes.builder import Build, Builder, Variant

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
