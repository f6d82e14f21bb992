"""A proposal as the two files of a recipe, with comments for the user."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tomli_w

from perfbisect.recipes.proposal.benchmarks import Benchmark, Measured


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the files say."""

    name: str
    of: str  # the revision that was looked at
    system: str  # the build system, "" for none
    repository: str
    patterns: tuple[str, ...]  # of the tags of releases
    version: list[str]
    ignore: list[str]
    benchmark: Benchmark | None

    @property
    def workload(self) -> str:
        """The workload to run first."""
        return self.workloads[0].name

    @property
    def workloads(self) -> list[Measured]:
        """What is measured; where nothing was found, a command that says so and fails, since a made-up one would mislead."""
        if self.benchmark:
            return self.benchmark.workloads
        said = "echo 'This is no benchmark yet: put the command to measure into the suite.toml.' >&2; exit 1"
        return [Measured("to-be-written", ["sh", "-c", said])]


def builder(proposal: Proposal) -> str:
    """The text of the builder.toml."""
    bench = proposal.benchmark
    top: dict[str, Any] = {
        **(bench.top if bench else {}),
        "summary": f"{proposal.name}, as bisect init found it",
        "repository": proposal.repository,
        "release_tags": list(proposal.patterns),
        "version": proposal.version,
        "ignore": proposal.ignore,
        "driver": proposal.name,
    }
    parts = [
        _comment(
            f"Written by `bisect init` from the tree of {proposal.of}: guesses, for you to change.",
            "All keys: docs/recipes.md of perfbisect.",
        ),
        _table(top),
        _comment(
            "Commits that touch only paths of `ignore` are never built, and these paths are left out of the checkout.",
            'If the build needs no tests, add "tests/**".',
        ),
    ]
    build = bench.build if bench else {}
    if proposal.system and "compile" not in build:
        parts.append(
            _comment(f"Built by {proposal.system}, as read from the tree; `options` are for its configure step.")
        )
    if build.get("in_place"):
        parts.append(
            _comment(
                "The benchmark is not installed, so it is built and run in a copy of the tree. Builds are one candidate",
                "where all of their `artifacts` are equal, such as the benchmark, if it loads no library of this tree.",
            )
        )
    return "\n".join([*parts, *([_table({"build": build})] if build else [])])


def suite(proposal: Proposal) -> str:
    """The text of the suite.toml."""
    parts = [
        _comment("Written by `bisect init`: guesses, for you to change."),
        _table({"summary": f"benchmarks of {proposal.name}", "driver": proposal.name}),
    ]
    if proposal.benchmark and proposal.benchmark.others:
        parts.append(
            _comment("Not used, but called like a benchmark:", *(f"  {name}" for name in proposal.benchmark.others))
        )
    if any(not each.cost for each in proposal.workloads):
        parts.append(
            _comment(
                "The duration of a command is measured, unless a pattern finds a number in its output:",
                "  rate = 'ops/s: ([0-9.]+)'       # higher is better",
                "  cost = '$.results[0].seconds'   # lower is better; a path into JSON",
                "Add its arguments, and let it take half a second or more. {data} is an empty folder for its files.",
            )
        )
    for each in proposal.workloads:
        table = {
            "summary": f"{each.name}, as bisect init found it",
            "group": "benchmark",
            "command": each.command,
            "cost": each.cost,
            "time": each.time,
        }
        parts.append(_table({"workloads": {each.name: {key: value for key, value in table.items() if value}}}))
    return "\n".join(parts)


def _table(table: Mapping[str, Any]) -> str:
    return tomli_w.dumps({key: value for key, value in table.items() if value})


def _comment(*lines: str) -> str:
    """Comments of TOML; names in them are of one line."""
    return "".join(f"# {' '.join(line.splitlines())}".rstrip() + "\n" for line in lines)
