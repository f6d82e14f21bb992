"""Converts quantities to text for all outputs. This module imports few modules, because `bisect history` must start
fast."""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfbisect.core.domain.facts import BuildFacts
    from perfbisect.core.domain.orders import Interval
    from perfbisect.core.domain.session_state import TestedCommit

MISSING = "–"
USELESS_RATIO = 0.001  # an interval from a smaller ratio to a ratio above the inverse says nothing
NARROW_INTERVAL = 0.001  # a narrower interval of ratios needs more than three decimals
HUGE = 1e12  # larger numbers are written with an exponent


def count(number: int, noun: str) -> str:
    """A number and a noun, in the plural if necessary: 1 run, 2,300 runs."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def one_or_count(workloads: Sequence[str]) -> str:
    """A text for a narrow column: the name of the workload if there is only one, such as scan, otherwise the number of
    workloads, such as 3 workloads."""
    return workloads[0] if len(workloads) == 1 else count(len(workloads), "workload")


def figure(value: float | None) -> str:
    """A measured value with at least three digits: 12,345, 87.1, 0.442; a dash for None."""
    if value is None:
        return MISSING
    return decimals(value, 0) if abs(value) >= 99.95 else f"{value:#.3g}".rstrip(".")


NO_DECIMALS_FROM = 9.95  # counts of this size or more have no decimals
SCALES = {"us": ((1e6, "s"), (1e3, "ms"), (1.0, "µs")), "": ((1e9, "billion"), (1e6, "million"), (1.0, ""))}


def divisor_and_unit(largest: float, unit: str = "", smallest: float = 1.0) -> tuple[float, str]:
    """A divisor, and a unit for the divided numbers, so that numbers up to ``largest`` are easy to read, such as 1000
    and ms. The result is the largest divisor for which ``largest`` / divisor is at least ``smallest``.
    """
    name = "" if unit == "us" or not unit else unit
    scales = SCALES.get(unit, SCALES[""])
    divisor, prefix = next(scale for scale in scales if largest >= smallest * scale[0] or scale[0] == 1.0)
    return divisor, " ".join(filter(None, (prefix, name)))


def amount(value: float, unit: str = "") -> str:
    """A quantity with a unit that makes the number easy to read: 1.66 s, 24.1 ms, 400, 166,000, 1.2 million cycles.
    ``unit`` "us": microseconds."""
    divisor, name = divisor_and_unit(abs(value), unit)
    scaled = value / divisor
    digits = 10.0 ** max(0, math.floor(math.log10(abs(scaled))) - 2) if abs(scaled) >= 1e4 else 1.0
    is_count = not name and abs(value) >= NO_DECIMALS_FROM
    rounded = round(scaled / digits) * digits if digits > 1 else scaled
    text = decimals(scaled, 0) if is_count and digits == 1.0 else figure(rounded)
    return f"{text} {name}".rstrip()


def signed(value: float) -> str:
    """A difference with its sign: +1.25, −0.4."""
    return f"{'+' if value >= 0 else '−'}{figure(abs(value))}"


def decimals(value: float, places: int) -> str:
    """A number with ``places`` decimals: 12,345, 0.71. Numbers of 10¹² and more are written with an exponent."""
    return f"{value:,.{places}f}" if abs(value) < HUGE else f"{value:.3g}"


SMALLEST = 6  # the largest number of decimals of a ratio or a percentage


def decimals_needed(value: float, min_decimals: int) -> int:
    """The number of decimals with which a number shows two significant digits, but at least ``min_decimals``, and at
    most 6."""
    return min(SMALLEST, max(min_decimals, 1 - math.floor(math.log10(value)))) if value > 0 else min_decimals


def factor(value: float, places: int = 3) -> str:
    """A ratio with the sign × and ``places`` decimals; with more decimals if two significant digits need them: ×0.756,
    ×0.0069."""
    return f"×{decimals(value, decimals_needed(value, places))}"


def percent(fraction: float) -> str:
    """A fraction as a percentage with two significant digits: 0.00031 %, 0.43 %, 2.1 %, 29 %."""
    places = 0 if fraction >= 0.0995 else 1 if fraction >= 0.00995 else 2
    while places in range(2, SMALLEST) and 0 < fraction < 0.995 * 10.0 ** -(places + 1):
        places += 1
    return f"{fraction:.{places}%}".replace("%", " %")


def share(fraction: float | None) -> str:
    """A fraction as a whole percentage: 82 %; a dash for None."""
    return MISSING if fraction is None else f"{100 * fraction:.0f} %".replace("-", "−")


def chance(probability: float | None) -> str:
    """A probability as a percentage, at most MAX_PROBABILITY: 97 %, 99.5 %, <0.1 %; a dash for None."""
    if probability is None:
        return MISSING
    if probability < 0.001:
        return "<0.1 %"
    if probability >= 0.99:
        from perfbisect.core.domain.settings import MAX_PROBABILITY  # all settings are slow to import

        return f"{math.floor(1000 * min(probability, MAX_PROBABILITY) + 1e-9) / 10:.1f} %"
    return f"{100 * probability:.1f} %" if probability < 0.0995 else share(probability)


def low_to_high(interval: "Interval | None") -> str:
    """The bounds of an interval of ratios: 0.698–0.726; if only one bound is known: <0.204.

    The text is a dash for None, and for an interval that is too wide to be useful.
    """
    if interval is None or (interval.low < USELESS_RATIO and interval.high > 1 / USELESS_RATIO):
        return MISSING
    return one_sided(interval) or f"{_shown_value(interval, interval.low)}–{_shown_value(interval, interval.high)}"


def ratio(interval: "Interval") -> str:
    """A ratio with its interval: 0.712 (0.698–0.726). If only one bound of the interval is known, the text is this
    bound: <0.204."""
    return one_sided(interval) or f"{_shown_value(interval, interval.middle)} ({low_to_high(interval)})"


def ratio_or_bound(interval: "Interval") -> str:
    """A ratio for a narrow column: 0.712; if only one bound of its interval is known, this bound: <0.204."""
    return one_sided(interval) or _ratio(interval.middle)


def ratio_cells(ratio: "Interval | None", *, baseline: bool, unknown: str = "") -> tuple[str, str]:
    """Two texts for the table of candidates: the ratio of a candidate to the baseline, and the confidence interval of
    the ratio."""
    if ratio is None or baseline:
        return ("1.000", "baseline") if baseline else (unknown, unknown)
    return ratio_or_bound(ratio), low_to_high(ratio)


def build_times(row: "TestedCommit", in_words: Callable[[float], str], unknown: str = "") -> str:
    """The durations of a candidate's builds, for a column of a table, such as "3× 12 s" (three builds) or "shared: 0.4
    s" (copied from the shared builds); "reused" if no new build was made.
    """
    if not row.build_seconds:
        return "reused" if row.builds else unknown
    number = len(row.new_builds)
    return f"{'shared: ' if row.is_fetched else f'{number}× ' if number > 1 else ''}{in_words(row.build_seconds)}"


def stopped_run(times_good: float, stopped_after: float) -> str:
    """The result, in words, of a run that was stopped early because the build is slow: slower than 5 × good (stopped
    after 12 s)."""
    return f"slower than {times_good:g} × good (stopped after {duration(stopped_after)})"


def one_sided(interval: "Interval") -> str:
    """The bound of an interval of ratios of which only one bound is known: <0.204, >4.92; "" if both bounds are known."""
    if interval.only_known_bound:
        return f"<{_ratio(interval.high)}" if interval.only_known_bound < 0 else f">{_ratio(interval.low)}"
    return ""


def _shown_value(interval: "Interval", value: float) -> str:
    """``value``, a bound or the middle of an interval. The text has five decimals if the interval is narrower than
    0.001, as for exact counts."""
    return decimals(value, 5) if 0 < interval.high - interval.low < NARROW_INTERVAL < value else _ratio(value)


def _ratio(value: float) -> str:
    """A ratio with three decimals; with three significant digits if the ratio is so small or so large that three
    decimals show too few or too many digits."""
    return decimals(value, 3) if 0.0995 <= value < 99.95 else figure(value) if value > 1 else f"{value:.3g}"


NOTHING = 0.0005  # a smaller change, as a fraction, is called no change


def change(ratio: float, least: float = NOTHING) -> str:
    """A change by a ratio, in words: a drop of 29 %, a drop to 1/1,600, a rise to 12 times."""
    if abs(ratio - 1) < least:
        return "no change"
    if 0 < ratio < 0.1:
        return f"a drop to 1/{decimals(1 / ratio, 0)}"
    if ratio >= 10:
        return f"a rise to {decimals(ratio, 0)} times"
    return f"{'a drop' if ratio < 1 else 'a rise'} of {percent(abs(ratio - 1))}"


def duration(seconds: float) -> str:
    """A duration in a sentence: 0.4 s, 31 s, 12 min 5 s, 3 h 20 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    minutes, remaining_seconds = divmod(rounded, 60)
    if minutes < 60:
        return f"{minutes} min {remaining_seconds} s" if remaining_seconds else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def clock(seconds: float) -> str:
    """A duration with colons, for a running clock or a narrow column: 0:07, 12:30, 1:02:03."""
    minutes, remaining_seconds = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{remaining_seconds:02}" if hours else f"{minutes}:{remaining_seconds:02}"


