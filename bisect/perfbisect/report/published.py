"""Reports as JSON, with the published keys; and what a command that is notified gets: how a session has ended."""

from collections.abc import Sequence
from typing import Any

import msgspec

from perfbisect.core.domain.facts import BuildFacts, DropHunt, phases_of
from perfbisect.core.domain.metrics import quotient
from perfbisect.core.domain.orders import Inconclusive, NotReproduced, Several
from perfbisect.core.domain.session_state import SessionState, Tested
from perfbisect.core.domain.settings import TrialType
from perfbisect.core.domain.trials import service_levels
from perfbisect.core.inference.classification import classify
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
from perfbisect.report import series, trial
from perfbisect.report.command_line import command_on, command_to_run
from perfbisect.report.hunt import issue, skipped, stopped
from perfbisect.report.hunt_report import HuntReport, NamedChange, Suspect, is_left_out, read_hunt
from perfbisect.report.terminal import lines
from perfbisect.store.history import History
from perfbisect.wording.text import printable
from perfbisect.wording.trials import proof_sentences
from perfbisect.wording.unnamed import why

UNFINISHED = "running"  # in the history, as long as its process is


def encoded(contents: dict[str, Any]) -> str:
    """The JSON of a report."""
    return msgspec.json.format(msgspec.json.encode(contents), indent=2).decode()


def of_hunt(report: HuntReport) -> dict[str, Any]:
    """The report as `--json` prints it; patches have a hash."""
    state, settings, verdict, number = report.state, report.settings, report.state.verdict, report.listed.id
    found: dict[str, Any] = msgspec.to_builtins({
        "hunt": report.listed.as_object(),
        "settings": settings,
        "hosts": state.started.hosts if state.started else (),
        "effects": verdict.effects if isinstance(verdict, NotReproduced | Inconclusive) else (),
        "verdict": report.verdict,
        "found": report.found,
        "cases": [of_change(report, change) for change in report.changes],
        "suspects": report.suspects,
        "parts": report.parts,
        "unsettled": [
            {
                "good": report.candidate(part.good),
                "bad": report.candidate(part.bad),
                "ratio": part.known.ratio if part.known.ratio.known else None,
                "reason": why(part.known, settings.metric, report.teller.skip_of),
                "suspects": [
                    Suspect(report.candidate(node), probability)
                    for node, probability in zip(part.known.candidates, part.known.probabilities, strict=True)
                ],
            }
            for part in (verdict.unsettled if isinstance(verdict, Several) else ())
        ],
        "effect": report.effect,
        "candidates": [of_candidate(report, sha, row) for sha, row in report.tested],
        "warnings": report.warnings,
        "costs": msgspec.to_builtins(report.costs) | phases(report.made),
        "again": command_to_run(settings, report.history),
        "go_on": command_on("resume", number, report.history),
        "prove": command_on("prove", number, report.history),
        "why_metric": state.chosen.why,
        "pairing": state.pairing,
        "together": report.together,
        "proofs": report.proofs,
    })  # fmt: skip
    patches = settings.patches
    found["settings"]["patches"] = [
        {"name": patch.name, "file": patch.file, "sha256": patch.identity[1]} for patch in patches
    ]
    return found


def of_change(report: HuntReport, change: NamedChange) -> dict[str, Any]:
    """A change as `--json` prints it."""
    step, found = change.step, change.explanation
    return {
        "commit": change.commit,
        "parents": change.parents,
        "probability": step.probability,
        "ratio": step.ratio,
        "effects": step.effects,
        "cause": found.classes[0].cause,
        "why": " ".join(change.why),
        "counters": [
            {"metric": metric, "parent": low, "culprit": high, "ratio": quotient(high, low)}
            for metric, (low, high) in report.counters(step).items()
        ],
        "explanation": found,
        "plans": found.plans,
        "pairs": change.pairs,
        "pairs_metric": report.pairs_metric,
        "link": report.link_of(change.commit.sha),
        "issue": tuple(issue(report, change)),
    }


