"""The change itself: a unified diff as files, hunks and lines."""

import re
from dataclasses import dataclass, field

HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@ ?(.*)")
LONGEST = 400  # characters of a line that are shown


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a hunk: ``kind`` is "add", "del" or "same"; numbers are 0 on the side that does not have it."""

    kind: str
    old: int
    new: int
    text: str


@dataclass(frozen=True, slots=True)
class Hunk:
    """Changed lines with their surroundings; ``scope`` is what git prints after the line numbers, as a function's name."""

    scope: str
    lines: list[Line] = field(default_factory=list)


@dataclass(slots=True)
class ChangedFile:
    """One file of a change."""

    path: str
    hunks: list[Hunk] = field(default_factory=list)
    note: str = ""  # "binary", "renamed from …"; "" for a usual change

    @property
    def added(self) -> int:
        """How many lines were added."""
        return sum(line.kind == "add" for hunk in self.hunks for line in hunk.lines)

    @property
    def removed(self) -> int:
        """How many lines were removed."""
        return sum(line.kind == "del" for hunk in self.hunks for line in hunk.lines)


def parsed(diff: str) -> list[ChangedFile]:
    """The files of a diff that git printed with the prefixes a/ and b/."""
    files: list[ChangedFile] = []
    old = new = 0
    for line in diff.split("\n"):
        if line.startswith("diff --git "):
            files.append(ChangedFile(line.rpartition(" b/")[2]))
        elif not files:
            continue
        elif found := HUNK.match(line):
            old, new = int(found[1]), int(found[2])
            files[-1].hunks.append(Hunk(found[3]))
        elif files[-1].hunks and line[:1] in ("+", "-", " "):
            kind = {"+": "add", "-": "del", " ": "same"}[line[0]]
            text = line[1:].rstrip("\r")
            text = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
            files[-1].hunks[-1].lines.append(Line(kind, old * (kind != "add"), new * (kind != "del"), text))
            old, new = old + (kind != "add"), new + (kind != "del")
        elif line.startswith("Binary files "):
            files[-1].note = "binary"
        elif line.startswith("rename from "):
            files[-1].note = f"renamed from {line.removeprefix('rename from ')}"
    return files
