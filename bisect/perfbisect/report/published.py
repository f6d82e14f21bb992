"""Makes reports as JSON, whose keys are published; and the message about the end of a session for the command that
--notify names.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from perfbisect.core.domain.facts import BuildFacts, DropHunt, seconds_by_phase
from perfbisect.core.domain.metrics import quotient
from perfbisect.core.domain.orders import Inconclusive, NotReproduced, Several
from perfbisect.core.domain.session_state import SessionState, TestedCommit
from perfbisect.core.domain.settings import TrialType
from perfbisect.core.domain.trials import background_rates
from perfbisect.core.inference.classification import classify
from perfbisect.core.stats import noise
from perfbisect.core.stats.paired_comparison import (
    COLUMNS,
    RATE,
    compare_builds,
    costs_of_each_workload,
    group_summaries,
    regained_by_revert,
    revert_outcome,
)
from perfbisect.masking import mask_credentials
from perfbisect.report import series, trial
from perfbisect.report.command_line import bisect_command, command_to_run
from perfbisect.report.hunt import issue_lines, skip_text, stopped_run_text
from perfbisect.report.hunt_report import HuntReport, NamedChange, Suspect, is_skipped_by_user, read_hunt_report
from perfbisect.report.terminal import document_lines
from perfbisect.store.history import History
from perfbisect.wording.text import printable
from perfbisect.wording.trials import proof_sentences
from perfbisect.wording.unnamed import inconclusive_reason

UNFINISHED = "running"  # state in the history before a process ends a session


def json_text(contents: dict[str, Any]) -> str:
    """A report as indented JSON text."""
    return msgspec.json.format(msgspec.json.encode(contents), indent=2).decode()


def hunt_object(report: HuntReport) -> dict[str, Any]:
    """The report of a hunt in the form that `--json` prints. The report has the hashes of patches, not the patches."""
    state, settings, verdict, number = report.state, report.settings, report.state.verdict, report.summary.id
    contents: dict[str, Any] = msgspec.to_builtins({
        "hunt": report.summary.as_json_object(),
        "settings": settings,
        "hosts": state.started.hosts if state.started else (),
        "effects": verdict.effects if isinstance(verdict, NotReproduced | Inconclusive) else (),
        "verdict": report.verdict_sentences,
        "found": report.proven_so_far_sentences,
        "cases": [change_object(report, change) for change in report.changes],
        "suspects": report.suspects,
        "parts": report.named_diff_parts,
        "unsettled": [
            {
                "good": report.commit_of_candidate(part.good),
                "bad": report.commit_of_candidate(part.bad),
                "ratio": part.known.ratio if part.known.ratio.has_known_bound else None,
                "reason": inconclusive_reason(part.known, settings.metric, report.wording.skip_of),
                "suspects": [
                    Suspect(report.commit_of_candidate(node), probability)
                    for node, probability in zip(part.known.candidates, part.known.probabilities, strict=True)
                ],
            }
            for part in (verdict.unsettled if isinstance(verdict, Several) else ())
        ],
        "effect": report.ratio_of_ends,
        "candidates": [candidate_object(report, sha, row) for sha, row in report.tested_commits],
        "warnings": report.advice_by_warning,
        "costs": msgspec.to_builtins(report.costs) | build_phases_entry(report.made_builds),
        "again": command_to_run(settings, report.history),
        "go_on": bisect_command("resume", number, report.history),
        "prove": bisect_command("prove", number, report.history),
        "why_metric": state.chosen.why,
        "pairing": state.pairing,
        "together": report.shared_builds_text,
        "proofs": report.proof_sentences,
    })  # fmt: skip
    patches = settings.patches
    contents["settings"]["patches"] = [
        {"name": patch.name, "file": patch.file, "sha256": patch.identity[1]} for patch in patches
    ]
    return contents


def change_object(report: HuntReport, change: NamedChange) -> dict[str, Any]:
    """A change that the verdict names, in the form that `--json` prints."""
    step, explanation = change.step, change.explanation
    return {
        "commit": change.commit,
        "parents": change.parents,
        "probability": step.probability,
        "ratio": step.ratio,
        "effects": step.effects,
        "cause": explanation.classes[0].cause,
        "why": " ".join(change.reason_sentences),
        "counters": [
            {"metric": metric, "parent": low, "culprit": high, "ratio": quotient(high, low)}
            for metric, (low, high) in report.typical_values(step).items()
        ],
        "explanation": explanation,
        "plans": explanation.plans,
        "pairs": change.pairs,
        "pairs_metric": report.pairs_metric,
        "link": report.link_of(change.commit.sha),
        "issue": tuple(issue_lines(report, change)),
    }


def candidate_object(report: HuntReport, sha: str, row: TestedCommit) -> dict[str, Any]:
    """A commit that was built, measured or skipped, in the form that `--json` prints."""
    runs = len(report.search_runs(row))
    return {
        "commit": report.commit(sha),
        "node": report.state.node.get(sha),  # position in the range, 0: the good end; None: outside of the range
        "ratio": report.ratios_to_good.get(sha),
        "builds": len(row.new_builds),
        "build_seconds": row.build_seconds,
        "hit_rate": row.ccache_hit_rate,
        "reused": bool(row.builds) and not row.new_builds,
        "runs": runs,
        "state": classify(report.state, sha, report.ratios_to_good),
        "same_as": report.commit(row.same_as) if row.same_as else None,
        "skipped": skip_text(row.skip) if row.skip else "",
        "left_out": is_skipped_by_user(row),
        "further": len(row.runs) - runs,
        "stopped": stopped_run_text(row.runs),
        "patches": row.builds[-1].patches if row.builds else {},
        "shared": row.is_fetched,
    } | build_phases_entry(row.new_builds)


def build_phases_entry(builds: Sequence[BuildFacts]) -> dict[str, Any]:
    """A dict with the entry "phases", which has the seconds of each phase of the builds. The dict is empty if the
    phases are unknown, as in logs of earlier versions of perfbisect.
    """
    return {"phases": seconds} if (seconds := seconds_by_phase(builds)) else {}


def trial_object(trial_state: SessionState) -> dict[str, Any]:
    """The report of a trial in the form that `--json` prints."""
    contents: dict[str, Any] = {"id": trial_state.name, "state": trial_state.state, "failure": trial_state.failure}
    contents |= {
        "settings": msgspec.to_builtins(trial_state.request),
        "host": trial_state.host,
        "skips": trial_state.skips,
        "pairing": trial_state.pairing,
    }
    if trial_state.request.kind is TrialType.NOISE:
        return contents | noise_object(trial_state)
    rows = compare_builds(trial_state, trial_state.request.metric)
    contents |= {
        "origin": trial_state.origin,
        "started": trial_state.began,
        "runs": len(trial_state.runs),
        "workloads": rows,
        "groups": group_summaries(rows),
        "false_discovery_rate": RATE,
        "service_levels": [
            {"work": work, "builds": held, "clients": clients} for work, held, clients in background_rates(trial_state)
        ],
        "hunts": [drop_hunt_object(trial_state, drop) for drop in trial_state.hunts],
        "operations": {"columns": COLUMNS, "workloads": costs_of_each_workload(trial_state)},
    }
    if trial_state.request.series:
        contents["series"] = series.series_object(trial_state)
    return contents | proof_object(trial_state) if trial_state.request.kind is TrialType.PROVE else contents


def drop_hunt_object(state: SessionState, drop: DropHunt) -> dict[str, Any]:
    """The hunt for a drop of a comparison, in the form that `--json` prints."""
    ends = {"first": state.request.subjects[drop.first].name, "last": state.request.subjects[drop.last].name}
    named = {"culprit": drop.culprit or None, "subject": drop.subject or None}
    return {"workload": state.request.works[drop.work].name} | ends | {"hunt": drop.hunt, "state": drop.state} | named


def noise_object(trial_state: SessionState) -> dict[str, Any]:
    """The result of an A/A test (a build compared with itself). Values that need more runs are None or empty lists."""
    estimate, pairs = noise.noise_of_trial(trial_state), noise.sd_of_paired_ratios(trial_state)
    return {
        "noise": estimate,
        "pairs": {"time": pairs[0], "cpu_time": pairs[1]} if pairs else None,
        "advice": noise.advise_repeats_and_duration(trial_state, estimate) if estimate else None,
        "detectable": list(noise.detectable_drops_by_runs(trial_state, estimate)) if estimate else [],
    }


def proof_object(proof: SessionState) -> dict[str, Any]:
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


def session_end_json(history: History, session_id: str, failure: str = "", page: str = "") -> str | None:
    """The JSON text for --notify about a hunt (such as 12) or a trial (such as c3) that has ended: with a result, or
    with the error ``failure``.

    ``page`` is the path of the session's HTML page, if a page was written. The result is None if the session was
    interrupted and can be resumed.
    """
    hunt = session_id.isdecimal()
    listed = history.session_summary(int(session_id) if hunt else history.trial_number(session_id))
    state, title = listed.state, f"{listed.builder} {', '.join(listed.workloads)} of {', '.join(listed.compared)}"
    if hunt:
        report = read_hunt_report(history, int(session_id))
        contents, sentences = hunt_object(report), list(report.verdict_sentences)
        title = f"{listed.builder} {' '.join(listed.workloads)} {listed.good}..{listed.bad}"
    else:
        session = history.trial(session_id)
        contents = trial_object(session)
        sentences = [*proof_sentences(session)] if listed.kind == TrialType.PROVE else []
        if not sentences:  # not a proof: the tables of the comparison are its sentences
            sentences = [str(line) for line in document_lines(trial.document(session, detailed=False), header=False)]
        sentences = [] if listed.failure else sentences
    if state == UNFINISHED:
        if not failure:
            return None
        state = "failed"
    message = {
        "kind": listed.kind,
        "id": session_id,
        "state": state,
        "title": printable(f"bisect {session_id}: {title}: {state}"),
        "text": "\n".join(sentences or [printable(listed.failure or failure)]),
        "show": bisect_command("show", session_id, history.path),
        "report": contents,
    } | ({"page": page} if page else {})
    return mask_credentials(msgspec.json.encode(message).decode())
