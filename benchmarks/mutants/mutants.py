"""Mutants of the package: small changes that some test must notice.

``choose`` writes so many mutants, drawn by seed, to a file; ``compare`` names those that one run of ``try_mutants.py``
killed and another one does not. A mutant is found again by its function and the text of its line, also after either has
moved.

    mutants.py choose MUTANTS.json [--seed 1] [--count 200]
    mutants.py compare BEFORE.json AFTER.json
"""

import argparse
import ast
import json
import random
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path("bisect/perfbisect")
SWAPPED = {
    "==": "!=", "!=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "in": "not in", "not in": "in", "is": "is not",
    "is not": "is", "and": "or", "or": "and", "+": "-", "-": "+", "+=": "-=", "-=": "+=",
}  # fmt: skip
OPERATOR = re.compile(r"is\s+not|not\s+in|[-+]=|[=!<>]=|[<>]|[-+]|\b(?:is|in|and|or)\b")


class Mutant(NamedTuple):
    """One change. ``text`` is the line's, stripped; it is the ``number``-th of that text in its function."""

    file: str
    function: str  # qualified; empty at the top of a module
    text: str
    number: int
    at: int  # characters of ``text`` before the change
    old: str
    new: str
    line: int  # the first is 1
    column: int


Place = tuple[int, int, str, str, str]  # line, column in characters, what is there, what comes there, its function


class Places(ast.NodeVisitor):
    """All places of a module that can be changed."""

    def __init__(self, source: str) -> None:
        self.lines = source.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        self.source = source
        self.inside: list[str] = []
        self.found: list[Place] = []
        self.visit(ast.parse(source))

    def offset(self, line: int, column: int) -> int:
        """Characters before a place that is counted in bytes, as ast does."""
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def add(self, begin: int, end: int, new: str) -> None:
        line = next(number for number, start in enumerate(self.starts) if start > begin)
        self.found.append((line, begin - self.starts[line - 1], self.source[begin:end], new, ".".join(self.inside)))

    def operator(self, left: ast.expr, right: ast.expr) -> None:
        begin = self.offset(left.end_lineno or 0, left.end_col_offset or 0)
        gap = self.source[begin : self.offset(right.lineno, right.col_offset)]
        if "#" not in gap and (match := OPERATOR.search(gap)):
            self.add(begin + match.start(), begin + match.end(), SWAPPED[" ".join(match[0].split())])

    def visit(self, node: ast.AST) -> None:
        match node:
            case ast.JoinedStr():  # where positions are those of the whole string
                return
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                return
            case ast.Compare(left, _, right):
                for first, second in pairwise([left, *right]):
                    self.operator(first, second)
            case ast.BoolOp(_, values):
                for first, second in pairwise(values):
                    self.operator(first, second)
            case ast.BinOp(left, ast.Add() | ast.Sub(), one):
                self.operator(left, one)
            case ast.AugAssign(target, ast.Add() | ast.Sub(), value):
                self.operator(target, value)
            case ast.Constant(bool() | int() | float() as value):
                begin = self.offset(node.lineno, node.col_offset)
                end = self.offset(node.lineno, node.end_col_offset or 0)
                self.add(begin, end, repr(not value if isinstance(value, bool) else value + 1))
            case ast.UnaryOp(ast.USub() | ast.Not()):
                begin = self.offset(node.lineno, node.col_offset)
                self.add(begin, begin + (1 if isinstance(node.op, ast.USub) else 3), "")
            case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
                end = self.offset(value.end_lineno or 0, value.end_col_offset or 0)
                self.add(self.offset(value.lineno, value.col_offset), end, "None")
        self.descend(node)

    def descend(self, node: ast.AST) -> None:
        named = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if named:
            self.inside.append(node.name)  # type: ignore[attr-defined]
        for field, value in ast.iter_fields(node):
            if field not in {"annotation", "returns", "decorator_list"}:
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        self.visit(child)
        if named:
            self.inside.pop()


def mutants(root: Path, file: str) -> Iterator[Mutant]:
    """All of a file."""
    source = (root / file).read_text()
    lines = source.splitlines()
    seen: dict[tuple[str, str], list[int]] = {}
    for line, column, old, new, function in sorted(Places(source).found):
        text = lines[line - 1].strip()
        same = seen.setdefault((function, text), [])
        if line not in same:
            same.append(line)
        at = column - (len(lines[line - 1]) - len(lines[line - 1].lstrip()))
        yield Mutant(file, function, text, same.index(line), at, old, new, line, column)


def everything(root: Path) -> list[Mutant]:
    """All mutants of the package."""
    files = sorted(path.relative_to(root).as_posix() for path in (root / PACKAGE).rglob("*.py"))
    return [mutant for file in files for mutant in mutants(root, file)]


def found_again(wanted: Mutant, present: list[Mutant]) -> Mutant | None:
    """The same mutant as it is now; in its own file, or in the only other file that has it."""
    same = [each for each in present if each[1:7] == wanted[1:7]]
    return next((each for each in same if each.file == wanted.file), same[0] if len(same) == 1 else None)


def changed(source: str, mutant: Mutant) -> str:
    """The source of a file with this change."""
    lines = source.splitlines(keepends=True)
    begin = sum(map(len, lines[: mutant.line - 1])) + mutant.column
    assert source[begin:].startswith(mutant.old)
    result = source[:begin] + mutant.new + source[begin + len(mutant.old) :]
    ast.parse(result)
    return result


def choose(into: Path, seed: int, count: int) -> None:
    """Write so many mutants of this project."""
    chosen = random.Random(seed).sample(everything(Path()), count)
    into.write_text(json.dumps([mutant._asdict() for mutant in chosen], indent=1))


def compare(before: Path, after: Path) -> None:
    """Name the mutants that were killed and no longer are."""
    then, now = (
        {tuple(row["chosen"].values()): row for row in json.loads(path.read_text())} for path in (before, after)
    )
    for key, row in then.items():
        if row["outcome"] == "killed" and (found := now.get(key, {"outcome": "not tried"}))["outcome"] != "killed":
            print(found["outcome"], *Mutant(*key)[:3], row["by"], sep="\t")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["choose", "compare"])
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    args = parser.parse_args()
    if args.verb == "choose":
        choose(args.paths[0], args.seed, args.count)
    else:
        compare(args.paths[0], args.paths[1])


if __name__ == "__main__":
    main()
