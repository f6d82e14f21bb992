"""Why the culprit is slower, as the views of a hunt say it below the verdict, if it was studied."""

from perfbisect.core.domain.orders import first_step
from perfbisect.core.explain.explanation import explanation
from perfbisect.core.inference.hunt_state import HuntState
from perfbisect.wording import reasons


def reason(state: HuntState, metric: str, *, exact: bool) -> str:
    """The reason of the first change of ``metric`` that the verdict names; "" where nothing of it is known.

    ``exact`` says whether the hunt's runs are counted exactly.
    """
    step = first_step(state.verdict)
    if step is None or not state.studied:
        return ""
    parent, culprit = state.commits[step.parents[0]], state.commits[step.candidate]
    found = explanation(state.studied, parent, culprit, state.runs_of(step, exact=exact), step, metric)
    if not (found.counters or found.functions or found.plans):
        return ""
    return f"Why {culprit[:10]}: {' '.join(reasons.sentences(found))}"
