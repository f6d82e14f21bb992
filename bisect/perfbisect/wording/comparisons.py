"""What stands beside the figures of a trial: the metric with its direction, differences, and the runs that they are from."""

from perfbisect.core.domain.events import PairingChosen
from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.trials import counting
from perfbisect.wording.quantities import count, percent
from perfbisect.wording.text import metric_title

LOWER = ("lower", "higher")
WORDS = {"qps": ("slower", "faster"), "rate": ("slower", "faster"), "latency": ("faster", "slower")}  # below 1, above 1


def difference(metric: str, of_one: float) -> str:
    """A ratio of a metric as a difference from 1: 12 % slower, 3.1 % higher."""
    return f"{percent(abs(of_one - 1))} {WORDS.get(metric, LOWER)[of_one > 1]}"


def by_cpu(chosen: PairingChosen | None) -> str:
    """What follows the name of a metric whose ratios are by CPU time, where its values are by the time of day; or ""."""
    return " by CPU time" * bool(chosen and chosen.together and chosen.by_cpu)


def ratio_title(metric: str, chosen: PairingChosen | None) -> str:
    """The name of a ratio to the good end in a column: rQPS, rcpu/o, rQPS by CPU."""
    return f"r{metric_title(metric)}{by_cpu(chosen).removesuffix(' time')}"


def relative_metric(trial: SessionState) -> str:
    """What is relative, and of a cost which way is worse."""
    metric = trial.request.metric
    what = "Throughput" if metric == "qps" else metric
    worse = f" (above 1: {'slower' if metric == 'latency' else 'worse'})"
    return f"{what}{by_cpu(trial.pairing)}{worse * (not find_metric(metric).higher_is_better)}"


def runs_of(trial: SessionState, rounds: str = "") -> str:
    """The runs that figures are from, in so many rounds (those that were asked for), and how many there are in all."""
    runs, request, made = counting(trial), trial.request, len(trial.runs)
    if len(runs) == made:
        return f"{rounds or count(request.rounds, 'round')} of {count(request.runs, 'run')} each"
    way, other = ("at the same time", "in turns")[:: 1 if trial.together else -1]
    aside = f"{made - len(runs)} {other} {'helped to choose that' if trial.pairing else 'are beside them'}"
    counted = f"{count(len({run.round for run in runs}), 'round')} with {count(len(runs), 'run')} {way}"
    return f"{counted}; {aside}: {count(made, 'run')} in all"
