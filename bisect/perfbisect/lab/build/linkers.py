"""Linkers that can put the functions of a program in another order, and which of them a host has."""

from dataclasses import dataclass

from perfbisect.host.protocol import Host

# By preference. The last moves whole object files only, in the order of its arguments; the others move functions.
MOLD, LLD, GOLD, OBJECTS = "mold", "lld", "gold", "ld"
# Prints the name of the first that is installed and able, and the first line of its version text.
_FIND = """\
while [ $# != 0 ]; do
    if command -v "$2" >/dev/null && "$2" --help 2>/dev/null | grep -q -e "$3"; then
        printf '%s\\n' "$1" && "$2" --version | head -n 1
        exit
    fi
    shift 3
done
"""
_PROGRAMS = {
    MOLD: ("ld.mold", "--shuffle-sections"),
    LLD: ("ld.lld", "--shuffle-sections=<section-glob>"),
    GOLD: ("ld.gold", "--section-ordering-file"),
    OBJECTS: ("ld", "-o"),
}


@dataclass(frozen=True, slots=True)
class Linker:
    """A linker that makes fresh layouts."""

    name: str  # MOLD, LLD, GOLD or OBJECTS
    version: str  # the first line of its version text

    @property
    def program(self) -> str:
        """Its command."""
        return _PROGRAMS[self.name][0]

    @property
    def moves_functions(self) -> bool:
        """Whether it moves single functions, and not only whole object files."""
        return self.name != OBJECTS


def find(host: Host) -> Linker | None:
    """The best linker of the host; None where it has none at all."""
    forms = [word for name, (program, option) in _PROGRAMS.items() for word in (name, program, option)]
    name, _, version = host.run(["sh", "-c", _FIND, "find", *forms]).stdout.strip().partition("\n")
    return Linker(name, version.strip()) if name else None
