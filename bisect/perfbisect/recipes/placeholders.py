"""``{words}`` in the commands of a recipe, checked when it is loaded and filled when a command is run.

``{{`` and ``}}`` stand for literal braces. An argument that is nothing but ``{cflags}`` or ``{ldflags}`` becomes as
many arguments as it holds words. In the script of ``["sh", "-c", …]``, of ``["bash", "-e", "-o", "pipefail", "-c", …]``
and of ``["env", "A=b", "sh", "-ec", …]``, values are quoted for that shell, so that no path can be taken for a command.
"""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence

from perfbisect.errors import RecipeError
from perfbisect.recipes.builder import (
    BUILD_PLACEHOLDERS,
    CONFIG_PLACEHOLDERS,
    INSTALLED_PLACEHOLDERS,
    SERVER_PLACEHOLDERS,
    VERSION_PLACEHOLDERS,
)
from perfbisect.recipes.nearest import hint, listed
from perfbisect.recipes.strict import Place, Table

Values = Mapping[str, str | int]

TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
FLAGS = {"cflags", "ldflags"}
SHELLS = {"sh", "ash", "bash", "dash", "ksh", "zsh"}
IN_SERVER = ("initialise", "start", "ready", "stop", "create", "settle", "settings", "env", "sysbench")


def fill(argv: Sequence[str], values: Values) -> list[str]:
    """The command with its placeholders filled. Raises RecipeError for one that has no value here."""
    filled: list[str] = []
    scripts = set(_scripts(argv))
    for position, argument in enumerate(argv):
        if argument in ("{cflags}", "{ldflags}"):
            filled += shlex.split(fill_text(argument, values))
        elif position in scripts:
            filled.append(fill_text(argument, {word: _quoted(word, value) for word, value in values.items()}))
        else:
            filled.append(fill_text(argument, values))
    return filled


def fill_text(text: str, values: Values) -> str:
    """The text with its placeholders filled. Raises RecipeError for one that has no value here."""

    def value(match: re.Match[str]) -> str:
        token, word = match[0], match[1]
        if token in ("{{", "}}"):
            return token[0]
        if word not in values:
            raise RecipeError(f'The recipe\'s "{text}" has {token}, which has no value here.')
        return str(values[word])

    return TOKEN.sub(value, text)


def _scripts(argv: Sequence[str]) -> Iterator[int]:
    """Where the script of the first shell with one stands: the first word after its options, if a c is among these."""
    for shell, word in enumerate(argv):
        if word.rpartition("/")[2] not in SHELLS:
            continue
        told, position = False, shell + 1
        while position < len(argv) and (option := argv[position])[:1] in ("-", "+") and len(option) > 1:
            position += 1
            if option == "--":
                break
            if option in ("--rcfile", "--init-file"):
                position += 1  # which is followed by a file
            elif not option.startswith("--"):
                told = told or "c" in option
                position += option.endswith(("o", "O"))  # which is followed by a name
        if told and position < len(argv):
            yield position
            return  # what follows are the arguments of the script


def _quoted(word: str, value: str | int) -> str:
    text = str(value)
    return shlex.join(shlex.split(text)) if word in FLAGS else shlex.quote(text)


def check_placeholders(table: Table, place: Place) -> None:
    """Raise RecipeError for a placeholder, anywhere in a builder's table, that is not known where it stands."""
    check_texts(table.get("version", []), place.at("version"), VERSION_PLACEHOLDERS)
    check_texts(table.get("installed_version", []), place.at("installed_version"), INSTALLED_PLACEHOLDERS)
    for section, keys, allowed in (
        ("build", ("configure", "compile", "install", "env"), BUILD_PLACEHOLDERS),
        ("server", IN_SERVER, SERVER_PLACEHOLDERS),
        ("dataset", ("format_command",), SERVER_PLACEHOLDERS),
    ):
        for key in keys:
            check_texts(table.get(section, {}).get(key, []), place.at(section).at(key), allowed)


def check_config(text: str, place: Place) -> None:
    """Raise RecipeError for a placeholder that is not known in a server's configuration file."""
    check_texts(text.splitlines(), place, CONFIG_PLACEHOLDERS)


def placeholders_in(argv: Sequence[str]) -> set[str]:
    """The words in braces that stand in a command."""
    return {match[1] for text in argv for match in TOKEN.finditer(text) if match[1] is not None}


def check_texts(value: object, place: Place, allowed: Collection[str]) -> None:
    """Raise RecipeError for a placeholder, in a text or in any of a list or table, that is not among ``allowed``."""
    for where, text in _texts(value, place):
        for match in TOKEN.finditer(text):
            if match[0] in ("{{", "}}") or match[1] in allowed:
                continue
            if match[1] is None:
                raise where.mistake(f'has a lone {match[0]} in "{text}".', "Write {{ and }} for literal braces.")
            raise where.mistake(
                f"has the unknown placeholder {match[0]}.{hint(match[1], allowed)}",
                f"Allowed here: {listed(allowed)}. Write {{{{ and }}}} for literal braces.",
            )


def _texts(value: object, place: Place) -> Iterator[tuple[Place, str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _texts(entry, place.at(index))
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from _texts(entry, place.at(key))
