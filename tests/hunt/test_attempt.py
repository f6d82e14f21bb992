"""The advice after a failed attempt at a hunt."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import sample_hunt as sample
from perfbisect.core.domain.facts import KnownError
from perfbisect.core.domain.settings import Flags, QuickCommand
from perfbisect.errors import (
    BuildFailed,
    ConnectionLost,
    MetricPatternUnmatched,
    NoMetricValues,
    PerfBisectError,
    RangeEndFailed,
    RunFailed,
    UsageError,
)
from perfbisect.hunt.attempt import SessionAttempt
from perfbisect.lab.building.log_parser import KnownFailure

RECIPE, BUILT, OWN = None, QuickCommand("bench", rate="x"), QuickCommand("bench", build=("make",), rate="x")
RAN = RunFailed("it ended with status 1", stage="run", log="")
NOT_BUILT = BuildFailed("it does not compile", stage="compile", log="")
HEADER = KnownFailure(
    "it does not compile", KnownError("a header", Flags("-include x.h")), stage="compile", log="", hint=""
)


@pytest.mark.parametrize(
    ("quick", "failure", "cause", "said"),
    [
        (OWN, ConnectionLost("lost"), None, r"All measurements are kept. To continue: bisect resume 1"),
        (
            OWN,
            RangeEndFailed("bad fails"),
            RAN,
            r"Correct --run, or install .*, and begin a new hunt: builds are used again\.",
        ),
        (
            OWN,
            RangeEndFailed("bad fails"),
            NOT_BUILT,
            r"Correct --build, and begin a new hunt. Or install .*, and continue: bisect resume 1",
        ),
        (BUILT, RangeEndFailed("bad fails"), NOT_BUILT, r"Correct the recipe, or install .*: bisect resume 1"),
        (RECIPE, RangeEndFailed("bad fails"), RAN, r"Correct the recipe, or install .*: bisect resume 1"),
        (OWN, RangeEndFailed("bad fails"), HEADER, r"Begin a new hunt: bisect run .* --cflags '-include x.h'.*"),
        (OWN, MetricPatternUnmatched("finds nothing"), RAN, ""),
        (RECIPE, NoMetricValues("no value"), None, ""),
        (RECIPE, UsageError("The merge base does not have the speed of good."), None, ""),
    ],
)
def test_advice_after_a_failure(
    quick: QuickCommand | None, failure: PerfBisectError, cause: Exception | None, said: str
) -> None:
    unused: Any = None
    failure.__cause__ = cause
    attempt = SessionAttempt(SimpleNamespace(path=None), unused, [1], None, {}, name="1")  # type: ignore[arg-type]
    assert re.fullmatch(said, attempt.advice_after(failure, replace(sample.SETTINGS, quick=quick)))
