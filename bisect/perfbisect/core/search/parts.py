"""Divides a diff into parts, applies parts in a sequence, and searches for the parts that make a build slower.

A part is a hunk, a function of a new file, or a change whose diff has no lines: of a file name, of a file mode, or of a
binary file. Any set of parts can be applied to the parent, because edits of a file do not overlap, but the resulting
tree may not build. A round of this search is a sequence of states between parent and culprit. Each state contains the
parts of the preceding state, as a commit contains its ancestors. So the search that finds a culprit among commits also
finds the first slow state of a round. The first rounds find a file, the later rounds a part of this file. This is a
form of delta debugging (Andreas Zeller, "Yesterday, my program worked. Today, it does not. Why?", ESEC/FSE 1999,
<https://doi.org/10.1145/318773.318946>). Parts are added in a sequence in which most states build: build files and
headers come first, and definitions come before uses. A state that does not build shows that some parts need other
parts. Two more rounds prove that a part is slow: one round measures the parent with only this part, the other measures
the culprit without this part.
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
from perfbisect.core.domain.graph import merge_mutual_needs, sort_by_needs

ORDERS = 4  # orders of the same parts that are tried; after these orders the search accepts the remaining suspects
FEW = 8  # at most this number of suspects is tried once more, after all other parts
MORE = 2  # most searches for further parts that a slow part needs to be slow

BUILD_FILE = re.compile(
    r"(?i)(?:^|/)(?:(?:GNU)?makefile[^/]*|CMakeLists\.txt|configure[^/]*|meson[^/]*|BUILD|SConstruct|SConscript|Cargo\.(?:toml|lock)"
    r"|go\.(?:mod|sum)|\.gitmodules|[^/]+\.(?:mk|cmake|am|in|ac|m4|gradle|bazel|bzl|gyp|gypi|def|map))$"
)
NOT_IN_PROGRAM = re.compile(  # files that hardly any program contains: prose, tests, examples
    r"(?i)\.(?:md|markdown|rst|adoc|txt|html?|[1-9]|pdf|png|svg)$|(?:^|/)(?:docs?|man\d?|tests?|testes|examples?|fuzz\w*)/"
    r"|(?:^|/)(?:README|NEWS|AUTHORS|COPYING|LICEN[CS]E|CHANGE\w*|\.[^/]+)$"
)
HEADER = re.compile(r"(?i)\.(?:h|hh|hpp|hxx|h\+\+|inc|inl|ipp|tcc|proto|pyi)$")
WORD = re.compile(r"[A-Za-z_$][\w$]*")
FILE_NAME = re.compile(r"([\w+-]+)\.[A-Za-z]\w*")
NO_NEEDS: Mapping[int, Collection[int]] = {}
# Guesses the name that a line defines: a macro, a type, or a name after the name of a type. The last group is a name
# that is followed by arguments.
DEFINED = re.compile(
    r"#\s*define\s+(\w+)|\b(?:struct|class|enum|union|typedef|namespace|interface|trait|type|def|fn|func|function)\s+(\w+)"
    r"|\b(?!return\b|else\b|case\b|goto\b|throw\b|new\b|delete\b|in\b|not\b)\w+[\s*&>]+(\w+)\s*(?:[\[;,:]|=(?!=))"
    r"|^\s+(\w+)\s*(?:=[^=;]*)?,|\b(?!return\b|else\b|case\b|throw\b|new\b|not\b)\w+[\s*&>]+(?:\w+::)?(\w+)\s*\(",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in a git tree."""

    path: str
    mode: str  # the mode in git, such as 100644
    content: bytes  # the content of the file; for a submodule, the hash of its commit


@dataclass(frozen=True, slots=True)
class LineEdit:
    """Lines of the old file, and the lines of the new file that replace these lines."""

    first: int  # index of the first replaced line, from 0
    end: int  # index of the line after the last replaced line
    lines: tuple[bytes, ...]  # the new lines
    position: int  # position among the edits of the file, because several edits may be before the same line


