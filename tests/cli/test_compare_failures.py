"""`bisect compare` where something fails on the way."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.tools

Invoke = Callable[..., tuple[int, str, str]]
Exits = Callable[..., str]
HOW = ["--builder", "script", "--repo", "repo", "--runs", "1"]
FAILS_LATER = """\
[ "$1" = one ] || echo again >>COUNT
[ "$1" = one ] || [ $(wc -l <COUNT) = 1 ] || exit 7
echo rate 50"""


def test_what_fails_on_the_way_is_said_kept_and_reported_later(
    invoke: Invoke, exits: Exits, script: Callable[[str], str], tmp_path: Path
) -> None:
    base = script("echo rate 100")
    other = script(FAILS_LATER.replace("COUNT", str(tmp_path / "count")))
    status, out, err = invoke("compare", base, other, "--workload", "all", "--visits", "2", *HOW)
    reason = f"{other} fails in two: it ended with status 7"
    assert status == 2, err
    assert reason in err
    assert reason in out
    assert "  50.0 rate" in err
    assert len(re.findall(r"^ 0.50  (one|two)$", out, re.MULTILINE)) == 2, "what was measured counts"
    assert re.search(r" compared$", exits(0, "history"), re.MULTILINE)
    assert reason in exits(0, "show", "c1")
    [skip] = json.loads(exits(0, "show", "c1", "--json"))["skips"]
    assert (skip["work"], skip["subject"], skip["facts"]["stage"]) == (1, 1, "run")


def test_where_nothing_could_be_measured_it_is_said_why_and_begun_anew(
    exits: Exits, script: Callable[[str], str]
) -> None:
    builds = [script("exit 3 # now"), script("exit 3")]
    for number in (1, 2):
        err = exits(4, "compare", *builds, "--workload", "one", "--visits", "1", *HOW)
        assert f"Nothing was measured: {builds[0]} fails in one: it ended with status 3" in err
        assert "continuing" not in err
        [*_, last] = json.loads(exits(0, "history", "--json"))
        assert (last["id"], last["state"]) == (f"c{number}", "failed")
        assert last["failure"].startswith("Nothing was measured")


def test_a_base_that_does_not_build_is_listed_with_its_reason(exits: Exits, script: Callable[[str], str]) -> None:
    builds = [script("does not build"), script("echo rate 100")]
    exits(4, "compare", *builds, "--workload", "one", "--visits", "1", *HOW)
    [failed] = json.loads(exits(0, "history", "--json"))
    assert (failed["id"], failed["state"]) == ("c1", "failed")
    assert f"{builds[0]} cannot be built" in failed["failure"]


def test_an_aa_of_a_build_that_fails_on_the_way_has_failed(
    exits: Exits, script: Callable[[str], str], tmp_path: Path
) -> None:
    count = tmp_path / "count"
    build = script(f"echo again >>{count}; [ $(wc -l <{count}) -le 3 ] || exit 7; echo rate $(wc -l <{count})")
    err = exits(4, "noise", "--rev", build, "--workload", "one", "--visits", "6", *HOW)
    assert f"{build} fails in one: it ended with status 7" in err
    [failed] = json.loads(exits(0, "history", "--json"))
    assert (failed["id"], failed["state"], failed["runs"]) == ("n1", "failed", 3)


def test_an_aa_that_fails_at_once_is_reported_with_its_reason(exits: Exits, script: Callable[[str], str]) -> None:
    build = script("exit 7")
    exits(4, "noise", "--rev", build, "--workload", "one", *HOW)
    told = json.loads(exits(0, "show", "n1", "--json"))
    assert (told["id"], told["state"], told["noise"], told["detectable"]) == ("n1", "failed", None, [])
    assert f"{build} fails in one: it ended with status 7" in told["failure"]
    assert told["settings"]["subjects"][0]["commit"] == build
