"""The next order of a hunt, or the verdict of the hunt, from all observations.

The search is a pure function of its arguments and has no state. So a hunt takes the same decisions if it is resumed,
replayed or simulated.

Each layer of the search makes a situation from its own situation, and asks the layer below for the decision in this
situation. A layer that needs another measurement first returns the order for this measurement. The layers, from the
first to the last, are: pairing (interleaved or paired runs), layouts (the usual layout, or randomized layouts), all
changes (the range, or a subrange), older branches (as if all branches had begun with the speed of good), and the hunt
for a single change. No other code changes a layer's decision. ``decide`` adds the builds that are made ahead, the flags
of incremental builds, and the clean builds that a verdict needs.

If slow runs are stopped, the good end is timed first on each host, because its runs determine the time limit.

``decide_together`` decides for hunts of several workloads over one range, which share their builds.

- ``members`` are the hunts, in a fixed order: each has a graph, a policy, a prior and observations. The members in
  ``ended`` have verdicts and are no longer measured, but their runs count. At least one member must not be in
  ``ended``.
- The result is the number of a member, and this member's next order or verdict. After a verdict, the caller calls
  ``decide_together`` again, with this member in ``ended``.
- The caller adds each ``Built`` to the observations of all members, and also each ``Skipped`` that reports a failed
  build. A ``Reading`` belongs to the member of the order, and so does the ``Skipped`` of a build whose run fails.
- The limits ``max_builds``, ``max_runs`` and ``max_minutes`` of each policy apply to the sum over all members.
- If there are several hosts, each of them carries out orders of any member; the ``workload`` of an order in progress is
  the number of its member. A member gets no verdict until all its orders are done. If a member has no order for a free
  host, another member may use the host. If no member has an order for a free host, the result has an order for a busy
  host.
- If all hunts measure results of the same command, ``common`` is true, and each run gives every member a reading.
  Comparisons in randomized layouts then come last, so that hunts that named the same commits share runs.
- If build hosts build in advance, they first make builds for the member that gets the order. Then build hosts that are
  still free get orders from the other members. No running build is cancelled for a member's sake, because another
  member may need the build.

Each member decides as if it were alone, except that builds made for other members are free. Verdicts, and orders that
need no new build, come first. If every member needs a new build, the build with the most information for all members
together is made. A workload whose culprit is equally likely on both sides of the build expects one bit of information
from the build. Only the builds that members order are compared, because a compromise between two such builds saved no
builds in simulated hunts. With a single member, the decisions are the same as those of ``decide``.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.orders import (
    ALL_FREE,
    OTHER_HUNT,
    BuildInProgress,
    Decision,
    Fleet,
    Found,
    Measure,
    PlannedRuns,
    Purpose,
)
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.ancestry import ancestry_of
from perfbisect.core.inference.noise_model import EXACT, USUAL
from perfbisect.core.inference.observations import Built, Count, Reading, count_runs
from perfbisect.core.search.acquisition import detectable_effect, expected_runs
from perfbisect.core.search.build_forecast import BUILD_EXPONENT, build_chances, build_cost
from perfbisect.core.search.build_orders import with_builds
from perfbisect.core.search.clean_builds import is_contradicted, is_top_suspect, with_clean_builds, without_incremental
from perfbisect.core.search.pairing import decide_with_pairing
from perfbisect.core.search.situation import Situation, Spent
from perfbisect.core.stats.distributions import binary_entropy


def decide(now: Situation) -> Decision:
    """The next order of a hunt for a free host of its fleet, or the verdict of the hunt.

    If the order is for a busy host, there is no order for a free host. If build hosts build in advance, the decision
    also has the builds that build hosts begin now, and an order waits if its builds do not exist yet.
    """
    policy = now.policy.for_counts() if now.prior.exact else now.policy
    if policy.layouts and any(isinstance(item, Built) and item.fixed for item in now.observations):
        now = now.with_readings(lambda reading: not reading.layout)
        policy = replace(policy, layouts=False)
    if policy.auto_effect and not now.prior.exact:
        policy = replace(policy, min_effect=detectable_effect(replace(now, policy=policy)), auto_effect=False)
    now = replace(now, policy=policy, model=EXACT if now.prior.exact else USUAL)
    if policy.incremental and now.clean:  # other hosts and other workloads may still make incremental builds
        now = without_incremental(now)
    decision, fleet = decide_with_pairing(now), now.fleet
    if policy.incremental and is_contradicted(decision, now):
        by_clean = decide(without_incremental(now))
        if not (isinstance(decision.order, Found) and is_top_suspect(decision.order.step, by_clean)):
            return replace(by_clean, clean=True)
    order = decision.order
    if policy.slow_after and isinstance(order, Measure) and fleet.is_free(order.host):
        of_good = (
            run for run in now.readings if run.host == order.host and now.record.name_of_build(run.candidate) == 0
        )
        if not any(of_good):  # its runs set the limit
            decision = replace(decision, order=Measure((PlannedRuns(0, 1),), Purpose.ENDS, order.host))
    decision = with_builds(decision, now)
    return with_clean_builds(decision, now) if policy.incremental else decision


# Nine in ten hunts for a drop between two sizes take at least the first factor of the expected runs for the larger
# drop, and at most the second factor of the expected runs for the smaller drop. With randomized layouts the upper limit
# is multiplied once more. The factors are from simulations, see tests/core/search/test_decide.py.
LIKELY, WITH_LAYOUTS = (0.55, 1.4), 1.3


def likely_runs(
    candidates: int, drops: Sequence[float], noise: float, build_runs: float, policy: Policy
) -> tuple[int, int]:
    """The range of the number of runs of nine in ten hunts for a drop of one of the sizes ``drops``.

    ``drops`` (largest first) and ``noise`` (of a run) are fractions; ``build_runs`` is the cost of a build in runs.
    """
    for_largest, for_smallest = (expected_runs(candidates, drop, noise, build_runs) for drop in drops)
    highest = math.ceil(LIKELY[1] * for_smallest * (WITH_LAYOUTS if policy.layouts else 1.0))
    highest = min(highest, policy.max_runs or highest)
    return min(math.ceil(LIKELY[0] * for_largest), highest), highest


def likely_builds(candidates: int, policy: Policy) -> tuple[int, int]:
    """The range of the number of builds of nine in ten hunts, including the clean builds of a proof."""
    halvings, clean = math.log2(max(candidates, 2)), policy.incremental
    highest = min(math.ceil((2 + clean) * halvings) + 1, (candidates + 1) * (1 + clean) - 2 * clean)
    highest = min(highest, (policy.max_builds or highest) + 2 * clean)
    return min(math.ceil(halvings) + 1, candidates + 1, highest), highest


Array = NDArray[np.float64]

MEASURED_BITS = 0.1  # a member measures an existing build if the member expects at least MEASURED_BITS from it


@dataclass(frozen=True, slots=True, eq=False)
class _BuildRequest:
    """A member's order that needs a new build."""

    number: int
    now: Situation
    decision: Decision
    order: Measure

    def bits(self) -> Array:
        """The expected bits, (size,), for this member from a build of each candidate, if runs show the build's side."""
        belief = self.decision.belief
        slow = np.nan_to_num(ancestry_of(self.now.graph).ancestor_sums(belief.culprit))
        bits: Array = belief.change * np.maximum(binary_entropy(slow), 0.0)
        return bits


