"""What a revert of the culprit regains, as sentences and as an exit status."""

from collections.abc import Iterator

from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.orders import Interval
from perfbisect.core.domain.trials import Trial
from perfbisect.core.stats.regained_share import BAD, GOOD, REVERTED, Outcome, outcome, regained
from perfbisect.wording.quantities import share
from perfbisect.wording.text import listed, metric_title, printable

STATUS = {
    Outcome.REGAINS: 0,
    Outcome.NOTHING: 1,
    Outcome.NOT_LOST: 1,
    Outcome.UNCLEAR: 2,
    Outcome.UNMEASURED: 2,
}


def exit_status(trial: Trial) -> int:
    """0: reverting regains something. 1: it is not shown to, or nothing was lost. 2: undecided."""
    return STATUS[outcome(regained(trial))]


def sentences(trial: Trial) -> Iterator[str]:
    """What a proof shows, a sentence a line."""
    good, bad = (printable(trial.request.subjects[build].name) for build in (GOOD, BAD))
    metric, found = trial.request.metric, regained(trial)
    result = outcome(found)
    if found is None:
        yield unmeasured(trial)
        return
    if found.share is None:
        yield (
            f"Nothing can be regained: in these {found.rounds} rounds {good} and {bad} are not shown to differ in"
            f" {metric_title(metric)}."
        )
        yield "What would help: more rounds (--visits), or a quieter host."
        return
    worse = (found.lost > 0) == find_metric(metric).higher_is_better
    does = f"{'regains' if worse else 'takes back'} {parts(found.share)} of what was {'lost' if worse else 'gained'}"
    yield f"Reverting {names(trial)} on {bad} {does}."
    match result:
        case Outcome.REGAINS if found.share.high < 1:
            yield "That is a part: the rest is due to other changes, or to what depends on the reverted one."
        case Outcome.REGAINS if found.share.low > 1:
            yield "That is more than the whole: other changes have the opposite effect, or the revert adds one of its own."
        case Outcome.REGAINS:
            yield "Nothing of it is shown to be due to other changes."
        case Outcome.NOTHING:
            yield (
                f"The interval includes 0 %: the verdict of hunt {hunt(trial)} is in doubt, or later commits lose the same"
                " again."
                if found.share.high > 0
                else f"It makes things worse: the verdict of hunt {hunt(trial)} is in doubt."
            )
        case _:
            yield "The interval includes nothing and all: more rounds (--visits) or a quieter host would decide."


def parts(found: Interval) -> str:
    """A share with its interval: 83 % (71 to 96 %)."""
    return f"{share(found.middle)} ({100 * found.low:,.0f} to {share(found.high)})"


def names(trial: Trial) -> str:
    """The reverted commits."""
    return listed([commit[:10] for commit in trial.request.reverts.commits]) if trial.request.reverts else ""


def hunt(trial: Trial) -> int:
    """The hunt whose verdict is tested."""
    return trial.request.reverts.hunt if trial.request.reverts else 0


def unmeasured(trial: Trial) -> str:
    """Why no share is known."""
    subjects = trial.request.subjects
    failed = [(subjects[build].name, subjects[build].trouble) for build in (GOOD, BAD, REVERTED)]
    failed += [(subjects[skip.subject].name, skip.facts.reason) for skip in trial.skips]
    for name, reason in failed:
        if reason:
            return printable(f"Not proven: {name} cannot be measured: {reason}.")
    return f"Not proven: it takes two rounds in which all three builds have a value of {trial.request.metric}."
