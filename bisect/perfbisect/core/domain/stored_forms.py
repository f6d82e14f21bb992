"""Stored forms that differ from the attributes of a value, so that what earlier versions wrote stays readable.

All functions work on plain values, as JSON has them.
"""

import re
from collections.abc import Mapping
from typing import Any

from perfbisect.core.domain.orders import Reason

Fields = dict[str, Any]

STARTED = {"host_classes": "kinds", "branch_points": "bases"}  # attribute → stored name, of HuntStarted
AHEAD = ("hosts", "build_hosts", "building", "gone_build_hosts", "builds_between")  # of a fleet that builds ahead
SETTINGS = {"run_hash": "told", "build_hash": "made"}  # of Settings
EARLIER = {  # reasons as sentences, in what was stored before there was a type for them
    "the budget of builds is used up": Reason.BUILDS_SPENT,
    "the good end cannot be measured": Reason.GOOD_UNMEASURABLE,
    "the bad end cannot be measured": Reason.BAD_UNMEASURABLE,
    "no host is left": Reason.NO_HOST,
}
SPENT = re.compile(r"the budget of (\S+) (runs|minutes) is used up")


def reverse(names: Mapping[str, str]) -> dict[str, str]:
    """The attribute of each stored name."""
    return {stored: name for name, stored in names.items()}


def stored_verdict(fields: Fields) -> Fields:
    """The stored form of an order: what is usual is left out, a detail where the reason has none; an old reason is its text."""
    match fields:
        case {"fresh": fresh, "layouts": layouts, **plain}:
            return plain | ({"fresh": True} if fresh else {}) | ({"layouts": layouts} if layouts else {})
        case {"detail": detail, **plain}:
            if detail is None:
                return plain
            if plain["reason"] == Reason.RECORDED:
                return {**plain, "reason": detail}
            if plain["reason"] == Reason.MERGE_BASE:
                detail = {**detail, "known": stored_verdict(detail["known"])}
            return {**plain, "detail": detail}
        case {"step": step}:
            return {**fields, "step": stored_step(step)}
        case {"steps": steps, "improvements": improvements, "unsettled": unsettled}:
            return {
                **fields,
                "steps": [*map(stored_step, steps)],
                "improvements": [*map(stored_step, improvements)],
                "unsettled": [{**one, "known": stored_verdict(one["known"])} for one in unsettled],
            }
        case _:
            return fields


def stored_step(fields: Fields) -> Fields:
    """The stored form of a step: without layouts where it was compared in none but the usual one."""
    return {key: value for key, value in fields.items() if key != "layouts" or value is not None}


def read_verdict(stored: Mapping[str, Any]) -> Fields:
    """The fields of an order from its stored form."""
    match stored:
        case {"detail": {"known": known}}:
            return {**stored, "detail": {**stored["detail"], "known": read_verdict(known)}}
        case {"reason": reason} if reason not in list(Reason):
            return {**stored, **read_reason(reason)}
        case {"unsettled": unsettled}:
            return {**stored, "unsettled": [{**one, "known": read_verdict(one["known"])} for one in unsettled]}
        case _:
            return dict(stored)


def read_reason(sentence: str) -> Fields:
    """The reason of an earlier version, with its detail.

    >>> read_reason("the budget of 20 runs is used up")
    {'reason': <Reason.RUNS_SPENT: 'budget of runs'>, 'detail': 20.0}
    """
    if sentence in EARLIER:
        return {"reason": EARLIER[sentence]}
    if spent := SPENT.fullmatch(sentence):
        reason = Reason.RUNS_SPENT if spent[2] == "runs" else Reason.MINUTES_SPENT
        return {"reason": reason, "detail": float(spent[1])}
    return {"reason": Reason.RECORDED, "detail": sentence}


def renamed(fields: Mapping[str, Any], names: Mapping[str, str]) -> Fields:
    """The fields with other names for some, in the same order."""
    return {names.get(name, name): value for name, value in fields.items()}


def stored_settings(fields: Fields) -> Fields:
    """The stored form of the settings of a hunt: prior knowledge is part of the policy."""
    prior, policy = fields["prior"], dict(fields["policy"])
    all_steps = policy.pop("all_steps")
    policy |= {"build_cost": prior["build_cost"], "all_steps": all_steps}
    policy |= {"noise": prior["noise"], "kinds": prior["host_classes"], **({"exact": True} if prior["exact"] else {})}
    kept = {key: value for key, value in fields.items() if key != "prior"}
    return renamed({**kept, "policy": policy}, SETTINGS)


def read_settings(stored: Fields) -> Fields:
    """The fields of settings from their stored form; keys of the policy may be missing."""
    policy = stored["policy"]
    prior = {key: policy[key] for key in ("build_cost", "noise", "exact") if key in policy}
    return {**renamed(stored, reverse(SETTINGS)), "prior": {**prior, "host_classes": policy.get("kinds", ())}}


def stored_start(fields: Fields) -> Fields:
    """The stored form of the start of a session."""
    kept = {key: value for key, value in fields.items() if key != "build_hosts" or value}
    return renamed(kept, STARTED)


def stored_fleet(fleet: Fields) -> Fields:
    """The stored form of a fleet: orders in progress, where a lost host is an order without runs; and what build hosts do.

    What is usual is left out.
    """
    lost = ({"plan": [], "purpose": "search", "host": host} for host in fleet["gone"])
    orders = [*map(stored_verdict, fleet["busy"]), *lost]
    ahead = {key: fleet[key] for key in AHEAD}
    late = {"minutes": fleet["minutes"]} if fleet["minutes"] else {}
    return ({"in_flight": orders} if orders else {}) | ({"ahead": ahead} if fleet["build_hosts"] else {}) | late


def read_fleet(stored: Fields) -> Fields:
    """The fields of a fleet from those of a decision."""
    orders = stored.get("in_flight", [])
    return {
        "busy": [order for order in orders if order["plan"]],
        "gone": [order["host"] for order in orders if not order["plan"]],
        "minutes": stored.get("minutes", 0.0),
        **stored.get("ahead", {}),
    }