@dataclass(frozen=True, slots=True)
class DiffPiece:
    """A part of a diff: some edits of a file. A part without edits contains all changes of the file that are not edits
    of lines, such as a new file mode."""

    file: int  # number of the file in the diff
    shown: DiffPart
    edits: tuple[LineEdit, ...] = ()
    added: str = ""  # the added lines
    removed: str = ""  # the removed lines


@dataclass(frozen=True, slots=True)
class FileDiff:
    """The content of a file before and after the commit; None if the file does not exist."""

    before: Entry | None
    after: Entry | None
    by_lines: bool  # whether each content is text or does not exist

    def with_parts(self, chosen: Collection[DiffPiece]) -> Entry | None:
        """The file with only the chosen parts applied; None if the chosen parts remove or do not create the file."""
        old, new = self.before, self.after
        other_changes = any(not piece.edits for piece in chosen)
        if not self.by_lines or new is None:
            return new if other_changes else old
        if old is None and not chosen:
            return None
        name = new if other_changes or old is None else old
        old_lines, text, line = split_lines(old.content if old else b""), list[bytes](), 0
        for edit in sorted((edit for piece in chosen for edit in piece.edits), key=lambda edit: edit.position):
            text += [*old_lines[line : edit.first], *edit.lines]
            line = edit.end
        return Entry(name.path, name.mode, b"".join([*text, *old_lines[line:]]))


@dataclass(frozen=True, eq=False)
class CommitDiff:
    """All changes of a commit, divided into parts, except changes of ignored paths."""

    files: tuple[FileDiff, ...]
    pieces: tuple[DiffPiece, ...]

    @property
    def all_parts(self) -> frozenset[int]:
        """The numbers of all parts."""
        return frozenset(range(len(self.pieces)))

    def changed_entries(self, chosen: frozenset[int]) -> Iterator[tuple[Entry | None, Entry | None]]:
        """Pairs, for each file that the chosen parts change: the file before the commit, and with these parts."""
        by_file = defaultdict[int, list[DiffPiece]](list)
        for number in sorted(chosen):
            by_file[self.pieces[number].file].append(self.pieces[number])
        for file, pieces in by_file.items():
            old, new = self.files[file].before, self.files[file].with_parts(pieces)
            if new != old:
                yield old, new

    def by_file_or_part(self, chosen: Collection[int]) -> list[frozenset[int]]:
        """The chosen parts of the diff, in sets: a set for each file, but only one set for all files that no program
        contains, such as documentation and tests. If this makes a single set, each part becomes a set."""

        def file_of(number: int) -> int:
            piece = self.pieces[number]
            path = piece.shown.path
            return -1 if NOT_IN_PROGRAM.search(path) and not BUILD_FILE.search(path) else piece.file

        files = [frozenset(parts) for _, parts in groupby(sorted(chosen, key=file_of), file_of)]
        return files if len(files) > 1 else singles(chosen)

    def with_needed(self, chosen: frozenset[int], learnt: Mapping[int, Collection[int]]) -> frozenset[int]:
        """The chosen parts, and all parts without which the chosen parts do not build, according to ``needed`` and
        ``learnt``."""
        closed = chosen.union(*(part for number in chosen for part in (self.needed[number], learnt.get(number, ()))))
        return chosen if closed == chosen else self.with_needed(closed, learnt)

    def with_dependent_parts(self, chosen: frozenset[int], learnt: Mapping[int, Collection[int]]) -> frozenset[int]:
        """The chosen parts, and all parts that do not build without the chosen parts, according to ``needed`` and
        ``learnt``; if the result would be the whole diff, according to ``learnt`` alone."""
        needs = {number: {*words, *learnt.get(number, ())} for number, words in enumerate(self.needed)}
        closed = with_dependents(chosen, needs)
        return closed if closed != self.all_parts else with_dependents(chosen, learnt)

    @cached_property
    def defined(self) -> Sequence[Collection[str]]:
        """For each part, the words (names) that its added or removed lines seem to define."""
        texts = (f"{piece.added}\n{piece.removed}" for piece in self.pieces)
        return [{name for names in DEFINED.findall(text) for name in names if name} for text in texts]

    @cached_property
    def words_of_files_before_and_after(self) -> tuple[set[str], set[str]]:
        """The words of all changed files before the commit, and the words of these files after the commit."""
        old, new = ([getattr(file, side) for file in self.files] for side in ("before", "after"))
        of_old, of_new = ({word for file in files for word in WORD.findall(text_of(file))} for files in (old, new))
        return of_old, of_new

    @cached_property
    def needed(self) -> Sequence[Collection[int]]:
        """For each part, the parts without which it does not build, guessed from their words."""
        return needed_parts(self)


