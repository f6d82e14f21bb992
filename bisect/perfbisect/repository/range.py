"""Reads the range of a hunt: the commits between two revisions, and the graph of the commits that can differ in speed.
For `bisect narrow`, makes commits that contain only some parts of a commit's diff.

Commits of the range are read with git's history simplification. If a commit's tree, without ignored paths, equals the
tree of a parent, the two commits cannot differ in speed. The commit is then removed from the graph, and its children
become children of this parent. If such a commit is a merge, git does not follow the merge's other parents, because none
of their changes is in the result.

Parents outside of the range are replaced by node 0, the good end. There is one exception: if a branch began before
good, the commit at which the branch began (the branch point) gets a separate node, unless this commit equals good in
all paths that are not ignored.

A resumed hunt reads the graph again, so each reading must give the same graph. Therefore each parent outside of the
range is given to git as an excluded commit; otherwise the dates of commits could decide whether git stops at these
parents. For the same reason, git's commit-graph file, which git may write at any time, is not used.

`bisect narrow` measures trees between a parent and a commit, each of which has some parts of the commit's diff
(``core/search/parts.py``). These trees are stored as commits in a temporary repository, which reads the objects of the
user's repository.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from perfbisect.core.domain.events import part_titles
from perfbisect.core.domain.facts import DiffPart
from perfbisect.core.domain.graph import Graph
from perfbisect.core.search.parts import CommitDiff, DiffPiece, Entry, FileDiff, LineEdit, decoded, split_lines, text_of
from perfbisect.errors import EndsSwapped, UsageError
from perfbisect.repository.changed_functions import HUNK
from perfbisect.repository.commits import OPTIONS
from perfbisect.repository.derived import TemporaryGit
from perfbisect.repository.git import Repository, git, pathspecs_except, temporary_bare_repository


@dataclass(frozen=True, slots=True, eq=False)
class CommitRange:
    """The commits between good and bad. Hashes are full."""

    good: str
    bad: str
    base: str  # the good end of the graph: good, or the merge base if good is not an ancestor of bad
    commits: int  # number of commits reachable from bad and not from good
    merges: int  # how many of these commits are merges
    graph: Graph
    candidates: tuple[str, ...]  # the commit of each node; the first is base, the last is as fast as bad


def read_range(
    repo: Repository, good: str, bad: str, ignore: Sequence[str], *, first_parent: bool = False
) -> CommitRange:
    """The range between two commits, given by their full hashes. Paths that match ``ignore``, the glob patterns of a
    recipe, are ignored.

    Raises UsageError if there is nothing to search: the ends are equal or swapped, have no common history, or have no
    candidates between them.
    """
    base = _merge_base(repo, good, bad)
    walk = ["rev-list", "--stdin", "--parents", *(["--first-parent"] if first_parent else [])]
    ends = [bad, f"^{good}", f"^{base}"]
    listing = git(repo, *walk, stdin="\n".join(ends))
    inside = [line.split(" ")[: 2 if first_parent else None] for line in listing.splitlines()]
    boundary = {parent for row in inside for parent in row[1:]} - {row[0] for row in inside}

    limits = [*ends, *(f"^{commit}" for commit in sorted(boundary))]
    paths = ["--", *pathspecs_except(ignore)]
    simplified = git(repo, *walk, "--topo-order", "--reverse", stdin="\n".join(limits + paths))
    rows = [line.split(" ") for line in simplified.splitlines()]
    if first_parent:
        # The parents that git lists are replaced. The only parent of a commit is the commit of the previous row; the
        # only parent of the first commit is the boundary.
        parents_of_rows = [boundary, *([row[0]] for row in rows)]
        rows = [[row[0], *parent] for row, parent in zip(rows, parents_of_rows, strict=False)]
        if joins := _oldest_containing_base_unless_all(repo, base, bad, inside, boundary):
            rows = [[*row, base] if row[0] == joins else row for row in rows]
    if not rows:
        raise UsageError(
            f"No commit of the range can change the speed: its commits ({len(inside)}) change only ignored paths.",
            f"Ignored paths of the builder's recipe: {', '.join(ignore) or 'none'}.",
        )
    # --ignore-submodules=none: a setting `submodule.NAME.ignore` must not hide changes.
    compare = ["diff-tree", "-r", "--name-only", "--no-renames", "--ignore-submodules=none", base]
    outside = _outside_parents(rows, base, lambda commit: not git(repo, *compare, commit, *paths).strip())
    points = _ancestors_first(repo, {parent for parents in outside.values() for parent in parents})
    merges = sum(line.count(" ") > 1 for line in listing.splitlines())
    graph = Graph.from_parents(_parents(rows, outside, points), branch_points=len(points))
    return CommitRange(good, bad, base, len(inside), merges, graph, (base, *points, *(row[0] for row in rows)))


def _merge_base(repo: Repository, good: str, bad: str) -> str:
    """The merge base of good and bad. Raises UsageError if they are equal or swapped, or have no common history."""
    if good == bad:
        raise UsageError(f"Good and bad are the same commit {good[:10]}.", "Give two different revisions.")
    base = git(repo, "merge-base", good, bad, allowed=(0, 1)).strip()
    if not base:
        raise UsageError(f"Good {good[:10]} and bad {bad[:10]} have no common history.")
    if base == bad:
        raise EndsSwapped(
            f"Bad {bad[:10]} is an ancestor of good {good[:10]}: the two revisions seem to be swapped.",
            f"Write the older revision first: bisect run {bad[:10]} {good[:10]}. To find an improvement, also write the older"
            " revision first, and add --direction rise (or --direction drop, for a metric that is better if lower).",
        )
    return base


def _oldest_containing_base_unless_all(
    repo: Repository, base: str, bad: str, inside: Sequence[Sequence[str]], boundary: Collection[str]
) -> str | None:
    """The oldest commit that contains ``base``, among the commits of a walk along first parents; None if all these
    commits contain ``base``, because the walk then begins at ``base``."""
    if base in boundary:
        return None
    later = set(git(repo, "rev-list", "--ancestry-path", "--stdin", stdin=f"{bad}\n^{base}").split())
    return next((row[0] for row in reversed(inside) if row[0] in later), None)


def _outside_parents(
    rows: Sequence[Sequence[str]], good: str, is_same_as_good: Callable[[str], bool]
) -> dict[str, tuple[str, ...]]:
    """For each first commit of a branch that began before good, its parents outside of the range. Commits that contain
    good, or that contain a commit for which ``is_same_as_good`` is true, are left out.
    """
    candidates = {row[0] for row in rows}
    as_good = {good: True}
    has_good: set[str] = set()
    parents_of: dict[str, tuple[str, ...]] = {}
    for commit, *parents in rows:
        outside = tuple(parent for parent in parents if parent not in candidates)
        if any(parent in has_good or as_good.get(parent) for parent in parents):
            has_good.add(commit)
            continue
        as_good |= {parent: is_same_as_good(parent) for parent in outside if parent not in as_good}
        if any(as_good[parent] for parent in outside):
            has_good.add(commit)
        elif outside:
            parents_of[commit] = outside
    return parents_of


def _ancestors_first(repo: Repository, commits: Collection[str]) -> list[str]:
    """The commits, ancestors first."""
    if len(commits) < 2:
        return list(commits)
    chosen = sorted(commits)
    oldest = git(repo, "merge-base", "--octopus", *chosen, allowed=(0, 1)).strip()
    ends = [*chosen, *([f"^{oldest}"] if oldest else [])]
    later = git(repo, "rev-list", "--topo-order", "--reverse", "--stdin", stdin="\n".join(ends)).split()
    return [commit for commit in (oldest, *later) if commit in commits]


def _parents(
    rows: Sequence[Sequence[str]], outside: Mapping[str, Sequence[str]], points: Sequence[str]
) -> list[list[int]]:
    """The parents of each node. The nodes are good, then the branch points ``points``, then the commits of ``rows``."""
    older = {commit: number for number, commit in enumerate(points, 1)}
    node = {row[0]: number for number, row in enumerate(rows, 1 + len(points))}
    parents: list[list[int]] = [[] for _ in range(1 + len(points))]
    for commit, *parent_commits in rows:
        older_node = older if commit in outside else {}
        parents.append(list(dict.fromkeys(node.get(parent, older_node.get(parent, 0)) for parent in parent_commits)))
    return parents


RAW = ("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "-M", *OPTIONS)


FUNCTION = re.compile(
    rb"\A[^{};=]*\)[^;{}]*\{.*^\}\s*\Z|\A(?:@.*\n)*(?:async |pub |export )*(?:def|class|func|fn) ",
    re.DOTALL | re.MULTILINE,
)


@dataclass(eq=False)
class PartialDiffCommits:
    """Makes commits that contain some parts of the diff between a parent and a commit, in a temporary repository."""

    repository: Repository  # the user's repository, with the objects of all commits that are made
    parent: str  # full hashes
    commit: str
    diff: CommitDiff
    _ask: TemporaryGit
    _when: str  # seconds since the epoch, the date of the commit
    _made: dict[frozenset[int], str] = field(default_factory=dict)

    def hashes(self, part_sets: Sequence[frozenset[int]]) -> tuple[str, ...]:
        """For each set of parts, the hash of a commit with these parts. Equal sets have the same commit; for the set of
        all parts, the commit is ``commit`` itself.
        """
        commits = self._made
        commits |= {frozenset(): self.parent, self.diff.all_parts: self.commit}
        todo = [state for state in dict.fromkeys(part_sets) if state not in commits]
        if todo:
            blobs: dict[bytes, int] = {}
            text = b"".join(self._fast_import_commit(state, number, blobs) for number, state in enumerate(todo, 1))
            contents = (b"blob\nmark :%d\ndata %d\n%s\n" % (mark, len(blob), blob) for blob, mark in blobs.items())
            marks = self._ask.bare / "perfbisect.marks"
            stream = b"".join([*contents, text, b"done\n"]).decode(errors="surrogateescape")
            self._ask.git("fast-import", "--quiet", "--force", "--done", f"--export-marks={marks}", stdin=stream)
            hash_of_mark = dict(line.split() for line in marks.read_text().splitlines())
            commits |= {state: hash_of_mark[f":{number}"] for number, state in enumerate(todo, 1)}
        return tuple(commits[state] for state in part_sets)

    def parts_for_display(self, chosen: Collection[int]) -> tuple[DiffPart, ...]:
        """The chosen parts as they are shown to users: if all parts of a file are chosen, the file is shown as a single
        part."""
        of_file = defaultdict[int, list[int]](list)
        for number, piece in enumerate(self.diff.pieces):
            of_file[piece.file].append(number)
        parts: list[DiffPart] = []
        for numbers in of_file.values():
            chosen_parts = [self.diff.pieces[number].shown for number in numbers if number in chosen]
            is_file = len(chosen_parts) == len(numbers) > 1
            parts += [DiffPart(chosen_parts[0].path, hunks=len(chosen_parts))] if is_file else chosen_parts
        return tuple(parts)

    def _fast_import_commit(self, parts: frozenset[int], number: int, blobs: dict[bytes, int]) -> bytes:
        """The commit with ``parts``, in the format of `git fast-import`. The file contents of the commit are added to
        ``blobs``."""
        deletions, changes = list[bytes](), list[bytes]()
        for old_entry, new_entry in self.diff.changed_entries(parts):
            if old_entry and (new_entry is None or new_entry.path != old_entry.path):
                deletions.append(b"D %s\n" % fast_import_path(old_entry.path))
            if new_entry:
                is_module = new_entry.mode == "160000"
                mark = 0 if is_module else blobs.setdefault(new_entry.content, len(blobs) + 1_000_000)
                reference = new_entry.content if is_module else b":%d" % mark
                changes.append(b"M %s %s %s\n" % (new_entry.mode.encode(), reference, fast_import_path(new_entry.path)))
        few = len(parts) * 2 <= len(self.diff.all_parts)
        shown = part_titles(self.parts_for_display(parts if few else self.diff.all_parts - parts))
        message = f"{self.parent[:10]} with {shown}" if few else f"{self.commit[:10]} without {shown}"
        message_bytes = message.encode(errors="replace")
        who = b"perfbisect <perfbisect@localhost> %s +0000" % self._when.encode()
        head = b"commit refs/perfbisect/parts\nmark :%d\nauthor %s\ncommitter %s\ndata %d\n%s\nfrom %s\n"
        commands = b"".join([*deletions, *changes])
        return head % (number, who, who, len(message_bytes), message_bytes, self.parent.encode()) + commands + b"\n"


def fast_import_path(path: str) -> bytes:
    """A path in the format of `git fast-import`."""
    raw = path.encode(errors="surrogateescape").replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    return b'"%s"' % raw


@contextmanager
def partial_diff_commits(
    repo: Repository, parent: str, commit: str, ignore: Sequence[str]
) -> Iterator[PartialDiffCommits]:
    """An object that makes commits with some parts of the diff between a parent and a commit (full hashes). Changes in
    paths that match ``ignore``, the glob patterns of a recipe, belong to no part.

    Raises UsageError if the commit changes nothing outside of ignored paths.
    """
    with temporary_bare_repository(repo) as bare:
        ask = TemporaryGit(bare)
        raw = iter(ask.git(*RAW, parent, commit, "--", *pathspecs_except(ignore)).split("\0"))
        files, pieces = list[FileDiff](), list[DiffPiece]()
        for head in filter(None, raw):
            (mode, new_mode, blob, new_blob, status), path = head.removeprefix(":").split(" "), next(raw)
            new_path = next(raw) if status[0] in "RC" else path
            old_entry, new_entry = (
                Entry(at, of, name.encode() if of == "160000" else ask.content(name)) if of.strip("0") else None
                for at, of, name in ((path, mode, blob), (new_path, new_mode, new_blob))
            )
            sides = [entry for entry in (old_entry, new_entry) if entry]
            by_lines = all(entry.mode.startswith("100") and b"\0" not in entry.content for entry in sides)
            hunks = list[tuple[int, int, int, int, str]]()
            if by_lines and old_entry and new_entry:
                for *numbers, scope in HUNK.findall(
                    ask.git("diff", "-U0", *OPTIONS, "--inter-hunk-context=6", "--no-indent-heuristic", blob, new_blob)
                ):
                    first, size, first_after, size_after = (int(number or 1) for number in numbers)
                    start, start_after = first - (size > 0), first_after - (size_after > 0)
                    hunks.append((start, start + size, start_after, start_after + size_after, scope.rstrip()))
            elif by_lines and new_entry and new_entry.content:
                hunks.append((0, 0, 0, len(split_lines(new_entry.content)), ""))
            file, file_pieces = parts_of_file(len(files), old_entry, new_entry, hunks)
            files.append(file)
            pieces += file_pieces
        if not pieces:
            raise UsageError(f"{commit[:10]} differs from {parent[:10]} only in ignored paths.")
        when = ask.git("rev-list", "--max-count=1", "--no-commit-header", "--format=%ct", commit).strip()
        diff = CommitDiff(tuple(files), tuple(pieces))
        yield PartialDiffCommits(replace(repo, objects=bare / "objects"), parent, commit, diff, ask, when)


def parts_of_file(
    number: int, before: Entry | None, after: Entry | None, hunks: Sequence[tuple[int, int, int, int, str]]
) -> tuple[FileDiff, list[DiffPiece]]:
    """A changed file of a diff, and the parts into which its changes are divided.

    Each of ``hunks`` is (first old line, end of the old lines, first new line, end of the new lines, text in git's hunk
    header). Lines are counted from 0, and an end is the line after the last line.
    """
    entry = after or before
    assert entry, "only one of the two files exists"
    as_a_whole = FileDiff(before, after, by_lines=False)
    whole_file = DiffPiece(number, DiffPart(entry.path), added=text_of(after), removed=text_of(before))
    if after is None or not hunks:
        return as_a_whole, [whole_file]
    file = FileDiff(before, after, by_lines=True)
    old, new = split_lines(before.content if before else b""), split_lines(after.content)
    pieces: list[DiffPiece] = []
    if before and (before.path, before.mode) != (after.path, after.mode):
        pieces.append(DiffPiece(number, DiffPart(after.path)))
    line_number = 0
    for first, end, first_after, end_after, scope in hunks:
        added = new[first_after:end_after]
        blocks = split_block_by_functions(added) if first == end else [[range(end_after - first_after)]]
        removed = decoded(old[first:end])
        for ranges in blocks:
            edits = []
            for lines_range in ranges:
                lines = tuple(new[first_after + lines_range.start : first_after + lines_range.stop])
                edits.append(LineEdit(first, end, lines, line_number + lines_range.start))
            text = [line for edit in edits for line in edit.lines]
            # The part with the lines outside of functions may have several ranges. Its line numbers, which are shown,
            # are from the start of the first range to the end of the last range.
            at = first_after + ranges[0].start
            alone = len(blocks) > 1 and len(ranges) == 1
            shown_scope = line_with_function_name(text) if alone else scope
            last = at + (ranges[-1].stop - ranges[0].start)
            lines_shown = (at + 1, last) if text else (first_after, first_after)
            part = DiffPart(entry.path, *lines_shown, scope=shown_scope)
            pieces.append(DiffPiece(number, part, tuple(edits), decoded(text), removed))
        line_number += end_after - first_after + 1
    return (file, pieces) if file.with_parts(pieces) == after else (as_a_whole, [whole_file])


def split_block_by_functions(lines: Sequence[bytes]) -> list[list[range]]:
    """The parts of a block of new code, each with its ranges of lines: first a part with all lines outside of
    functions, if there are such lines, then a part for each function. A block with fewer than two functions is a single
    part.
    """
    starts = [0]
    for at in range(1, len(lines)):
        if not lines[at - 1].strip() and re.match(rb"[A-Za-z_/@]", lines[at]):
            starts.append(at)
    blocks = [range(first, end) for first, end in zip(starts, [*starts[1:], len(lines)], strict=True)]
    functions = [block for block in blocks if is_single_function(b"".join(lines[block.start : block.stop]))]
    frame = [block for block in blocks if block not in functions]
    if len(functions) < 2:
        return [[range(len(lines))]]
    return [*([frame] if frame else []), *([block] for block in functions)]


def is_single_function(text: bytes) -> bool:
    """Whether a block of code is exactly one function, possibly preceded by comments."""
    code = re.sub(rb"/\*.*?\*/|//[^\n]*", b"", text, flags=re.DOTALL).strip()
    conditions = len(re.findall(rb"^\s*#\s*if", code, re.MULTILINE)) == len(
        re.findall(rb"^\s*#\s*endif", code, re.MULTILINE)
    )
    return bool(FUNCTION.match(code)) and code.count(b"{") == code.count(b"}") and conditions


def line_with_function_name(function_lines: Sequence[bytes]) -> str:
    """The first line of a function that contains its name."""
    code = [line for line in function_lines if b"(" in line and not line.lstrip().startswith((b"/", b"*", b"#", b"@"))]
    return decoded([*code, *function_lines][:1]).strip().removesuffix("{").strip()
