"""decide: what to do next, given everything seen so far.

The search is a pure function of its arguments. It keeps no state, so a hunt that is resumed, replayed or simulated
takes the same course as the first time.

Each layer asks the one below about a situation of its own, made of this one, and gives an order of its own where that needs
another measurement first: pairing (readings in turns, or in rounds), layouts (as linked, or fresh ones), all changes (the
range, or a part of it), older branches (as if all had begun like good), and the hunt for a single change. Nothing else rewrites
an answer: ``decide`` adds which builds are made ahead, which are incremental, and the clean ones that a verdict needs.

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
- Where the hunts are for results of one command, ``common`` runs give a reading of each. Then comparisons in randomized layouts
  come last, so that hunts which have named the same commits by then take the same runs.
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

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.orders import ALL_FREE, OF_OTHERS, Building, Decision, Fleet, Found, Measure, Purpose, Share
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.ancestry import ancestry_of
from perfbisect.core.inference.noise_model import EXACT, USUAL
from perfbisect.core.inference.observations import Built, Count, Reading, count_runs
from perfbisect.core.search.acquisition import runs_of_one, smallest_effect
from perfbisect.core.search.build_forecast import BUILD_EXPONENT, chances, price
from perfbisect.core.search.build_orders import with_builds
from perfbisect.core.search.clean_builds import contradicted, suspect, with_clean_builds, without_incremental
from perfbisect.core.search.pairing import with_pairing
from perfbisect.core.search.situation import Situation, Spent
from perfbisect.core.stats.distributions import entropy


def decide(now: Situation) -> Decision:
    """The next order of a hunt, for a free host of its fleet; or its verdict.

    An order for a busy host means that there is nothing to do for the free ones. Where build hosts build ahead, the builds
    that they begin are part of the decision, and an order whose builds are not there waits.
    """
    policy = now.policy.of_counts() if now.prior.exact else now.policy
    if policy.layouts and any(isinstance(seen, Built) and seen.fixed for seen in now.observations):
        now = now.with_readings(lambda seen: not seen.layout)
        policy = replace(policy, layouts=False)
    if policy.auto_effect and not now.prior.exact:
        policy = replace(policy, min_effect=smallest_effect(replace(now, policy=policy)), auto_effect=False)
    now = replace(now, policy=policy, model=EXACT if now.prior.exact else USUAL)
    if policy.incremental and now.clean:  # other hosts, and other workloads, may still make incremental builds
        now = without_incremental(now)
    decision, fleet = with_pairing(now), now.fleet
    if policy.incremental and contradicted(decision, now):
        by_clean = decide(without_incremental(now))
        if not (isinstance(decision.order, Found) and suspect(by_clean, decision.order.step)):
            return replace(by_clean, clean=True)
    order = decision.order
    if policy.slow_after and isinstance(order, Measure) and fleet.is_free(order.host):
        of_good = (seen for seen in now.readings if seen.host == order.host and now.record.name(seen.candidate) == 0)
        if not any(of_good):  # its runs set the limit
            decision = replace(decision, order=Measure((Share(0, 1),), Purpose.ENDS, order.host))
    decision = with_builds(decision, now)
    return with_clean_builds(decision, now) if policy.incremental else decision


# Of hunts for a drop between two sizes nine in ten take so many times the runs of one for the larger, to so many times those
# of one for the smaller, and that much more where builds are linked again; simulated as in tests/core/search/test_decide.py.
LIKELY, LINKED_AGAIN = (0.55, 1.4), 1.3


def likely_runs(
    candidates: int, drops: Sequence[float], noise: float, build_runs: float, policy: Policy
) -> tuple[int, int]:
    """From how many runs to how many nine hunts in ten take, for a drop from the larger to the smaller of ``drops``."""
    few, many = (runs_of_one(candidates, drop, noise, build_runs) for drop in drops)
    most = math.ceil(LIKELY[1] * many * (LINKED_AGAIN if policy.layouts else 1.0))
    most = min(most, policy.max_runs or most)
    return min(math.ceil(LIKELY[0] * few), most), most


def likely_builds(candidates: int, policy: Policy) -> tuple[int, int]:
    """From how many builds to how many nine hunts in ten take, with those that a proof makes again in an empty folder."""
    halvings, again = math.log2(max(candidates, 2)), policy.incremental
    most = min(math.ceil((2 + again) * halvings) + 1, (candidates + 1) * (1 + again) - 2 * again)
    most = min(most, (policy.max_builds or most) + 2 * again)
    return min(math.ceil(halvings) + 1, candidates + 1, most), most


Array = NDArray[np.float64]

LEARNS = 0.1  # bits from which a member measures a build that is there


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A hunt that wants a build to be made for its order."""

    number: int
    now: Situation
    decision: Decision
    order: Measure

    def bits(self) -> Array:
        """What a build of each candidate tells it, (size,), if it is measured until it is clear on which side it is."""
        belief = self.decision.belief
        slow = np.nan_to_num(ancestry_of(self.now.graph).sums(belief.culprit))
        told: Array = belief.change * np.maximum(entropy(slow), 0.0)
        return told


