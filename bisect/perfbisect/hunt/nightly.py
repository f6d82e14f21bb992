"""Carries out a *night*, which is one run of `bisect nightly`: compares the tip of a watched branch with earlier tips,
and hunts for the commits that caused drops.

A night is stored in the history as a comparison whose request names the branch. All nights of a branch with equal
settings form the *line* of the branch. The history stores to which night each hunt belongs. So an interrupted `bisect
nightly` can be repeated: the tip is not measured a second time, hunts that had begun continue, and no drop is hunted
twice.
"""

import fcntl
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from perfbisect.core.domain.facts import DropHunt
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import NOTHING_KNOWN, Policy, Settings, TrialBuild, TrialType
from perfbisect.core.stats.drops import Drop, DropRange
from perfbisect.core.stats.paired_comparison import Ratio
from perfbisect.core.stats.watched_branch import LONGEST, BranchLevels, tips_to_measure_again
from perfbisect.errors import EnvironmentFailure
from perfbisect.host.lock import WaitCallback
from perfbisect.hunt.attempt import refuse_imported
from perfbisect.hunt.drop_hunts import OPEN, HuntedComparison, mark_interrupted_reasons
from perfbisect.hunt.setup import SessionSetup
from perfbisect.hunt.trials.rounds import TrialDesign
from perfbisect.recipes.workload import Workload
from perfbisect.repository.commits import commits_in_set, commits_of_names
from perfbisect.repository.discovery import open_repository
from perfbisect.store.connection import default_history_path
from perfbisect.store.history import History
from perfbisect.store.prior_data import NIGHTS, hunts_after_nights
from perfbisect.wording.text import printable


@dataclass(frozen=True, slots=True)
class Watch:
    """A watched branch, and the settings and workloads with which its tips are compared and its drops are hunted."""

    branch: str  # as the user wrote it
    tip: str  # full hash
    settings: Settings
    works: Mapping[str, Workload]

    def comparable_nights(self, history: History) -> list[SessionState]:
        """The nights of the branch since a workload was last changed, oldest first.

        If the branch was rewritten, nights whose tip the repository no longer has are left out, because such a tip can
        neither be built nor be an end of a hunt. Raises UsageError if one of the nights was imported from the history
        of another user.
        """
        trials, key = history.intact_trials(NIGHTS, [self.branch]), line_key(self.settings)
        of_works = (trial for trial in trials if [work.name for work in trial.request.works] == [*self.works])
        nights = [*islice((trial for trial in of_works if line_key(history.settings(trial.id)) == key), LONGEST)]
        for night in nights:
            refuse_imported(history, night.id, "it cannot be an earlier night of this branch", night.name)
        repository = open_repository(Path(self.settings.repository))
        tips = commits_of_names(repository, [night.request.subjects[-1].commit for night in nights])
        with_tip = [night for night, tip in zip(nights, tips, strict=True) if tip]
        return [night for night in reversed(with_tip) if night.request.works == with_tip[0].request.works]

    def with_recognised_output(self, history: History, nights: Sequence[SessionState]) -> "Watch":
        """A copy of this watched branch, with the result, the filter and the metric that the newest night recognised in
        the output of a workload.
        """
        newest = history.settings(nights[-1].id) if nights and self.settings.recognise else self.settings
        settings = replace(self.settings, output=newest.output, filter=newest.filter, metric=newest.metric)
        return replace(self, settings=settings)

    def plan(
        self, nights: Sequence[SessionState], visits: int, runs: int, waiting: WaitCallback | None
    ) -> SessionSetup:
        """The setup of a night: a comparison of the tip with earlier tips.

        In the first night of a branch, only the tip is measured, to check that the tip can be built and measured.
        """
        broken = {build.commit for night in nights for build in night.request.subjects if build.trouble}
        earlier = tips_to_measure_again(
            [tip for tip in BranchLevels.from_nights(nights).tips if tip.commit not in {*broken, self.tip}]
        )
        tip = TrialBuild(self.tip[:10], self.tip)
        subjects = [*(TrialBuild(companion.name, companion.commit) for companion in earlier), tip]
        settings = replace(self.settings, good=subjects[0].name, bad=tip.name)
        rounds, kind = visits if earlier else 1, TrialType.COMPARE
        return TrialDesign(kind, subjects, self.works, rounds, runs, branch=self.branch).set_up(settings, waiting)