def decide_together(
    members: Sequence[Situation], ended: Collection[int] = (), fleet: Fleet = ALL_FREE, *, common: bool = False
) -> tuple[int, Decision]:
    """The number of the next member, and the order or verdict of this member. Raises ValueError if all members have
    ended.
    """
    open_members = [number for number in range(len(members)) if number not in ended]
    if not open_members:
        raise ValueError("all hunts have ended")
    number, decision = _next_member(members, open_members, fleet, common)
    order, builds = decision.order, tuple(replace(build, workload=number) for build in decision.builds)
    if not isinstance(order, Measure):
        return number, decision
    if not decision.waits_for_builds and fleet.is_free(order.host):
        fleet = replace(fleet, busy=(*fleet.busy, replace(order, workload=number)))
    for member in open_members:
        building = (*fleet.building, *(BuildInProgress(build.candidate, build.build_host) for build in builds))
        with_orders = replace(fleet, building=building)
        if member != number and with_orders.has_build_host and with_orders.free_build_hosts:
            of_member = decide(_member_situation(members, member, with_orders)).builds
            builds += tuple(replace(build, workload=member) for build in of_member)
    return number, replace(decision, builds=builds)


def orders_layouts(decision: Decision) -> bool:
    """Whether the decision has an order for runs in randomized layouts."""
    return isinstance(decision.order, Measure) and decision.order.fresh


