"""Computes from all observations of a hunt the next work order (the description of the next measurement), or the
verdict.

The search is a pure function and keeps no state between calls. So a resumed, a replayed and a simulated hunt take the
same decisions from the same observations.

The search has five layers. Each layer passes a part of the observations, or a part of the range, to the next layer,
which returns a decision. If a layer needs another measurement before it can ask the next layer, the layer returns a
work order for this measurement. The first layer chooses interleaved or paired runs. The second layer chooses the usual
layout or randomized layouts. The third layer chooses whether to search the whole range or a subrange. The fourth layer
corrects the readings of commits on branches that began before good. The fifth layer searches for a single change. To
the decision of the first layer, ``decide`` adds the builds that build hosts make in advance, and the clean builds that
a verdict needs.

If a time limit stops slow runs, each host measures the good end first, because the runs of the good end determine the
time limit.

``decide_together`` decides for hunts of several workloads over one range, which share their builds.

- ``members`` are the hunts, always in the same sequence: each has a graph, a policy, a prior and observations. The
  members in ``ended`` have verdicts and are no longer measured, but their runs still count towards the limits. At least
  one member must not be in ``ended``.
- The result is the number of the member that is next, and the work order or the verdict of this member. After a verdict
  of a member, the caller adds the member to ``ended`` and calls ``decide_together`` again.
- The caller adds each ``Built``, and each ``Skipped`` that reports a failed build, to the observations of all members.
  The caller adds each ``Reading``, and each ``Skipped`` that reports a failed run, to the observations of the member
  whose work order led to the run.
- The limits ``max_builds``, ``max_runs`` and ``max_minutes`` of each policy apply to the builds, runs and minutes of
  all members together.
- If there are several hosts, each host carries out work orders of any member. The field ``workload`` of a work order in
  progress is the number of its member. A member gets no verdict until all its work orders are done. If a member has no
  work order for a free host, another member may use the host. If no member has a work order for a free host, the result
  has a work order for a busy host.
- If all hunts measure results of the same command, ``has_common_runs`` is true, and each run gives a reading to every
  member. In this case, runs in randomized layouts come last, because members that have named the same commit can share
  these runs.
- If build hosts build in advance, they first make builds for the member that gets the work order. Build hosts that are
  still free make builds for the other members. No running build is cancelled, because another member may need the
  build.

Each member decides as if no other members existed, except that builds for other members cost this member nothing.
Verdicts, and work orders that need no new build, come first. If every member needs a new build, ``decide_together``
chooses the build that gives the most information to all members together, relative to its cost. If a build divides the
commits into two sets, and a member's culprit is equally likely in both sets, the build promises this member one bit of
information. Only the builds for which members have work orders are compared. In simulated hunts, the compromise of a
build between the builds that two members need saved no builds. For a single member, ``decide_together`` returns the
same decisions as ``decide``.
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
from perfbisect.core.inference.observations import Built, Count, Reading, count_own_runs
from perfbisect.core.search.acquisition import detectable_effect, expected_runs
from perfbisect.core.search.build_forecast import BUILD_EXPONENT, build_cost, build_success_chances
from perfbisect.core.search.build_orders import with_build_orders
from perfbisect.core.search.clean_builds import (
    is_misled_by_incremental,
    is_top_suspect,
    with_clean_builds,
    without_incremental,
)
from perfbisect.core.search.pairing import decide_with_pairing
from perfbisect.core.search.situation import ExtraCost, Situation
from perfbisect.core.stats.distributions import binary_entropy


def decide(now: Situation) -> Decision:
    """The next work order (the description of the next measurement) of a hunt, or the verdict of the hunt.

    The work order is for a free host; a work order for a busy host means that no free host can make a useful
    measurement. The decision also lists the builds that build hosts begin now. The caller carries out the work order
    once its builds exist.
    """
    policy = now.policy.for_exact_count() if now.prior.exact else now.policy
    if policy.layouts and any(isinstance(item, Built) and item.fixed for item in now.observations):
        now = now.with_readings(lambda reading: not reading.layout)
        policy = replace(policy, layouts=False)
    if policy.auto_effect and not now.prior.exact:
        policy = replace(policy, min_effect=detectable_effect(replace(now, policy=policy)), auto_effect=False)
    now = replace(now, policy=policy, model=EXACT if now.prior.exact else USUAL)
    if policy.incremental and now.clean:  # incremental builds that other hosts or workloads still make are left out
        now = without_incremental(now)
    decision, fleet = decide_with_pairing(now), now.fleet
    if policy.incremental and is_misled_by_incremental(decision, now):
        by_clean = decide(without_incremental(now))
        if not (isinstance(decision.order, Found) and is_top_suspect(decision.order.step, by_clean)):
            return replace(by_clean, clean=True)
    order = decision.order
    if policy.slow_after and isinstance(order, Measure) and fleet.is_free(order.host):
        of_good = (run for run in now.readings if run.host == order.host and now.record.build_id(run.candidate) == 0)
        if not any(of_good):  # runs of good set the time limit of other runs
            decision = replace(decision, order=Measure((PlannedRuns(0, 1),), Purpose.ENDS, order.host))
    decision = with_build_orders(decision, now)
    return with_clean_builds(decision, now) if policy.incremental else decision


# A hunt for a drop between two sizes takes, in nine of ten cases, at least LIKELY[0] times the expected runs for the
# larger drop, and at most LIKELY[1] times the expected runs for the smaller drop; with randomized layouts, at most
# WITH_LAYOUTS times as many. The factors are from simulations, see tests/core/search/test_decide.py.
LIKELY, WITH_LAYOUTS = (0.55, 1.4), 1.3


def run_bounds(
    candidates: int, drops: Sequence[float], noise: float, build_runs: float, policy: Policy
) -> tuple[int, int]:
    """The lowest and the highest number of runs that a hunt probably takes; the numbers of runs of nine in ten hunts
    are between these two numbers.

    The hunt searches for a drop whose size is between two sizes, ``drops``, of which the first is the larger. ``drops``
    and ``noise`` (the standard deviation of a run) are fractions (0.05 is 5 %). A build takes as long as ``build_runs``
    runs.
    """
    for_largest, for_smallest = (expected_runs(candidates, drop, noise, build_runs) for drop in drops)
    highest = math.ceil(LIKELY[1] * for_smallest * (WITH_LAYOUTS if policy.layouts else 1.0))
    highest = min(highest, policy.max_runs or highest)
    return min(math.ceil(LIKELY[0] * for_largest), highest), highest


def build_bounds(candidates: int, policy: Policy) -> tuple[int, int]:
    """The lowest and the highest number of builds that a hunt probably takes, including the clean builds of a proof;
    the numbers of builds of nine in ten hunts are between these two numbers.
    """
    halvings, clean = math.log2(max(candidates, 2)), policy.incremental
    highest = min(math.ceil((2 + clean) * halvings) + 1, (candidates + 1) * (1 + clean) - 2 * clean)
    highest = min(highest, (policy.max_builds or highest) + 2 * clean)
    return min(math.ceil(halvings) + 1, candidates + 1, highest), highest


Array = NDArray[np.float64]

MEASURED_BITS = 0.1  # a hunt of the batch measures an existing build if it expects at least MEASURED_BITS bits


@dataclass(frozen=True, slots=True, eq=False)
class _BuildRequest:
    """A member's work order that needs a new build."""

    number: int
    now: Situation
    decision: Decision
    order: Measure

    def expected_bits(self) -> Array:
        """For each candidate, the expected information in bits that this member gets from a build of the candidate, if
        runs show whether the build is slow; shape (candidates,).
        """
        belief = self.decision.belief
        slow = np.nan_to_num(ancestry_of(self.now.graph).ancestor_sums(belief.culprit))
        bits: Array = belief.change * np.maximum(binary_entropy(slow), 0.0)
        return bits


