"""Which data a build is measured on: its key, and what happens when it is damaged."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from lab_events import finished, measure, skipped, warnings
from perfbisect.core.domain.metrics import value
from perfbisect.core.domain.orders import Share
from perfbisect.errors import DataDamaged
from perfbisect.host.local import LocalHost
from perfbisect.recipes.builder import Dataset, When
from small import BUILDER, FAST, SLOW, Open

pytestmark = pytest.mark.tools


def test_conditions_reach_the_library_that_is_measured_and_its_data(
    open_lab: Open, commits: tuple[str, ...], tmp_path: Path, git: Callable[..., str]
) -> None:
    """The commit's version changes where the library is, and the format of its data."""
    (tmp_path / "repo" / "VERSION").write_text("2.0\n")
    (tmp_path / "repo" / "rounds.h").write_text("#define ROUNDS 1000\n")
    git("add", ".")
    git("commit", "-q", "-m", "new layout")
    install = "mkdir -p {prefix}/v{version} && gcc -shared library.o -o {prefix}/v{version}/new.so"
    change = {
        "library": "v2.0/new.so",
        "build": {"install": [["sh", "-c", install]], "artifacts": ["v2.0/new.so"]},
        "dataset": {"format": "2"},
    }
    conditional = replace(BUILDER, version=["cat", "{source}/VERSION"], when=[When(version=">=2", change=change)])
    for _ in ("built", "found built"):
        lab = open_lab({"rest": 0}, builder=conditional, commits=(commits[FAST], git("rev-parse", "HEAD")))
        runs = dict(finished(measure(lab, Share(1, 1), Share(0, 1))))
        slow, fast = (value(runs[each], "cpu/o") for each in (0, 1))
        assert slow and fast and slow > 2 * fast, "CPU time, which other tests on this machine hardly change"
        assert runs[1].dataset != runs[0].dataset


def test_a_build_whose_format_command_fails_is_skipped(open_lab: Open, commits: tuple[str, ...]) -> None:
    script = f"ls {{data}}; [ {{commit}} != {commits[SLOW]} ] || ! echo no format >&2"
    lab = open_lab(builder=replace(BUILDER, dataset=Dataset(format_command=["sh", "-c", script])))
    facts = skipped(measure(lab, Share(SLOW, 1)))
    assert facts.stage == "prepare"
    assert facts.reason == "the format of its data cannot be determined: sh ended with status 1: no format"
    assert "no format" in Path(facts.log).read_text()
    assert len(finished(measure(lab, Share(FAST, 1)))) == 1


def test_a_build_without_the_program_that_tells_its_format_is_skipped(open_lab: Open) -> None:
    lab = open_lab(builder=replace(BUILDER, dataset=Dataset(format_command=["{prefix}/bin/tell", "{data}"])))
    facts = skipped(measure(lab, Share(SLOW, 1)))
    assert facts.stage == "prepare"
    assert "bin/tell" in facts.reason


def test_damaged_data_is_loaded_again_but_not_for_ever(open_lab: Open, host: LocalHost) -> None:
    lab = open_lab()
    ((_, run),) = finished(measure(lab, Share(FAST, 1)))
    kept = Path(host.root, "datasets", run.dataset, "data")

    def one_file_more() -> None:
        (kept / "more").write_text("more")

    one_file_more()
    events = measure(lab, Share(FAST, 1))
    [text] = warnings(events)
    assert re.search(r"is damaged: [\d,]+ bytes in \d+ files were copied, but .* were loaded: it is loaded again", text)
    assert [again.dataset for _, again in finished(events)] == [run.dataset]
    one_file_more()
    with pytest.raises(DataDamaged, match="is damaged") as caught:
        measure(lab, Share(FAST, 1))
    assert "may be failing" in caught.value.advice