def with_dependents(chosen: frozenset[int], needs: Mapping[int, Collection[int]]) -> frozenset[int]:
    """The chosen parts, and the parts that directly or indirectly need a chosen part in order to build."""
    closed = chosen.union(number for number, needed in needs.items() if not chosen.isdisjoint(needed))
    return chosen if closed == chosen else with_dependents(closed, needs)


def singles(chosen: Iterable[int]) -> list[frozenset[int]]:
    """A set for each part."""
    return [frozenset({number}) for number in sorted(chosen)]


def split_lines(content: bytes) -> list[bytes]:
    """The lines of a text, with their newlines. Only a newline ends a line."""
    lines: list[bytes] = re.findall(rb"[^\n]*\n|[^\n]+", content)
    return lines


def decoded(lines: Iterable[bytes]) -> str:
    """The lines as text."""
    return b"".join(lines).decode(errors="replace")


def text_of(entry: Entry | None) -> str:
    """The content of a file as text; "" for a binary file, and for a file that does not exist."""
    return "" if entry is None or b"\0" in entry.content else decoded([entry.content])


def defined_and_callable_names(text: str, path: str) -> tuple[set[str], set[str]]:
    """Two sets: the names that a text seems to define, and the defined names that have arguments. Indented lines are
    examined only in headers."""
    lines = text.splitlines()
    global_text = text if HEADER.search(path) else "\n".join(line for line in lines if not line[:1].isspace())
    groups = DEFINED.findall(global_text)
    return {name for names in groups for name in names if name}, {names[-1] for names in groups if names[-1]}


def needed_parts(diff: CommitDiff) -> list[set[int]]:
    """For each part, the parts without which it does not build. Two parts may need each other."""
    pieces, needs = diff.pieces, [set[int]() for _ in diff.pieces]
    old_words, new_words = diff.words_of_files_before_and_after
    added, removed = ([{*WORD.findall(getattr(piece, side))} for piece in pieces] for side in ("added", "removed"))
    new, old = ([defined_and_callable_names(getattr(p, s), p.shown.path) for p in pieces] for s in ("added", "removed"))
    for word, (definers, users) in definitions_and_uses(added, [names for names, _ in new]).items():
        if word in old_words:
            continue
        headers = [definer for definer in definers if HEADER.search(pieces[definer].shown.path)]
        for user in users:
            needs[user].update(definers)
        for definer in definers if headers else ():
            needs[definer].update(header for header in headers if header != definer and definer not in headers)
    for word, (definers, users) in definitions_and_uses(removed, [names for names, _ in old]).items():
        if word not in new_words:
            for definer in definers:
                needs[definer].update(users)
    for number in range(len(pieces)):  # a changed call of a function needs the part with its changed arguments
        for word in new[number][1] & old[number][1]:
            for caller in range(len(pieces)):
                if caller != number and word in added[caller] and word in removed[caller]:
                    needs[caller].add(number)
                    needs[number].add(caller)
    for file, change in enumerate(diff.files):
        of_file = [number for number, piece in enumerate(pieces) if piece.file == file]
        existing = change.before or change.after
        if (change.before is None) is (change.after is None) or not existing:
            continue
        stem, is_removed = PurePosixPath(existing.path).stem, change.after is None
        texts = [piece.removed if is_removed else piece.added for piece in pieces]
        naming = [n for n, text in enumerate(texts) if n not in of_file and stem in FILE_NAME.findall(text)]
        for number in naming:
            needs[of_file[0] if is_removed else number].add(number if is_removed else of_file[0])
        lists = [number for number in naming if BUILD_FILE.search(pieces[number].shown.path) and not is_removed]
        for user in range(len(pieces)):  # users of a new file need the parts that add the file to build files
            if user not in of_file and needs[user].intersection(of_file):
                needs[user].update(number for number in lists if number != user)
    return needs