def decide_together(
    members: Sequence[Situation], ended: Collection[int] = (), fleet: Fleet = ALL_FREE, *, has_common_runs: bool = False
) -> tuple[int, Decision]:
    """The number of the member (one of several hunts over one range) that is next, and the work order or verdict of
    this member. Raises ValueError if all members have ended.
    """
    open_members = [number for number in range(len(members)) if number not in ended]
    if not open_members:
        raise ValueError("all hunts have ended")
    number, decision = _next_member(members, open_members, fleet, has_common_runs)
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
    """Whether the decision has a work order for runs in randomized layouts."""
    return isinstance(decision.order, Measure) and decision.order.fresh


def _next_member(
    members: Sequence[Situation], open_members: Sequence[int], fleet: Fleet, has_common_runs: bool
) -> tuple[int, Decision]:
    """The next decision to carry out, and the number of the member (of ``open_members``) that made this decision."""
    requests: list[_BuildRequest] = []
    late: list[tuple[int, Decision]] = []  # hunts that wait for other hunts that may need the same runs
    idle: list[tuple[int, Decision]] = []  # hunts that have no order for the free hosts now
    # The hunt with the latest run on the host goes first, if it needs no build, because between its runs the host then
    # has less time to drift.
    latest = [(run.at, i) for i, member in enumerate(members) for run in member.readings if run.host == fleet.next_host]
    last = max(latest, default=(0.0, None))[1]
    for number in sorted(open_members, key=lambda member: member != last):
        now = _member_situation(members, number, fleet)
        decision = decide(now)
        order = decision.order
        if len(members) > 1:
            decision = replace(decision, cancelled=())
            if not isinstance(order, Measure):
                of_member = [busy for busy in fleet.busy if busy.workload == number]
                # A hunt's verdict waits for the hunt's own orders; for all orders if a common budget ends the hunt.
                if under_way := of_member or (list(fleet.busy) if now.budget.is_spent_verdict(order) else []):
                    idle.append((number, replace(decision, order=under_way[0])))  # the hunt decides again later
                    continue
            elif decision.waits_for_builds or not fleet.is_free(order.host):
                idle.append((number, decision))
                continue
        if not isinstance(order, Measure) or now.record.builds_on(order.host).issuperset(
            share.candidate for share in order.plan
        ):
            if not (has_common_runs and orders_layouts(decision)):
                return number, decision
            late.append((number, decision))
            continue
        requests.append(_BuildRequest(number, now, decision, order))
    if not requests:
        return late[0] if late else next((member for member in idle if member[1].builds), idle[0])
    requests.sort(key=lambda request: request.number)
    of_proofs = [request for request in requests if request.order.purpose is not Purpose.SEARCH]
    best = of_proofs[0] if of_proofs else _best_request(requests)
    return best.number, best.decision


