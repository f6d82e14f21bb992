"""The parts of a diff, in which order they are put on its older side, and which of them makes a build slower. Pure.

A part is a hunk, a function of a new file, or what of a file no lines show: its name, its mode, a binary. Any set of them makes a
tree, since the edits of a file do not overlap. Whether that builds, a build shows; the words of the parts tell which of them
another one probably needs.

Each round is a line of states between parent and culprit, which the search for a commit searches as it searches a history. First
files are put on the parent, then the parts of the file that is named, or of those between which no state builds. So
`A. Zeller, "Yesterday, my program worked. Today, it does not. Why?", ESEC/FSE 1999 <https://doi.org/10.1145/318773.318946>`_
finds a minimal difference; here the order, not a division by two, makes states that build: build files and headers first,
definitions before uses, and then other orders. Two more rounds prove the part: alone on the parent, and as all that the
culprit lacks.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import PurePosixPath
from random import Random

from perfbisect.core.domain.facts import DiffPart
from perfbisect.core.domain.orders import Found, Inconclusive, Reason, Verdict

ORDERS = 4  # of the same parts, until the suspects are given up to become fewer
MORE = 2  # times that other parts are looked for, which a part needs to be slow

BUILD_FILE = re.compile(
    r"(?i)(?:^|/)(?:(?:GNU)?makefile[^/]*|CMakeLists\.txt|configure[^/]*|meson[^/]*|BUILD|SConstruct|SConscript|Cargo\.(?:toml|lock)"
    r"|go\.(?:mod|sum)|\.gitmodules|[^/]+\.(?:mk|cmake|am|in|ac|m4|gradle|bazel|bzl|gyp|gypi|def|map))$"
)
HEADER = re.compile(r"(?i)\.(?:h|hh|hpp|hxx|h\+\+|inc|inl|ipp|tcc|proto|pyi)$")
WORD = re.compile(r"[A-Za-z_$][\w$]*")
FILE_NAME = re.compile(r"([\w+-]+)\.[A-Za-z]\w*")
# What a line seems to define: a macro, a type, or a name behind that of a type. The last group is one with arguments.
DEFINED = re.compile(
    r"#\s*define\s+(\w+)|\b(?:struct|class|enum|union|typedef|namespace|interface|trait|type|def|fn|func|function)\s+(\w+)"
    r"|\b(?!return\b|else\b|case\b|goto\b|throw\b|new\b|delete\b|in\b|not\b)\w+[\s*&>]+(\w+)\s*(?:[\[;,:]|=(?!=))"
    r"|^\s+(\w+)\s*(?:=[^=;]*)?,|\b(?!return\b|else\b|case\b|throw\b|new\b|not\b)\w+[\s*&>]+(?:\w+::)?(\w+)\s*\(",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in a tree."""

    path: str
    mode: str  # as git has it: 100644
    content: bytes  # of a submodule the hash of its commit


@dataclass(frozen=True, slots=True)
class Edit:
    """Lines of the older file, from 0, the last one excluded, and what stands in their place."""

    first: int
    end: int
    lines: tuple[bytes, ...]
    place: int  # among the edits of its file: several may be before one line


@dataclass(frozen=True, slots=True)
class Piece:
    """One part: edits of a file; none: all else that changes of it."""

    file: int
    shown: DiffPart
    edits: tuple[Edit, ...] = ()
    added: str = ""
    removed: str = ""


@dataclass(frozen=True, slots=True)
class FileDiff:
    """A file before and after; None where it does not exist."""

    before: Entry | None
    after: Entry | None
    by_lines: bool  # whether both contents are text, or one of them does not exist

    def with_parts(self, chosen: Collection[Piece]) -> Entry | None:
        """The file with these of its parts."""
        before, after = self.before, self.after
        whole = any(not piece.edits for piece in chosen)
        if not self.by_lines or after is None:
            return after if whole else before
        if before is None and not chosen:
            return None
        name = after if whole or before is None else before
        old, text, at = lines_of(before.content if before else b""), list[bytes](), 0
        for edit in sorted((edit for piece in chosen for edit in piece.edits), key=lambda edit: edit.place):
            text += [*old[at : edit.first], *edit.lines]
            at = edit.end
        return Entry(name.path, name.mode, b"".join([*text, *old[at:]]))


