"""Reports as JSON, with the published keys; and the notice of a session's end, for the command that --notify names."""

from collections.abc import Sequence
from typing import Any

import msgspec

from perfbisect.core.domain.facts import BuildFacts, DropHunt, seconds_by_phase
from perfbisect.core.domain.metrics import quotient
from perfbisect.core.domain.orders import Inconclusive, NotReproduced, Several
from perfbisect.core.domain.session_state import SessionState, TestedCommit
from perfbisect.core.domain.settings import TrialType
from perfbisect.core.domain.trials import service_levels
from perfbisect.core.inference.classification import classify
from perfbisect.core.stats import noise
from perfbisect.core.stats.paired_comparison import (
    COLUMNS,
    RATE,
    compare_builds,
    costs_per_operation,
    group_summaries,
    regained_by_revert,
    revert_outcome,
)
from perfbisect.masking import mask_credentials
from perfbisect.report import series, trial
from perfbisect.report.command_line import command_on, command_to_run
from perfbisect.report.hunt import issue, skipped, stopped
from perfbisect.report.hunt_report import HuntReport, NamedChange, Suspect, is_left_out, read_hunt
from perfbisect.report.terminal import lines
from perfbisect.store.history import History
from perfbisect.wording.text import printable
from perfbisect.wording.trials import proof_sentences
from perfbisect.wording.unnamed import inconclusive_reason

UNFINISHED = "running"  # state in the history before a process ends a session


def encoded(contents: dict[str, Any]) -> str:
    """A report as indented JSON text."""
    return msgspec.json.format(msgspec.json.encode(contents), indent=2).decode()


