"""A server's configuration beside its recipe: what `bisect compare REV REV+NAME` adds to the second build.

NAME is one of the recipe's ``configs``, or the path of a file of the user. Its settings are the end of the server's
configuration file, where later ones count. Of a user's file everything is literal, and lines that would set what the
recipe decides (``server.reserved``) are left out: where data and socket are, and what would reach other servers.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from perfbisect.errors import UsageError
from perfbisect.recipes.builder import Builder, Setting
from perfbisect.recipes.builder_reader import config_template, recipe_files
from perfbisect.recipes.placeholders import literal
from perfbisect.recipes.toml_reader import hint, listed, read_text

PLACED = "=/"  # behind a reserved word: only a value that is a path is left out
_WORD = re.compile(r"\s*([!\w.-]+)")
_PATH = re.compile(r"[^#]*/")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What is added to the configuration of a recipe's server."""

    settings: Mapping[str, Setting] = field(default_factory=dict)
    text: str = ""  # with placeholders
    left_out: tuple[str, ...] = ()  # the settings of a user's file that the recipe decides

    @property
    def hash(self) -> str:
        """A hash of what it says."""
        said = json.dumps([sorted(self.settings.items()), self.text])
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    def applied(self, builder: Builder) -> Builder:
        """The recipe with it; its ``addition`` is the end of the server's file."""
        if builder.server is None or not (self.settings or self.text):
            return builder
        server = msgspec.structs.replace(builder.server, settings={**builder.server.settings, **self.settings})
        return msgspec.structs.replace(builder, server=server, addition=self.text)


def exists(builder: Builder, name: str) -> bool:
    """Whether a configuration has that name, or a file that path."""
    return name in builder.configs or (bool(name) and Path(name).expanduser().is_file())


def load(builder: Builder, name: str) -> ServerConfig:
    """The configuration that ``name`` means.

    Raises UsageError where there is none, or where the builder's server has no configuration file.
    """
    server = builder.server
    if server is None or not server.config:
        raise UsageError(
            f"Builder {builder.name} has no configuration file of a server, to which +{name} could be added.",
            "Settings of an embedded library are those of its workload: --set NAME=VALUE.",
        )
    if own := builder.configs.get(name):
        if own.settings and "{settings}" not in config_template(builder):
            raise UsageError(
                f"The settings of configuration {name} have no place in {server.config} of builder {builder.name}.",
                "Write {settings} on a line of that file.",
            )
        return ServerConfig(own.settings, read_text(recipe_files(builder)[own.file]) if own.file else "")
    path = Path(name).expanduser()
    if not path.is_file():
        raise unknown(builder, name)
    return of_file(read_text(path), server.reserved)


def of_file(text: str, reserved: list[str]) -> ServerConfig:
    """The configuration in a user's file. A byte order mark, which would hide its first word, is no part of it."""
    known = {_same(word) for word in reserved}
    kept, left_out = [], []
    for line in text.removeprefix("\ufeff").splitlines():
        word = _WORD.match(line)
        if word and (_same(word[1]) in known or (_PATH.match(line, word.end()) and _same(word[1]) + PLACED in known)):
            left_out.append(word[1])
        else:
            kept.append(line)
    return ServerConfig(text=literal("\n".join(kept)), left_out=tuple(dict.fromkeys(left_out)))


def unknown(builder: Builder, name: str) -> UsageError:
    """The error for a name that is neither a configuration nor a file."""
    folder = Path(name).expanduser().parent
    beside = {str(path) for path in folder.glob("*") if path.is_file()}
    return UsageError(
        f"'{name}' is neither a configuration of builder {builder.name} nor a file.{hint(name, [*builder.configs, *beside])}",
        f"Configurations of {builder.name}: {listed(builder.configs)}. A file is given by its path.",
    )


def _same(word: str) -> str:
    """A setting's name as servers compare it."""
    return word.lower().replace("-", "_").removeprefix("loose_")