@dataclass(frozen=True, eq=False)
class Diff:
    """All that a commit changes of what counts."""

    files: tuple[FileDiff, ...]
    pieces: tuple[Piece, ...]

    @property
    def every(self) -> frozenset[int]:
        """The numbers of all parts."""
        return frozenset(range(len(self.pieces)))

    def with_parts(self, chosen: frozenset[int]) -> Iterator[tuple[Entry | None, Entry | None]]:
        """The files that differ from those before: each as it was, and as it is with these parts."""
        own = defaultdict[int, list[Piece]](list)
        for number in sorted(chosen):
            own[self.pieces[number].file].append(self.pieces[number])
        for file, pieces in own.items():
            before, now = self.files[file].before, self.files[file].with_parts(pieces)
            if now != before:
                yield before, now

    def shown(self, chosen: Collection[int]) -> tuple[DiffPart, ...]:
        """These parts for people: a file of which all are among them is one."""
        of_file = defaultdict[int, list[int]](list)
        for number, piece in enumerate(self.pieces):
            of_file[piece.file].append(number)
        parts: list[DiffPart] = []
        for numbers in of_file.values():
            own = [self.pieces[number].shown for number in numbers if number in chosen]
            whole = len(own) == len(numbers) > 1
            parts += [DiffPart(own[0].path, hunks=len(own))] if whole else own
        return tuple(parts)

    def files_of(self, chosen: Collection[int]) -> list[frozenset[int]]:
        """These parts by files; those of a single file one by one."""
        of_file = defaultdict[int, set[int]](set)
        for number in sorted(chosen):
            of_file[self.pieces[number].file].add(number)
        return [*map(frozenset, of_file.values())] if len(of_file) > 1 else singles(chosen)

    def with_needed(self, chosen: frozenset[int]) -> frozenset[int]:
        """These parts, and all that they need before them."""
        found, waiting = set(chosen), list(chosen)
        while waiting:
            more = set(self.needed[waiting.pop()]) - found
            found |= more
            waiting += more
        return frozenset(found)

    @cached_property
    def needed(self) -> Sequence[Collection[int]]:
        """The parts that come before each part, so that states build, as far as its words tell."""
        return needed(self)


def singles(chosen: Iterable[int]) -> list[frozenset[int]]:
    """Each part by itself."""
    return [frozenset({number}) for number in sorted(chosen)]


def lines_of(content: bytes) -> list[bytes]:
    """Lines with their ends; only a newline ends one."""
    found: list[bytes] = re.findall(rb"[^\n]*\n|[^\n]+", content)
    return found


def decoded(lines: Iterable[bytes]) -> str:
    """Lines as text."""
    return b"".join(lines).decode(errors="replace")


def words_of(entry: Entry | None) -> str:
    """The content of a file as text; "" for what is no text, or does not exist."""
    return "" if entry is None or b"\0" in entry.content else decoded([entry.content])


def defined(text: str) -> tuple[set[str], set[str]]:
    """What a text seems to define, and those of that which take arguments."""
    found = DEFINED.findall(text)
    return {name for names in found for name in names if name}, {names[-1] for names in found if names[-1]}


