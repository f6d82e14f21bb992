"""The rules of a search, which `run` and `simulate` share: when a culprit is named, and the budgets."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from perfbisect.cli.options.measurement import added
from perfbisect.cli.options.param_types import COUNT, Minutes, Percent
from perfbisect.core.domain.policy import CAP, COUNTED, Policy

RULES = (
    click.option(
        "--confidence", type=Percent(CAP), default="95%", show_default=True,
        help="Probability at which a culprit is named.",
    ),
    click.option(
        "--min-effect", type=Percent(), help="Smallest change of interest  [default: 2%; 0.2% of exact counts]"
    ),
    click.option(
        "--all", "all_steps", is_flag=True, help="Find all changes of at least that size, not only the largest."
    ),
    click.option(
        "--max-builds", type=COUNT, help="Stop with the best answer after this many builds."
    ),
    click.option("--max-runs", type=COUNT, help="… after this many timed runs."),
    click.option("--max-time", type=Minutes(), help="… after this time: 90s, 45m, 2h."),
)  # fmt: skip


def policy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the rules; ``policy_of`` reads them."""
    return added(command, RULES)


def least(effect: float | None) -> dict[str, Any]:
    """The smallest changes of interest, of a time and of a count, as `--min-effect` has them; None: the usual ones."""
    return {"min_counted": COUNTED} if effect is None else {"min_effect": effect, "min_counted": 0.0}


def policy_of(options: Mapping[str, Any]) -> Policy:
    """The rules from the options."""
    return Policy(
        confidence=options["confidence"],
        **least(options["min_effect"]),
        max_builds=options["max_builds"] or 0,
        max_runs=options["max_runs"] or 0,
        max_minutes=options["max_time"] or 0.0,
        all_steps=options["all_steps"],
    )