def definitions_and_uses(
    words: Sequence[Collection[str]], definitions: Sequence[Collection[str]]
) -> dict[str, tuple[list[int], list[int]]]:
    """Maps each defined word to the parts that define it, and to the other parts that contain it."""
    by_word: dict[str, tuple[list[int], list[int]]] = {}
    for number, defined in enumerate(definitions):
        for word in defined:
            by_word.setdefault(word, ([], []))[0].append(number)
    for number, of_part in enumerate(words):
        for word in by_word.keys() & of_part:
            if word not in definitions[number]:
                by_word[word][1].append(number)
    return by_word


def ordered_parts(
    diff: CommitDiff, parts: Sequence[frozenset[int]], turn: int = 0, learnt: Mapping[int, Collection[int]] = NO_NEEDS
) -> tuple[frozenset[int], ...]:
    """The sets of ``parts``, in a sequence in which each state probably builds, because a part comes before the parts
    that need it.

    Each value of ``turn`` gives another sequence; the sequence for ``turn`` 0 most probably builds. ``learnt`` says
    which parts need which other parts, as failed builds have shown. Parts that need each other are joined into one set;
    if ``turn`` is above 0, only according to ``learnt``.
    """
    by_words = dict(enumerate(diff.needed))
    needs = learnt if turn else {number: {*words, *learnt.get(number, ())} for number, words in by_words.items()}
    parts = merge_mutual_needs(parts, needs)
    random = Random(turn)
    shuffled = {number: random.random() for number in range(len(diff.files))} if turn > 1 else {}

    def rank(part: frozenset[int]) -> tuple[float, ...]:
        first = min(part)
        path = diff.pieces[first].shown.path
        kind = 0 if BUILD_FILE.search(path) else 3 if NOT_IN_PROGRAM.search(path) else 1 if HEADER.search(path) else 2
        return (kind, shuffled.get(diff.pieces[first].file, 0.0), random.random() if turn > 1 else first)

    likely = sort_by_needs(sorted(parts, key=rank), by_words)
    return tuple(sort_by_needs(likely, needs))


@dataclass(frozen=True, slots=True)
class Round:
    """A sequence of states (sets of parts): ``base``, then one state for each of ``steps``, which is added."""

    base: frozenset[int]
    steps: tuple[frozenset[int], ...]
    proven: frozenset[int] = frozenset()  # the parts to prove
    alone: frozenset[int] = frozenset()  # the parts to prove, with the parts that they need to build
    without: frozenset[int] = frozenset()  # all parts except the parts to prove and the parts that need them to build

    @property
    def states(self) -> tuple[frozenset[int], ...]:
        """The states of the round, each as a set of parts, beginning with the fast state."""
        return tuple(accumulate(self.steps, frozenset.union, initial=self.base))


Learnt = defaultdict[int, set[int]]  # part → the parts that the part needs to build, as failures have shown
PartRounds = Generator[Round, tuple[int, int] | None, None]
"""Rounds. The answer to a round is the range of steps, from 1, with the slow step: first and last; None if unknown."""


def part_rounds(diff: CommitDiff, learnt: Learnt) -> PartRounds:
    """The rounds that search for the slow part of a diff, then the rounds that prove that this part is slow. If a
    failed build shows that a part needs another part, the caller adds this need to ``learnt``."""
    all_parts, guilty = diff.all_parts, frozenset[int]()
    best: Round | None = None
    alone = frozenset[int]()
    for _ in range(1 + MORE):
        # The base is the guilty parts so far with the parts that they need to build: this state was measured, and is
        # fast.
        suspects, search = yield from _search_slow_parts(diff, alone, diff.by_file_or_part(all_parts - alone), learnt)
        if guilty and len(suspects) > 1:  # only a single further part is added
            break
        guilty, best = guilty | suspects, best or search
        if not suspects or guilty == all_parts:
            break
        alone, answer = yield from _prove(diff, guilty, learnt, frozenset())
        if answer != (2, 2):  # if the guilty parts alone are fast, the search continues for parts that they need
            break
    if not guilty or guilty == all_parts:
        return
    without, answer = yield from _prove(diff, guilty, learnt, alone)
    if best and not (answer == (2, 2) and without == all_parts - guilty):
        yield replace(best, proven=guilty, alone=alone, without=without)


