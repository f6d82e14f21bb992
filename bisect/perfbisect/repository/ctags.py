"""Where the functions of source files begin and end, by Universal Ctags: an optional program.

It reads texts of any origin. They lie in a folder of their own under names that are made here, it reads no configuration,
starts no program, and its time is limited.
"""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from perfbisect.repository.git import sealed

NAMES = ("ctags", "ctags-universal", "universal-ctags")
SECONDS = 60.0
LANGUAGES = {  # extension of a file → that of the language by which ctags reads it; C++ where a header may be of either
    ".c": ".c",
    **dict.fromkeys((".h", ".cc", ".cpp", ".cxx", ".c++", ".hh", ".hpp", ".hxx", ".ic", ".inc", ".inl", ".ipp", ".tcc"), ".cpp"),
    ".rs": ".rs",
    ".go": ".go",
}  # fmt: skip
OPTIONS = ("--options=NONE", "--quiet=yes", "--recurse=no", "--links=no", "--sort=no", "--languages=C,C++,Rust,Go",
           "--kinds-C=fd", "--kinds-C++=fd", "--kinds-Rust=fPM", "--kinds-Go=f", "--output-format=json",
           "--fields=+neK", "-f", "-")  # fmt: skip
UNNAMED = "__anon"  # the beginning of what ctags calls a lambda; its lines are also those of the function around it


@dataclass(frozen=True, slots=True)
class Definition:
    """A function or a macro in a file; lines count from 1, and the last belongs to it."""

    name: str  # with its scope: "Page::insert"
    first: int
    last: int
    macro: bool = False


def is_source(path: str) -> bool:
    """Whether a path has the extension of a language whose functions are known."""
    return PurePosixPath(path).suffix.lower() in LANGUAGES


@cache
def program(path: str | None = None) -> str | None:
    """The Universal Ctags in ``path``, as the variable PATH has it (None: the present one); None where there is none.

    Other programs of that name print no ends of functions.
    """
    searched = sealed().get("PATH", "") if path is None else path
    for name in NAMES:
        found = shutil.which(name, path=searched)
        if found:
            said = subprocess.run([found, "--version"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
            if b"Universal Ctags" in said.stdout and b"+json" in said.stdout:
                return found
    return None


def definitions(texts: Mapping[str, str]) -> Mapping[str, Sequence[Definition]] | None:
    """The functions of source files, given as path → text, in order of their lines.

    None where ctags is missing, fails or takes too long.
    """
    found = program()
    if found is None:
        return None
    paths = [path for path in texts if is_source(path)]
    if not paths:
        return {}
    with TemporaryDirectory(prefix="perfbisect-") as name:
        folder = Path(name)
        files = {}
        for number, path in enumerate(paths):
            file = folder / f"{number}{LANGUAGES[PurePosixPath(path).suffix.lower()]}"
            file.write_text(texts[path], encoding="utf-8", errors="replace", newline="\n")
            files[file.name] = path
        try:
            done = subprocess.run(
                [found, *OPTIONS, *files],
                cwd=folder,
                env={**sealed(), "LC_ALL": "C", "TMPDIR": name},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=SECONDS,
                encoding="utf-8",
                errors="replace",
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
    return None if done.returncode else parsed(done.stdout, files)


def parsed(output: str, files: Mapping[str, str]) -> Mapping[str, Sequence[Definition]]:
    """The functions in what ctags printed, a JSON object a line; ``files`` are the paths by the names that ctags knows."""
    found: dict[str, list[Definition]] = {path: [] for path in files.values()}
    for line in output.splitlines():
        try:
            tag = json.loads(line)
        except ValueError:
            continue
        if tag.get("_type") != "tag" or tag["name"].startswith(UNNAMED):
            continue
        scopes = [part for part in tag.get("scope", "").split("::") if part and not part.startswith(UNNAMED)]
        first = int(tag["line"])
        found[files[tag["path"]]].append(
            Definition(
                "::".join([*scopes, tag["name"].replace(" ", "")]),
                first,
                int(tag.get("end", first)),
                tag["kind"] == "macro",
            )
        )
    return {path: sorted(each, key=lambda one: one.first) for path, each in found.items()}
