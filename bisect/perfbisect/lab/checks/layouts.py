"""Can builds be linked again, with their functions in another order?"""

from collections.abc import Iterator

from perfbisect.host.packages import how_to_install
from perfbisect.lab.build import linkers, links
from perfbisect.lab.checks.finding import Finding, Inspection, Level
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.builder_reader import variant_of


def layouts(inspection: Inspection) -> Iterator[Finding]:
    """Which linker makes fresh layouts, and what keeps it from that."""
    request = inspection.request
    if not request.entry.builds or (request.builder and obstacle(request.builder, request.variant)):
        return
    linker = linkers.find(request.host)
    if linker and linker.moves_functions:
        yield Finding(Level.OK, "layouts", f"builds are linked again in other layouts by {linker.version}")
    elif linker:
        yield Finding(
            Level.NOTE,
            "layouts",
            f"the linker of host {inspection.name} moves whole object files only: layouts of a program differ little",
            how_to_install(["mold"], inspection.system),
        )


def obstacle(builder: Builder, variant: str, system: str = "") -> str:
    """Why no build of a system could be linked again; "" where one may be. ``system`` is the build system, if known."""
    if builder.build is None:
        return "nothing is built from source"
    if (system or builder.build.system) == "go":
        return "Go's linker knows one order of functions only"
    return links.why_fixed(variant_of(builder, variant))