def line_key(settings: Settings) -> Settings:
    """The settings of a night without the settings that do not affect the measured levels of builds. Two nights can be
    compared with each other if their results are equal."""
    return replace(
        settings, good="", bad="", good_commit="", bad_commit="", run_hash="", build_hash="", policy=Policy(),
        prior=NOTHING_KNOWN, explain=False, suspects={}, name="", output=None, filter=None,
        metric="" if settings.recognise else settings.metric,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class CombinedNightsComparison(HuntedComparison):
    """The nights of a branch, combined into one comparison of all measured tips of the branch.

    The number of a build in this comparison is the index of its commit in ``line.tips``.
    """

    line: BranchLevels
    drops: tuple[DropRange, ...]
    tonight: SessionState  # the newest night

    @classmethod
    def read(cls, history: History, watch: Watch) -> "CombinedNightsComparison":
        """Read the nights of a branch from a history. The history must have at least one night of the branch."""
        nights = watch.comparable_nights(history)
        newest, line = nights[-1], BranchLevels.from_nights(nights)
        stored = history.settings(newest.id)
        policy = watch.settings.policy.for_exact_count() if stored.prior.exact else watch.settings.policy
        settings = replace(stored, policy=policy, explain=watch.settings.explain)
        request = replace(newest.request, subjects=line.tips)
        hunts = mark_interrupted_reasons(history, newest_hunt_by_drop(history, nights, line.tips), settings)
        trial = SessionState.of_trial(newest.id, request, newest.host, newest.began, newest.state, hunts=hunts)
        searched = [(hunt.work, hunt.first, hunt.last) for hunt in hunts if not hunt.culprit]
        drops = tuple(line.drop_ranges(request.metric, policy.min_effect, searched))
        return cls(trial, settings, line, drops, newest)

    def store_begun_hunt(self, history: History, drop: Drop, hunt: int) -> None:
        """Store that a hunt for a drop has begun.

        The hunt is stored with the newest night. If the newest night has measured both builds of the drop, the drop is
        stored, too.
        """
        number_of = {build.commit: number for number, build in enumerate(self.tonight.request.subjects)}
        first, last = (number_of.get(self.trial.request.subjects[number].commit) for number in (drop.first, drop.last))
        drop_tonight = None if first is None or last is None else (drop.work, first, last)
        history.enter_drop_hunt(self.trial.id, drop_tonight, hunt)

    def ranges_to_hunt(self) -> Iterator[DropRange]:
        """The ranges of commits that hunts must search: first the ranges of hunts that have begun and have no verdict,
        then the ranges of drops without a hunt.
        """
        for hunt in self.trial.hunts:
            if hunt.state in OPEN:
                begun = Drop(hunt.work, hunt.first, hunt.last, Ratio(1.0, None, 0))
                yield DropRange(hunt.first, hunt.last, (begun,))
        for span in self.drops:
            if new_drops := tuple(drop for drop in span.drops if not self.is_explained(drop)):
                yield replace(span, drops=new_drops)

    def is_explained(self, drop: Drop) -> bool:
        """Whether an earlier hunt of the branch has already named a commit between the ends of a drop.

        The ends of a drop may differ from the ends of an earlier hunt for the same drop, because the runs of later
        nights can move the place where the drop is found.
        """
        culprits = {hunt.culprit for hunt in self.trial.hunts if hunt.culprit and hunt.work == drop.work}
        ends = (self.trial.request.subjects[number].commit for number in (drop.first, drop.last))
        return bool(
            culprits and culprits & commits_in_set(open_repository(Path(self.settings.repository)), "..".join(ends))
        )


def newest_hunt_by_drop(
    history: History, nights: Sequence[SessionState], tips: Sequence[TrialBuild]
) -> tuple[DropHunt, ...]:
    """For each drop of the branch, the newest hunt for this drop; sorted by the age of the hunts, oldest first."""
    tip_number = {tip.commit: number for number, tip in enumerate(tips)}
    works = {work.name: number for number, work in enumerate(nights[-1].request.works)}
    hunts: dict[tuple[int, int, int], DropHunt] = {}
    for number in hunts_after_nights(history, [night.id for night in nights]):
        settings, listed = history.settings(number), history.session_summary(number)
        with suppress(KeyError):  # a hunt between old tips, which ``tips`` leaves out, is ignored
            drop = works[listed.workloads[0]], tip_number[settings.good_commit], tip_number[settings.bad_commit]
            hunts[drop] = listed.as_drop_hunt(*drop)
    return tuple(sorted(hunts.values(), key=lambda hunt: hunt.hunt))


@contextmanager
def night_lock(watch: Watch, history_path: Path | None, *, wait: bool, say: Callable[[str], None]) -> Iterator[None]:
    """During the ``with`` block, hold a lock, so that no other process of this machine works on a night of the same
    branch with the same settings.

    If another process holds the lock, waits if ``wait`` is true; otherwise raises EnvironmentFailure.
    """
    history_path = (history_path or default_history_path()).absolute()
    history_path.parent.mkdir(parents=True, exist_ok=True)
    line = repr((watch.branch, line_key(watch.settings), [*watch.works]))
    digest = hashlib.sha256(line.encode()).hexdigest()[:12]
    with history_path.with_name(f"{history_path.name}-nightly-{digest}").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            busy = f"Another process works on a night of {printable(watch.branch)}"
            if not wait:
                advice = "Repeat the command when that process has ended, or add --wait."
                raise EnvironmentFailure(f"{busy}.", advice) from None
            say(f"{busy}. Waiting until it has ended.")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
