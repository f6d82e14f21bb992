"""The time that a hunt still takes: that of the bits of belief that are missing, at the cost of the bits gained so far."""

from statistics import median

from perfbisect.core.domain.orders import Purpose
from perfbisect.ui.view_model import ViewModel, bits

RUNS_PER_BIT = 4.0  # first guess: one build and this many runs halve the range
CONFIRMING = 6.0  # runs that prove a culprit against its parent
PRIOR_BITS = 1.0  # weight of the first guess against what is observed
OVERDUE = 0.1  # of an estimate: what is left of it where it was too short


def minutes_left(view: ViewModel, now: float) -> float | None:
    """Estimated minutes until the verdict; None while too little is known. Between events they pass."""
    belief = view.state.belief
    ran_in = [row.run_seconds / 60 / len(row.runs) for row in view.rows.values() if row.runs]
    if belief is None or view.state.verdict is not None or not ran_in:
        return None
    build, run = median([row.build_seconds / 60 for row in view.rows.values() if row.made] or [0.0]), median(ran_in)
    missing, at, confirms = bits(belief), view.state.last or now, view.state.purpose is Purpose.CONFIRM
    since, at_first = view.searching or (at, missing)
    guess, gained = build + RUNS_PER_BIT * run, max(0.0, at_first - missing)
    per_bit = ((at - since) / 60 + PRIOR_BITS * guess) / (gained + PRIOR_BITS)
    ordered = view.phase.until - view.runs if view.phase and view.state.purpose is not Purpose.SEARCH else 0
    whole = missing * per_bit + (ordered + CONFIRMING * (not confirms)) * run
    return max(whole - (now - at) / 60, OVERDUE * whole)