def span_of(low: int, high: int, noun: str) -> str:
    """The smallest and the largest number of items, and their noun: 8 to 14 runs; only one number if both are equal: 2
    builds."""
    return f"{low} to {count(high, noun)}" if low < high else count(high, noun)


def estimate(minutes: float) -> str:
    """An estimated duration, rounded because estimates are inaccurate: about 20 s, about 4 min, about 1 h 20 min."""
    if minutes < 0.75:
        return f"about {max(1, round(6 * minutes))}0 s"
    if minutes < 59.5:
        step = 1 if minutes < 10 else 5
        return f"about {round(minutes / step) * step} min"
    hours, remaining_minutes = divmod(round(minutes / 10) * 10, 60)
    if remaining_minutes and hours < 10:
        return f"about {hours} h {remaining_minutes} min"
    return f"about {round(minutes / 60)} h"


def moment(seconds: float) -> str:
    """The local date and time of a moment, which is given in seconds since the epoch: 2023-11-14 22:13."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def time_of_day(seconds: float) -> str:
    """The local time of day of a moment, which is given in seconds since the epoch: 22:13:20."""
    return datetime.fromtimestamp(seconds).strftime("%H:%M:%S")


def extent(commits: int, candidates: int, merges: int) -> str:
    """The size of a range in words: the numbers of commits, candidates and merges (good is not included), and the
    number of commits that need no build."""
    unbuilt = commits - candidates
    touch = "it changes" if unbuilt == 1 else "they change"
    parts = [count(commits, "commit"), count(candidates, "candidate"), *([count(merges, "merge")] if merges else [])]
    if unbuilt > 0:
        parts.append(f"{count(unbuilt, 'commit')} not built, because {touch} no file that is built or read")
    return ", ".join(parts)


def size(number_of_bytes: int) -> str:
    """A number of bytes with a unit: 1.2 GB, 300 B."""
    for unit, bytes_per_unit in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number_of_bytes >= bytes_per_unit:
            return f"{number_of_bytes / bytes_per_unit:.1f} {unit}"
    return f"{number_of_bytes} B"


def build_origin(facts: "BuildFacts") -> list[str]:
    """Texts about the origin of a build: that the build is shared or reused, or how long the build took and how many
    compilations the compiler cache has saved."""
    from perfbisect.core.domain.facts import remote_share_of_hits

    if facts.shared:
        return [f"from the shared builds in {duration(facts.seconds)}"]
    if facts.reused:
        return ["an earlier build is used again"]
    share_text = cache_share_text(facts.ccache_hit_rate, remote_share_of_hits([facts]))
    return [duration(facts.seconds), *filter(None, [share_text])]


PHASES = {
    "checkout": "checking out", "patch": "patching", "configure": "configuring", "compile": "compiling",
    "install": "installing", "train": "training", "relink": "linking again in randomized layouts", "record": "recording the installed files", "other": "the rest",
}  # fmt: skip


def phase_clause_and_sentence(phases: Mapping[str, float]) -> tuple[str, str]:
    """Two texts about the durations of the phases of builds: a clause about the longest phase (of the named phases),
    and a sentence about all phases.

    Phases shorter than 0.05 s are left out. Both texts are "" if there are no phases.
    """
    if not (total := sum(phases.values())):
        return "", ""
    ordered = sorted(phases, key=lambda phase: (phase == "other", -phases[phase]))
    parts = (f"{PHASES[phase]} {duration(phases[phase])}" for phase in ordered if phases[phase] >= 0.05)
    longest = ordered[0]
    largest = f"{share(phases[longest] / total)} of the time {PHASES[longest]}" if longest != "other" else ""
    return largest, f"Time of these builds by phase: {', '.join(parts)}."


def cache_share_text(rate: float | None, remote: float | None) -> str:
    """A text with the share of compilations whose results ccache already had, and the share of these results that came
    from ccache's remote store.

    The text is "" if ``rate`` is None, because no compilations were counted.
    """
    if rate is None:
        return ""
    remote_part = f", {share(remote)} of these from its remote store" if remote else ""
    return f"{share(rate)} of compilations from ccache{remote_part}"
