"""Why a change between the ends that is shown is not hunted, and the options with which it is."""

import math

from perfbisect.core.domain.orders import NotReproduced
from perfbisect.core.domain.policy import Direction
from perfbisect.wording.quantities import percent

TOO_SMALL = 1.5e-4  # log ratio below which the search takes no change for one


def why_not_hunted(verdict: NotReproduced) -> tuple[str, ...]:
    """Why a difference between the ends that is shown is not hunted; and the options with which it is."""
    if not verdict.least:  # as earlier versions stored it
        return (
            "This is not a change of the requested direction and size, or no more than code layout alone can cause.",
        )
    seen, wanted = abs(math.log(verdict.ratio.middle)), verdict.direction
    way = Direction.DROP if verdict.ratio.middle < 1 else Direction.RISE
    small, other = seen < -math.log1p(-verdict.least), wanted not in (way, Direction.ANY)
    options = " ".join([*([f"--direction {way}"] * other), *([smaller_option(verdict.ratio.middle)] * small)])
    least = f"less than the smallest change of interest, {percent(verdict.least)} (--min-effect)"
    if small and seen < TOO_SMALL:
        return (f"That is {least}, and too small to be hunted.",)
    if other:
        return (
            f"A {wanted} is hunted, and this is a {way}{f', {least}' * small}: if good and bad were swapped, put the older",
            f"revision first; to hunt this change, use {options}.",
        )
    if small:
        return (f"That is {least}: to hunt it, use {options}.",)
    return ("That is no more than noise or code layout can cause.",)


def smaller_option(ratio: float) -> str:
    """The option with which a change by that factor is large enough to be hunted: three quarters of it, in one digit."""
    return f"--min-effect {float(f'{70 * -math.expm1(-abs(math.log(ratio))):.1g}'):g}%"
