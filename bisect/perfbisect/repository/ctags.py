"""Finds the functions of source files with Universal Ctags, an optional program that prints where functions begin and
end.

The source files may come from anyone, so ctags is run safely: the files are in a separate folder under names that this
module makes, ctags reads no configuration and starts no program, and its time is limited.
"""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import PurePosixPath

from perfbisect.repository.git import isolated_environment, temporary_folder

PROGRAMS = ("ctags", "ctags-universal", "universal-ctags")
SECONDS = 60.0
# Extension of a file → extension by which ctags chooses the language; a header that may be C or C++ is C++.
LANGUAGES = {
    ".c": ".c",
    **dict.fromkeys((".h", ".cc", ".cpp", ".cxx", ".c++", ".hh", ".hpp", ".hxx", ".ic", ".inc", ".inl", ".ipp", ".tcc"), ".cpp"),
    ".rs": ".rs",
    ".go": ".go",
}  # fmt: skip
CTAGS = ("--options=NONE", "--quiet=yes", "--recurse=no", "--links=no", "--sort=no", "--languages=C,C++,Rust,Go",
           "--kinds-C=fd", "--kinds-C++=fd", "--kinds-Rust=fPM", "--kinds-Go=f", "--output-format=json",
           "--fields=+neK", "-f", "-")  # fmt: skip
UNKNOWN = 1 << 31  # the number of an unknown line
MOST_EXCERPTS, LINES_BELOW = 40, 5000  # most excerpts that ctags reads again; lines of an excerpt below the change
UNNAMED = "__anon"  # beginning of ctags' name for a lambda, whose lines also belong to the function around it


@dataclass(frozen=True, slots=True)
class Definition:
    """A function or a macro in a file. Lines count from 1; the last line is included."""

    name: str  # with its scope: "Page::insert"
    first: int
    last: int
    macro: bool = False

    def overlaps(self, first: int, last: int) -> bool:
        """Whether the function contains any line from ``first`` to ``last``."""
        return self.first <= last and first <= self.last


def is_source(path: str) -> bool:
    """Whether a path has the extension of a language for which functions are found."""
    return PurePosixPath(path).suffix.lower() in LANGUAGES


@cache
def universal_ctags(search_path: str | None = None) -> str | None:
    """The path of the program Universal Ctags, searched for in ``search_path``, by default the environment variable
    PATH; None if the program is not installed.

    Other programs with the name ctags are ignored, because they do not print where functions end.
    """
    searched = isolated_environment().get("PATH", "") if search_path is None else search_path
    for name in PROGRAMS:
        ctags = shutil.which(name, path=searched)
        if ctags:
            version = subprocess.run([ctags, "--version"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
            if b"Universal Ctags" in version.stdout and b"+json" in version.stdout:
                return ctags
    return None


def functions_in_files(
    texts: Mapping[str, str], ranges: Mapping[str, Sequence[tuple[int, int]]] | None = None
) -> Mapping[str, Sequence[Definition]] | None:
    """The functions of each source file, sorted by line; None if ctags is missing, fails, or takes too long. ``texts``
    maps the path of each source file to its text.

    If ctags does not understand a macro, it can miss all functions after the macro in the file. ``ranges`` maps paths
    to ranges of lines that must be searched well. If no function contains a range, ctags also reads an excerpt of the
    file, which begins after the last function before this range.
    """
    functions = _tagged_functions(texts)
    if not functions or not ranges:
        return functions
    outside = (
        (path, min(pair), max(pair))
        for path in functions
        for pair in ranges.get(path, ())
        if not any(row.overlaps(min(pair), max(pair)) for row in functions[path])
    )
    rows_of = cache(lambda path: texts[path].split("\n"))
    excerpts, parts = {}, {}
    for number, (path, first, last) in enumerate(islice(outside, MOST_EXCERPTS)):
        start = _end_of_function_above(rows_of(path), first)
        name = f"{number}/{path}"
        excerpts[name] = path, start, first, last
        parts[name] = "\n".join(rows_of(path)[start : last + LINES_BELOW])
    merged: dict[str, set[Definition]] = {path: {*rows} for path, rows in functions.items()}
    for name, rows in (_tagged_functions(parts) or {}).items():
        path, start, first, last = excerpts[name]
        moved = (replace(row, first=row.first + start, last=row.last + start) for row in rows)
        merged[path].update(row for row in moved if row.overlaps(first, last))
    return {path: sorted(rows, key=lambda function: function.first) for path, rows in merged.items()}


def _end_of_function_above(rows: Sequence[str], line: int) -> int:
    """The number of the last line above ``line`` that begins with a closing brace; 0 if there is none."""
    return next((number for number in range(min(line - 1, len(rows)), 0, -1) if rows[number - 1].startswith("}")), 0)


def _tagged_functions(texts: Mapping[str, str]) -> Mapping[str, Sequence[Definition]] | None:
    ctags = universal_ctags()
    if ctags is None:
        return None
    paths = [path for path in texts if is_source(path)]
    if not paths:
        return {}
    with temporary_folder() as folder:
        files = {}
        for number, path in enumerate(paths):
            file = folder / f"{number}{LANGUAGES[PurePosixPath(path).suffix.lower()]}"
            file.write_text(texts[path], encoding="utf-8", errors="replace", newline="\n")
            files[file.name] = path
        try:
            done = subprocess.run(
                [ctags, *CTAGS, *files],
                cwd=folder,
                env={**isolated_environment(), "LC_ALL": "C", "TMPDIR": str(folder)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=SECONDS,
                encoding="utf-8",
                errors="replace",
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
    return None if done.returncode else functions_in_output(done.stdout, files)


def functions_in_output(output: str, path_by_file: Mapping[str, str]) -> Mapping[str, Sequence[Definition]]:
    """The functions in the output of ctags, in which each line is a JSON object; ``path_by_file`` maps the file names
    in the output to paths of the repository."""
    functions: dict[str, list[Definition]] = {path: [] for path in path_by_file.values()}
    for line in output.splitlines():
        try:
            tag = json.loads(line)
        except ValueError:
            continue
        if tag.get("_type") != "tag" or tag["name"].startswith(UNNAMED):
            continue
        scopes = [part for part in tag.get("scope", "").split("::") if part and not part.startswith(UNNAMED)]
        name, first = "::".join([*scopes, tag["name"].replace(" ", "")]), int(tag["line"])
        # Ctags 5.9 does not report where a Rust function ends, so the next function is taken as its end.
        last = UNKNOWN if tag["path"].endswith(".rs") and tag["kind"] != "macro" else first
        function = Definition(name, first, int(tag.get("end", last)), tag["kind"] == "macro")
        functions[path_by_file[tag["path"]]].append(function)
    by_line = {path: sorted(unsorted, key=lambda function: function.first) for path, unsorted in functions.items()}
    return {path: with_estimated_ends(in_file) for path, in_file in by_line.items()}


def with_estimated_ends(functions: Sequence[Definition]) -> Sequence[Definition]:
    """The functions of a file. If the end of a function is unknown, the function is assumed to extend to the next
    function."""
    nexts = [*(function.first for function in functions[1:]), UNKNOWN]
    return [
        replace(function, last=max(function.first, following - 1)) if function.last == UNKNOWN else function
        for function, following in zip(functions, nexts, strict=False)
    ]
