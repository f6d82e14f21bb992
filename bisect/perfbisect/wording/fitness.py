"""What fitness checks show of a host, in sentences."""

from perfbisect.core.stats.fitness import Fault, Unfit
from perfbisect.wording.quantities import moment, percent
from perfbisect.wording.text import shell_word


def why_unfit(unfit: Unfit) -> str:
    """What is worse on an unfit host, and since when: its level fell by 7.1 %, since 2026-03-01."""
    fell = f"its level fell by {percent(1 - unfit.level)}" if Fault.LEVEL in unfit.faults else ""
    rose = f"its noise rose to {percent(unfit.shown.noise or 0)}" if Fault.NOISE in unfit.faults else ""
    return f"{' and '.join(filter(None, (fell, rose)))}, since {moment(unfit.since)[:10]}"


def unfit_host(name: str, unfit: Unfit) -> str:
    """That a host is unfit, why, and how it is taken back."""
    return f"{name} is unfit: {why_unfit(unfit)}. If it is meant to be so: bisect hosts --accept {shell_word(name)}"
