"""What is built of the local repository beside its commits: patches, tried there before anything is built; and states between
a commit and its parent, in the search for the part of its diff that made it slower.
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
from perfbisect.core.search.parts import FILE_NAME, WORD, Course, Diff, Learnt, Piece, Round, course, decoded, lines_of
from perfbisect.errors import CannotGoOn, UsageError
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.builder_reader import check_names, recipe_patches
from perfbisect.repository.derived import apply, paths_of
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.git import all_but, borrowed, git, run, sealed
from perfbisect.repository.range import CommitRange, DiffCommits

QUOTED = re.compile(r"[`'\"‘]([^`'\"\s’]*\w[^`'\"\s’]*)['\"’]")
PLACE = re.compile(r"([^\s:]+):(\d+):(?:\d+:)? (?:fatal )?error")
MANY = 40  # parts with a word, from which on it tells nothing
SPENT = (Reason.RUNS_SPENT, Reason.BUILDS_SPENT, Reason.MINUTES_SPENT)
MOST = 100  # commits beyond the ends that a patch is tried on


def patches_of(settings: Settings, builder: Builder) -> tuple[Patch, ...]:
    """The patches for builds, in the order in which they are applied: the recipe's, then those of --patch.

    Raises UsageError for two of one name, and where nothing is built.
    """
    patches = (*recipe_patches(builder), *settings.patches)
    check_names(patches)
    given = ["--patch"] if settings.patches else [name for name, _ in settings.flags.options]
    if given and not settings.repository:
        raise UsageError(f"{given[0]} has no effect: nothing is built.", "Leave it out.")
    return patches if settings.repository else ()


@dataclass(slots=True)
class _Tries:
    """What came of trying the patches on commits."""

    bare: Path
    patches: tuple[Patch, ...]
    ignore: Sequence[str]
    reasons: dict[str, str] = field(default_factory=dict)  # name → why it was refused first
    fitting: set[str] = field(default_factory=set)  # names of those that apply somewhere
    counting: set[str] = field(default_factory=set)  # names of those that change a path that is not ignored

    def on(self, commit: str) -> None:
        """Try all patches on a commit, each after those before it."""
        for patch in self.patches:
            made, why = apply(self.bare, commit, patch.content)
            if not made:
                self.reasons.setdefault(patch.name, why)
                continue
            self.fitting.add(patch.name)
            compare = ["diff-tree", "-r", "--quiet", "--no-renames", "--no-ext-diff", commit, made, "--"]
            git_dir, paths = f"--git-dir={self.bare}", all_but(self.ignore)
            if patch.name not in self.counting and run([git_dir, *compare, *paths], self.bare, sealed()).returncode:
                self.counting.add(patch.name)
            commit = made


def check_patches(
    patches: tuple[Patch, ...], settings: Settings, builder: Builder, span: CommitRange, *, is_range: bool
) -> tuple[Warned, ...]:
    """Try the patches on the ends, and on the commits of the range that change their files; the user's repository stays.

    A recipe's own may apply nowhere. Raises UsageError when one of --patch does, and for what is no patch. The warnings
    name patches that change only ignored paths.
    """
    if not patches:
        return ()
    repository = open_repository(Path(settings.repository))
    with borrowed(repository) as bare:
        paths = {patch.name: paths_of(bare, patch.file or patch.name, patch.content) for patch in patches}
        tries = _Tries(bare, tuple(patch for patch in patches if not patch.version), builder.ignore)
        ends = (settings.good_commit, settings.bad_commit) if is_range else span.candidates
        commits = [commit for commit in dict.fromkeys(ends) if re.fullmatch("[0-9a-f]{40,}", commit)]
        for commit in commits:
            tries.on(commit)
        for patch in settings.patches:
            # Only at a commit that changes one of its paths can a patch begin to apply, or cease to.
            literal = [f":(top,literal){path}" for path in paths[patch.name]]
            walk = ["rev-list", "--full-history", f"--max-count={MOST}", span.bad, f"^{span.good}", "--", *literal]
            for commit in git(repository, *walk).split() if literal and is_range else ():
                if patch.name in tries.fitting:
                    break
                tries.on(commit)
            if patch.name not in tries.fitting:
                where = f"no commit of {settings.good}..{settings.bad}" if is_range else "none of these commits"
                raise UsageError(
                    f"The patch {patch.name} applies to {where}: {tries.reasons[patch.name]}.",
                    "It is applied as by `git apply`, from the top of the tree. Make it with `git diff` in this repository.",
                )
    idle = f"changes only paths that the recipe of {builder.name} ignores: builds stay as they are"
    names = [patch.name for patch in tries.patches if patch.name in tries.fitting - tries.counting]
    return tuple(Warned(f"The patch {name} {idle}") for name in names)


def outcome(verdict: Verdict) -> tuple[int, int] | None:
    """The first and the last step, between which the guilty one is, as the verdict of a round names it."""
    match verdict:
        case Found(step):
            return min(step.parents, default=step.candidate - 1) + 1, step.candidate
        case Inconclusive(candidates, reason=Reason.UNBUILDABLE):
            return min(candidates), max(candidates)
        case _:
            return None


def missing(diff: Diff, state: frozenset[int], reason: str) -> set[tuple[int, int]]:
    """What the reason why a state does not build tells: pairs of a part in it and another one that this needs, as both have its words.

    Where it has a place, one of both is there: lines of a part, which need what defines the words; or lines that another part
    replaces, without which those do not fit that define them. Where it quotes none of their words, those of its line count.
    """
    if (place := PLACE.search(reason)) and (hit := part_at(diff, place[1], int(place[2]), state)):
        at, text = hit
        others = diff.every - state if at in state else state
        named = [word for word in dict.fromkeys(QUOTED.findall(reason)) if not word.endswith((".c", ".h"))]
        named.sort(key=lambda word: (word in diff.words[0]) is (word in diff.words[1]))
        for word in named:
            having = {number for number in others if has(diff.pieces[number], word, changed=True)}
            own = {number for number in having if diff.pieces[number].file == diff.pieces[at].file}
            defining = {number for number in having if word in diff.defined[number]}
            if found := own & defining or defining or own or having:
                return paired(at, found, state)
        in_line = {*WORD.findall(text)}
        found = {number for number in others if in_line.intersection(diff.defined[number])}
        found |= {
            number for number in others for word in diff.defined[at] if has(diff.pieces[number], word, changed=False)
        }
        if 0 < len(found) <= MANY:
            return paired(at, found, state)
    quoted, (before, after) = QUOTED.findall(reason), diff.words
    of_one_side = [word for word in quoted if (word in before) is not (word in after)]
    for words in (of_one_side, quoted, [*WORD.findall(reason), *FILE_NAME.findall(reason)]):
        for changed in (True, False):  # first where a part adds or removes the word, then wherever it has it
            pairs = set[tuple[int, int]]()
            for word in dict.fromkeys(words):
                own = {number for number, piece in enumerate(diff.pieces) if has(piece, word, changed=changed)}
                if len(own) <= MANY:
                    pairs.update((inside, other) for inside in own & state for other in own - state)
            if pairs:
                return pairs
    return set()


def paired(at: int, others: Iterable[int], state: frozenset[int]) -> set[tuple[int, int]]:
    """Pairs of a part and each of others, that in the state first."""
    return {(at, other) if at in state else (other, at) for other in others if other != at}


def part_at(diff: Diff, path: str, line: int, state: frozenset[int]) -> tuple[int, str] | None:
    """The part that has a line (from 1) of a file as it is in a state, or would replace it, and that line; None: no part."""
    sides = [(number, entry) for number, file in enumerate(diff.files) for entry in (file.before, file.after) if entry]
    same = (
        number for number, side in sides if f"/{path}".endswith(f"/{side.path}") or f"/{side.path}".endswith(f"/{path}")
    )
    if (own := next(same, None)) is None:
        return None
    edits = [(edit, at) for at, piece in enumerate(diff.pieces) if piece.file == own for edit in piece.edits]
    before, row, end = diff.files[own].before, 0, 0
    old = lines_of(before.content if before else b"")
    for edit, at in sorted(edits, key=lambda pair: pair[0].place):
        row += edit.first - end
        lines = edit.lines if at in state else old[edit.first : edit.end]
        if row < line <= row + len(lines):
            return at, decoded([lines[line - row - 1]])
        row, end = row + len(lines), edit.end
    return None


def has(piece: Piece, word: str, *, changed: bool) -> bool:
    """Whether a word is in the lines of a part, and as it is ``changed``, more often on one side; or is the name of its file."""
    if not piece.edits and PurePosixPath(piece.shown.path).stem in (word, PurePosixPath(word).stem):
        return True
    alone = re.compile(rf"(?<![\w$]){re.escape(word)}(?![\w$])")
    here, there = (len(alone.findall(side)) for side in (piece.added, piece.removed))
    return here != there if changed else here + there > 0


def failed_builds(events: Iterable[Event]) -> dict[str, tuple[str, ...]]:
    """The commits that do not build, and why: one or several errors."""
    failed = (event.facts for event in events if isinstance(event, CandidateSkipped) and event.facts.of_build)
    return {facts.commit: facts.errors or (facts.reason,) for facts in failed}


@dataclass(slots=True)
class PartSearch:
    """The rounds of a search in the diff of a commit: the present one as a range of commits."""

    commits: DiffCommits
    rounds: Course
    present: Round
    learnt: Learnt
    named: Round | None = None  # the one that has named what is proven
    # A proof that a spent budget has ended: until more is allowed, the named part is shown in its place.
    cut: Round | None = None

    @classmethod
    def begin(cls, commits: DiffCommits) -> "PartSearch":
        """The search in its first round."""
        learnt = Learnt(set)
        rounds = course(commits.diff, learnt)
        return cls(commits, rounds, next(rounds), learnt)

    def replay(self, events: Iterable[Event]) -> "PartSearch":
        """The search where the log of a session ends. Raises CannotGoOn where its rounds were other ones."""
        verdict: Verdict | None = None
        asked: tuple[str, ...] = ()
        failed: dict[str, tuple[str, ...]] = {}
        for event in events:
            failed |= failed_builds([event])
            if isinstance(event, SessionStarted) and event.candidates != asked:
                asked = event.candidates
                if verdict:
                    self.next(verdict, failed)
                if self.span.candidates != asked:
                    raise CannotGoOn(
                        "The search cannot go on: it would now divide the diff in another way than before.",
                        "Begin a new one with: bisect narrow",
                    )
                verdict = None
            elif isinstance(event, Decided) and not isinstance(event.decision.order, Measure):
                verdict = event.decision.order
        if verdict:
            self.next(verdict, failed)
        self.present, self.cut = self.cut or self.present, None
        return self

    def failures(self, failed: Mapping[str, tuple[str, ...]]) -> dict[frozenset[int], tuple[str, ...]]:
        """The states of the present round that do not build, and why, by commits that do not."""
        made = zip(self.present.states, self.commits.make(self.present.states), strict=True)
        return {state: failed[commit] for state, commit in made if commit in failed}

    def learn(self, failed: Mapping[str, tuple[str, ...]]) -> set[tuple[int, int]]:
        """What failures of the present round tell that is new: pairs of a part and another one that it needs."""
        found = self.failures(failed)
        pairs = {
            pair
            for state, reasons in found.items()
            for reason in reasons
            for pair in missing(self.commits.diff, state, reason)
        }
        return {(inside, other) for inside, other in pairs if other not in self.learnt[inside]}

    def next(self, verdict: Verdict, failed: Mapping[str, tuple[str, ...]]) -> bool:
        """Go on to the next round after the verdict of the present one; false where that is the last."""
        before = self.present
        if self.cut:
            self.present, self.cut = self.cut, None
            return False
        if isinstance(verdict, Inconclusive) and verdict.reason in SPENT:
            if before.proven and self.named:
                alone, without = before.alone, before.without
                self.cut = before
                self.present = replace(self.named, proven=before.proven, alone=alone, without=without)
            return self.cut is not None
        for inside, other in self.learn(failed):
            self.learnt[inside].add(other)
        with suppress(StopIteration):
            while self.present.states == before.states:  # else it would be asked what is known
                self.present = self.rounds.send(outcome(verdict))
            if self.present.proven and not before.proven:
                self.named = self.named or before
            return True
        return False

    @property
    def span(self) -> CommitRange:
        """The present round: its states, the fast end first."""
        made, whole = self.commits.make(self.present.states), self.commits
        graph = Graph.line(len(self.present.steps))
        return CommitRange(whole.parent, whole.commit, made[0], len(made) - 1, 0, graph, made)

    def entered(self, started: SessionStarted) -> SessionStarted:
        """The beginning of a session with the parts that each state of the present round adds."""
        commits, present = self.commits, self.present
        own, every = present.proven, commits.diff.every
        beside = len(present.alone - own), len(every - own - present.without)
        proofs = tuple(zip(commits.make([present.alone, present.without]), beside, strict=True)) if own else ()
        return replace(started, parts=tuple(map(commits.shown, present.steps)), proofs=proofs)