def of_candidate(report: HuntReport, sha: str, row: Tested) -> dict[str, Any]:
    """A commit that was built, measured or skipped as `--json` prints it."""
    runs = len(report.own_runs(row))
    return {
        "commit": report.commit(sha),
        "node": report.state.node.get(sha),  # in the range, 0 being the good end; None for a commit outside of it
        "ratio": report.ratios.get(sha),
        "builds": len(row.made),
        "build_seconds": row.build_seconds,
        "hit_rate": row.hit_rate,
        "reused": bool(row.builds) and not row.made,
        "runs": runs,
        "state": classify(report.state, sha, report.ratios),
        "same_as": report.commit(row.same_as) if row.same_as else None,
        "skipped": skipped(row.skip) if row.skip else "",
        "left_out": is_left_out(row),
        "further": len(row.runs) - runs,
        "stopped": stopped(row.runs),
        "patches": row.builds[-1].patches if row.builds else {},
        "shared": row.shared,
    } | phases(row.made)


def phases(builds: Sequence[BuildFacts]) -> dict[str, Any]:
    """Where the time of builds went, where that is known: earlier versions did not write it down."""
    return {"phases": found} if (found := phases_of(builds)) else {}


def of_trial(made: SessionState) -> dict[str, Any]:
    """The whole report of a trial."""
    found: dict[str, Any] = {"id": made.name, "state": made.state, "failure": made.failure}
    found |= {
        "settings": msgspec.to_builtins(made.request),
        "host": made.host,
        "skips": made.skips,
        "pairing": made.pairing,
    }
    if made.request.kind is TrialType.NOISE:
        return found | of_noise(made)
    rows = compared(made, made.request.metric)
    found |= {
        "origin": made.origin,
        "started": made.began,
        "runs": len(made.runs),
        "workloads": rows,
        "groups": summaries(rows),
        "false_discovery_rate": RATE,
        "service_levels": [
            {"work": work, "builds": held, "clients": clients} for work, held, clients in service_levels(made)
        ],
        "hunts": [of_drop(made, each) for each in made.hunts],
        "operations": {"columns": COLUMNS, "workloads": spent_per_operation(made)},
    }
    if made.request.series:
        found["series"] = series.as_object(made)
    return found | of_proof(made) if made.request.kind is TrialType.PROVE else found


def of_drop(made: SessionState, drop: DropHunt) -> dict[str, Any]:
    """The hunt for a drop of a comparison as `--json` prints it."""
    ends = {"first": made.request.subjects[drop.first].name, "last": made.request.subjects[drop.last].name}
    named = {"culprit": drop.culprit or None, "subject": drop.subject or None}
    return {"workload": made.request.works[drop.work].name} | ends | {"hunt": drop.hunt, "state": drop.state} | named


def of_noise(made: SessionState) -> dict[str, Any]:
    """What an A/A shows; None and nothing where there are too few runs."""
    found, pairs = noise.noise_of_trial(made), noise.noise_of_pairs(made)
    return {
        "noise": found,
        "pairs": {"time": pairs[0], "cpu_time": pairs[1]} if pairs else None,
        "advice": noise.advice(made, found) if found else None,
        "detectable": list(noise.detectable_drops(made, found)) if found else [],
    }


def of_proof(made: SessionState) -> dict[str, Any]:
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
    hunt = name.isdecimal()
    listed = history.listed(int(name) if hunt else history.number_of_trial(name))
    state, what = listed.state, f"{listed.builder} {', '.join(listed.workloads)} of {', '.join(listed.compared)}"
    if hunt:
        report = read_hunt(history, int(name))
        contents, said = of_hunt(report), list(report.verdict)
        what = f"{listed.builder} {' '.join(listed.workloads)} {listed.good}..{listed.bad}"
    else:
        made = history.trial(name)
        contents, said = of_trial(made), [*proof_sentences(made)] if listed.kind == TrialType.PROVE else []
        if not said:  # the tables of a comparison
            said = [str(line) for line in lines(trial.document(made, detailed=False), header=False)]
        said = [] if listed.failure else said
    if state == UNFINISHED:
        if not failure:
            return None
        state = "failed"
    found = {
        "kind": listed.kind,
        "id": name,
        "state": state,
        "title": printable(f"bisect {name}: {what}: {state}"),
        "text": "\n".join(said or [printable(listed.failure or failure)]),
        "show": command_on("show", name, history.path),
        "report": contents,
    } | ({"page": page} if page else {})
    return masked(msgspec.json.encode(found).decode())