def needed(diff: Diff) -> list[set[int]]:
    """The parts that come before each part; see ``Diff.needed``. Circles are possible: such parts follow each other."""
    pieces, before = diff.pieces, [set[int]() for _ in diff.pieces]
    known, kept = (
        {word for side in sides for word in WORD.findall(words_of(side))}
        for sides in ([file.before for file in diff.files], [file.after for file in diff.files])
    )
    added, removed = ([{*WORD.findall(getattr(piece, side))} for piece in pieces] for side in ("added", "removed"))
    new, old = ([defined(getattr(piece, side)) for piece in pieces] for side in ("added", "removed"))
    for word, (definers, users) in uses(added, [names for names, _ in new]).items():
        if word in known:
            continue
        headers = [each for each in definers if HEADER.search(pieces[each].shown.path)]
        for user in users:
            before[user].update(definers)
        for definer in definers if headers else ():
            before[definer].update(header for header in headers if header != definer and definer not in headers)
    for word, (definers, users) in uses(removed, [names for names, _ in old]).items():
        if word not in kept:
            for definer in definers:
                before[definer].update(users)
    for number in range(len(pieces)):  # a function whose arguments change, and its calls
        for word in new[number][1] & old[number][1]:
            for other in range(len(pieces)):
                if other != number and word in added[other] and word in removed[other]:
                    before[other].add(number)
                    before[number].add(other)
    for file, change in enumerate(diff.files):
        own = [number for number, piece in enumerate(pieces) if piece.file == file]
        existing = change.before or change.after
        if (change.before is None) is (change.after is None) or not existing:
            continue
        stem, gone = PurePosixPath(existing.path).stem, change.after is None
        said = [piece.removed if gone else piece.added for piece in pieces]
        naming = [each for each, text in enumerate(said) if each not in own and stem in FILE_NAME.findall(text)]
        for each in naming:
            before[own[0] if gone else each].add(each if gone else own[0])
        lists = [each for each in naming if BUILD_FILE.search(pieces[each].shown.path) and not gone]
        for user in range(len(pieces)):  # what a build file does not list is not linked
            if user not in own and before[user].intersection(own):
                before[user].update(each for each in lists if each != user)
    return before


def uses(
    words: Sequence[Collection[str]], definitions: Sequence[Collection[str]]
) -> dict[str, tuple[list[int], list[int]]]:
    """Word → the parts that define it, and others that have it."""
    found: dict[str, tuple[list[int], list[int]]] = {}
    for number, own in enumerate(definitions):
        for word in own:
            found.setdefault(word, ([], []))[0].append(number)
    for number, own in enumerate(words):
        for word in found.keys() & own:
            if word not in definitions[number]:
                found[word][1].append(number)
    return found


def ordered(
    diff: Diff,
    parts: Sequence[frozenset[int]],
    turn: int = 0,
    learnt: Collection[tuple[frozenset[int], frozenset[int]]] = (),
) -> tuple[frozenset[int], ...]:
    """Sets of parts in an order that may build: what others need before them. Each turn has another order, the first the likeliest.

    ``learnt`` are pairs of which the first needs the second, too. In the first turn those that need each other are one set.
    """
    drawn = Random(turn)
    shuffled = {number: drawn.random() for number in range(len(diff.files))} if turn > 1 else {}

    def rank(part: frozenset[int]) -> tuple[float, ...]:
        first = min(part)
        path = diff.pieces[first].shown.path
        kind = 0 if BUILD_FILE.search(path) else 1 if HEADER.search(path) else 2
        return (kind, shuffled.get(diff.pieces[first].file, 0.0), drawn.random() if turn > 1 else first)

    places = {number: place for place, part in enumerate(parts) for number in part}
    earlier = [{places[each] for number in part for each in diff.needed[number] if each in places} for part in parts]
    for user, those in learnt:
        for place, part in enumerate(parts):
            if part <= user:
                earlier[place] |= {places[each] for each in those if each in places} - {place}
    ranks = [rank(part) for part in parts]
    done: dict[int, None] = {}
    for top in sorted(range(len(parts)), key=ranks.__getitem__):
        waiting, begun = [top], set[int]()
        while waiting:  # depth first: what a part needs comes right before it
            place = waiting[-1]
            left = [] if place in begun else [each for each in earlier[place] if each not in done and each not in begun]
            begun.add(place)
            if not left:
                done.setdefault(waiting.pop())
            waiting += sorted(left, key=ranks.__getitem__, reverse=True)
    line = [*done]
    if turn:
        return tuple(parts[place] for place in line)
    at = {place: number for number, place in enumerate(line)}
    ends = [max(at[each] for each in (place, *earlier[place])) for place in line]  # what a part needs, and is behind it
    return tuple(frozenset().union(*(parts[place] for place in line[first:end])) for first, end in pairwise(cuts(ends)))


