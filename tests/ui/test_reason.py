"""The reason below the verdict, while the hunt is still on the screen."""

from contextlib import closing
from pathlib import Path

import sample_hunt as sample
from counted import profile
from perfbisect.core.domain.events import ChangedFunctions, Event, HuntEnded, Profiled
from perfbisect.core.domain.facts import ChangeFacts
from perfbisect.store.history import History
from perfbisect.ui.lines import lines
from perfbisect.ui.screen import verdict
from perfbisect.ui.view_model import ViewModel, update

PARENT = 6
SEARCH = ("main", "search")
SENTENCE = "100 % (98 to 102 %) of the loss is in `search`, which this commit changes."


def events(history: Path, *studied: Event) -> list[tuple[float, Event]]:
    """The events of the sample hunt; ``studied`` happen before its verdict."""
    with closing(History.open(history)) as opened:
        stored = [(entry.at, entry.event) for entry in opened.events(sample.write(opened))]
    ends = [number for number, (_, event) in enumerate(stored) if isinstance(event, HuntEnded)]
    at = stored[ends[-1]][0]
    return [*stored[: ends[-1]], *((at, event) for event in studied), *stored[ends[-1] :]]


def shown(log: list[tuple[float, Event]]) -> tuple[str, str]:
    """What lines and screen show in the end."""
    view, written = ViewModel(), []
    for at, event in log:
        view = update(view, event, at)
        written += lines(view, event, at)
    return "\n".join(written), " ".join(text.plain for text in verdict(view, 1000))


def test_views_say_why_once_that_was_studied(tmp_path: Path) -> None:
    commits = sample.CANDIDATES
    studied = [
        Profiled(sample.CULPRIT, profile(commits[sample.CULPRIT], {SEARCH: 20_000, ("main",): 5000})),
        Profiled(PARENT, profile(commits[PARENT], {SEARCH: 12_000, ("main",): 5000})),
        ChangedFunctions(sample.CULPRIT, ChangeFacts(commits[sample.CULPRIT], commits[PARENT], ("search",))),
    ]
    written, drawn = shown(events(tmp_path / "history.db", *studied))
    assert "1 changed function\n" in written
    assert f"Why {commits[sample.CULPRIT][:10]}: " in written
    assert written.index("verdict  ") < written.index(SENTENCE) < written.index("Full report")
    assert SENTENCE in drawn.replace("\N{NO-BREAK SPACE}", " ")


def test_views_say_nothing_of_what_was_not_studied(tmp_path: Path) -> None:
    written, drawn = shown(events(tmp_path / "history.db"))
    assert "Why" not in written + drawn