def _member_situation(members: Sequence[Situation], number: int, fleet: Fleet) -> Situation:
    """The situation of one member. Its budget also pays for the finished and the unfinished runs of all other
    members."""
    now = replace(members[number], fleet=fleet)
    if len(members) == 1:
        return now
    remaining = [member for i, member in enumerate(members) if i != number]
    runs = [item for member in remaining for item in member.observations if isinstance(item, Reading | Count)]
    under_way = sum(share.runs for order in fleet.busy if order.workload != number for share in order.plan)
    finished = count_own_runs(runs) + sum(member.extra_cost.runs for member in members)
    spent = ExtraCost(finished + under_way, max((run.at + run.seconds / 120 for run in runs), default=0.0))
    return replace(now, fleet=fleet_for_member(number, fleet), shares_builds=True, extra_cost=spent)


def fleet_for_member(number: int, fleet: Fleet) -> Fleet:
    """The fleet (the state of all hosts) from which member ``number`` decides.

    In this fleet, the work orders of other members have 0 runs, because these runs are in other workloads. The builds
    in progress for other members are included, and hosts that work for other members are busy.
    """

    def for_member(order: Measure) -> Measure:
        if order.workload == number:
            return order
        return replace(order, plan=tuple(replace(share, runs=0) for share in order.plan), workload=OTHER_HUNT)

    return replace(fleet, busy=tuple(map(for_member, fleet.busy)))


def _best_request(requests: Sequence[_BuildRequest]) -> _BuildRequest:
    """The request whose build promises the most bits of information for its cost; the bits are summed over all members
    that wait for a build."""
    if len(requests) == 1:
        return requests[0]
    candidates = [request.order.plan[0].candidate for request in requests]
    bits = np.array([request.expected_bits()[candidates] for request in requests])  # shape: (requests, candidates)
    first, record = requests[0], requests[0].now.record
    chance = build_success_chances(first.now)[candidates]
    seconds = [request.now.record.median_run_seconds for request in requests]
    mean_seconds = float(np.mean(seconds))
    build_runs = build_cost(first.now, candidates, chance, first.order.host) * record.median_run_seconds / mean_seconds
    ordered_runs = [sum(share.runs for share in request.order.plan) for request in requests]
    runs = np.array(ordered_runs) * seconds / mean_seconds @ (bits >= MEASURED_BITS)
    return requests[int((chance * bits.sum(axis=0) / (build_runs**BUILD_EXPONENT + runs)).argmax())]