def _prove(
    diff: CommitDiff, guilty: frozenset[int], learnt: Learnt, alone: frozenset[int]
) -> Generator[Round, tuple[int, int] | None, tuple[frozenset[int], tuple[int, int] | None]]:
    """Make a round that measures the parent with the guilty parts or, if ``alone`` is not empty, the culprit without
    the guilty parts. Returns the measured state, and the answer of the round. If the state does not build, the round is
    repeated: parts that the guilty parts need are added, or parts that need the guilty parts are removed."""
    all_parts, proven, tried, answer = diff.all_parts, guilty, set[frozenset[int]](), None
    while len(tried) <= MORE:
        proven = diff.with_dependent_parts(proven, learnt) if alone else diff.with_needed(proven, learnt)
        if proven == all_parts or proven in tried:
            break
        tried.add(proven)
        state = all_parts - proven if alone else proven
        without = all_parts - (proven if alone else guilty)
        answer = yield Round(frozenset(), (state, all_parts - state), guilty, alone or state, without)
        if answer != (1, 2):
            break
    return (all_parts - proven if alone else proven), answer


def _search_slow_parts(
    diff: CommitDiff, base: frozenset[int], parts: list[frozenset[int]], learnt: Learnt
) -> Generator[Round, tuple[int, int] | None, tuple[frozenset[int], Round | None]]:
    """The smallest set of parts that the search finds to make the build slow, and the last round that showed this. If
    the answer of a round is unknown, the set is empty. If none of the states between two states builds, the parts added
    between these two states may need other parts, so the next round adds these parts after all other parts."""
    turn = tries = 0
    best: Round | None = None
    guessed = defaultdict[int, set[int]](set)
    while tries <= ORDERS:
        needs = {number: learnt.get(number, set()) | guessed[number] for number in diff.all_parts}
        line = Round(base, ordered_parts(diff, parts, turn, needs))
        needs_before = sum(map(len, learnt.values()))
        answer = (1, 1) if best and len(line.steps) == 1 else (yield line)  # a single step needs no measurement
        if answer is None:
            return frozenset(), best
        first, last = answer
        best, suspects = line if len(line.steps) > 1 or not best else best, line.steps[first - 1 : last]
        base, remaining = base.union(*line.steps[: first - 1]), frozenset[int]().union(*suspects)
        if len(remaining) == 1:
            return remaining, best
        is_halved = 2 * len(remaining) <= sum(map(len, parts))
        has_learnt = sum(map(len, learnt.values())) > needs_before and len(suspects) > 1
        parts, tries = [part for part in parts if part <= remaining], 0 if is_halved else tries
        if any(len(part) > 1 for part in parts) and (len(suspects) == 1 or not (is_halved or has_learnt)):
            parts, turn, tries = singles(remaining), 0, 0
            continue
        if has_learnt:
            continue
        tries += 1
        if len(suspects) == 1:
            turn += 1
        else:  # no state between the suspects builds: the first suspect seems to need the last suspect
            for number in suspects[0]:
                guessed[number] |= suspects[-1]
    if len(remaining) > FEW or len(merge_mutual_needs(singles(remaining), learnt)) == 1:
        return remaining, best
    # The remaining parts may need later parts, so the remaining parts are tried after all other parts.
    line = Round(frozenset(), (diff.all_parts - remaining, *ordered_parts(diff, singles(remaining), 1)))
    answer = yield line
    if line.steps[0] and answer and answer[1] > 1 and answer != (1, len(line.steps)):
        remaining, best = frozenset[int]().union(*line.steps[max(answer[0] - 1, 1) : answer[1]]), line
    return remaining, best
