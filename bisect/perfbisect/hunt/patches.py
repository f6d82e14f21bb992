"""Makes commits with patches, and searches the diff of a commit for the part (such as a hunk) that makes the build
slower. The new commits are in a temporary repository, not in the user's repository.

Before the first build, perfbisect checks that the patches apply. In the search for a part, a state is a commit that
consists of the parent of the searched commit and some parts of its diff. The search builds and measures states.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from perfbisect.core.domain.events import CandidateSkipped, Decided, Event, SessionStarted, Warned
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Found, Inconclusive, Measure, Reason, Verdict
from perfbisect.core.domain.settings import Patch, Settings
from perfbisect.core.search.parts import (
    FILE_NAME,
    WORD,
    CommitDiff,
    DiffPiece,
    Learnt,
    PartRounds,
    Round,
    decoded,
    part_rounds,
    split_lines,
)
from perfbisect.errors import RunsNotComparable, UsageError
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.builder_reader import check_distinct_patch_names, recipe_patches
from perfbisect.repository.derived import apply_patch_as_commit, paths_of_patch
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.git import git, isolated_environment, pathspecs_except, run_git, temporary_bare_repository
from perfbisect.repository.range import CommitRange, PartialDiffCommits

QUOTED = re.compile(r"[`'\"‘]([^`'\"\s’]*\w[^`'\"\s’]*)['\"’]")
LOCATION = re.compile(r"([^\s:]+):(\d+):(?:\d+:)? (?:fatal )?error")  # the file and the line of a compiler's error
MAX_PARTS_OF_WORD = 40  # a word of a compiler's error is ignored if more than this number of parts have the word
BUDGET_REASONS = (Reason.RUNS_SPENT, Reason.BUILDS_SPENT, Reason.MINUTES_SPENT)
MAX_TRIED_COMMITS = 100  # largest number of commits on which a patch is tried, in addition to the ends of the range


def patches_of(settings: Settings, builder: Builder) -> tuple[Patch, ...]:
    """The patches for each build, in the sequence in which they are applied: first the patches of the recipe, then the
    patches of the option --patch. Raises UsageError if two patches have the same name, or if the user requests patches
    or flags, but no commit has to be built.
    """
    patches = (*recipe_patches(builder), *settings.patches)
    check_distinct_patch_names(patches)
    options = ["--patch"] if settings.patches else [name for name, _ in settings.flags.options]
    if options and not settings.repository:
        raise UsageError(f"{options[0]} has no effect, because nothing is built.", f"Omit {options[0]}.")
    return patches if settings.repository else ()


@dataclass(slots=True)
class _PatchResults:
    """Applies patches to commits in a temporary repository, and notes which patches apply and have an effect."""

    bare: Path  # the temporary repository in which patches are tried
    patches: tuple[Patch, ...]
    ignored_paths: Sequence[str]  # patterns of the paths that the recipe ignores
    refusals: dict[str, str] = field(default_factory=dict)  # name of a patch → the first reason why it did not apply
    applicable: set[str] = field(default_factory=set)  # names of the patches that apply to a commit
    effective: set[str] = field(default_factory=set)  # names of the patches that change a path that is not ignored

    def apply_all(self, commit: str) -> None:
        """Apply the patches to a commit, each patch on top of the previous patches, and store the results."""
        for patch in self.patches:
            patched, refusal = apply_patch_as_commit(self.bare, commit, patch.content)
            if not patched:
                self.refusals.setdefault(patch.name, refusal)
                continue
            self.applicable.add(patch.name)
            compare = ["diff-tree", "-r", "--quiet", "--no-renames", "--no-ext-diff", commit, patched, "--"]
            words = [f"--git-dir={self.bare}", *compare, *pathspecs_except(self.ignored_paths)]
            if patch.name not in self.effective and run_git(words, self.bare, isolated_environment()).returncode:
                self.effective.add(patch.name)
            commit = patched


def check_patches(
    patches: tuple[Patch, ...], settings: Settings, builder: Builder, span: CommitRange, *, is_range: bool
) -> tuple[Warned, ...]:
    """Check, in a temporary repository, whether the patches apply to good and bad. Returns a warning about each patch
    that changes only paths that the recipe ignores, because such a patch has no effect. A patch of --patch that applies
    to neither end is also tried on up to 100 commits of the range that change files of the patch. For a trial,
    ``is_range`` is false, and the patches are tried on the commits of all builds. Raises UsageError if a file is no
    patch, or if a patch of --patch applies to none of these commits. It is no error if a patch of the recipe applies to
    none of these commits.
    """
    if not patches:
        return ()
    repository = open_repository(Path(settings.repository))
    with temporary_bare_repository(repository) as bare:
        paths = {patch.name: paths_of_patch(bare, patch.file or patch.name, patch.content) for patch in patches}
        trial = _PatchResults(bare, tuple(patch for patch in patches if not patch.version), builder.ignore)
        ends = (settings.good_commit, settings.bad_commit) if is_range else span.candidates
        commits = [commit for commit in dict.fromkeys(ends) if re.fullmatch("[0-9a-f]{40,}", commit)]
        for commit in commits:
            trial.apply_all(commit)
        for patch in settings.patches:
            # Whether a patch applies can only change at a commit that changes one of the patch's files.
            literal = [f":(top,literal){path}" for path in paths[patch.name]]
            limit = f"--max-count={MAX_TRIED_COMMITS}"
            walk = ["rev-list", "--full-history", limit, span.bad, f"^{span.good}", "--", *literal]
            for commit in git(repository, *walk).split() if literal and is_range else ():
                if patch.name in trial.applicable:
                    break
                trial.apply_all(commit)
            if patch.name not in trial.applicable:
                target = f"no commit of {settings.good}..{settings.bad}" if is_range else "none of these commits"
                raise UsageError(
                    f"The patch {patch.name} applies to {target}: {trial.refusals[patch.name]}.",
                    "perfbisect applies a patch with `git apply`, in the top folder of the tree. Make the patch with `git diff`"
                    " in this repository.",
                )
    no_effect = f"changes only paths that the recipe of {builder.name} ignores: the builds are the same without it"
    names = [patch.name for patch in trial.patches if patch.name in trial.applicable - trial.effective]
    return tuple(Warned(f"The patch {name} {no_effect}") for name in names)


def first_and_last_suspect(verdict: Verdict) -> tuple[int, int] | None:
    """A round measures a sequence of states, each with more parts than the state before. Returns the first and the last
    step (from a state to the next state) that may be the cause according to the verdict of the round; None if the
    verdict names no step."""
    match verdict:
        case Found(step):
            return min(step.parents, default=step.candidate - 1) + 1, step.candidate
        case Inconclusive(candidates, reason=Reason.UNBUILDABLE):
            return min(candidates), max(candidates)
        case _:
            return None


def needs_from_error(diff: CommitDiff, failed_state: frozenset[int], error: str) -> set[tuple[int, int]]:
    """The needs that the error of a failed build shows, as pairs: a part of the diff that the failed state contains,
    and a missing part that the first part needs to compile.

    If the error names a file and a line, one part of each pair is the part at this line. Otherwise, or if no other part
    has a word of the error, both parts of a pair contain the same word of the error. The set is empty if the error
    shows no need.
    """
    return _needs_at_line(diff, failed_state, error) or _needs_by_shared_words(diff, failed_state, error)


def _needs_at_line(diff: CommitDiff, failed_state: frozenset[int], error: str) -> set[tuple[int, int]]:
    """Pairs of the part at an error's line and a part with a word of the error. Exactly one part of each pair is in the
    failed state.

    If the part at the line is in the state, this part needs the other parts, which are not in the state and define the
    words. If the part at the line is not in the state, but would replace the line, the other parts need this part. If
    no part has a quoted word of the error, the words of the line are used in place of the words of the error.
    """
    location = LOCATION.search(error)
    hit = part_and_line_at(diff, location[1], int(location[2]), failed_state) if location else None
    if not hit:
        return set()
    part, line = hit
    other_side = diff.all_parts - failed_state if part in failed_state else failed_state
    old_words, new_words = diff.words_of_files_before_and_after
    quoted = [word for word in dict.fromkeys(QUOTED.findall(error)) if not word.endswith((".c", ".h"))]
    # Words that only the older side or only the newer side has are tried first.
    for word in sorted(quoted, key=lambda word: (word in old_words) is (word in new_words)):
        changing = {number for number in other_side if has_word(diff.pieces[number], word, changed=True)}
        in_file = {number for number in changing if diff.pieces[number].file == diff.pieces[part].file}
        defining = {number for number in changing if word in diff.defined[number]}
        if partners := in_file & defining or defining or in_file or changing:
            return inside_outside_pairs(part, partners, failed_state)
    words = {*WORD.findall(line)}
    partners = {number for number in other_side if words.intersection(diff.defined[number])}
    defined, pieces = diff.defined[part], diff.pieces
    partners |= {number for number in other_side for word in defined if has_word(pieces[number], word, changed=False)}
    return inside_outside_pairs(part, partners, failed_state) if len(partners) <= MAX_PARTS_OF_WORD else set()


def _needs_by_shared_words(diff: CommitDiff, failed_state: frozenset[int], error: str) -> set[tuple[int, int]]:
    """Pairs of a part that is in the failed state and a part that is not, if both parts contain the same word of the
    error.

    Words are tried in three groups until pairs are found: quoted words that only the older files or only the newer
    files contain, then all quoted words, then all words and names of files. A word that more than 40 parts have is
    ignored.
    """
    quoted, (old_words, new_words) = QUOTED.findall(error), diff.words_of_files_before_and_after
    of_one_side = [word for word in quoted if (word in old_words) is not (word in new_words)]
    for words in (of_one_side, quoted, [*WORD.findall(error), *FILE_NAME.findall(error)]):
        for changed in (True, False):  # first parts that add or remove the word, then all parts that contain the word
            pairs = set[tuple[int, int]]()
            for word in dict.fromkeys(words):
                parts = {number for number, piece in enumerate(diff.pieces) if has_word(piece, word, changed=changed)}
                if len(parts) <= MAX_PARTS_OF_WORD:
                    missing = parts - failed_state
                    pairs.update((inside, outside) for inside in parts & failed_state for outside in missing)
            if pairs:
                return pairs
    return set()


def inside_outside_pairs(part: int, partners: Iterable[int], state: frozenset[int]) -> set[tuple[int, int]]:
    """A pair of ``part`` and each of ``partners``. The first part of each pair is the part that is in ``state``."""
    return {(part, partner) if part in state else (partner, part) for partner in partners}


def part_and_line_at(diff: CommitDiff, path: str, line: int, state: frozenset[int]) -> tuple[int, str] | None:
    """The part of the diff to which a line of a file belongs, if the file has the contents of the state ``state``; and
    the text of the line. None if the line belongs to no part.

    Lines are counted from 1. A part that is in the state has the lines that the part adds; any other part has the lines
    that the part would replace. ``path`` may have more or fewer leading folders than the path in the repository.
    """
    sides = [(number, entry) for number, file in enumerate(diff.files) for entry in (file.before, file.after) if entry]
    matching = (
        number for number, side in sides if f"/{path}".endswith(f"/{side.path}") or f"/{side.path}".endswith(f"/{path}")
    )
    if (file_number := next(matching, None)) is None:
        return None
    pieces = [(part, piece) for part, piece in enumerate(diff.pieces) if piece.file == file_number]
    edits = [(edit, part) for part, piece in pieces for edit in piece.edits]
    old_file = diff.files[file_number].before
    old_lines = split_lines(old_file.content if old_file else b"")
    row, old_row = 0, 0  # the next line after the previous edit: in the state, and in the older file
    for edit, part in sorted(edits, key=lambda pair: pair[0].position):
        row += edit.first - old_row
        lines = edit.lines if part in state else old_lines[edit.first : edit.end]
        if row < line <= row + len(lines):
            return part, decoded([lines[line - row - 1]])
        row, old_row = row + len(lines), edit.end
    return None


def has_word(piece: DiffPiece, word: str, *, changed: bool) -> bool:
    """Whether the lines of a part contain a word, or whether the part is a whole file with the word as its name.

    If ``changed`` is true, the word must also occur more or less often in the added lines than in the removed lines.
    """
    if not piece.edits and PurePosixPath(piece.shown.path).stem in (word, PurePosixPath(word).stem):
        return True
    whole_word = re.compile(rf"(?<![\w$]){re.escape(word)}(?![\w$])")
    added, removed = (len(whole_word.findall(side)) for side in (piece.added, piece.removed))
    return added != removed if changed else added + removed > 0


def build_errors(events: Iterable[Event]) -> dict[str, tuple[str, ...]]:
    """Maps the hash of each commit that does not build to the errors of its build."""
    failed = (event.facts for event in events if isinstance(event, CandidateSkipped) and event.facts.is_build_failure)
    return {facts.commit: facts.errors or (facts.reason,) for facts in failed}


@dataclass(slots=True)
class PartSearch:
    """The search for the part of a commit's diff that makes the build slower. Each round searches a range of states:
    commits with more and more parts of the diff."""

    commits: PartialDiffCommits
    rounds: PartRounds
    present: Round
    learnt: Learnt
    named: Round | None = None  # the round whose verdict named the part that is being proven
    # The round of the proof in which the budget was spent; until the budget is raised, ``present`` is based on
    # ``named``.
    unfinished_proof: Round | None = None

    @classmethod
    def begin(cls, commits: PartialDiffCommits) -> "PartSearch":
        """A new search at its first round."""
        learnt = Learnt(set)
        rounds = part_rounds(commits.diff, learnt)
        return cls(commits, rounds, next(rounds), learnt)

    def replay(self, events: Iterable[Event]) -> "PartSearch":
        """Repeat the rounds of ``events``, the log of an interrupted session, without measurements. Returns the search,
        which then is at the last round of the log.

        Raises RunsNotComparable if the rounds of the log differ from the rounds that this search would make.
        """
        verdict: Verdict | None = None
        logged_states: tuple[str, ...] = ()
        errors: dict[str, tuple[str, ...]] = {}
        for event in events:
            errors |= build_errors([event])
            if isinstance(event, SessionStarted) and event.candidates != logged_states:
                logged_states = event.candidates
                if verdict:
                    self.choose_next_round(verdict, errors)
                if self.range_of_round.candidates != logged_states:
                    raise RunsNotComparable(
                        "The search in the diff cannot continue, because this version of perfbisect divides the diff into other parts.",
                        "Begin a new search with: bisect narrow",
                    )
                verdict = None
            elif isinstance(event, Decided) and not isinstance(event.decision.order, Measure):
                verdict = event.decision.order
        if verdict:
            self.choose_next_round(verdict, errors)
        self.present, self.unfinished_proof = self.unfinished_proof or self.present, None
        return self

    def new_needs(self, errors: Mapping[str, tuple[str, ...]]) -> set[tuple[int, int]]:
        """Pairs of a part and another part that it needs to compile, which failed builds of the present round show and
        which were unknown before.

        ``errors`` are the errors of commits that do not build, by hash.
        """
        commits = zip(self.present.states, self.commits.hashes(self.present.states), strict=True)
        pairs = {
            pair
            for state, commit in commits
            for error in errors.get(commit, ())
            for pair in needs_from_error(self.commits.diff, state, error)
        }
        return {(part, needed) for part, needed in pairs if needed not in self.learnt[part]}

    def choose_next_round(self, verdict: Verdict, errors: Mapping[str, tuple[str, ...]]) -> bool:
        """Choose the next round from the ``verdict`` of the present round. Returns whether there is a next round.

        ``errors`` are the errors of commits that do not build, by hash.
        """
        ended = self.present
        if self.unfinished_proof:
            self.present, self.unfinished_proof = self.unfinished_proof, None
            return False
        if isinstance(verdict, Inconclusive) and verdict.reason in BUDGET_REASONS:
            if ended.proven and self.named:
                self.unfinished_proof = ended
                self.present = replace(self.named, proven=ended.proven, alone=ended.alone, without=ended.without)
            return self.unfinished_proof is not None
        for part, needed in self.new_needs(errors):
            self.learnt[part].add(needed)
        with suppress(StopIteration):
            while self.present.states == ended.states:  # a round with equal states would have the same verdict
                self.present = self.rounds.send(first_and_last_suspect(verdict))
            if self.present.proven and not ended.proven:
                self.named = self.named or ended
            return True
        return False

    @property
    def range_of_round(self) -> CommitRange:
        """The commits that the present round searches, as a range. Each commit has more parts of the diff than the
        commit before; the first commit is the fast end."""
        commits = self.commits.hashes(self.present.states)
        graph = Graph.straight_history(len(self.present.steps))
        return CommitRange(self.commits.parent, self.commits.commit, commits[0], len(commits) - 1, 0, graph, commits)

    def with_parts(self, started: SessionStarted) -> SessionStarted:
        """The event ``started``, completed by the parts of the diff that each state of the present round adds to the
        state before.

        If the round is a proof, the event also has two commits: a commit with only the named parts, and a commit with
        all other parts. The number that accompanies a commit is the number of further parts that were added to the
        first commit, or left out of the second commit, because the commit would not build otherwise.
        """
        commits, present = self.commits, self.present
        proven, all_parts = present.proven, commits.diff.all_parts
        needed = len(present.alone - proven), len(all_parts - proven - present.without)
        proofs = tuple(zip(commits.hashes([present.alone, present.without]), needed, strict=True)) if proven else ()
        return replace(started, parts=tuple(map(commits.parts_for_display, present.steps)), proofs=proofs)
