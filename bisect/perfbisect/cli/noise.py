"""`bisect noise`: how much does a host vary, and what does that allow to see?"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfbisect.cli.options import history_option, say
from perfbisect.cli.recipes import builder_name, host_name, workload_name
from perfbisect.cli.waiting import patience, wait_option

if TYPE_CHECKING:
    from perfbisect.cli.trial import Trial
    from perfbisect.core.noise import Noise

EPILOG = """\b
Examples:
  bisect noise local --builder sqlite-amalgamation --workload update-index --rev 3.42.0
  bisect noise spare -b postgres -w scan --rev REL_17_0 --visits 12 --runs 4
  bisect noise spare -b postgres -w scan --rev REL_17_0 --time 60 --metric p95

\b
Later hunts with the same host, builder, variant, workload and options begin with what is learnt.
Ctrl-C keeps what was measured.
"""

SIDES = (2, 4, 8, 16, 32, 64)  # runs per side in the table


@click.command(epilog=EPILOG)
@click.argument("host", default="local", shell_complete=host_name)
@click.option("--builder", "-b", required=True, metavar="NAME", shell_complete=builder_name, help="System to build.")
@click.option("--workload", "-w", required=True, metavar="NAME", shell_complete=workload_name, help="What to run.")
@click.option("--rev", required=True, metavar="REV", help="Release or git revision to build.")
@click.option("--repo", type=click.Path(path_type=Path), help="Local clone. Default: the recipe's URL, cloned once.")
@click.option("--variant", metavar="NAME", default="", help="Compiler settings; see `bisect builders --show`.")
@click.option("--metric", default="", show_default="qps", metavar="NAME", help="qps, p95, cpu/o, instructions/o, …")
@click.option("--visits", type=click.IntRange(min=1), default=8, show_default=True, help="Starts of the server.")
@click.option("--runs", type=click.IntRange(min=1), default=4, show_default=True, help="Timed runs in each visit.")
@click.option("--time", type=click.IntRange(min=1), help="Seconds of each timed run.")
@click.option("--warmup", type=click.FloatRange(min=0), help="Seconds of warm-up before each run.")
@click.option("--threads", type=click.IntRange(min=1), help="Client threads.")
@click.option("--builders", type=click.Path(path_type=Path), help="Folder with builders of your own.")
@click.option("--workloads", type=click.Path(path_type=Path), help="Folder with workloads of your own.")
@click.option("--hosts", type=click.Path(path_type=Path), help="hosts.toml to use.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object at the end.")
@wait_option
@history_option
def noise(
    host: str,
    builder: str,
    workload: str,
    rev: str,
    repo: Path | None,
    variant: str,
    metric: str,
    visits: int,
    runs: int,
    builders: Path | None,
    workloads: Path | None,
    hosts: Path | None,
    as_json: bool,
    wait: bool,
    history: Path | None,
    **options: Any,
) -> int:
    """Build one revision on HOST (default: local) and measure it against itself (an A/A).

    Says how much it varies between visits and within them, the smallest drop that a hunt could see for how many runs,
    and how long runs should be.
    """
    from perfbisect.cli.progress import open_progress
    from perfbisect.cli.settle import settle
    from perfbisect.cli.trial import Trial
    from perfbisect.core.settings import Settings
    from perfbisect.errors import INTERRUPTED, EnvironmentFailure

    settings = settle(
        Settings(
            good=rev,
            bad=rev,
            repository=str(repo.absolute()) if repo else "",
            builder=builder,
            variant=variant,
            workload=workload,
            host=host,
            metric=metric,
            overrides={key: options[key] for key in ("time", "warmup", "threads") if options[key] is not None},
            builders_path=str(builders.absolute()) if builders else "",
            workloads_path=str(workloads.absolute()) if workloads else "",
            hosts_path=str(hosts.absolute()) if hosts else "",
        )
    )
    trial = Trial.set_up(settings, patience(wait))
    complete = trial.measure(visits, runs, history, open_progress(quiet=as_json), patience(wait))
    found = trial.noise()
    if found is None:
        if not complete:
            click.echo("Interrupted before two runs were done: nothing is known yet.", err=True)
            return INTERRUPTED
        raise EnvironmentFailure(
            f"The runs of {rev} have too few values for {trial.settings.metric} to tell how they vary.",
            "Make more runs with --visits and --runs, or choose another metric.",
        )
    say(as_object(trial, found) if as_json else "\n".join(lines(trial, found)))
    if not complete:
        click.echo("Interrupted. What was measured is kept.", err=True)
    return 0 if complete else INTERRUPTED


def as_object(trial: "Trial", found: "Noise") -> str:
    """What was learnt, as JSON."""
    import msgspec

    table = [
        {"runs": row.runs, "visits": row.visits, "seconds": row.seconds, "drop": row.drop} for row in rows(trial, found)
    ]
    said = {
        "settings": trial.settings,
        "host": trial.scene.facts,
        "noise": found,
        "advice": trial.advice(found),
        "detectable": table,
    }
    return msgspec.json.format(msgspec.json.encode(said), indent=2).decode()


def rows(trial: "Trial", found: "Noise") -> "Iterator[Any]":
    """The table of what can be seen at which cost."""
    return (trial.row(found, runs) for runs in SIDES)


def lines(trial: "Trial", found: "Noise") -> Iterator[str]:
    """What was learnt, as text."""
    from statistics import median

    from perfbisect.core.words import count
    from perfbisect.report.table import table
    from perfbisect.report.words import MISSING, lasted

    settings, workload = trial.settings, trial.scene.workload
    seconds = median(facts.seconds for _, facts in trial.runs) if workload.command else workload.time
    wild = f", {count(found.wild, 'accident')} left out" if found.wild else ""
    groups = "visit" if found.shared else "round"
    yield (
        f"{settings.builder} {settings.workload} on {settings.host}, {settings.good}: "
        f"{count(found.visits, groups)}, {count(found.runs, 'run')} of {seconds:.3g} s{wild}"
    )
    yield ""
    unknown = "not known from one visit, or from one run in each"
    yield f"  between {groups}s  {unknown if found.between is None else percent(found.between)}" + (
        "" if found.shared or found.between is None else "   drift of the machine; a hunt's turns cancel most of it"
    )
    yield f"  within {groups}s   {MISSING if found.within is None else percent(found.within)}"
    yield f"  of one run      {percent(found.run)}   ({percent(found.low)} to {percent(found.high)})"
    yield ""
    yield "Smallest drop that is seen (95 % sure, in 4 cases of 5)"
    head = ("runs per side", "visits", "time", "drop")
    body = [(str(row.runs), str(row.visits), lasted(row.seconds), percent(row.drop)) for row in rows(trial, found)]
    yield from (f"  {line}" for line in table(head, body, right=head))
    yield ""
    yield from trial.sentences(found)


def percent(fraction: float) -> str:
    """A fraction in two digits: 0.43 %, 2.1 %, 15 %."""
    share = 100 * fraction
    return f"{share:.2f} %" if share < 1 else f"{share:.1f} %" if share < 10 else f"{share:.0f} %"