def decide_together(
    members: Sequence[Situation], ended: Collection[int] = (), fleet: Fleet = ALL_FREE, *, common: bool = False
) -> tuple[int, Decision]:
    """The member that is next, and its order or its verdict. Raises ValueError if all have ended."""
    left = [number for number in range(len(members)) if number not in ended]
    if not left:
        raise ValueError("all hunts have ended")
    number, decision = _next(members, left, fleet, common)
    order, builds = decision.order, tuple(replace(build, workload=number) for build in decision.builds)
    if not isinstance(order, Measure):
        return number, decision
    if not decision.waits and fleet.is_free(order.host):
        fleet = replace(fleet, busy=(*fleet.busy, replace(order, workload=number)))
    for other in left:
        known = replace(fleet, building=(*fleet.building, *(Building(one.candidate, one.build_host) for one in builds)))
        if other != number and known.builds_ahead and known.free_build_hosts:
            more = decide(_among(members, other, known)).builds
            builds += tuple(replace(build, workload=other) for build in more)
    return number, replace(decision, builds=builds)


def in_layouts(decision: Decision) -> bool:
    """Whether it orders runs in randomized layouts."""
    return isinstance(decision.order, Measure) and decision.order.fresh


def _next(members: Sequence[Situation], left: Sequence[int], fleet: Fleet, common: bool) -> tuple[int, Decision]:
    """The member among those that are ``left`` that is next, and its own decision."""
    wanting: list[_Waiting] = []
    late: list[tuple[int, Decision]] = []  # whose runs in randomized layouts wait for others that may want the same
    idle: list[tuple[int, Decision]] = []  # those that have nothing for the free hosts now
    # The member with the latest run on the host goes on, if it can without a build: a host drifts less in a shorter time.
    latest = [(run.at, at) for at, each in enumerate(members) for run in each.readings if run.host == fleet.free_host]
    last = max(latest, default=(0.0, None))[1]
    for number in sorted(left, key=lambda each: each != last):
        now = _among(members, number, fleet)
        decision = decide(now)
        order = decision.order
        if len(members) > 1:
            decision = replace(decision, cancelled=())
            if not isinstance(order, Measure):
                own = [busy for busy in fleet.busy if busy.workload == number]
                # the verdict waits for its own orders, or for all where a common budget ends it
                if under_way := own or (list(fleet.busy) if now.budget.ended(order) else []):
                    idle.append((number, replace(decision, order=under_way[0])))  # decided again when it has ended
                    continue
            elif decision.waits or not fleet.is_free(order.host):
                idle.append((number, decision))
                continue
        if not isinstance(order, Measure) or now.record.made(order.host).issuperset(
            share.candidate for share in order.plan
        ):
            if not (common and in_layouts(decision)):
                return number, decision
            late.append((number, decision))
            continue
        wanting.append(_Waiting(number, now, decision, order))
    if not wanting:
        return late[0] if late else next((one for one in idle if one[1].builds), idle[0])
    wanting.sort(key=lambda each: each.number)
    needed = [each for each in wanting if each.order.purpose is not Purpose.SEARCH]
    best = needed[0] if needed else _for_all(wanting)
    return best.number, best.decision


def _among(members: Sequence[Situation], number: int, fleet: Fleet) -> Situation:
    """The situation of one member: what the others have spent, and will have, they spent of the same budgets."""
    now = replace(members[number], fleet=fleet)
    if len(members) == 1:
        return now
    others = [each for i, each in enumerate(members) if i != number]
    runs = [seen for each in others for seen in each.observations if isinstance(seen, Reading | Count)]
    under_way = sum(share.runs for order in fleet.busy if order.workload != number for share in order.plan)
    made = count_runs(runs) + sum(each.elsewhere.runs for each in members)
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


def _for_all(wanting: Sequence[_Waiting]) -> _Waiting:
    """Whose build promises most bits for its price, of members that all want one to go on with their search."""
    if len(wanting) == 1:
        return wanting[0]
    candidates = [each.order.plan[0].candidate for each in wanting]
    told = np.array([each.bits()[candidates] for each in wanting])  # (members, candidates)
    one, record = wanting[0], wanting[0].now.record
    chance = chances(one.now)[candidates]
    seconds = [each.now.record.run_seconds for each in wanting]
    run = float(np.mean(seconds))
    build = price(one.now, candidates, chance, one.order.host) * record.run_seconds / run
    own = [sum(share.runs for share in each.order.plan) for each in wanting]
    runs = np.array(own) * seconds / run @ (told >= LEARNS)
    return wanting[int((chance * told.sum(axis=0) / (build**BUILD_EXPONENT + runs)).argmax())]
