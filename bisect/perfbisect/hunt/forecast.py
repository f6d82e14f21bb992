"""What hunts are going to do, said before they begin: the commands for both ends (`--dry-run`), builds, runs, time and disk."""

from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from pathlib import Path

from perfbisect.core.domain.settings import Settings
from perfbisect.errors import UsageError
from perfbisect.host.protocol import Host
from perfbisect.host.registry import connect
from perfbisect.hunt.hunt_range import read_hunt_range
from perfbisect.hunt.patches import patches_of
from perfbisect.hunt.setup import Recipes
from perfbisect.lab.command_listing import CommandGroup, ListingRequest, list_commands
from perfbisect.lab.upkeep import expected_builds, space_needed
from perfbisect.recipes.inventory import load_host
from perfbisect.recipes.requested import load_requested
from perfbisect.recipes.workload import load_training
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


def lines(path: Path | None, every: Sequence[Settings]) -> Iterator[str]:
    """What the hunts are likely to take, by the history at ``path``; the commands for the bad end, and those for the good end that differ; then those of further workloads that differ."""
    settings, *others = every
    recipes = load_requested(settings)
    span, _ = read_hunt_range(settings, recipes[0])
    with connect(load_host(settings.host, settings.hosts_path)) as host:
        yield f"# {forecast(path, every, span, host)}"
    bad = parts_of(settings, recipes, settings.bad_commit)
    yield f"# {settings.bad}, {settings.bad_commit}"
    yield from text(bad)
    good = [part for part in parts_of(settings, recipes, settings.good_commit) if part not in bad]
    yield ""
    if good:
        yield f"# {settings.good}, {settings.good_commit}: the same except"
        yield from text(good)
    else:
        yield f"# {settings.good}, {settings.good_commit}: the same"
    for other in others:
        yield ""
        yield f"# Workload {other.workload}, with the same builds: the same except"
        yield from text([part for part in parts_of(other, load_requested(other), other.bad_commit) if part not in bad])


def parts_of(settings: Settings, recipes: Recipes, commit: str) -> tuple[CommandGroup, ...]:
    """The commands for one commit, on the first host."""
    builder, workload = recipes
    entry = load_host(settings.host, settings.hosts_path)
    # All that build do it in the same way.
    build_entry = None if entry.builds else load_host(entry.built_elsewhere[0], settings.hosts_path)
    with connect(entry) as host, connect(build_entry) if build_entry else nullcontext() as build_host:
        where = host, entry, build_host, build_entry
        return list_commands(
            ListingRequest(
                *where,
                builder,
                settings.variant,
                workload,
                Path(settings.repository),
                commit,
                patches_of(settings, builder),
                entry.built_elsewhere,
                load_training(builder, settings.variant, [workload], settings.workloads_path),
            )
        )


def text(parts: Sequence[CommandGroup]) -> Iterator[str]:
    """The parts as a script with comments."""
    for part in parts:
        yield ""
        yield f"# {part.title}"
        yield from part.lines
