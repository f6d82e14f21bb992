"""The parts of a diff, in which order they are put on its older side, and which of them makes a build slower. Pure.

A part is a hunk, a function of a new file, or what of a file no lines show: its name, its mode, a binary. Any set of them makes a
tree, since edits of a file do not overlap; whether that builds, a build shows. Each round is a line of states between parent
and culprit, which the search for a commit searches as it searches a history: of files, then of the parts of the one that is
named. So A. Zeller finds a minimal difference ("Yesterday, my program worked. Today, it does not. Why?", ESEC/FSE 1999,
<https://doi.org/10.1145/318773.318946>); here the order, not a division by two, makes states that build: build files and headers
first, definitions before uses, and what failures tell. Two more rounds prove the part: alone on the parent, and by its absence.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby
from pathlib import PurePosixPath
from random import Random

import numpy as np

from perfbisect.core.domain.facts import DiffPart

ORDERS = 4  # of the same parts, until the suspects are given up to become fewer
MORE = 2  # times that other parts are looked for, which a part needs to be slow

BUILD_FILE = re.compile(
    r"(?i)(?:^|/)(?:(?:GNU)?makefile[^/]*|CMakeLists\.txt|configure[^/]*|meson[^/]*|BUILD|SConstruct|SConscript|Cargo\.(?:toml|lock)"
    r"|go\.(?:mod|sum)|\.gitmodules|[^/]+\.(?:mk|cmake|am|in|ac|m4|gradle|bazel|bzl|gyp|gypi|def|map))$"
)
HEADER = re.compile(r"(?i)\.(?:h|hh|hpp|hxx|h\+\+|inc|inl|ipp|tcc|proto|pyi)$")
WORD = re.compile(r"[A-Za-z_$][\w$]*")
FILE_NAME = re.compile(r"([\w+-]+)\.[A-Za-z]\w*")
NOTHING: Mapping[int, Collection[int]] = {}
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

    def files_of(self, chosen: Collection[int]) -> list[frozenset[int]]:
        """These parts by files; those of a single file one by one."""
        files = [frozenset(own) for _, own in groupby(sorted(chosen), lambda number: self.pieces[number].file)]
        return files if len(files) > 1 else singles(chosen)

    def with_needed(self, chosen: frozenset[int], learnt: Mapping[int, Collection[int]]) -> frozenset[int]:
        """These parts, and all that they need before them; ``learnt`` beside what their words tell."""
        more = chosen.union(*(each for number in chosen for each in (self.needed[number], learnt.get(number, ()))))
        return chosen if more == chosen else self.with_needed(more, learnt)

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


def defined(text: str, path: str) -> tuple[set[str], set[str]]:
    """What a text seems to define, and those of that which take arguments; beside headers, what is indented is local."""
    lines = text.splitlines()
    shown = text if HEADER.search(path) else "\n".join(line for line in lines if not line[:1].isspace())
    found = DEFINED.findall(shown)
    return {name for names in found for name in names if name}, {names[-1] for names in found if names[-1]}


def needed(diff: Diff) -> list[set[int]]:
    """The parts that come before each part; see ``Diff.needed``. Circles are possible: such parts follow each other."""
    pieces, before = diff.pieces, [set[int]() for _ in diff.pieces]
    known, kept = (
        {word for side in sides for word in WORD.findall(words_of(side))}
        for sides in ([file.before for file in diff.files], [file.after for file in diff.files])
    )
    added, removed = ([{*WORD.findall(getattr(piece, side))} for piece in pieces] for side in ("added", "removed"))
    new, old = ([defined(getattr(piece, side), piece.shown.path) for piece in pieces] for side in ("added", "removed"))
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
    diff: Diff, parts: Sequence[frozenset[int]], turn: int = 0, learnt: Mapping[int, Collection[int]] = NOTHING
) -> tuple[frozenset[int], ...]:
    """Sets of parts in an order that may build: what others need before them. Each turn has another order, the first the likeliest.

    ``learnt`` is what a part needs beside what its words tell. Those that need each other are one set; after the first turn
    only as far as that was learnt.
    """
    by_words = dict(enumerate(diff.needed))
    sure = learnt if turn else {number: {*own, *learnt.get(number, ())} for number, own in by_words.items()}
    parts = joined(parts, sure)
    drawn = Random(turn)
    shuffled = {number: drawn.random() for number in range(len(diff.files))} if turn > 1 else {}

    def rank(part: frozenset[int]) -> tuple[float, ...]:
        first = min(part)
        path = diff.pieces[first].shown.path
        kind = 0 if BUILD_FILE.search(path) else 1 if HEADER.search(path) else 2
        return (kind, shuffled.get(diff.pieces[first].file, 0.0), drawn.random() if turn > 1 else first)

    likely = after_needs(sorted(parts, key=rank), by_words)
    return tuple(after_needs(likely, sure))


def after_needs(parts: Sequence[frozenset[int]], needs: Mapping[int, Collection[int]]) -> list[frozenset[int]]:
    """Sets of parts in this order, but each behind what it needs, as far as there is no circle."""
    places = {number: place for place, part in enumerate(parts) for number in part}
    earlier = [
        sorted({places[each] for own in part for each in needs.get(own, ()) if each in places}) for part in parts
    ]
    done: dict[int, None] = {}
    for top in range(len(parts)):
        waiting, begun = [top], set[int]()
        while waiting:  # depth first: what a part needs comes right before it
            place = waiting[-1]
            left = [] if place in begun else [each for each in earlier[place] if each not in done and each not in begun]
            begun.add(place)
            if not left:
                done.setdefault(waiting.pop())
            waiting += reversed(left)
    return [parts[place] for place in done]


def joined(parts: Sequence[frozenset[int]], needs: Mapping[int, Collection[int]]) -> list[frozenset[int]]:
    """Sets of parts; those of which each needs the other, if by others, are one."""
    places = {number: place for place, part in enumerate(parts) for number in part}
    reach = np.eye(len(parts), dtype=np.float32)
    for number, place in places.items():
        reach[place, [places[each] for each in needs.get(number, ()) if each in places]] = 1
    for _ in range(len(parts).bit_length()):
        reach = np.minimum(reach @ reach, 1)
    sets = defaultdict[int, frozenset[int]](frozenset)
    for place, first in enumerate((reach * reach.T).argmax(axis=1)):
        sets[int(first)] |= parts[place]
    return [*sets.values()]


@dataclass(frozen=True, slots=True)
class Round:
    """A line of states: each adds a set of parts to the one before it, the first to ``base``."""

    base: frozenset[int]
    steps: tuple[frozenset[int], ...]
    proven: frozenset[int] = frozenset()  # the parts that are to be proven
    alone: frozenset[int] = frozenset()  # these on the parent, with what they need to build
    without: frozenset[int] = frozenset()  # all but these, and what needs them to build

    @property
    def states(self) -> tuple[frozenset[int], ...]:
        """The sets of parts, the fast end first."""
        return tuple(accumulate(self.steps, frozenset.union, initial=self.base))


Learnt = defaultdict[int, set[int]]  # part → those that it needs, as failures have shown
Course = Generator[Round, tuple[int, int] | None, None]
"""Rounds; each is answered by the first and the last step, from 1, of which the guilty one is one; None: that is not known."""


def course(diff: Diff, learnt: Learnt) -> Course:
    """The search for the part that makes the difference, and its proof; the verdict of the last round is that of the session.

    The caller enters in ``learnt`` what failures show.
    """
    every, guilty = diff.every, frozenset[int]()
    best: Round | None = None
    alone = frozenset[int]()
    for _ in range(1 + MORE):
        found, search = yield from _search(diff, guilty, diff.files_of(every - guilty), learnt)
        guilty, best = guilty | found, best or search
        if not found or guilty == every:
            break
        alone, seen = yield from _prove(diff, guilty, learnt, frozenset())
        if seen != (2, 2):  # else it is fast without others: which of them does it need?
            break
    if not guilty or guilty == every:
        return
    without, seen = yield from _prove(diff, guilty, learnt, alone)
    if best and not (seen == (2, 2) and without == every - guilty):
        yield replace(best, proven=guilty, alone=alone, without=without)


def _prove(
    diff: Diff, guilty: frozenset[int], learnt: Learnt, alone: frozenset[int]
) -> Generator[Round, tuple[int, int] | None, tuple[frozenset[int], tuple[int, int] | None]]:
    """The state with these parts on the parent, or once ``alone`` is known without them, and what its round has shown.

    Where it does not build, it is tried with what the parts need, or without what needs them.
    """
    every, own, tried, seen = diff.every, guilty, set[frozenset[int]](), None
    while len(tried) <= MORE:
        own = diff.with_needed(own, learnt) if not alone else with_users(own, learnt) if tried else own
        if own == every or own in tried:
            break
        tried.add(own)
        state = every - own if alone else own
        seen = yield Round(
            frozenset(), (state, every - state), guilty, alone or state, every - (own if alone else guilty)
        )
        if seen != (1, 2):
            break
    return (every - own if alone else own), seen


def with_users(chosen: frozenset[int], learnt: Learnt) -> frozenset[int]:
    """These parts, and those that were learnt to need them."""
    return chosen | {number for number, those in learnt.items() if chosen.intersection(those)}


def _search(
    diff: Diff, base: frozenset[int], parts: list[frozenset[int]], learnt: Learnt
) -> Generator[Round, tuple[int, int] | None, tuple[frozenset[int], Round | None]]:
    """The fewest parts between which the difference is, and the last round that showed it; none where it is not known."""
    turn = tries = 0
    best: Round | None = None
    while True:
        asked = Round(base, ordered(diff, parts, turn, learnt))
        known = sum(map(len, learnt.values()))
        seen = (1, 1) if best and len(asked.steps) == 1 else (yield asked)  # a single step needs no measurement
        if seen is None:
            return frozenset(), best
        first, last = seen
        best, left = asked if len(asked.steps) > 1 or not best else best, asked.steps[first - 1 : last]
        base, within = base.union(*asked.steps[: first - 1]), frozenset[int]().union(*left)
        fewer = 2 * len(within) <= sum(map(len, parts))
        if len(within) == 1 or tries > ORDERS:
            return within, best
        if len(left) == 1 and any(len(part) > 1 for part in parts):
            parts, turn, tries = singles(within), 0, 0
            continue
        parts, tries = [part for part in parts if part <= within], 0 if fewer else tries
        if sum(map(len, learnt.values())) > known and len(left) > 1:
            continue
        if not fewer and any(len(part) > 1 for part in parts):
            parts, turn, tries = singles(within), 0, 0
            continue
        tries += 1
        if len(left) == 1:
            turn += 1
        else:  # between them nothing builds: the first seems to need the last
            for number in left[0]:
                learnt[number] |= left[-1]