def cuts(ends: Sequence[int]) -> list[int]:
    """The places of a line between which it can be cut, where each entry reaches as far as its end."""
    reach = list(accumulate(ends, max))
    return [0, *(place + 1 for place, far in enumerate(reach) if far == place)]


@dataclass(frozen=True, slots=True)
class Round:
    """A line of states: each adds a set of parts to the one before it, the first to ``base``."""

    base: frozenset[int]
    steps: tuple[frozenset[int], ...]
    proven: frozenset[int] = frozenset()  # the parts that are to be proven
    alone: frozenset[int] = frozenset()  # the same, with what they need to build

    @property
    def states(self) -> tuple[frozenset[int], ...]:
        """The sets of parts, the fast end first."""
        return tuple(accumulate(self.steps, frozenset.union, initial=self.base))


Course = Generator[Round, tuple[int, int] | None, None]
"""Rounds; each is answered by the first and the last step, from 1, between which the guilty one is, or None: that is not known."""


def course(diff: Diff) -> Course:
    """The search for the part that makes the difference, and its proof; the verdict of the last round is that of the session."""
    every, guilty = diff.every, frozenset[int]()
    best: Round | None = None
    for _ in range(1 + MORE):
        found, search = yield from _search(diff, guilty, diff.files_of(every - guilty))
        guilty, best = guilty | found, best or search
        if not found or guilty == every:
            break
        seen, alone = None, guilty
        for alone in dict.fromkeys((guilty, diff.with_needed(guilty))):
            if alone != every and (seen := (yield Round(frozenset(), (alone, every - alone), guilty, alone))) != (1, 2):
                break  # else it does not build
        if seen == (1, 1):
            best = Round(frozenset(), (alone, every - alone), guilty, alone)
        if seen != (2, 2):  # else it is fast without others: which of them does it need?
            break
    if not guilty or guilty == every:
        return
    without = Round(frozenset(), (every - guilty, guilty), guilty, alone)
    if (yield without) != (2, 2) and best:
        yield replace(best, proven=guilty, alone=alone)


def _search(
    diff: Diff, base: frozenset[int], parts: list[frozenset[int]]
) -> Generator[Round, tuple[int, int] | None, tuple[frozenset[int], Round | None]]:
    """The fewest parts between which the difference is, and the last round that showed it; none where it is not known."""
    turn, learnt = 0, list[tuple[frozenset[int], frozenset[int]]]()
    best: Round | None = None
    while True:
        asked = Round(base, ordered(diff, parts, turn, learnt))
        seen = yield asked
        if seen is None:
            return frozenset(), best
        first, last = seen
        best, left = asked, asked.steps[first - 1 : last]
        base, within = base.union(*asked.steps[: first - 1]), frozenset[int]().union(*left)
        fewer = 2 * len(within) <= sum(map(len, parts))
        if len(within) == 1 or turn + len(learnt) > ORDERS:
            return within, best
        if (len(left) == 1 or not fewer) and any(len(part) > 1 for part in parts):
            parts, turn, learnt = singles(within), 0, []
            continue
        parts = [part for part in parts if part <= within]
        if len(left) == 1:
            turn += 1
        else:  # between them nothing builds: the first seems to need the last
            learnt = [*([] if fewer else learnt), (left[0], left[-1])]


def outcome(verdict: Verdict) -> tuple[int, int] | None:
    """The first and the last step, between which the guilty one is, as the verdict of a round names it."""
    match verdict:
        case Found(step):
            return min(step.parents, default=step.candidate - 1) + 1, step.candidate
        case Inconclusive(candidates, reason=Reason.UNBUILDABLE):
            return min(candidates), max(candidates)
        case _:
            return None
