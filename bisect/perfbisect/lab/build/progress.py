"""How far a build is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """Steps done of steps known in one stage of a build; ``total`` 0 when unknown."""

    stage: str  # "fetch", "send", "checkout", "configure", "compile", "install"
    done: int = 0
    total: int = 0
