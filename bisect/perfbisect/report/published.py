"""Reports as JSON, with the published keys; and what a command that is notified gets: how a session has ended."""

from typing import Any

import msgspec

from perfbisect.core.domain.settings import TrialType
from perfbisect.core.domain.trials import Trial
from perfbisect.core.stats import noise
from perfbisect.core.stats.paired_comparison import (
    COLUMNS,
    RATE,
    compared,
    outcome,
    regained,
    spent_per_operation,
    summaries,
)
from perfbisect.masking import masked
from perfbisect.report import series, story, trial
from perfbisect.report.command_line import command_on
from perfbisect.report.reader import read_story
from perfbisect.report.terminal import lines
from perfbisect.store.history import History
from perfbisect.wording.reasons import proof_sentences
from perfbisect.wording.text import printable

UNFINISHED = "running"  # in the history, as long as its process is


def encoded(contents: dict[str, Any]) -> str:
    """The JSON of a report."""
    return msgspec.json.format(msgspec.json.encode(contents), indent=2).decode()


def of_trial(made: Trial) -> dict[str, Any]:
    """The whole report of a trial."""
    found = {
        "id": made.name,
        "state": made.state,
        "failure": made.failure,
        "settings": msgspec.to_builtins(made.request),
        "host": made.host,
        "skips": made.skips,
        "pairing": made.pairing,
    }
    if made.request.kind is TrialType.NOISE:
        return found | of_noise(made)
    rows, builds, works = compared(made, made.request.metric), made.request.subjects, made.request.works
    found |= {
        "origin": made.origin,
        "started": made.started,
        "runs": len(made.runs),
        "workloads": rows,
        "groups": summaries(rows),
        "false_discovery_rate": RATE,
        "service_levels": [
            {"work": work, "builds": held, "clients": clients} for work, held, clients in trial.service_levels(made)
        ],
        "hunts": [
            {
                "workload": works[each.work].name,
                "first": builds[each.first].name,
                "last": builds[each.last].name,
                "hunt": each.hunt,
                "state": each.state,
                "culprit": each.culprit or None,
                "subject": each.subject or None,
            }
            for each in made.hunts
        ],
        "operations": {"columns": COLUMNS, "workloads": spent_per_operation(made)},
    }
    if made.request.series:
        found["series"] = series.as_object(made)
    return found | of_proof(made) if made.request.kind is TrialType.PROVE else found


def of_noise(made: Trial) -> dict[str, Any]:
    """What an A/A shows; None and nothing where there are too few runs."""
    found, pairs = noise.noise_of_trial(made), noise.of_pairs(made)
    return {
        "noise": found,
        "pairs": {"time": pairs[0], "cpu_time": pairs[1]} if pairs else None,
        "advice": noise.advice(made, found) if found else None,
        "detectable": list(noise.rows(made, found)) if found else [],
    }


def of_proof(made: Trial) -> dict[str, Any]:
    """What a proof shows."""
    found = regained(made)
    return {
        "proof": {
            "outcome": outcome(found),
            "regained": found.share if found else None,
            "rounds": found.rounds if found else 0,
            "sentences": list(proof_sentences(made)),
        }
    }


def notice(history: History, name: str, failure: str = "", page: str = "") -> str | None:
    """The JSON object about a hunt (12) or a trial (c3) that has ended, by itself or by ``failure``.
    ``page`` is the file of its page, if one was written.

    None for one that was interrupted, and can go on.
    """
    if name.isdecimal():
        told = read_story(history, int(name))
        listed, kind, report = told.hunt, "hunt", story.as_object(told)
        state, failed, said = listed.state, listed.failure, list(told.verdict)
        what = f"{listed.builder} {listed.workload} {listed.good}..{listed.bad}"
    else:
        made = history.trial(name)
        request = made.request
        kind, report, state, failed = str(request.kind), of_trial(made), made.state, made.failure
        said = [] if failed else of_ended(made)
        builds = ", ".join(subject.name for subject in request.subjects)
        what = f"{request.builder} {', '.join(work.name for work in request.works)} of {builds}"
    if state == UNFINISHED:
        if not failure:
            return None
        state = "failed"
    found = {
        "kind": kind,
        "id": name,
        "state": state,
        "title": printable(f"bisect {name}: {what}: {state}"),
        "text": "\n".join(said or [printable(failed or failure)]),
        "show": command_on("show", name, history.path),
        "report": report,
    } | ({"page": page} if page else {})
    return masked(msgspec.json.encode(found).decode())


def of_ended(made: Trial) -> list[str]:
    """What is said of a trial that has ended: the sentences of a proof, the tables of a comparison."""
    if made.request.kind is TrialType.PROVE:
        return list(proof_sentences(made))
    return [str(line) for line in lines(trial.document(made, detailed=False), header=False)]
