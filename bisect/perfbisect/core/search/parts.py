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

from perfbisect.core.domain.facts import DiffPart
from perfbisect.core.domain.graph import after_needs, joined

ORDERS = 4  # of the same parts, until the suspects are given up to become fewer
FEW = 8  # parts that are tried with all others before them
MORE = 2  # times that other parts are looked for, which a part needs to be slow

BUILD_FILE = re.compile(
    r"(?i)(?:^|/)(?:(?:GNU)?makefile[^/]*|CMakeLists\.txt|configure[^/]*|meson[^/]*|BUILD|SConstruct|SConscript|Cargo\.(?:toml|lock)"
    r"|go\.(?:mod|sum)|\.gitmodules|[^/]+\.(?:mk|cmake|am|in|ac|m4|gradle|bazel|bzl|gyp|gypi|def|map))$"
)
BESIDE = re.compile(  # files that hardly any build has in the program: prose, tests, examples
    r"(?i)\.(?:md|markdown|rst|adoc|txt|html?|[1-9]|pdf|png|svg)$|(?:^|/)(?:docs?|man\d?|tests?|testes|examples?|fuzz\w*)/"
    r"|(?:^|/)(?:README|NEWS|AUTHORS|COPYING|LICEN[CS]E|CHANGE\w*|\.[^/]+)$"
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
        """These parts by files, those beside the program together; those of a single file one by one."""

        def file_of(number: int) -> int:
            piece = self.pieces[number]
            path = piece.shown.path
            return -1 if BESIDE.search(path) and not BUILD_FILE.search(path) else piece.file

        files = [frozenset(own) for _, own in groupby(sorted(chosen, key=file_of), file_of)]
        return files if len(files) > 1 else singles(chosen)

    def with_needed(self, chosen: frozenset[int], learnt: Mapping[int, Collection[int]]) -> frozenset[int]:
        """These parts, and all that they need before them; ``learnt`` beside what their words tell."""
        more = chosen.union(*(each for number in chosen for each in (self.needed[number], learnt.get(number, ()))))
        return chosen if more == chosen else self.with_needed(more, learnt)

    def with_users(self, chosen: frozenset[int], learnt: Mapping[int, Collection[int]]) -> frozenset[int]:
        """These parts, and all that need them; as far as that was learnt alone where, by their words, all others do."""
        closed = with_all(chosen, {number: {*own, *learnt.get(number, ())} for number, own in enumerate(self.needed)})
        return closed if closed != self.every else with_all(chosen, learnt)

    @cached_property
    def defined(self) -> Sequence[Collection[str]]:
        """The words that each part seems to define, before or after it."""
        texts = (f"{piece.added}\n{piece.removed}" for piece in self.pieces)
        return [{name for names in DEFINED.findall(text) for name in names if name} for text in texts]

    @cached_property
    def words(self) -> tuple[set[str], set[str]]:
        """All words of its files before, and after."""
        before, after = ([getattr(file, side) for file in self.files] for side in ("before", "after"))
        of_before, of_after = (
            {word for file in files for word in WORD.findall(words_of(file))} for files in (before, after)
        )
        return of_before, of_after

    @cached_property
    def needed(self) -> Sequence[Collection[int]]:
        """The parts that come before each part, so that states build, as far as its words tell."""
        return needed(self)


def with_all(chosen: frozenset[int], needs: Mapping[int, Collection[int]]) -> frozenset[int]:
    """These parts, and those that need them, if by others."""
    more = chosen.union(number for number, own in needs.items() if not chosen.isdisjoint(own))
    return chosen if more == chosen else with_all(more, needs)


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
    known, kept = diff.words
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
        kind = 0 if BUILD_FILE.search(path) else 3 if BESIDE.search(path) else 1 if HEADER.search(path) else 2
        return (kind, shuffled.get(diff.pieces[first].file, 0.0), drawn.random() if turn > 1 else first)

    likely = after_needs(sorted(parts, key=rank), by_words)
    return tuple(after_needs(likely, sure))


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
        # With what the parts so far need to build, as they were measured: these are fast.
        found, search = yield from _search(diff, alone, diff.files_of(every - alone), learnt)
        if guilty and len(found) > 1:  # no part, but a set that these need
            break
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
        own = diff.with_users(own, learnt) if alone else diff.with_needed(own, learnt)
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


def _search(
    diff: Diff, base: frozenset[int], parts: list[frozenset[int]], learnt: Learnt
) -> Generator[Round, tuple[int, int] | None, tuple[frozenset[int], Round | None]]:
    """The fewest parts between which the difference is, and the last round that showed it; none where it is not known.

    Where nothing between two states builds or runs, all else of the culprit is put before what is left, as it may need that.
    """
    turn = tries = 0
    best: Round | None = None
    guessed = defaultdict[int, set[int]](set)
    while tries <= ORDERS:
        needs = {number: learnt.get(number, set()) | guessed[number] for number in diff.every}
        asked = Round(base, ordered(diff, parts, turn, needs))
        known = sum(map(len, learnt.values()))
        seen = (1, 1) if best and len(asked.steps) == 1 else (yield asked)  # a single step needs no measurement
        if seen is None:
            return frozenset(), best
        first, last = seen
        best, left = asked if len(asked.steps) > 1 or not best else best, asked.steps[first - 1 : last]
        base, within = base.union(*asked.steps[: first - 1]), frozenset[int]().union(*left)
        if len(within) == 1:
            return within, best
        fewer, more = 2 * len(within) <= sum(map(len, parts)), sum(map(len, learnt.values())) > known and len(left) > 1
        parts, tries = [part for part in parts if part <= within], 0 if fewer else tries
        if any(len(part) > 1 for part in parts) and (len(left) == 1 or not (fewer or more)):
            parts, turn, tries = singles(within), 0, 0
            continue
        if more:
            continue
        tries += 1
        if len(left) == 1:
            turn += 1
        else:  # between them nothing builds: the first seems to need the last
            for number in left[0]:
                guessed[number] |= left[-1]
    if len(within) > FEW or len(joined(singles(within), learnt)) == 1:
        return within, best
    # What is left may need what comes behind it: with all else of the culprit before it.
    asked = Round(frozenset(), (diff.every - within, *ordered(diff, singles(within), 1)))
    seen = yield asked
    if asked.steps[0] and seen and seen[1] > 1 and seen != (1, len(asked.steps)):
        within, best = frozenset[int]().union(*asked.steps[max(seen[0] - 1, 1) : seen[1]]), asked
    return within, best
