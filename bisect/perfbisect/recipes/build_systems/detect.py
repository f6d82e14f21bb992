"""Which build system a tree has, by the files at its top.

A tree may have several, such as a Makefile beside a CMakeLists.txt, and a range of commits may move from one to another.
So the choice is made for a range: the first system that all its ends have. Commits between them that lack it, and all
commits of a range whose ends have none in common, are built with the first that each has.
"""

from collections.abc import Collection, Iterable

AUTO = "auto"  # in the place of a system: each commit has its own

# Systems by preference, with the files of which one is enough. cmake and meson build out of the tree and have the
# compiler's options in one place; a Makefile has neither.
FILES: dict[str, tuple[str, ...]] = {
    "cmake": ("CMakeLists.txt",),
    "meson": ("meson.build",),
    "autotools": ("configure", "configure.ac", "configure.in"),
    "make": ("GNUmakefile", "makefile", "Makefile"),
    "cargo": ("Cargo.toml",),
    "go": ("go.mod",),
}
MARKERS = frozenset(file for files in FILES.values() for file in files)


def found_in(paths: Collection[str]) -> tuple[str, ...]:
    """The systems of a tree that has these ``paths``, by preference."""
    return tuple(system for system, files in FILES.items() if any(file in paths for file in files))


def for_range(trees: Iterable[Collection[str]]) -> str:
    """The system for a range whose ends have these paths; AUTO where they have none in common, "" where none has any."""
    known = [found_in(paths) for paths in trees]
    common = [system for system in FILES if all(system in systems for systems in known)]
    if known and common:
        return common[0]
    return AUTO if any(known) else ""


def chosen(system: str, paths: Collection[str]) -> str:
    """The system of one commit with these paths, where ``system`` is that of the range; "" where it has none."""
    own = found_in(paths)
    return system if system in own else next(iter(own), "")


def nothing_found() -> str:
    """A sentence for a tree without any system."""
    return f"its tree has no build system: none of {', '.join(sorted(MARKERS, key=str.casefold))}"
