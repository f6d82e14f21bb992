"""Top-down level 1: what became of the slots of a processor's pipeline, from events that Intel, AMD and ARM count.

In each cycle a processor has a fixed number of slots in which an operation can begin. A slot retires an operation, is
lost to an operation that is thrown away, or stays empty because the front end delivers none or the back end accepts
none (A. Yasin, "A top-down method for performance analysis and counters architecture", ISPASS 2014). Slots per operation
of the workload need no constant of the processor, and their differences sum to that of all slots, which is in proportion
to that of the cycles.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Terms = tuple[tuple[str, int], ...]  # events with the sign with which they are added

RETIRING, WRONG, FRONT, BACK = "retiring slots/o", "bad-speculation slots/o", "front-end slots/o", "back-end slots/o"


@dataclass(frozen=True, slots=True)
class Family:
    """The events of one family of processors."""

    events: tuple[str, ...]
    slots: Mapping[str, Terms]  # category → the events whose sum it is


INTEL = Family(  # from Ice Lake on; perf turns the metrics of the kernel into slots
    ("slots", "topdown-retiring", "topdown-bad-spec", "topdown-fe-bound", "topdown-be-bound"),
    {
        RETIRING: (("topdown-retiring", 1),),
        WRONG: (("topdown-bad-spec", 1),),
        FRONT: (("topdown-fe-bound", 1),),
        BACK: (("topdown-be-bound", 1),),
    },
)
AMD = Family(  # from Zen 4 on; AMD's "Pipeline Utilization" metrics. What another thread of the core takes is in none
    (
        "ex_ret_ops",
        "de_src_op_disp.all",
        "de_no_dispatch_per_slot.no_ops_from_frontend",
        "de_no_dispatch_per_slot.backend_stalls",
    ),
    {
        RETIRING: (("ex_ret_ops", 1),),
        WRONG: (("de_src_op_disp.all", 1), ("ex_ret_ops", -1)),
        FRONT: (("de_no_dispatch_per_slot.no_ops_from_frontend", 1),),
        BACK: (("de_no_dispatch_per_slot.backend_stalls", 1),),
    },
)
ARM = Family(  # Neoverse V1, N2 and later: Arm's "Topdown methodology", without its corrections for single models
    ("op_retired", "op_spec", "stall_slot_frontend", "stall_slot_backend"),
    {
        RETIRING: (("op_retired", 1),),
        WRONG: (("op_spec", 1), ("op_retired", -1)),
        FRONT: (("stall_slot_frontend", 1),),
        BACK: (("stall_slot_backend", 1),),
    },
)
FAMILIES = (INTEL, AMD, ARM)


def slots(counters: Mapping[str, float | None], category: str) -> float | None:
    """The slots of a category in what was counted; None where that has no such events, or counted more than were."""
    for family in FAMILIES:
        terms = family.slots[category]
        found = [counters.get(event) for event, _ in terms]
        if None not in found:
            total = sum(sign * (value or 0.0) for (_, sign), value in zip(terms, found, strict=True))
            return total if total >= 0 else None
    return None
