"""What a failure of a session says about going on."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import sample_hunt as sample
from perfbisect.core.domain.facts import Known
from perfbisect.core.domain.settings import Flags, Quick
from perfbisect.errors import (
    BuildFailed,
    ConnectionLost,
    EndFailed,
    NothingToCompare,
    PerfBisectError,
    RunFailed,
    UsageError,
    WrongPattern,
)
from perfbisect.hunt.sitting import Sitting
from perfbisect.lab.build.known_errors import KnownFailure

RECIPE, BUILT, OWN = None, Quick("bench", rate="x"), Quick("bench", build=("make",), rate="x")
RAN = RunFailed("it ended with status 1", stage="run", log="")
NOT_BUILT = BuildFailed("it does not compile", stage="compile", log="")
HEADER = KnownFailure("it does not compile", Known("a header", Flags("-include x.h")), stage="compile", log="", hint="")


@pytest.mark.parametrize(
    ("quick", "failure", "cause", "said"),
    [
        (OWN, ConnectionLost("lost"), None, r"What was measured is kept; go on with: bisect resume 1"),
        (OWN, EndFailed("bad fails"), RAN, r"Change --run, or what it needs, and begin anew: builds .* used again\."),
        (OWN, EndFailed("bad fails"), NOT_BUILT, r"Change --build and begin anew; or add .*: bisect resume 1"),
        (BUILT, EndFailed("bad fails"), NOT_BUILT, r"Mend the recipe, or add .*: bisect resume 1"),
        (RECIPE, EndFailed("bad fails"), RAN, r"Mend the recipe, or add .*: bisect resume 1"),
        (OWN, EndFailed("bad fails"), HEADER, r"Begin a new hunt: bisect run .* --cflags '-include x.h'.*"),
        (OWN, WrongPattern("finds nothing"), RAN, ""),
        (RECIPE, NothingToCompare("no value"), None, ""),
        (RECIPE, UsageError("The merge base does not have the speed of good."), None, ""),
    ],
)
def test_going_on_is_advised_where_it_can_help(
    quick: Quick | None, failure: PerfBisectError, cause: Exception | None, said: str
) -> None:
    setup: Any = SimpleNamespace(settings=replace(sample.SETTINGS, quick=quick))
    unused: Any = None
    failure.__cause__ = cause
    sitting = Sitting(SimpleNamespace(path=None), "1", (), (), setup, unused, unused, False)  # type: ignore[arg-type]
    assert re.fullmatch(said, sitting.what_next(failure))
