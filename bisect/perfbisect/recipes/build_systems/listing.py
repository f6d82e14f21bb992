"""What `bisect builders --show` says of a build without commands."""

import shlex
from collections.abc import Iterator

from perfbisect.recipes.build_systems.detect import FILES
from perfbisect.recipes.build_systems.expand import expanded, has_commands
from perfbisect.recipes.builder import Build, Builder


def listing(builder: Builder) -> Iterator[str]:
    """How each system that the recipe allows would build a commit, as comments of a TOML document."""
    build = builder.build or Build()
    if builder.installed or has_commands(build):
        return
    if build.system:
        yield f"# Its tree is built with {build.system}:"
    else:
        yield "# Its tree is built with the first system of these that both ends of the range have:"
    for system in [build.system] if build.system else FILES:
        yield "#"
        yield f"# {system}, for a tree with {' or '.join(FILES[system])}"
        made = expanded(builder, system, FILES[system][:1])
        for argv in (*made.configure, *made.compile, *made.install):
            text = shlex.join(argv).replace("{{", "{").replace("}}", "}")
            yield from (f"#     {line}" for line in text.split("\n"))
