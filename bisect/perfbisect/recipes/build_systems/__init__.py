"""Build systems: what a tree is built with, and which commands that takes.

``chosen`` reads the system from the names of files at the top of a tree; ``expanded`` turns a recipe's ``[build]``
without commands into one with them. Nothing here knows a project.
"""

from perfbisect.recipes.build_systems.detect import AUTO, MARKERS, chosen, for_range, found_in, nothing_found
from perfbisect.recipes.build_systems.expand import (
    SYSTEMS,
    compiler_of,
    expanded,
    has_commands,
    revision,
    system_of,
    with_needs,
)

__all__ = [
    "AUTO", "MARKERS", "SYSTEMS", "chosen", "compiler_of", "expanded", "for_range", "found_in", "has_commands",
    "nothing_found", "revision", "system_of", "with_needs",
]  # fmt: skip
