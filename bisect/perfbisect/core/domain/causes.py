"""Why a build is slower, from the counters of both sides.

The time of an operation is a product, so a slowdown splits exactly into a sum of logarithms:

    time/o  =  instructions/o  ×  cycles/instruction  ×  seconds/cycle  ×  time/CPU time
               more code          slower memory          slower clock      waiting

The largest term names the cause, as an engineer would who compares `perf stat` of two builds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.metrics import METRICS, quotient, typical

NEGLIGIBLE = 0.01  # log ratio below which a counter explains nothing: about 1 %


class Cause(StrEnum):
    """Why an operation takes longer (or, of an improvement, less long)."""

    INSTRUCTIONS = "instructions"  # code bloat
    MEMORY = "memory"  # fewer instructions per cycle
    WAITING = "waiting"  # contention or storage
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the counters of two builds say; ``ratios`` are culprit over parent for each metric that both have."""

    cause: Cause
    sentence: str
    ratios: Mapping[str, float]


def classify(parent_runs: Sequence[RunFacts], culprit_runs: Sequence[RunFacts]) -> Explanation:
    """Say from the counters why the culprit's operations take longer, or less long, than its parent's."""
    pairs = ((metric, typical(culprit_runs, metric), typical(parent_runs, metric)) for metric in METRICS)
    ratios = {metric: ratio for metric, after, before in pairs if (ratio := quotient(after, before)) is not None}
    change = {name: math.log(ratio) for name, ratio in ratios.items() if ratio > 0}
    if any(run.reported is not None and run.operations == 1 for run in (*parent_runs, *culprit_runs)):
        return Explanation(
            Cause.UNKNOWN, "The output of the command has no count of operations (--operations).", ratios
        )
    if "qps" not in change and change.get("instructions/o"):
        return Explanation(
            Cause.INSTRUCTIONS, say_instructions(ratios, exactly), ratios
        )  # counted exactly: any change is real
    if "qps" not in change:
        return Explanation(Cause.UNKNOWN, "There are no runs of both builds to compare.", ratios)
    parts = split(change)
    slower = change["qps"] <= 0 if abs(change["qps"]) >= NEGLIGIBLE else sum(parts.values()) >= 0
    ranked = sorted(parts, key=lambda cause: parts[cause] if slower else -parts[cause], reverse=True)
    if not ranked or abs(parts[ranked[0]]) < NEGLIGIBLE or (parts[ranked[0]] > 0) != slower:
        return Explanation(Cause.UNKNOWN, "What was counted does not differ enough between the two to say why.", ratios)
    cause = ranked[0]
    sentences = [SENTENCES[cause](ratios)]
    also = [other for other in ranked[1:] if abs(parts[other]) > abs(parts[cause]) / 3]
    if also and (parts[also[0]] > 0) == slower and also[0] is not Cause.UNKNOWN:
        sentences.append(f"In part also: {ALSO[also[0]]}.")
    return Explanation(cause, " ".join(sentences), ratios)


def split(change: Mapping[str, float]) -> dict[Cause, float]:
    """The terms of the slowdown that the counters can separate, as log ratios; positive means slower.

    Without instruction counts, all of the CPU time is one unknown term.
    """
    parts = {}
    busy = change.get("cpu/o", change.get("cycles/o"))
    if busy is not None:
        parts[Cause.WAITING] = -change["qps"] - busy
    if "instructions/o" in change:
        parts[Cause.INSTRUCTIONS] = change["instructions/o"]
    if "ipc" in change:
        parts[Cause.MEMORY] = -change["ipc"]
    if busy is not None:
        known = parts.get(Cause.INSTRUCTIONS, 0.0) + parts.get(Cause.MEMORY, 0.0)
        parts[Cause.UNKNOWN] = busy - known
    return parts


def times(ratio: float) -> str:
    """A ratio as people say it."""
    return f"×{ratio:.2f}"


def exactly(ratio: float) -> str:
    """A ratio of exact counts: one near 1 has two digits of its change."""
    places = 1 - math.floor(math.log10(abs(ratio - 1)))
    return f"×{ratio:.{max(2, places)}f}"


def say_instructions(ratios: Mapping[str, float], said: Callable[[float], str] = times) -> str:
    """More or less code on the path."""
    ratio = ratios["instructions/o"]
    what = "more instructions per operation (code bloat)" if ratio > 1 else "fewer instructions per operation"
    return f"It executes {what}: {said(ratio)}."


def say_memory(ratios: Mapping[str, float]) -> str:
    """Each instruction costs more or fewer cycles."""
    ratio = ratios["ipc"]
    what = "fewer instructions per cycle (memory-system bloat)" if ratio < 1 else "more instructions per cycle"
    misses = {
        name: found
        for name in ("L1-dcache-load-misses/o", "cache-misses/o", "dTLB-load-misses/o", "iTLB-load-misses/o",
                     "branch-misses/o")
        if (found := ratios.get(name)) is not None and (found > 1.1) == (ratio < 1) and abs(found - 1) > 0.1
    }  # fmt: skip
    worst = max(misses, key=lambda name: abs(math.log(misses[name] or 1.0)), default=None)
    with_it = f", with {worst} {times(misses[worst])}" if worst else ""
    return f"It executes {what}: {times(ratio)}{with_it}."


def say_waiting(ratios: Mapping[str, float]) -> str:
    """Time passes without CPU time."""
    longer = ratios["qps"] < 1
    busy = "CPU time" if "cpu/o" in ratios else "cycles"
    spent = ratios.get("cpu/o", ratios.get("cycles/o", 1.0))
    text = f"An operation waits {'longer' if longer else 'less'}: it takes {times(1 / ratios['qps'])} the time"
    text += f" with {times(spent)} the {busy}"
    moved = {
        name: ratio
        for name in ("cs/o", "r/o", "wKB/o")
        if (ratio := ratios.get(name)) is not None and abs(ratio - 1) > 0.1 and (ratio > 1) == longer
    }
    if not moved:
        return f"{text}."
    meaning = "contention" if "cs/o" in moved else "storage"
    return f"{text}; {', '.join(f'{name} {times(ratio)}' for name, ratio in moved.items())} point to {meaning}."


def say_computing(ratios: Mapping[str, float]) -> str:
    """CPU time moved, and no counter says why."""
    spent = ratios.get("cpu/o", ratios.get("cycles/o", 1.0))
    if "instructions/o" in ratios and "ipc" in ratios:
        return (
            f"CPU time per operation is {times(spent)}, but not by instructions or cycles: the clock ran differently."
        )
    switches = f" (cs/o {times(ratios['cs/o'])})" if "cs/o" in ratios else ""
    return (
        f"CPU time per operation is {times(spent)}, so the time goes into computing, not waiting{switches}; this host "
        "has no instruction counts, so more code and slower memory cannot be separated."
    )


SENTENCES: Mapping[Cause, Callable[[Mapping[str, float]], str]] = {
    Cause.INSTRUCTIONS: say_instructions,
    Cause.MEMORY: say_memory,
    Cause.WAITING: say_waiting,
    Cause.UNKNOWN: say_computing,
}
ALSO: Mapping[Cause, str] = {
    Cause.INSTRUCTIONS: "the number of instructions per operation",
    Cause.MEMORY: "the number of instructions per cycle",
    Cause.WAITING: "waiting",
}
