"""Checks the ``{placeholders}`` in the commands of a recipe when the recipe is loaded, and replaces them by their
values when a command is run.

``{{`` and ``}}`` in a command are literal braces. An argument that consists only of ``{cflags}``, ``{ldflags}`` or a
compiler such as ``{cc}`` is replaced by several arguments, one for each word of the value; so is a compiler that is a
separate word of a script. In the scripts of shell commands such as ``["sh", "-c", …]``, ``["bash", "-e", "-o",
"pipefail", "-c", …]`` and ``["env", "A=b", "sh", "-ec", …]``, values are quoted for the shell, so that no part of a
path is run as a command.
"""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence

from perfbisect.errors import RecipeError
from perfbisect.recipes.builder import (
    BUILD_PLACEHOLDERS,
    INSTALLED_PLACEHOLDERS,
    OF_ARCHIVES,
    SERVER_PLACEHOLDERS,
    VERSION_PLACEHOLDERS,
)
from perfbisect.recipes.toml import Location, Table, all_values, similar_words_hint, sorted_list

Values = Mapping[str, str | int]

_ARCHIVE = "archives."  # the beginning of an archive's placeholder

TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
FLAGS = {"cflags", "ldflags"}
COMPILERS = {"cc", "cxx", "compiler", "cxx_compiler"}
_ALONE = re.compile(r"(?<![^\s;|&(`])\{(cc|cxx|compiler|cxx_compiler)\}(?![^\s;|&)`])")
SHELLS = {"sh", "ash", "bash", "dash", "ksh", "zsh"}
IN_BUILD = ("options", "targets", "configure", "compile", "install", "then", "env")
IN_SERVER = ("initialise", "start", "ready", "stop", "create", "settle", "settings", "env", "sysbench")


def fill_command(argv: Sequence[str], values: Values) -> list[str]:
    """The command ``argv``, in which the placeholders are replaced by their values. Raises RecipeError if a placeholder
    has no value."""
    filled: list[str] = []
    of_shells = set(script_positions(argv))
    for position, argument in enumerate(argv):
        if argument[1:-1] in FLAGS | COMPILERS and argument == f"{{{argument[1:-1]}}}":
            filled += shlex.split(fill_text(argument, values))
        elif position in of_shells:
            quoted = {word: _quoted_value(word, value, FLAGS) for word, value in values.items()}
            quoted |= {f" {word}": _quoted_value(word, values[word], COMPILERS) for word in COMPILERS & values.keys()}
            alone = _ALONE.sub(lambda found: f"{{ {found[1]}}}" if found[1] in values else found[0], argument)
            filled.append(fill_text(alone, quoted))
        else:
            filled.append(fill_text(argument, values))
    return filled


def fill_text(text: str, values: Values) -> str:
    """The text, in which the placeholders are replaced by their values. Raises RecipeError if a placeholder has no
    value."""

    def value(match: re.Match[str]) -> str:
        token, word = match[0], match[1]
        if token in ("{{", "}}"):
            return token[0]
        if word not in values:
            raise RecipeError(f'"{text}" of the recipe has the placeholder {token}, which has no value here.')
        return str(values[word])

    return TOKEN.sub(value, text)


def escaped_braces(text: str) -> str:
    """The text with doubled braces, so that no part of the text is read as a placeholder."""
    return text.replace("{", "{{").replace("}", "}}")


def script_positions(argv: Sequence[str]) -> Iterator[int]:
    """If ``argv`` is a shell command with the option -c, the position of its script: the first word after the shell's
    options."""
    for shell, word in enumerate(argv):
        if word.rpartition("/")[2] not in SHELLS:
            continue
        has_script, position = False, shell + 1
        while position < len(argv) and (option := argv[position])[:1] in ("-", "+") and len(option) > 1:
            position += 1
            if option == "--":
                break
            if option in ("--rcfile", "--init-file"):
                position += 1  # the next word is a file
            elif not option.startswith("--"):
                has_script = has_script or "c" in option
                position += option.endswith(("o", "O"))  # the next word is the name of a shell option
        if has_script and position < len(argv):
            yield position
            return  # the next words are arguments of the script


def _quoted_value(word: str, value: str | int, split: Collection[str]) -> str:
    text = str(value)
    return shlex.join(shlex.split(text)) if word in split else shlex.quote(text)


def check_placeholders(table: Table, location: Location) -> None:
    """Raise RecipeError if a text in the TOML table of a builder has a placeholder that is not allowed for the text's
    key."""
    check_placeholders_in(table.get("version", []), location.at("version"), VERSION_PLACEHOLDERS)
    check_placeholders_in(table.get("installed_version", []), location.at("installed_version"), INSTALLED_PLACEHOLDERS)
    for section, keys, allowed in (
        ("build", IN_BUILD, BUILD_PLACEHOLDERS | {OF_ARCHIVES}),
        ("server", IN_SERVER, SERVER_PLACEHOLDERS),
        ("dataset", ("format_command",), SERVER_PLACEHOLDERS),
    ):
        for key in keys:
            check_placeholders_in(table.get(section, {}).get(key, []), location.at(section, key), allowed)

    for name, config in table.get("configs", {}).items():
        check_placeholders_in(config.get("settings", {}), location.at("configs", name, "settings"), SERVER_PLACEHOLDERS)


def placeholders_in(argv: Sequence[str]) -> set[str]:
    """The names of the placeholders in the command ``argv``."""
    return {match[1] for text in argv for match in TOKEN.finditer(text) if match[1] is not None}


def archive_names_in(*parts: object) -> set[str]:
    """The names of the archives whose placeholders ({archives.NAME}) are in ``parts`` of a recipe."""
    words = placeholders_in([str(part) for part in parts])
    return {word.removeprefix(_ARCHIVE) for word in words if word.startswith(_ARCHIVE)}


def check_placeholders_in(value: object, location: Location, allowed: Collection[str]) -> None:
    """Raise RecipeError if ``value`` (a text, list or table) contains a placeholder that is not ``allowed``."""
    for where, text in all_values(value, location):
        for match in TOKEN.finditer(text if isinstance(text, str) else ""):
            word = OF_ARCHIVES if (match[1] or "").startswith(_ARCHIVE) else match[1]
            if match[0] in ("{{", "}}") or word in allowed:
                continue
            if match[1] is None:
                raise where.mistake(f'has a lone {match[0]} in "{text}".', "Write {{ and }} for literal braces.")
            raise where.mistake(
                f"has the unknown placeholder {match[0]}.{similar_words_hint(match[1], allowed)}",
                f"Allowed placeholders: {sorted_list(allowed)}. Write {{{{ and }}}} for literal braces.",
            )
