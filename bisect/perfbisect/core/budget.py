"""What the user allows the hunt to spend, and what is left of it."""

from perfbisect.core.order import Measure, Share
from perfbisect.core.policy import Policy
from perfbisect.core.record import Record

NO_BUILDS = "the budget of builds is used up"


def spent(record: Record, policy: Policy) -> str:
    """The budget that is used up, in words; empty while none is."""
    if policy.max_runs and len(record.value) >= policy.max_runs:
        return f"the budget of {policy.max_runs} runs is used up"
    if policy.max_minutes and record.minutes >= policy.max_minutes:
        return f"the budget of {policy.max_minutes:g} minutes is used up"
    return ""


def may_build(record: Record, policy: Policy) -> bool:
    """Whether another build may be attempted; failed attempts count."""
    return not policy.max_builds or len(record.attempted) < policy.max_builds


def builds_allowed(order: Measure, record: Record, policy: Policy) -> bool:
    """Whether ``order`` can be carried out without more builds than are allowed."""
    new = {share.candidate for share in order.plan} - record.built - record.skipped - set(record.builds)
    return not new or not policy.max_builds or len(record.attempted) + len(new) <= policy.max_builds


def within(order: Measure, record: Record, policy: Policy) -> Measure:
    """``order`` with no more runs than the budget has left, shared out as evenly as it was."""
    left = policy.max_runs - len(record.value)
    total = sum(share.runs for share in order.plan)
    if not policy.max_runs or total <= left:
        return order
    plan = []
    for i, share in enumerate(order.plan):
        runs = min(share.runs, -(-left // (len(order.plan) - i)))
        if runs > 0:
            plan.append(Share(share.candidate, runs))
            left -= runs
    return Measure(tuple(plan), order.purpose, order.host)
