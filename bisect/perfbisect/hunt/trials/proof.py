"""Sets up the sessions that can follow a verdict: the proof, and the search for the slow part of the culprit's diff.

The proof measures good, bad, and bad without the culprit. The search measures trees between the culprit's parent and
the culprit, each with some parts of the culprit's diff. perfbisect stores bad without the culprit, and the trees of the
search, as temporary commits in a separate repository, not in the user's repository. Both sessions have the settings of
the hunt, so that builds of the hunt are reused.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from perfbisect.core.domain.events import Event
from perfbisect.core.domain.orders import Inconclusive, Verdict, worsening_steps
from perfbisect.core.domain.settings import RevertedCommits, Settings, TrialBuild, TrialType
from perfbisect.errors import UsageError
from perfbisect.host.lock import WaitCallback
from perfbisect.hunt.attempt import refuse_imported, verdict_of
from perfbisect.hunt.patches import PartSearch
from perfbisect.hunt.proposal import read_tree
from perfbisect.hunt.setup import SessionSetup
from perfbisect.hunt.trials.rounds import TrialDesign
from perfbisect.recipes.proposal import is_unread_prose
from perfbisect.recipes.requested import load_requested
from perfbisect.report.command_line import bisect_command, command_to_compare
from perfbisect.repository.commits import commits_of_names
from perfbisect.repository.derived import temporary_revert
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.git import Repository
from perfbisect.repository.objects import tree_files
from perfbisect.repository.range import partial_diff_commits
from perfbisect.store.batches import batch_of_one_process, read_batch
from perfbisect.store.history import History
from perfbisect.wording.quantities import count


@dataclass(frozen=True, slots=True)
class Claim:
    """The result of a hunt that a proof tests: that the commits ``reverts`` cause the difference of bad and good."""

    settings: Settings  # settings of the hunt
    reverts: RevertedCommits
    together: tuple[Settings, ...] = ()  # settings of all hunts of the batch, if one process carried out several hunts


def claim_of(history: History, hunt: int | None) -> Claim:
    """The claim of ``hunt`` (None: the latest hunt with a culprit). Raises UsageError if the hunt names no culprit."""
    if hunt is None:
        for listed in reversed(history.hunts()):
            has_culprit = listed.culprit and not listed.origin and worsening_steps(verdict_of(history, listed.number))
            if has_culprit and not history.settings(listed.number).narrows:
                return claim_of(history, listed.number)
        raise UsageError(
            f"No hunt in the history {history.path} has named a culprit.", "Begin a hunt with `bisect run`."
        )
    refuse_imported(history, hunt, "its culprit cannot be proved or narrowed here")
    if of := history.settings(hunt).narrows:
        return claim_of(history, of)
    candidates, verdict = history.candidates(hunt), verdict_of(history, hunt)
    nodes = sorted((step.candidate for step in worsening_steps(verdict)), reverse=True)
    if not nodes:
        raise no_culprit_error(history, hunt, verdict)
    batch = batch_of_one_process(history, hunt)
    together = [member.hunt for member in batch.hunts if member.hunt is not None] if batch else []
    reverts = RevertedCommits(hunt, tuple(candidates[node] for node in nodes))
    return Claim(history.settings(hunt), reverts, tuple(history.settings(number) for number in together))


def no_culprit_error(history: History, hunt: int, verdict: Verdict | None) -> UsageError:
    """The error, with advice, if a proof is wanted but the hunt's verdict names no commit that could be reverted."""
    by_hand = "To test one commit, revert it on a branch and compare: bisect compare GOOD BAD BRANCH"
    match verdict:
        case None:
            command = bisect_command("resume", hunt, history.path)
            return UsageError(f"Hunt {hunt} has no verdict yet.", f"Continue it: {command}")
        case Inconclusive(candidates) if len(candidates) > 1:
            size = count(len(candidates), "commit")
            return UsageError(f"Hunt {hunt} named no culprit but a set of {size}, which are not reverted.", by_hand)
        case _:
            return UsageError(f"Hunt {hunt} named no culprit, so there is no commit to revert.", by_hand)


@contextmanager
def proof_setup(
    claim: Claim, rounds: int, runs: int, waiting: WaitCallback | None, say: Callable[[str], None]
) -> Iterator[SessionSetup]:
    """The setup of a proof. The commit without the culprit exists until the end of the ``with`` block.

    ``say`` is called with remarks. Raises CannotRevert if the commit without the culprit cannot be made, and UsageError
    if the repository lacks a commit of the hunt.
    """
    settings = replace(claim.settings, further_hosts=())
    builder, workload = load_requested(settings)
    trained = tuple(load_requested(measured)[1] for measured in claim.together)
    repository = open_repository(Path(settings.repository))
    commits = claim.reverts.commits
    check_commits_exist(repository, (settings.good_commit, settings.bad_commit, *commits), claim.reverts.hunt)
    bad = settings.bad_commit
    tree = cache(lambda: read_tree(repository, bad, tree_files(repository, bad)))
    commands = f"{builder.build} {workload.command} {workload.prepare_commands}"
    compare = command_to_compare(settings, settings.good, settings.bad, "reverted")
    with temporary_revert(
        repository, bad, commits, builder.ignore, lambda path: is_unread_prose(tree(), path, commands), compare
    ) as derived:
        for merge in derived.merges:
            say(f"{merge[:10]} is a merge commit, and is reverted relative to its first parent")
        if derived.adjacent_paths:
            say(
                f"lines that later commits added next to the reverted lines stay, in these files: {', '.join(derived.adjacent_paths)}"
            )
        if derived.conflict_paths:
            say(
                f"the revert has conflicts in files that no build reads; these files stay as in bad: {', '.join(derived.conflict_paths)}"
            )
        names = ", ".join(commit[:10] for commit in commits)
        builds = (
            TrialBuild(settings.good, settings.good_commit),
            TrialBuild(settings.bad, bad),
            TrialBuild(f"{settings.bad} without {names}", derived.commit),
        )
        proof = TrialDesign(
            TrialType.PROVE, builds, {workload.name: workload}, rounds, runs, claim.reverts,
            repository=derived.repository, trained=trained,
        )  # fmt: skip
        yield proof.set_up(settings, waiting)