def _next_member(
    members: Sequence[Situation], open_members: Sequence[int], fleet: Fleet, common: bool
) -> tuple[int, Decision]:
    """The number of the member that is next among ``open_members``, and its decision."""
    requests: list[_BuildRequest] = []
    late: list[tuple[int, Decision]] = []  # members that wait for other members that may need the same runs
    idle: list[tuple[int, Decision]] = []  # members that have no order for the free hosts now
    # The member with the latest run on the host continues, if it needs no build, because a host drifts less in a
    # shorter time.
    latest = [(run.at, i) for i, member in enumerate(members) for run in member.readings if run.host == fleet.free_host]
    last = max(latest, default=(0.0, None))[1]
    for number in sorted(open_members, key=lambda member: member != last):
        now = _member_situation(members, number, fleet)
        decision = decide(now)
        order = decision.order
        if len(members) > 1:
            decision = replace(decision, cancelled=())
            if not isinstance(order, Measure):
                of_member = [busy for busy in fleet.busy if busy.workload == number]
                # the verdict waits for the member's own orders, or for all orders if a common budget ends the hunt
                if under_way := of_member or (list(fleet.busy) if now.budget.ended(order) else []):
                    idle.append((number, replace(decision, order=under_way[0])))  # the member decides again later
                    continue
            elif decision.waits_for_builds or not fleet.is_free(order.host):
                idle.append((number, decision))
                continue
        if not isinstance(order, Measure) or now.record.builds_on(order.host).issuperset(
            share.candidate for share in order.plan
        ):
            if not (common and orders_layouts(decision)):
                return number, decision
            late.append((number, decision))
            continue
        requests.append(_BuildRequest(number, now, decision, order))
    if not requests:
        return late[0] if late else next((member for member in idle if member[1].builds), idle[0])
    requests.sort(key=lambda request: request.number)
    of_proofs = [request for request in requests if request.order.purpose is not Purpose.SEARCH]
    best = of_proofs[0] if of_proofs else _best_for_all(requests)
    return best.number, best.decision


def _member_situation(members: Sequence[Situation], number: int, fleet: Fleet) -> Situation:
    """The situation of one member; its budget is also charged with the runs of other members, finished or not."""
    now = replace(members[number], fleet=fleet)
    if len(members) == 1:
        return now
    remaining = [member for i, member in enumerate(members) if i != number]
    runs = [item for member in remaining for item in member.observations if isinstance(item, Reading | Count)]
    under_way = sum(share.runs for order in fleet.busy if order.workload != number for share in order.plan)
    finished = count_runs(runs) + sum(member.spent_by_others.runs for member in members)
    spent = Spent(finished + under_way, max((run.at + run.seconds / 120 for run in runs), default=0.0))
    return replace(now, fleet=fleet_for_member(number, fleet), shared=True, spent_by_others=spent)


def fleet_for_member(number: int, fleet: Fleet) -> Fleet:
    """The fleet as one of several members sees it for its decision.

    The runs of other members' orders are left out, but not their builds and the busy hosts.
    """

    def for_member(order: Measure) -> Measure:
        if order.workload == number:
            return order
        return replace(order, plan=tuple(replace(share, runs=0) for share in order.plan), workload=OTHER_HUNT)

    return replace(fleet, busy=tuple(map(for_member, fleet.busy)))


def _best_for_all(requests: Sequence[_BuildRequest]) -> _BuildRequest:
    """The request whose build promises the most bits for its cost, over all members that wait for a build."""
    if len(requests) == 1:
        return requests[0]
    candidates = [request.order.plan[0].candidate for request in requests]
    bits = np.array([request.bits()[candidates] for request in requests])  # (members, candidates)
    first, record = requests[0], requests[0].now.record
    chance = build_chances(first.now)[candidates]
    seconds = [request.now.record.median_run_seconds for request in requests]
    mean_seconds = float(np.mean(seconds))
    build_runs = build_cost(first.now, candidates, chance, first.order.host) * record.median_run_seconds / mean_seconds
    ordered_runs = [sum(share.runs for share in request.order.plan) for request in requests]
    runs = np.array(ordered_runs) * seconds / mean_seconds @ (bits >= MEASURED_BITS)
    return requests[int((chance * bits.sum(axis=0) / (build_runs**BUILD_EXPONENT + runs)).argmax())]
