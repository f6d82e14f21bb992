"""`bisect run`: hunt the commit that changed the speed between two revisions."""

from pathlib import Path
from typing import Any

import click

from perfbisect.cli.asking import asked_how, asked_what, settings_of
from perfbisect.cli.options import history_option
from perfbisect.cli.recipes import host_name, workload_name
from perfbisect.cli.values import Minutes, Percent, Suspect
from perfbisect.cli.view import open_view, view_options
from perfbisect.cli.waiting import patience, wait_option
from perfbisect.core.policy import Direction, Policy

EPILOG = """\b
Examples:
  bisect run 3.41.0 3.42.0 --builder sqlite --workload update-index
  bisect run REL_16_0 REL_17_0 --builder postgres --workload scan --repo ~/src/postgres
  bisect run v1.0 HEAD --builder demo --workload range --metric p95 --direction rise
  bisect run 3.41.0 3.42.0 --builder sqlite --workload scan --max-time 2h --json
  bisect run 8.0.28 8.0.29 --builder mysql --workload scan --host c8-1 --host c8-2

\b
GOOD and BAD are releases as the builder's tags spell them (8.0.28) or any git revision.
A hunt that was interrupted goes on with `bisect resume`.
"""


@click.command(epilog=EPILOG)
@click.argument("good")
@click.argument("bad")
@click.option("--workload", "-w", required=True, metavar="NAME", shell_complete=workload_name, help="What to run.")
@asked_what
@click.option(
    "--host", "host", multiple=True, default=("local",), metavar="NAME", show_default="local", shell_complete=host_name,
    help="Where. Repeatable: several hosts share the work.",
)  # fmt: skip
@click.option(
    "--direction",
    type=click.Choice([d.value for d in Direction]),
    help="Which change is hunted, from good to bad. Default: the one that makes the metric worse.",
)
@click.option("--confidence", type=Percent(), default=0.95, show_default="95%", help="Name a culprit when this sure.")
@click.option("--min-effect", type=Percent(), default=0.02, show_default="2%", help="Smallest change of interest.")
@click.option("--all", "all_steps", is_flag=True, help="Then find every other change of that size, too.")
@click.option(
    "--suspect", type=Suspect(), multiple=True, help="Commits that touch PATH are so much likelier. Repeatable."
)
@click.option("--max-builds", type=click.IntRange(min=1), help="Stop with the best answer after so many builds.")
@click.option("--max-runs", type=click.IntRange(min=1), help="… after so many timed runs.")
@click.option("--max-time", type=Minutes(), help="… after so much time: 90s, 45m, 2h.")
@click.option("--first-parent", is_flag=True, help="Follow only the first parent of merges.")
@asked_how
@wait_option
@view_options
@history_option
def run(
    good: str,
    bad: str,
    workload: str,
    host: tuple[str, ...],
    direction: str | None,
    first_parent: bool,
    history: Path | None,
    as_json: bool,
    plain: bool,
    wait: bool,
    **options: Any,
) -> int:
    """Hunt the commit that changed the speed between GOOD and BAD."""
    from perfbisect.cli.session import Scene, follow_anew
    from perfbisect.cli.settle import settle
    from perfbisect.core.counters import higher_is_better
    from perfbisect.core.verdict import exit_status

    policy = Policy(
        confidence=options["confidence"],
        direction=Direction(direction or ("drop" if higher_is_better(options["metric"]) else "rise")),
        min_effect=options["min_effect"],
        max_builds=options["max_builds"] or 0,
        max_runs=options["max_runs"] or 0,
        max_minutes=options["max_time"] or 0.0,
        all_steps=options["all_steps"],
    )
    settings = settle(
        settings_of(
            options,
            good=good,
            bad=bad,
            workload=workload,
            host=host[0],
            further_hosts=host[1:],
            first_parent=first_parent,
            suspects=dict(options["suspect"]),
            policy=policy,
        )
    )
    waiting = patience(wait)
    verdict = follow_anew(Scene.set_up(settings, waiting), history, open_view(as_json=as_json, plain=plain), waiting)
    return exit_status(verdict)
