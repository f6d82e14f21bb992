"""A night of a watched branch: its tip is measured with earlier tips, and what the line then shows is hunted.

The history is all that is remembered. The line of a branch are its nights, comparisons that have the branch in their request
and the same settings; its hunts are about one of these. So the same call goes on where an earlier one was cut short: a tip is
measured once, begun hunts continue, and what was hunted is not hunted again.
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
from perfbisect.core.stats.watched_branch import LONGEST, Branch, companions_of_next
from perfbisect.errors import EnvironmentFailure
from perfbisect.host.lock import WaitCallback
from perfbisect.hunt.attempt import refuse_imported
from perfbisect.hunt.drop_hunts import OPEN, HuntedComparison, with_open_reasons
from perfbisect.hunt.setup import SessionSetup
from perfbisect.hunt.trials.rounds import TrialDesign
from perfbisect.recipes.workload import Workload
from perfbisect.repository.commits import commits_of, look_up
from perfbisect.repository.discovery import open_repository
from perfbisect.store.connection import default_place
from perfbisect.store.history import History
from perfbisect.store.prior_data import NIGHTS, hunts_about
from perfbisect.wording.text import printable


@dataclass(frozen=True, slots=True)
class Watch:
    """What is watched, and how it is measured and hunted."""

    branch: str  # as written
    tip: str  # full hash
    settings: Settings
    works: Mapping[str, Workload]

    def nights(self, history: History) -> list[SessionState]:
        """The nights of the line, oldest first; where workloads have changed, those since then.

        Without those whose tip the repository no longer has, since the branch was rewritten: it cannot be built, nor hunted from.
        Raises UsageError for a line of someone else.
        """
        every, same = history.intact_trials(NIGHTS, [self.branch]), measured_by(self.settings)
        ours = (each for each in every if [work.name for work in each.request.works] == [*self.works])
        found = [*islice((each for each in ours if measured_by(history.settings(each.id)) == same), LONGEST)]
        for each in found:
            refuse_imported(history, each.id, "no night goes on with it", each.name)
        repository = open_repository(Path(self.settings.repository))
        tips = look_up(repository, [each.request.subjects[-1].commit for each in found])
        there = [each for each, tip in zip(found, tips, strict=True) if tip]
        return [each for each in reversed(there) if each.request.works == there[0].request.works]

    def read_as(self, history: History, nights: Sequence[SessionState]) -> "Watch":
        """The same, where the newest night has recognised what of the output is measured."""
        known = history.settings(nights[-1].id) if nights and self.settings.recognise else self.settings
        return replace(
            self, settings=replace(self.settings, output=known.output, filter=known.filter, metric=known.metric)
        )

    def plan(
        self, nights: Sequence[SessionState], visits: int, runs: int, waiting: WaitCallback | None
    ) -> SessionSetup:
        """The comparison of the tip with earlier ones; the first tip is measured alone, to know that it can be."""
        broken = {build.commit for night in nights for build in night.request.subjects if build.trouble}
        earlier = companions_of_next([tip for tip in Branch.of(nights).tips if tip.commit not in {*broken, self.tip}])
        tip = TrialBuild(self.tip[:10], self.tip)
        subjects = [*(TrialBuild(each.name, each.commit) for each in earlier), tip]
        settings = replace(self.settings, good=subjects[0].name, bad=tip.name)
        rounds, kind = visits if earlier else 1, TrialType.COMPARE
        return TrialDesign(kind, subjects, self.works, rounds, runs, branch=self.branch).set_up(settings, waiting)


def measured_by(settings: Settings) -> Settings:
    """What of the settings decides the levels of builds."""
    return replace(
        settings, good="", bad="", good_commit="", bad_commit="", run_hash="", build_hash="", policy=Policy(),
        prior=NOTHING_KNOWN, explain=False, suspects={}, name="", output=None, filter=None,
        metric="" if settings.recognise else settings.metric,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Watched(HuntedComparison):
    """The line in its present state, as a comparison of its tips; numbers of builds are positions in it."""

    line: Branch
    drops: tuple[DropRange, ...]
    tonight: SessionState  # the newest night

    @classmethod
    def read(cls, history: History, watch: Watch) -> "Watched":
        """The line that has a night."""
        nights = watch.nights(history)
        newest, line = nights[-1], Branch.of(nights)
        stored = history.settings(newest.id)
        policy = watch.settings.policy.of_counts() if stored.prior.exact else watch.settings.policy
        settings = replace(stored, policy=policy, explain=watch.settings.explain)
        request = replace(newest.request, subjects=line.tips)
        hunts = with_open_reasons(history, hunts_of(history, nights, line.tips), settings)
        trial = SessionState.of_trial(newest.id, request, newest.host, newest.began, newest.state, hunts=hunts)
        searched = [(hunt.work, hunt.first, hunt.last) for hunt in hunts if not hunt.culprit]
        drops = tuple(line.drops(request.metric, policy.min_effect, searched))
        return cls(trial, settings, line, drops, newest)

    def enter(self, history: History, drop: Drop, hunt: int) -> None:
        """Enter that a hunt has begun, where tonight's table has both of its ends as a drop of that."""
        place = {build.commit: number for number, build in enumerate(self.tonight.request.subjects)}
        first, last = (place.get(self.trial.request.subjects[number].commit) for number in (drop.first, drop.last))
        table = None if first is None or last is None else (drop.work, first, last)
        history.enter_drop_hunt(self.trial.id, table, hunt)

    def ranges(self) -> Iterator[DropRange]:
        """What has been begun and has no verdict; then the drops that were not hunted yet."""
        for hunt in self.trial.hunts:
            if hunt.state in OPEN:
                begun = Drop(hunt.work, hunt.first, hunt.last, Ratio(1.0, None, 0))
                yield DropRange(hunt.first, hunt.last, (begun,))
        for span in self.drops:
            if left := tuple(drop for drop in span.drops if not self.is_hunted(drop)):
                yield replace(span, drops=left)

    def is_hunted(self, drop: Drop) -> bool:
        """Whether a hunt of the line has named a commit of that range: then the step may have moved as the line grew."""
        culprits = {hunt.culprit for hunt in self.trial.hunts if hunt.culprit and hunt.work == drop.work}
        ends = (self.trial.request.subjects[number].commit for number in (drop.first, drop.last))
        return bool(
            culprits and culprits & commits_of(open_repository(Path(self.settings.repository)), "..".join(ends))
        )


