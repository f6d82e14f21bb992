"""What a command that is notified gets: how a hunt, a comparison or a proof has ended, in a few words and as a whole."""

from typing import Any

import msgspec

from perfbisect.core.domain.settings import TrialType
from perfbisect.masking import masked
from perfbisect.report import comparison, content, proof
from perfbisect.report.command_line import command_to_show
from perfbisect.report.reader import read_story
from perfbisect.store.history import History
from perfbisect.wording import proofs
from perfbisect.wording.text import printable

UNFINISHED = "running"  # in the history, as long as its process is


def notice(history: History, name: str, failure: str = "") -> str | None:
    """The JSON object about a hunt (12) or a trial (c3) that has ended, by itself or by ``failure``.

    None for one that was interrupted, and can go on.
    """
    parts = of_hunt(history, int(name)) if name.isdecimal() else of_trial(history, name)
    if parts["state"] == UNFINISHED:
        if not failure:
            return None
        parts["state"] = "failed"
    lines = parts["lines"] or (printable(failure),)
    found = {
        "kind": parts["kind"],
        "id": name,
        "state": parts["state"],
        "title": printable(f"bisect {name}: {parts['what']}: {parts['state']}"),
        "text": "\n".join(lines),
        "show": command_to_show(name, history.path),
        "report": parts["report"],
    }
    return masked(msgspec.json.encode(found).decode())


def of_hunt(history: History, hunt: int) -> dict[str, Any]:
    """The parts of a notice about a hunt."""
    story = read_story(history, hunt)
    listed = story.hunt
    return {
        "kind": "hunt",
        "state": listed.state,
        "what": f"{listed.builder} {listed.workload} {listed.good}..{listed.bad}",
        "lines": story.verdict or ((printable(listed.failure),) if listed.failure else ()),
        "report": content.as_object(story),
    }


def of_trial(history: History, name: str) -> dict[str, Any]:
    """The parts of a notice about a comparison or a proof."""
    trial = history.trial(name)
    request = trial.request
    proves = request.kind is TrialType.PROVE
    lines = proofs.sentences(trial) if proves else map(str, comparison.lines(trial))
    builds = ", ".join(subject.name for subject in request.subjects)
    return {
        "kind": request.kind,
        "state": trial.state,
        "what": f"{request.builder} {', '.join(work.name for work in request.works)} of {builds}",
        "lines": (printable(trial.failure),) if trial.failure else tuple(lines),
        "report": proof.contents(trial) if proves else comparison.contents(trial),
    }
