"""`bisect run --dry-run`: the commands for both ends."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

from perfbisect.core.domain.settings import Settings
from perfbisect.host.registry import connect
from perfbisect.hunt.forecast import forecast
from perfbisect.hunt.hunt_range import read_hunt_range
from perfbisect.hunt.patches import patches_of
from perfbisect.lab.command_listing import ListingRequest, Part, list_commands
from perfbisect.recipes.inventory import load_host
from perfbisect.recipes.requested import load_requested, requested_builder
from perfbisect.recipes.workload import load_training


def lines(every: Sequence[Settings]) -> Iterator[str]:
    """The commands for the bad end, and those for the good end that differ; then those of further workloads that differ."""
    settings, *others = every
    bad = parts_of(settings, settings.bad_commit)
    yield f"# {settings.bad}, {settings.bad_commit}"
    yield from text(bad)
    good = [part for part in parts_of(settings, settings.good_commit) if part not in bad]
    yield ""
    if good:
        yield f"# {settings.good}, {settings.good_commit}: the same except"
        yield from text(good)
    else:
        yield f"# {settings.good}, {settings.good_commit}: the same"
    for other in others:
        yield ""
        yield f"# Workload {other.workload}, with the same builds: the same except"
        yield from text([part for part in parts_of(other, other.bad_commit) if part not in bad])


def forecast_of(path: Path | None, every: Sequence[Settings]) -> str:
    """What the hunts are likely to take, as a comment."""
    settings = every[0]
    span, _ = read_hunt_range(settings, requested_builder(settings))
    with connect(load_host(settings.host, settings.hosts_path)) as host:
        return f"# {forecast(path, every, span, host)}"


def parts_of(settings: Settings, commit: str) -> tuple[Part, ...]:
    """The commands for one commit, on the first host."""
    builder, workload = load_requested(settings)
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


def text(parts: Sequence[Part]) -> Iterator[str]:
    """The parts as a script with comments."""
    for part in parts:
        yield ""
        yield f"# {part.title}"
        yield from part.lines
