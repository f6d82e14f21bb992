"""The order of the runs of one measurement.

Slow changes of the host (heat, neighbours, frequency) cancel if the builds that are compared take turns.
"""

from perfbisect.core.domain.orders import Share


def interleave(plan: tuple[Share, ...]) -> tuple[int, ...]:
    """The candidates of ``plan``, one entry per run, each spread evenly.

    >>> interleave((Share(5, 2), Share(0, 2)))
    (5, 0, 0, 5)
    """
    turns = [
        ((turn + 0.5) / share.runs, rank if turn % 2 == 0 else -rank, share.candidate)
        for rank, share in enumerate(plan)
        for turn in range(share.runs)
    ]
    return tuple(candidate for _, _, candidate in sorted(turns))
