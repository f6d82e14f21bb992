"""What a hunt changes of a workload: its duration, warm-up and threads, and its args."""

from collections.abc import Mapping

import msgspec

from perfbisect.core.domain.settings import TIMING
from perfbisect.errors import UsageError
from perfbisect.recipes.find import full_name
from perfbisect.recipes.suggestions import hint, listed
from perfbisect.recipes.toml_reader import show
from perfbisect.recipes.workload import Option, Workload

TRUTHS = {"true": True, "on": True, "false": False, "off": False}


def typed(workload: Workload, overrides: Mapping[str, Option]) -> dict[str, Option]:
    """The overrides, the value of each arg converted to the type that it has in the workload.

    Raises UsageError for an arg that the workload does not have, or for a value of another type.
    """
    known = workload.prepare_args | workload.args
    found = dict(overrides)
    for name, value in overrides.items():
        if name in TIMING:
            continue
        if name not in known:
            raise UsageError(
                f"Workload {full_name(workload)} has no arg '{name}' to set.{hint(name, known)}",
                f"It has {listed(known)}; for anything else write a suite of your own.",
            )
        found[name] = _like(known[name], name, str(value))
    return found


def overridden(workload: Workload, overrides: Mapping[str, Option]) -> Workload:
    """The workload with its overrides; an arg of both loading and runs is changed in both. Raises as ``typed``."""
    found = typed(workload, overrides)
    return msgspec.structs.replace(
        workload,
        args=_replaced(workload.args, found),
        prepare_args=_replaced(workload.prepare_args, found),
        **{name: value for name, value in found.items() if name in TIMING},
    )


def _replaced(args: Mapping[str, Option], overrides: Mapping[str, Option]) -> dict[str, Option]:
    return {name: overrides.get(name, value) for name, value in args.items()}


def _like(known: Option, name: str, text: str) -> Option:
    """``text`` converted to the type of ``known``."""
    try:
        if isinstance(known, bool):
            return TRUTHS[text.lower()]
        return type(known)(text)
    except (KeyError, ValueError):
        allowed = {bool: "true or false", int: "a whole number", float: "a number"}[type(known)]
        raise UsageError(
            f"{name}={text} cannot be set: {name} is {allowed}.", f"It is {show(known)} unless set."
        ) from None
