"""The plan of a trial: its builds are made, then measured in rounds.

In each round every build is visited once for every workload. An order is one visit: it says the workload and the round, and
so do the events of its runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from perfbisect.core.domain.events import (
    PairingChosen,
    RunFinished,
)
from perfbisect.core.domain.orders import Measure, Purpose, Share
from perfbisect.core.domain.settings import Pairing, TrialType
from perfbisect.core.domain.trials import next_round, order, pairs_to_try, rounds_to_do, visits
from perfbisect.core.inference.observations import observations
from perfbisect.core.search.pairing import ways_of
from perfbisect.errors import EnvironmentFailure
from perfbisect.hunt.search_problem import SavedLog
from perfbisect.hunt.setup import SessionSetup
from perfbisect.wording.trials import pairing_chosen

BOTH = 2  # rounds in turns, before builds are measured at the same time
Way = tuple[str, str]  # the variant of a build and the hash of its configuration


@dataclass(frozen=True, slots=True)
class RoundsPlan:
    """Gives the orders of a trial; ``setup`` is that of this attempt."""

    log: SavedLog
    setup: SessionSetup

    def orders(self) -> Iterator[Measure | PairingChosen]:
        """The builds that are missing, then the visits of the rounds that are still to be made.

        Without any visit ends a night whose tip cannot be built: no other attempt would help. Raises EnvironmentFailure when
        the baseline cannot be built, or nothing to compare it with (in a series of releases: fewer than two of them); and at
        the end where nothing could be measured.
        """
        trial, request = self.log.state, self.setup.request
        for number in range(len(request.subjects)):
            if number not in self.setup.prebuilt and not trial.request.subjects[number].trouble:
                yield Measure((Share(number, 0),), Purpose.ENDS)
        if request.branch and trial.request.subjects[-1].trouble:
            return
        self._check_builds()
        yield from self._both_ways()
        changed = True
        while changed:
            changed, way = False, trial.together
            for number in rounds_to_do(trial):
                yield from self._pass(number)
                if changed := trial.together is not way:
                    break
        if request.kind is TrialType.NOISE and (more := pairs_to_try(trial)):
            yield Measure((Share(0, more), Share(0, more)), Purpose.ENDS, round=next_round(trial), together=True)
        for skip in trial.skips:
            if not trial.runs or (request.kind is TrialType.NOISE and not skip.subject):
                nothing = "" if trial.runs else "Nothing was measured: "
                fails = f"{request.subjects[skip.subject].name} fails in {request.works[skip.work].name}"
                raise EnvironmentFailure(f"{nothing}{fails}: {skip.facts.reason}", f"See {skip.facts.log}.")

    def _pass(self, number: int) -> Iterator[Measure]:
        """The visits of one round."""
        trial, request = self.log.state, self.setup.request
        for work in range(len(request.works)):
            for subject in order(range(len(request.subjects)), number, shuffled=request.series is not None):
                if (work, subject) in visits(trial) and (subject or not trial.together):
                    beside = (Share(0, request.runs),) if trial.together else ()
                    plan = (Share(subject, request.runs), *beside)
                    yield Measure(plan, Purpose.ENDS, workload=work, round=number, together=trial.together)

    def _both_ways(self) -> Iterator[Measure | PairingChosen]:
        """The first two builds in turns and at the same time, until it is known which way is better."""
        trial, request = self.log.state, self.setup.request
        commits = [subject.commit or subject.name for subject in request.subjects[:2]]
        if request.pairing is not Pairing.AUTO or trial.pairing or len(set(commits)) < 2:
            return
        if not {(0, 0), (0, 1)} <= {*visits(trial)}:  # one of them has failed
            return
        began = next_round(trial)
        for number in range(began, began + BOTH - len({run.round for run in trial.runs})):
            yield from self._pass(number)
        while (left := pairs_to_try(trial)) and not trial.skips:
            yield Measure((Share(1, 1), Share(0, 1)), Purpose.ENDS, round=next_round(trial), together=True)
            if left == pairs_to_try(trial):
                return
        first = [run for run in trial.runs if not run.work and run.subject < 2]
        entries = [(run.at, RunFinished(run.subject, run.facts)) for run in first]
        seen = observations(entries, {name: node for node, name in enumerate(commits)}, request.metric, self.log.began)
        if not trial.pairing and (ways := ways_of(seen)):
            yield pairing_chosen(ways, *(subject.name for subject in request.subjects[:2]))

    def _check_builds(self) -> None:
        request = self.log.state.request
        failed = [subject for subject in request.subjects if subject.trouble]
        few = len(request.subjects) - len(failed) < min(2, len(request.subjects))
        if few or (request.subjects[0].trouble and not request.series):
            first = failed[0]
            raise EnvironmentFailure(f"Nothing can be measured, because {first.name} cannot be built: {first.trouble}")
