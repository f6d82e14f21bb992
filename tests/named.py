"""What a verdict names."""

from perfbisect.core.domain.orders import Found, Several, Step, Verdict


def found(verdict: Verdict) -> Step:
    """The change of a verdict that names the culprit."""
    assert isinstance(verdict, Found)
    return verdict.step


def several(verdict: Verdict) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Of a verdict on every change: the drops, the improvements, and the ends of the subranges that are unsettled."""
    assert isinstance(verdict, Several)
    drops, rises = ([step.candidate for step in steps] for steps in (verdict.steps, verdict.improvements))
    return drops, rises, [(one.good, one.bad) for one in verdict.unsettled]
