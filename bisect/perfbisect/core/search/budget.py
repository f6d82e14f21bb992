"""What the user allows the hunt to spend, and what is left of it.

What other hosts are at counts as spent: its runs, and the builds that it will have to make. Runs of it that are told
already count twice until it ends, so a budget may be held back for a while, but it is not overspent.
"""

from collections.abc import Sequence
from dataclasses import replace

from perfbisect.core.domain.orders import Inconclusive, Measure, Order, Share
from perfbisect.core.domain.policy import Policy
from perfbisect.core.inference.dataset import Record

NO_BUILDS = "the budget of builds is used up"
InFlight = Sequence[Measure]  # what other hosts are at


def spent(record: Record, policy: Policy, in_flight: InFlight) -> str:
    """The budget that is used up, in words; empty while none is."""
    if policy.max_runs and _runs(record, in_flight) >= policy.max_runs:
        return f"the budget of {policy.max_runs} runs is used up"
    if policy.max_minutes and record.minutes >= policy.max_minutes:
        return f"the budget of {policy.max_minutes:g} minutes is used up"
    return ""


def ended(order: Order, record: Record, policy: Policy, in_flight: InFlight) -> bool:
    """Whether ``order`` is the end of a hunt that would go on if it were allowed to spend more."""
    return isinstance(order, Inconclusive) and order.reason in (NO_BUILDS, spent(record, policy, in_flight))


def may_build(record: Record, policy: Policy, in_flight: InFlight) -> bool:
    """Whether another build may be attempted; failed attempts count."""
    return not policy.max_builds or len(_attempted(record, in_flight)) < policy.max_builds


def allows(order: Measure, record: Record, policy: Policy, in_flight: InFlight) -> bool:
    """Whether there is room for ``order``, or at least for its first runs."""
    return not spent(record, policy, in_flight) and builds_allowed(order, record, policy, in_flight)


def builds_allowed(order: Measure, record: Record, policy: Policy, in_flight: InFlight) -> bool:
    """Whether ``order`` can be carried out without more builds than are allowed."""
    attempted = _attempted(record, in_flight)
    new = _unbuilt(order, record) - attempted
    return not new or not policy.max_builds or len(attempted) + len(new) <= policy.max_builds


def within(order: Measure, record: Record, policy: Policy, in_flight: InFlight) -> Measure:
    """``order`` with no more runs than the budget has left, shared out as evenly as it was."""
    left = policy.max_runs - _runs(record, in_flight)
    total = sum(share.runs for share in order.plan)
    if not policy.max_runs or total <= left:
        return order
    plan = []
    for i, share in enumerate(order.plan):
        runs = min(share.runs, -(-left // (len(order.plan) - i)))
        if runs > 0:
            plan.append(Share(share.candidate, runs))
            left -= runs
    return replace(order, plan=tuple(plan))


def _runs(record: Record, in_flight: InFlight) -> int:
    return len(record.value) + sum(share.runs for order in in_flight for share in order.plan)


def _unbuilt(order: Measure, record: Record) -> frozenset[int]:
    """The candidates of ``order`` that no host has built yet."""
    return frozenset(share.candidate for share in order.plan) - record.built - record.skipped - set(record.builds)


def _attempted(record: Record, in_flight: InFlight) -> frozenset[int]:
    """Candidates that were built, or will have been; one that several hosts build counts once."""
    return record.attempted.union(*(_unbuilt(order, record) for order in in_flight))
