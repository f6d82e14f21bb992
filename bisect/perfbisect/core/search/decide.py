"""decide: what to do next, given everything seen so far.

The search is a pure function of its arguments. It keeps no state, so a hunt that is resumed, replayed or simulated
takes the same course as the first time.

Where slow runs are stopped, the good end is timed first on each host: its runs set the limit.

``decide_together`` is the same for hunts of several workloads over one range, which share their builds.

- ``members`` are the hunts, in a fixed order: graph, policy, prior and observations of each. Those in ``ended`` have their
  verdicts: they are not measured any more, but what they spent counts. At least one is left.
- The result is the number of a member, and its next order or its verdict. Ask again after a verdict, with one more ended.
- Whoever carries out orders adds a ``Built`` to the observations of all members, and so a ``Skipped`` if a build fails. A
  ``Reading``, and the ``Skipped`` of a build whose run fails, are of the member whose order it was.
- ``max_builds``, ``max_runs`` and ``max_minutes`` of each policy count for all members together.
- Of several hosts each carries out orders of any member; an order that is under way has the number of its member as
  ``workload``. The verdict of a member waits until none of its own is. A member that has nothing for a free host lets
  another one have it. Where none has, the order that is returned is for a busy host.
- Where build hosts build ahead, they make what the members want: first the one whose order it is, and what is left of
  them the others in turn. What one of them no longer wants is not ended, as another may.

Each member decides by itself, as if it were alone, except that builds made for others cost it nothing more. Verdicts
and orders that need no new build come first. Once every member wants one, the build is made that tells most for all of
them together: a workload whose culprit is equally likely on both sides of it learns a bit. Only the builds that they
want are compared; one between two of these, which is the best for both together, made no fewer builds in simulated
hunts. With a single member, the decisions are those of ``decide``.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import ALL_FREE, OF_OTHERS, Building, Fleet, Measure, Purpose, Share
from perfbisect.core.domain.settings import NOTHING_KNOWN, Policy, PriorKnowledge
from perfbisect.core.inference.ancestry import ancestry_of
from perfbisect.core.inference.noise_model import EXACT, USUAL
from perfbisect.core.inference.observations import Built, Observation, Reading
from perfbisect.core.search import information
from perfbisect.core.search.acquisition import RUNS
from perfbisect.core.search.all_changes import all_changes
from perfbisect.core.search.build_forecast import BUILD_EXPONENT, chance_to_build, price
from perfbisect.core.search.build_orders import with_builds
from perfbisect.core.search.fresh_layouts import with_layouts
from perfbisect.core.search.information import entropy
from perfbisect.core.search.older_branches import with_older_branches
from perfbisect.core.search.pairing import with_pairing
from perfbisect.core.search.single_change import single_change
from perfbisect.core.search.situation import Proposal, Situation, Spent


def with_good_timed(decision: Proposal, now: Situation) -> Proposal:
    """The decision; in place of an order for a host where the good end has no run, the order for one."""
    order = decision.order
    if not (now.policy.slow_after and isinstance(order, Measure) and now.fleet.is_free(order.host)):
        return decision
    good = now.record.name(0)
    timed = {
        seen.host for seen in now.observations if isinstance(seen, Reading) and now.record.name(seen.candidate) == good
    }
    if order.host in timed:
        return decision
    return replace(decision, order=Measure((Share(0, 1),), Purpose.ENDS, order.host))


def decide(
    graph: Graph,
    observations: Sequence[Observation],
    policy: Policy,
    prior: PriorKnowledge = NOTHING_KNOWN,
    fleet: Fleet = ALL_FREE,
) -> Proposal:
    """The next order of the hunt over ``graph``, for a free host of ``fleet``; or its verdict.

    An order for a busy host means that there is nothing to do for the free ones. Where build hosts build ahead, the builds
    that they begin are part of the decision, and an order whose builds are not there waits.
    """
    return decide_in(Situation(graph, observations, policy, prior, fleet))


def decide_in(now: Situation) -> Proposal:
    """The same in a situation; the model of its noise follows from what is known of the metric."""
    policy = now.policy.of_counts() if now.prior.exact else now.policy
    if policy.layouts and any(isinstance(seen, Built) and seen.fixed for seen in now.observations):
        now = now.with_readings(lambda seen: not seen.layout)
        policy = replace(policy, layouts=False)
    now = replace(now, policy=policy, model=EXACT if now.prior.exact else USUAL)
    hunt = every_change if policy.all_steps else largest_change
    return with_builds(with_good_timed(with_pairing(partial(with_layouts, hunt), now), now), now)


def largest_change(now: Situation) -> Proposal:
    """The hunt for one change, in a range whose branches may have begun with another speed than good."""
    return with_older_branches(single_change, now)


def every_change(now: Situation) -> Proposal:
    """The same for all changes."""
    return with_older_branches(all_changes, now)


LAYOUT = 0.005  # s.d. of a build
# Runs that the ends and the proof take where the drop is at least CLEAR times the noise; smaller ones take more, until they
# are given up. As simulated hunts through 20 to 1,000 commits spent for drops of 2, 3, 5 and 10 times a noise of 1 %.
FIXED, CLEAR, MOST_FIXED = 12.0, 6.0, 80.0


def runs_of_one(candidates: int, drop: float, noise: float, build_runs: float) -> float:
    """The runs of a hunt for a drop (0.05: 5 %) with this s.d. of a run, both above 0; a build costs ``build_runs`` runs.

    Those that tell most for their price, by the formulas of ``acquisition``, and those of the ends and the proof.
    """
    size = -math.log1p(-drop) / noise
    gain = information.bits(np.full(len(RUNS), 0.5), size**2 / (2 * (LAYOUT / noise) ** 2 + 1 / RUNS))
    best = int((gain / (build_runs**BUILD_EXPONENT + RUNS)).argmax())
    fixed = min(FIXED * max(1.0, (CLEAR / size) ** 2), MOST_FIXED)
    return fixed + float(RUNS[best] / gain[best]) * math.log2(candidates)


Array = NDArray[np.float64]

LEARNS = 0.1  # bits from which a member measures a build that is there


@dataclass(frozen=True, slots=True, eq=False)
class _Member:
    """An open hunt and its own decision."""

    number: int
    now: Situation
    decision: Proposal

    @property
    def order(self) -> Measure:
        """What it wants measured."""
        assert isinstance(self.decision.order, Measure)
        return self.decision.order

    @property
    def candidate(self) -> int:
        """The candidate of interest."""
        return self.order.plan[0].candidate

    @property
    def builds(self) -> bool:
        """Whether a build has to be made for its order."""
        made = self.now.record.made(self.order.host)
        return any(share.candidate not in made for share in self.order.plan)

    @property
    def seconds(self) -> float:
        """What the runs of its order take."""
        return sum(share.runs for share in self.order.plan) * self.now.record.run_seconds

    def bits(self) -> Array:
        """What a build of each candidate tells it, (size,), if it is measured until it is clear on which side it is."""
        belief = self.decision.belief
        slow = np.nan_to_num(ancestry_of(self.now.graph).sums(belief.culprit))
        told: Array = belief.change * np.maximum(entropy(slow), 0.0)
        return told


def decide_together(
    members: Sequence[Situation], ended: Collection[int] = (), fleet: Fleet = ALL_FREE
) -> tuple[int, Proposal]:
    """The member that is next, and its order or its verdict. Raises ValueError if all have ended."""
    left = [number for number in range(len(members)) if number not in ended]
    if not left:
        raise ValueError("all hunts have ended")
    number, decision = _next(members, left, fleet)
    order, builds = decision.order, tuple(replace(build, workload=number) for build in decision.builds)
    if not isinstance(order, Measure):
        return number, decision
    if not decision.waits and fleet.is_free(order.host):
        fleet = replace(fleet, busy=(*fleet.busy, replace(order, workload=number)))
    for other in left:
        known = replace(fleet, building=(*fleet.building, *(Building(one.candidate, one.build_host) for one in builds)))
        if other != number and known.builds_ahead and known.free_build_hosts:
            more = decide_in(_among(members, other, known)).builds
            builds += tuple(replace(build, workload=other) for build in more)
    return number, replace(decision, builds=builds)


def _next(members: Sequence[Situation], left: Sequence[int], fleet: Fleet) -> tuple[int, Proposal]:
    """The member among those that are ``left`` that is next, and its own decision."""
    wanting: list[_Member] = []
    idle: list[tuple[int, Proposal]] = []  # those that have nothing for the free hosts now
    last = _measured_last(members, fleet.free_host)
    for number in sorted(left, key=lambda each: each != last):
        now = _among(members, number, fleet)
        decision = decide_in(now)
        if len(members) > 1 and decision.cancelled:
            decision = replace(decision, cancelled=())
        member = _Member(number, now, decision)
        if isinstance(decision.order, Measure):
            if len(members) > 1 and (decision.waits or not fleet.is_free(decision.order.host)):
                idle.append((number, decision))
                continue
        elif len(members) > 1 and (under_way := _awaited(now, decision, number, fleet)):
            idle.append((number, replace(decision, order=under_way[0])))  # decided again when it has ended
            continue
        if not isinstance(decision.order, Measure) or not member.builds:
            return number, decision
        wanting.append(member)
    if not wanting:
        return next((one for one in idle if one[1].builds), idle[0])
    wanting.sort(key=lambda each: each.number)
    needed = next((each for each in wanting if each.order.purpose is not Purpose.SEARCH), None)
    if needed or len(wanting) == 1:
        one = needed or wanting[0]
        return one.number, one.decision
    return _for_all(wanting)


def _among(members: Sequence[Situation], number: int, fleet: Fleet) -> Situation:
    """The situation of one member: what the others have spent, and will have, they spent of the same budgets."""
    now = replace(members[number], fleet=fleet)
    if len(members) == 1:
        return now
    of_others = [order for order in fleet.busy if order.workload != number]
    others = [seen for i, each in enumerate(members) if i != number for seen in each.observations]
    runs = [seen for seen in others if isinstance(seen, Reading)]
    under_way = sum(share.runs for order in of_others for share in order.plan)
    made = sum(1 if run.partner is None else 2 for run in runs) + sum(each.elsewhere.runs for each in members)
    spent = Spent(made + under_way, max((run.at + run.seconds / 120 for run in runs), default=0.0))
    return replace(now, fleet=seen_by(number, fleet), shared=True, elsewhere=spent)


def seen_by(number: int, fleet: Fleet) -> Fleet:
    """The fleet as one of several members sees it: orders of others keep hosts busy with builds that all may use, and with
    runs that say nothing of it.
    """

    def of(order: Measure) -> Measure:
        if order.workload == number:
            return order
        return replace(order, plan=tuple(replace(share, runs=0) for share in order.plan), workload=OF_OTHERS)

    return replace(fleet, busy=tuple(map(of, fleet.busy)))


def _awaited(now: Situation, verdict: Proposal, number: int, fleet: Fleet) -> list[Measure]:
    """The orders under way that a verdict waits for: those of its own, and all where a budget ends it, which they share."""
    own = [order for order in fleet.busy if order.workload == number]
    return own or (list(fleet.busy) if now.budget.ended(verdict.order) else [])


def _measured_last(members: Sequence[Situation], host: int) -> int | None:
    """The member with the latest run on a host. It goes on, if it can without a build: a host drifts less in a shorter time."""
    latest = [
        (seen.at, number)
        for number, each in enumerate(members)
        for seen in each.observations
        if isinstance(seen, Reading) and seen.host == host
    ]
    return max(latest, default=(0.0, None))[1]


def _for_all(wanting: Sequence[_Member]) -> tuple[int, Proposal]:
    """The build that promises most bits for its price, for members that all want one to go on with their search."""
    candidates = [each.candidate for each in wanting]
    told = np.array([each.bits()[candidates] for each in wanting])  # (members, candidates)
    one, record = wanting[0].now, wanting[0].now.record
    chance = chance_to_build(ancestry_of(one.graph), record.skipped, record.there, record.left_out)[candidates]
    run = float(np.mean([each.now.record.run_seconds for each in wanting]))
    build = price(one, candidates, chance, wanting[0].order.host) * record.run_seconds / run
    runs = np.array([each.seconds / run for each in wanting]) @ (told >= LEARNS)
    best = wanting[int((chance * told.sum(axis=0) / (build**BUILD_EXPONENT + runs)).argmax())]
    return best.number, best.decision