def hunts_of(history: History, nights: Sequence[SessionState], tips: Sequence[TrialBuild]) -> tuple[DropHunt, ...]:
    """The newest hunt for each range of the line, oldest first."""
    place = {tip.commit: number for number, tip in enumerate(tips)}
    works = {work.name: number for number, work in enumerate(nights[-1].request.works)}
    found: dict[tuple[int, int, int], DropHunt] = {}
    for number in hunts_about(history, [night.id for night in nights]):
        settings, listed = history.settings(number), history.listed(number)
        with suppress(KeyError):  # of tips so old that the line has left them out
            ends = works[listed.workloads[0]], place[settings.good_commit], place[settings.bad_commit]
            found[ends] = listed.for_drop(*ends)
    return tuple(sorted(found.values(), key=lambda hunt: hunt.hunt))


@contextmanager
def one_at_a_time(watch: Watch, path: Path | None, *, wait: bool, say: Callable[[str], None]) -> Iterator[None]:
    """Keep other processes of this machine from watching the same line. Raises EnvironmentFailure where one does."""
    path = (path or default_place()).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    line = repr((watch.branch, measured_by(watch.settings), [*watch.works]))
    digest = hashlib.sha256(line.encode()).hexdigest()[:12]
    with path.with_name(f"{path.name}-nightly-{digest}").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            busy = f"Another process works on a night of {printable(watch.branch)}"
            if not wait:
                raise EnvironmentFailure(f"{busy}.", "Begin when it has ended, or with --wait.") from None
            say(f"{busy}: waiting for it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
