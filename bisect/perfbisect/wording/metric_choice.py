"""Why a hunt goes by the metric that it chose."""

from perfbisect.core.inference.metric_choice import Choice, Shown
from perfbisect.wording.not_hunted import smaller_option
from perfbisect.wording.quantities import change, figure, percent
from perfbisect.wording.text import metric_title


def sentence(choice: Choice) -> str:
    """The metric, and what it shows of the change between the ends."""
    title, best, usual = metric_title(choice.metric), choice.best, choice.usual
    if best is None and choice.small:
        small = f"{metric_title(choice.small.metric)} shows {change(choice.small.ratio)}"
        option = smaller_option(choice.small.ratio)
        return f"The metric is {title}: no recorded metric shows a change of interest. {small}: to hunt that, use {option}."
    if best is None:
        return f"The metric is {title}: no recorded metric shows a change between the ends yet."
    if usual is None:
        return f"The metric is {title}, which shows the change between the ends best: {shown(best)}."
    if usual.metric == best.metric:
        return (
            f"The metric is {title}: no other recorded metric shows more of the change between the ends, {shown(best)}."
        )
    more = f"{figure(best.information / max(usual.information, 1e-12))} times as much information a second"
    if best.information > 1000 * usual.information:
        more = "more than 1,000 times as much information a second"
    return (
        f"The metric is {title}, which shows the change between the ends best: {shown(best)}. That is {more} as"
        f" {metric_title(usual.metric)} gives: {shown(usual)}."
    )


def shown(one: Shown) -> str:
    """The change, and the noise that it is seen in."""
    noise = "less than 0.01 %" if one.noise < 0.0001 else percent(one.noise)
    return f"{change(one.ratio)}, where runs vary by {noise}"
