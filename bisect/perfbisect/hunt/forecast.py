"""What hunts of one range are likely to take, said before they begin: builds, runs, time and disk."""

from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from perfbisect.core.domain.settings import Settings
from perfbisect.errors import UsageError
from perfbisect.host.protocol import Host
from perfbisect.lab.upkeep import expected_builds, space_needed
from perfbisect.repository.range import CommitRange
from perfbisect.store.history import History
from perfbisect.store.prior_data import read_costs, read_kept
from perfbisect.wording.quantities import count, estimate, extent, size

# Simulated hunts lie between them: of a change of 20 % with noise of 1 %, and of one of 5 % with noise of 2 %.
SPARED = 2  # builds fewer than expected
LEAST, MOST = 6, 7  # runs more than builds; runs for each build


def forecast(path: Path | None, every: Sequence[Settings], span: CommitRange, host: Host) -> str:
    """A line about these hunts. Time and disk are known from earlier ones in the history at ``path``, if there are any."""
    policy, size_of_range = every[0].policy, len(span.candidates)
    most = expected_builds(size_of_range, policy.max_builds)
    builds = (max(2, most - SPARED), most)
    runs = [min(number, policy.max_runs or number) for number in (builds[0] + LEAST, most * MOST)]
    begin = f"{extent(span.commits, len(span.graph.candidates), span.merges)}; about"
    cost = f"{between(builds[0], most, 'build')} and {between(runs[0], runs[1], 'run')}"
    parts = [f"{begin} {cost}{' of each workload' * (len(every) > 1)}"]
    with suppress(UsageError), closing(History.open(path, read_only=True)) as history:  # there may be none yet
        costs = [read_costs(history, each) for each in every]
        if costs[0].build and all(cost.run for cost in costs):
            run = sum(cost.run or 0.0 for cost in costs)
            minutes = [(made * costs[0].build + ran * run) / 60 for made, ran in zip(builds, runs, strict=True)]
            low, high = (estimate(min(each, policy.max_minutes or each)) for each in minutes)
            parts.append(low if low == high else f"{low} to {high.removeprefix('about ')}")
        if needed := space_needed(host, *read_kept(history, every[0]), most):
            parts.append(f"{size(int(needed[0]))} of disk")
    return "; ".join(parts if parts[1:] else (*parts, "time and disk are known after the first ones"))


def between(low: int, high: int, noun: str) -> str:
    """From ``low`` to ``high``."""
    return f"{low} to {count(high, noun)}" if low < high else count(high, noun)
