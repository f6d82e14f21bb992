"""Events as JSON lines, and back."""

import io
import json
import sys
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from perfbisect.core.domain.events import BuildStarted, Commit, Decided, Event, HuntEnded
from perfbisect.core.domain.orders import (
    Belief,
    Decision,
    Inconclusive,
    Interval,
    Measure,
    Purpose,
    Reason,
    Several,
    Share,
    Step,
)
from perfbisect.ui.lines import JsonLines, decode, encode

Events = list[tuple[float, Event]]


def same(one: Event, other: Event) -> bool:
    """Equality, in which beliefs, being arrays, are compared by value, to the digits that are written."""
    if isinstance(one, Decided) and isinstance(other, Decided):
        mine, theirs = one.decision.belief, other.decision.belief
        plain = replace(mine, culprit=theirs.culprit)
        fields = ("change", "noise", "effect", "warnings")
        return (
            one.decision.order == other.decision.order
            and np.allclose(mine.culprit, theirs.culprit, rtol=1e-3)
            and all(getattr(plain, name) == getattr(theirs, name) for name in fields)
        )
    return one == other


def test_every_event_comes_back(events: Events) -> None:
    names = set()
    for at, event in events:
        line = encode(event, at)
        assert "\n" not in line
        found, when = decode(line)
        assert when == at and same(found, event), line
        names.add(json.loads(line)["event"])
    assert names == {
        "Warned", "HuntStarted", "Decided", "BuildStarted", "BuildProgress", "BuildFinished", "CandidateSkipped",
        "RunStarted", "RunProgress", "RunFinished", "HuntEnded",
    }  # fmt: skip


def test_verdicts_of_older_histories_still_come_back() -> None:
    verdict = Several((Step(3, 0.97, Interval(0.8, 0.9, 0.95), (2,)),))
    line = json.loads(encode(HuntEnded(verdict), 1.0))
    del line["verdict"]["unsettled"], line["verdict"]["detectable"]
    assert decode(json.dumps(line)) == (HuntEnded(verdict), 1.0)


def test_a_belief_about_many_takes_little_room() -> None:
    culprit = np.full(100_000, 0.1 / 99_999)
    culprit[70_000] = 0.9
    slow = np.repeat([0.0, 1.0], [70_000, 30_000])
    belief = Belief(culprit, 0.5, 0.02, Interval(0.0, 1.0, np.inf), slow=slow)
    line = encode(Decided(Decision(Measure((Share(1, 2),), Purpose.ENDS), belief)), 1.0)
    belief_written = json.loads(line)["belief"]
    assert len(line) < 5000
    assert belief_written["culprit"] == [[70_000, 1e-6], [1, 0.9], [29_999, 1e-6]]
    event, _ = decode(line)
    assert isinstance(event, Decided)
    assert event.decision.belief.effect.high == np.inf and len(event.decision.belief.culprit) == 100_000
    assert np.allclose(event.decision.belief.culprit, culprit, rtol=1e-4, atol=0)
    assert np.array_equal(event.decision.belief.slow, slow)


@pytest.mark.parametrize(
    "line",
    [
        "[]", "7", "{}", '{"event":"Nothing","at":1}', '{"event":"Warned"}', '{"event":"Warned","at":1}', "{",
        '{"event":"Decided","at":1}', '{"event":"HuntEnded","at":1,"verdict":{"kind":"Guess"}}',
        '{"event":"HuntEnded","at":1,"verdict":7}',
    ],
)  # fmt: skip
def test_what_is_no_event_is_refused(line: str) -> None:
    with pytest.raises(ValueError):
        decode(line)


def test_a_verdict_is_not_a_measurement() -> None:
    with pytest.raises(ValueError, match="verdict"):
        decode('{"event":"HuntEnded","at":1,"verdict":{"kind":"Measure","plan":[],"purpose":"ends"}}')


def test_each_event_is_written_at_once_on_its_own_line(events: Events) -> None:
    stream = io.StringIO()
    with closing(JsonLines(stream, {12: ""})) as view:
        for number, (at, event) in enumerate(events[:20], 1):
            view.show(12, [(at, event)])
            assert stream.getvalue().count("\n") == number
    assert all(decode(line)[1] >= events[0][0] for line in stream.getvalue().splitlines())


def test_a_stream_without_unicode_gets_escapes() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    event = BuildStarted(1, Commit("ab" * 20, "2023-01-01", "Zoë", "Füße\x1b"))
    JsonLines(stream, {12: ""}).show(12, [(1.0, event)])
    assert raw.getvalue().isascii()
    assert decode(raw.getvalue()) == (event, 1.0)


def test_what_has_no_bound_comes_back_without_one() -> None:
    verdict = Inconclusive((), (), Interval(0.0, 1.0, np.inf), Reason.UNBUILDABLE)
    line = encode(HuntEnded(verdict), 1.0)
    assert json.loads(line)["verdict"]["ratio"]["high"] == sys.float_info.max
    assert decode(line) == (HuntEnded(verdict), 1.0)