def of_hunt(report: HuntReport) -> dict[str, Any]:
    """The report of a hunt as `--json` prints it; patches are replaced by their hashes."""
    state, settings, verdict, number = report.state, report.settings, report.state.verdict, report.listed.id
    contents: dict[str, Any] = msgspec.to_builtins({
        "hunt": report.listed.as_json_object(),
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
                "ratio": part.known.ratio if part.known.ratio.has_bound else None,
                "reason": inconclusive_reason(part.known, settings.metric, report.teller.skip_of),
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
    contents["settings"]["patches"] = [
        {"name": patch.name, "file": patch.file, "sha256": patch.identity[1]} for patch in patches
    ]
    return contents


def of_change(report: HuntReport, change: NamedChange) -> dict[str, Any]:
    """A change that the verdict names, as `--json` prints it."""
    step, explanation = change.step, change.explanation
    return {
        "commit": change.commit,
        "parents": change.parents,
        "probability": step.probability,
        "ratio": step.ratio,
        "effects": step.effects,
        "cause": explanation.classes[0].cause,
        "why": " ".join(change.why),
        "counters": [
            {"metric": metric, "parent": low, "culprit": high, "ratio": quotient(high, low)}
            for metric, (low, high) in report.counters(step).items()
        ],
        "explanation": explanation,
        "plans": explanation.plans,
        "pairs": change.pairs,
        "pairs_metric": report.pairs_metric,
        "link": report.link_of(change.commit.sha),
        "issue": tuple(issue(report, change)),
    }


def of_candidate(report: HuntReport, sha: str, row: TestedCommit) -> dict[str, Any]:
    """A commit that was built, measured or skipped, as `--json` prints it."""
    runs = len(report.own_runs(row))
    return {
        "commit": report.commit(sha),
        "node": report.state.node.get(sha),  # position in the range, 0: the good end; None: outside of it
        "ratio": report.ratios.get(sha),
        "builds": len(row.new_builds),
        "build_seconds": row.build_seconds,
        "hit_rate": row.hit_rate,
        "reused": bool(row.builds) and not row.new_builds,
        "runs": runs,
        "state": classify(report.state, sha, report.ratios),
        "same_as": report.commit(row.same_as) if row.same_as else None,
        "skipped": skipped(row.skip) if row.skip else "",
        "left_out": is_left_out(row),
        "further": len(row.runs) - runs,
        "stopped": stopped(row.runs),
        "patches": row.builds[-1].patches if row.builds else {},
        "shared": row.shared,
    } | phases(row.new_builds)


def phases(builds: Sequence[BuildFacts]) -> dict[str, Any]:
    """The entry "phases", the seconds of builds by phase; empty if unknown, as in logs of earlier versions."""
    return {"phases": seconds} if (seconds := seconds_by_phase(builds)) else {}


def of_trial(trial_state: SessionState) -> dict[str, Any]:
    """The report of a trial as `--json` prints it."""
    contents: dict[str, Any] = {"id": trial_state.name, "state": trial_state.state, "failure": trial_state.failure}
    contents |= {
        "settings": msgspec.to_builtins(trial_state.request),
        "host": trial_state.host,
        "skips": trial_state.skips,
        "pairing": trial_state.pairing,
    }
    if trial_state.request.kind is TrialType.NOISE:
        return contents | of_noise(trial_state)
    rows = compare_builds(trial_state, trial_state.request.metric)
    contents |= {
        "origin": trial_state.origin,
        "started": trial_state.began,
        "runs": len(trial_state.runs),
        "workloads": rows,
        "groups": group_summaries(rows),
        "false_discovery_rate": RATE,
        "service_levels": [
            {"work": work, "builds": held, "clients": clients} for work, held, clients in service_levels(trial_state)
        ],
        "hunts": [of_drop(trial_state, drop) for drop in trial_state.hunts],
        "operations": {"columns": COLUMNS, "workloads": costs_per_operation(trial_state)},
    }
    if trial_state.request.series:
        contents["series"] = series.as_object(trial_state)
    return contents | of_proof(trial_state) if trial_state.request.kind is TrialType.PROVE else contents


def of_drop(state: SessionState, drop: DropHunt) -> dict[str, Any]:
    """The hunt for a drop of a comparison, as `--json` prints it."""
    ends = {"first": state.request.subjects[drop.first].name, "last": state.request.subjects[drop.last].name}
    named = {"culprit": drop.culprit or None, "subject": drop.subject or None}
    return {"workload": state.request.works[drop.work].name} | ends | {"hunt": drop.hunt, "state": drop.state} | named


def of_noise(trial_state: SessionState) -> dict[str, Any]:
    """The result of an A/A; None, or empty lists, if there are too few runs."""
    estimate, pairs = noise.noise_of_trial(trial_state), noise.noise_of_paired_runs(trial_state)
    return {
        "noise": estimate,
        "pairs": {"time": pairs[0], "cpu_time": pairs[1]} if pairs else None,
        "advice": noise.advise_repeats(trial_state, estimate) if estimate else None,
        "detectable": list(noise.detectable_drops(trial_state, estimate)) if estimate else [],
    }


def of_proof(proof: SessionState) -> dict[str, Any]:
    """The result of a proof."""
    share_regained = regained_by_revert(proof)
    return {
        "proof": {
            "outcome": revert_outcome(share_regained),
            "regained": share_regained.share if share_regained else None,
            "rounds": share_regained.rounds if share_regained else 0,
            "sentences": list(proof_sentences(proof)),
        }
    }


def notice(history: History, name: str, failure: str = "", page: str = "") -> str | None:
    """The JSON text about a hunt (12) or a trial (c3) that has ended, by itself or by ``failure``.

    ``page`` is the file of its page, if a page was written. None if the session was interrupted, and can go on.
    """
    hunt = name.isdecimal()
    listed = history.session_summary(int(name) if hunt else history.trial_number(name))
    state, title = listed.state, f"{listed.builder} {', '.join(listed.workloads)} of {', '.join(listed.compared)}"
    if hunt:
        report = read_hunt(history, int(name))
        contents, sentences = of_hunt(report), list(report.verdict)
        title = f"{listed.builder} {' '.join(listed.workloads)} {listed.good}..{listed.bad}"
    else:
        session = history.trial(name)
        contents, sentences = of_trial(session), [*proof_sentences(session)] if listed.kind == TrialType.PROVE else []
        if not sentences:  # the tables of a comparison
            sentences = [str(line) for line in lines(trial.document(session, detailed=False), header=False)]
        sentences = [] if listed.failure else sentences
    if state == UNFINISHED:
        if not failure:
            return None
        state = "failed"
    message = {
        "kind": listed.kind,
        "id": name,
        "state": state,
        "title": printable(f"bisect {name}: {title}: {state}"),
        "text": "\n".join(sentences or [printable(listed.failure or failure)]),
        "show": command_on("show", name, history.path),
        "report": contents,
    } | ({"page": page} if page else {})
    return mask_credentials(msgspec.json.encode(message).decode())
