"""The settings of a server: its sizes, from those of the host, and its configuration file.

The sizes depend on nothing but the host as it was when the hunt began: not on the data, whose size is known only once
a server has loaded it, and is never quite the same for two builds. So both ends and everything between them run with
the same settings.
"""

import hashlib
import re

from perfbisect.host.facts import cpu_numbers
from perfbisect.lab import upload
from perfbisect.recipes.builder import SIZE_PLACEHOLDERS, Builder, Server, Setting
from perfbisect.recipes.builder_reader import config_template
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.placeholders import Values, fill_text

GRAIN = 256  # MiB: memory is rounded down, since a new kernel takes a little more or less for itself
CACHE = 0.7  # of the memory; the rest is for the server's other needs, the client, and the system's own cache


def sizes(entry: HostEntry, memory: int, cores: int) -> dict[str, int]:
    """The placeholders for the size of a host with so many MiB and cores, as far as servers may use them."""
    usable = max(GRAIN, (entry.memory or memory) // GRAIN * GRAIN)
    return {
        "memory": usable,
        "cache": int(usable * CACHE),
        "cores": len(cpu_numbers(entry.server_cpus)) if entry.server_cpus else cores,
    }


def configuration(builder: Builder, values: Values) -> str:
    """The builder's configuration file, filled in; "" when it has none. Raises RecipeError."""
    if builder.server is None:
        return ""
    lines = [f"{name} = {fill_text(_written(value), values)}" for name, value in builder.server.settings.items()]
    template = config_template(builder) + (f"\n{builder.addition}\n" if builder.addition else "")
    return fill_text(template, {**values, "settings": "\n".join(lines)})


def identity(builder: Builder, values: Values) -> str:
    """All inputs of a builder's server except paths: where they are equal, so are the settings."""
    if builder.server is None:
        return ""
    inputs = _inputs(builder, builder.server)
    used = sorted(word for word in SIZE_PLACEHOLDERS if re.search(rf"\{{{word}\}}", inputs))
    return inputs + _scripts(builder, inputs) + repr([(word, values[word]) for word in used])


def identity_anywhere(builder: Builder) -> str:
    """The same without the sizes: equal on all hosts."""
    if builder.server is None:
        return ""
    inputs = _inputs(builder, builder.server)
    return inputs + _scripts(builder, inputs)


def _inputs(builder: Builder, server: Server) -> str:
    return repr((
        server.initialise, server.start, server.create, server.settle, sorted(server.env.items()),
        sorted(server.settings.items()), config_template(builder), *([builder.addition] if builder.addition else []),
    ))  # fmt: skip


def _scripts(builder: Builder, inputs: str) -> str:
    return hashlib.sha256(upload.recipe_archive(builder)).hexdigest() if "{recipe}" in inputs else ""


def _written(value: Setting) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
