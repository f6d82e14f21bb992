"""Hunts that have been played, kept as lines of JSON, so that an interrupted benchmark can be continued."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from contest import version

from perfbisect.folders import cache_folder
from perfbisect.simulate.tally import JudgedHunt, Judgement

Played = dict[tuple[str, str], dict[int, JudgedHunt]]  # (cell, rule) → seed → hunt


def default_folder() -> Path:
    """Outside of the repository."""
    return cache_folder() / "benchmarks" / "search"


def load(folder: Path, rules: Iterable[str]) -> Played:
    """The hunts that were played by the present code; those of other versions do not count."""
    played: Played = {}
    for rule in rules:
        file = _file(folder, rule)
        for line in file.read_text().splitlines() if file.exists() else ():
            row = json.loads(line)
            trial = JudgedHunt(**row["trial"] | {"judgement": Judgement(row["trial"]["judgement"])})
            played.setdefault((row["cell"], rule), {})[row["seed"]] = trial
    return played


def save(folder: Path, cell: str, rule: str, trials: dict[int, JudgedHunt]) -> None:
    """Append the hunts of some seeds."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"cell": cell, "seed": seed, "trial": asdict(trial)}) for seed, trial in trials.items()]
    with _file(folder, rule).open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


def _file(folder: Path, rule: str) -> Path:
    name = "".join(letter if letter.isalnum() else "-" for letter in rule)
    return folder / f"{name}.{version(rule)}.jsonl"