def check_commits_exist(repository: Repository, commits: Sequence[str], hunt: int) -> None:
    """Raise UsageError if the repository lacks one of ``commits``, which are commits of a hunt."""
    found = commits_of_names(repository, commits)
    if absent := [name for name, commit in zip(commits, found, strict=True) if not commit]:
        raise UsageError(
            f"{repository.folder} no longer has commit {absent[0][:10]}, which hunt {hunt} measured.",
            "Fetch this commit into the repository, or begin a new hunt with: bisect run",
        )


def diff_searches_of_culprits(
    history: History, hunt: int | str | None, minutes: float, say: Callable[[str], None]
) -> list[Settings]:
    """For each culprit of a hunt or of a batch (such as b3), the settings of a search in the culprit's diff. ``hunt``
    is None for the latest hunt with a culprit.

    The range of a search is from the culprit's parent to the culprit. ``minutes`` is the time limit of each search; 0
    means no limit. ``say`` is called with the list of searches if there are several, and with the reason for each hunt
    of a batch in whose diff nothing is searched. Raises UsageError if there is no culprit.
    """
    if isinstance(hunt, str):
        numbers = [member.hunt for member in read_batch(history, int(hunt[1:])).hunts if member.hunt]
        searches, failures = list[Settings](), list[str]()
        for number in numbers:
            try:
                searches += _diff_searches_of_hunt(history, claim_of(history, number), minutes)
            except UsageError as failure:
                failures.append(str(failure))
        if not searches:
            reasons = "\n".join(failures) or "None of its hunts has begun."
            show_command = bisect_command("show", hunt, history.path)
            raise UsageError(f"No hunt of {hunt} has named a culprit.\n{reasons}", f"See the hunts: {show_command}")
        for reason in failures:
            say(f"Not searched: {reason}")
    else:
        searches = _diff_searches_of_hunt(history, claim_of(history, hunt), minutes)
        searched = searches[0].narrows
        batch = batch_of_one_process(history, searched)
        further = [member.hunt for member in batch.hunts if member.hunt and member.hunt != searched] if batch else []
        if batch and any(worsening_steps(verdict_of(history, number)) for number in further):
            command = bisect_command("narrow", batch.name, history.path)
            say(
                f"The search is in the culprit of hunt {searched}, of {searches[0].workload}. Other hunts of its session"
                f" named culprits, too. To search in all: {command}"
            )
    for search in searches if searches[1:] else ():
        say(f"Hunt {search.narrows}, of {search.workload}: the diff of {search.bad}")
    return searches


def _diff_searches_of_hunt(history: History, claim: Claim, minutes: float) -> list[Settings]:
    """For each culprit of one hunt, the settings of a search in the culprit's diff."""
    settings, number = claim.settings, claim.reverts.hunt
    nodes, searches = history.candidates(number), []
    policy = replace(settings.policy, all_steps=False, incremental=False, max_builds=0, max_runs=0, max_minutes=minutes)
    for step in worsening_steps(verdict_of(history, number)):
        parent, culprit = nodes[min(step.parents, default=step.candidate - 1)], nodes[step.candidate]
        searches.append(
            replace(
                settings, good=parent[:10], bad=culprit[:10], good_commit=parent, bad_commit=culprit, policy=policy,
                narrows=number, explain=False, remedies=False, first_parent=False, suspects={}, skips={}, noticed=False,
                counts=False,  # only timed runs skip a state that crashes
            )
        )  # fmt: skip
    return searches


@contextmanager
def diff_search_setup(
    settings: Settings, waiting: WaitCallback | None, events: Iterable[Event] = ()
) -> Iterator[SessionSetup]:
    """The setup of a search in a diff. To continue an interrupted search, ``events`` are the events of its log. The
    temporary commits of the search exist until the end of the ``with`` block.

    Raises UsageError if the repository lacks the culprit or its parent, or if the two differ only in ignored paths.
    """
    repository = open_repository(Path(settings.repository))
    check_commits_exist(repository, (settings.good_commit, settings.bad_commit), settings.narrows)
    [setup] = SessionSetup.set_up([settings], waiting)
    with partial_diff_commits(repository, settings.good_commit, settings.bad_commit, setup.builder.ignore) as derived:
        parts = PartSearch.begin(derived).replay(events)
        yield replace(setup, span=parts.range_of_round, repository=derived.repository, parts=parts)
