"""`bisect simulate` simulates hunts, to estimate the cost and the accuracy of real hunts."""

import math
import sys
from typing import TYPE_CHECKING, Any

import click

from perfbisect.cli.options.common import (
    PATH,
    CommandOptions,
    Decorator,
    LongCommand,
    json_option,
    options_command,
    say,
    say_json,
    show_clone_progress,
)
from perfbisect.cli.options.completion import builder_option, revision
from perfbisect.cli.options.measurement import announce_recipe_files, builders_option, policy_options, requested_policy
from perfbisect.cli.options.param_types import MINUTES, SEED, ParsedParam, ShareParam, WholeNumber
from perfbisect.errors import UsageError

if TYPE_CHECKING:
    from perfbisect.core.domain.graph import Graph
    from perfbisect.core.domain.orders import Verdict
    from perfbisect.core.domain.settings import Policy
    from perfbisect.simulate.tally import JudgedHunt, SearchRule
    from perfbisect.simulate.world import World


STEPS = (
    "one", "nothing", "improvement", "smaller", "large", "cancelling", "before-and-after", "adjacent", "reverted",
    "culprit-on-slope", "slope",
)  # fmt: skip

NO_OPTIONS = ("good", "bad", "as_json")  # arguments on which simulated hunts do not depend


def _cost(text: str) -> tuple[float, str]:
    try:
        runs = float(text)
    except ValueError:
        return MINUTES.parse(text), "minutes"
    if not (runs == 0 or 1e-6 <= runs <= 1e9):
        raise ValueError("is not a number of runs up to 1e9, and not a duration. Examples: 10, 15m.")
    return runs, "runs"


COST = ParsedParam("COST", _cost)  # (number, "runs" or "minutes")


def share_option(name: str, default: str, text: str, **how: bool) -> Decorator:
    """The command-line option ``name``, whose value is a share, such as 5%."""
    return click.option(name, type=ShareParam(**how), default=default, show_default=True, help=text)


def cost_option(name: str, default: str, text: str) -> Decorator:
    """The command-line option ``name``, whose value is a cost, given as a number of runs or as a duration."""
    return click.option(name, type=COST, default=default, show_default=True, help=text)


COMMON = "--commits --effect --noise --layout --drift --repo --builder --steps --build-cost --run-time --hosts --min-effect --all --hunts --json"


@options_command(LongCommand, common=COMMON)
@click.argument("good", required=False, shell_complete=revision)
@click.argument("bad", required=False, shell_complete=revision)
@click.option("--commits", type=WholeNumber(1, 1_000_000), help="Number of commits in the range. Default: 1000.")
@click.option("--merges", is_flag=True, help="Simulate a range with merges.")
@click.option("--repo", type=PATH, help="Local clone with the revisions GOOD and BAD.")
@builder_option("Ignore commits that change only paths that this builder ignores.")
@builders_option
@click.option("--first-parent", is_flag=True, help="Search only the first parents of merges.")
@share_option("--effect", "5%", "Size of the simulated drop.")
@share_option("--noise", "1%", "Standard deviation of a run, relative to its mean.")
@click.option("--noise-known", is_flag=True, help="The hunt knows --noise from earlier hunts on the host.")
@share_option("--layout", "0.5%", "Standard deviation between builds, caused by their layout.", none=True)
@share_option(
    "--modes",
    "0%",
    "Simulate two modes of the layout, with this difference of speed. Every 20 to 200 commits, the mode changes.",
    none=True,
)
@click.option("--layouts", is_flag=True, help="Builds can be linked again in randomized layouts.")
@cost_option("--link-cost", "0.1", "Cost of linking a build again, in runs (0.1) or time (6s).")
@share_option("--drift", "0%", "Standard deviation of the speed of the host within two hours.", none=True)
@share_option("--outliers", "2%", "Share of runs that are outliers.", none=True)
@click.option(
    "--steps",
    type=click.Choice(STEPS),
    default="one",
    show_default=True,
    metavar="KIND",
    help="Changes of speed in the range; --help-all lists the kinds.",
)
@share_option("--failing", "0%", "Share of commits that do not build.", none=True)
@share_option(
    "--stale", "0%", "Share of incremental builds that wrongly have the speed of the previous build.", none=True
)
@cost_option("--build-cost", "10", "Cost of a build, in runs (10) or time (15m).")
@share_option(
    "--cached", "100%", "Cost of a build that is close to an existing build, as a share of --build-cost.", whole=True
)
@click.option("--run-time", type=MINUTES, default="1m", show_default=True, help="Duration of a run with its warm-up.")
@click.option("--hosts", type=WholeNumber(1, 1000), default=1, show_default=True, help="Number of hosts that measure.")
@click.option(
    "--build-hosts", type=WholeNumber(0, 1000), default=0, show_default=True,
    help="Number of build hosts, which build ahead. 0: each host makes the builds that it measures.",
)  # fmt: skip
@click.option("--builds-between", is_flag=True, help="Hosts that wait for a build host also build.")
@policy_options
@click.option(
    "--hunts", type=WholeNumber(1, 1_000_000), default=50, show_default=True, help="Number of simulated hunts."
)
@click.option("--seed", type=SEED, default=1, show_default=True, help="Seed of the first hunt.")
@json_option()
def simulate(given: CommandOptions) -> None:
    """Simulate hunts, and print their cost and how often their verdict is right.

    Each hunt searches for a drop of the size --effect, on a host with the noise --noise. The range has --commits
    commits, or is the range GOOD..BAD of a real repository.

    \b
    Examples:
      bisect simulate --commits 2000 --effect 5% --noise 2%         2,000 commits
      bisect simulate 8.0.28 8.0.29 --builder mysql --effect 10% --build-cost 15m --run-time 2m   a real range
      bisect simulate v1.0 v1.1 --repo ~/src/engine --drift 2% --steps smaller --hunts 200   a host that drifts
      bisect simulate --effect 3% --noise 3% --max-time 12h         at most 12 hours
      bisect simulate --effect 10% --steps before-and-after --all   several changes
      bisect simulate --effect 5% --modes 15% --layouts             code placement changes the speed
      bisect simulate --build-cost 100 --build-hosts 4              long builds, on four build hosts

    \b
    Values of --steps, the commits that change the speed:
      one               the culprit alone, by --effect
      nothing           no commit
      improvement       one commit, which is faster by --effect
      smaller           the culprit, and three changes of at most a third of its size
      large             the culprit, and another drop of 70 % of its size
      cancelling        the culprit, another drop of the same size, and a later rise that hides one of the drops
      before-and-after  the culprit, and two drops of half its size: one before and one after the culprit
      adjacent          the culprit, and a drop of half its size in the next commit
      reverted          a drop, its revert, and the same drop again; the right answer is to name either drop
      culprit-on-slope  the culprit, and 50 tiny drops, together half its size
      slope             50 tiny drops and no culprit; the right answer is to name no commit
    """
    from dataclasses import asdict, replace

    import msgspec

    from perfbisect.core.domain.settings import PriorKnowledge
    from perfbisect.core.search.older_branches import branch_point_of
    from perfbisect.simulate.host_model import HostModel
    from perfbisect.simulate.hunt import simulate_hunt
    from perfbisect.simulate.scenario import Scenario
    from perfbisect.simulate.tally import Tally, summary_lines
    from perfbisect.wording.quantities import count

    if given.builds_between and not given.build_hosts:
        raise UsageError("--builds-between needs --build-hosts.", "Add --build-hosts 1, or omit --builds-between.")
    graph = chosen_graph(given)
    run_seconds = 60 * given.run_time
    build_seconds, link_seconds = (
        cost * (run_seconds if unit == "runs" else 60) for cost, unit in (given.build_cost, given.link_cost)
    )
    habits = HostModel(
        modes=(-math.log1p(-given.modes),) * 2,
        link_seconds=link_seconds,
        run_seconds=run_seconds,
        build_seconds=build_seconds,
        cached_share=given.cached,
        **{name: getattr(given, name) for name in ("noise", "layout", "drift", "outliers", "stale")},
    )
    scenario = Scenario(graph, effect=given.effect, changes=given.steps, failing=given.failing, habits=habits)
    prior = PriorKnowledge(build_seconds / run_seconds, given.noise if given.noise_known else None)
    how = {name: getattr(given, name) for name in ("hosts", "build_hosts", "builds_between")}

    def rule(world: "World", policy: "Policy") -> "Verdict":
        return simulate_hunt(world, policy, prior, **how).verdict

    policy = replace(requested_policy(given), incremental=given.stale > 0)
    tally = Tally.of(simulated_hunts(scenario, policy, rule, range(given.seed, given.seed + given.hunts)))
    if given.as_json:
        asked = {key: value for key, value in vars(given).items() if value is not None and key not in NO_OPTIONS}
        asked |= {cost_name: " ".join(map(str, getattr(given, cost_name))) for cost_name in ("build_cost", "link_cost")}
        figures = {"candidates": len(graph.candidates), "options": asked} | asdict(tally)
        say_json(msgspec.json.encode(figures, enc_hook=str).decode())  # in JSON, NaN becomes null
        return
    merges = int((graph.parent_offsets[1:] - graph.parent_offsets[:-1] > 1).sum())
    among = f", {merges:,} of them merges" if merges else ""
    older = int((branch_point_of(graph)[graph.candidates.start :] > 0).sum()) if graph.branch_points else 0
    among += f", {older:,} on branches older than good" if older else ""
    say(f"{count(len(graph.candidates), 'candidate')}{among}; {count(tally.hunts, 'hunt')}")
    for line in summary_lines(tally, with_build_hosts=given.build_hosts > 0):
        say(line)


def chosen_graph(given: CommandOptions) -> "Graph":
    """The graph of commits in which the simulated hunts search: the range that `bisect run` would search in a real
    repository, or a random graph."""
    from perfbisect.core.domain.graph import Graph
    from perfbisect.recipes.builder_reader import load_builder
    from perfbisect.repository.commits import resolve_commit
    from perfbisect.repository.discovery import cached_clone, open_repository
    from perfbisect.repository.range import read_range
    from perfbisect.simulate.scenario import random_merging_graph

    good, bad, name, repo = given.good, given.bad, given.builder, given.repo
    if good is None:
        if repo or name or given.first_parent:
            text = "The ends of the range are missing."
            raise UsageError(text, "Give two revisions: bisect simulate GOOD BAD --repo FOLDER")
        commits = given.commits or 1000
        return random_merging_graph(commits) if given.merges else Graph.straight_history(commits)
    if bad is None:
        advice = "Give two revisions: bisect simulate GOOD BAD --repo FOLDER"
        raise UsageError(f"BAD is missing: '{good}' is only one end of a range.", advice)
    if given.commits or given.merges:
        clash = "--commits and --merges describe a random range, but GOOD and BAD give a range of a repository."
        raise UsageError(clash, "Omit --commits and --merges, or GOOD and BAD.")
    builder = load_builder(name, given.builders or "") if name else None
    announce_recipe_files(builder)
    if repo is None:
        if builder is None:
            raise UsageError("A repository is missing.", "Give --repo FOLDER, or --builder NAME.")
        repo = cached_clone(builder, (good, bad), show_clone_progress)
    git = open_repository(repo)
    tags, ignored = (builder.release_tags, builder.ignore) if builder else ((), ())
    ends = resolve_commit(git, good, tags), resolve_commit(git, bad, tags)
    return read_range(git, *ends, ignored, first_parent=given.first_parent).graph


def simulated_hunts(scenario: Any, policy: Any, rule: "SearchRule", seeds: range) -> list["JudgedHunt"]:
    """The results of one simulated hunt for each seed. On a terminal, a progress bar is shown."""
    from rich.progress import track

    from perfbisect.simulate.tally import judged_hunt_of_seed
    from perfbisect.ui.live import EscapingConsole

    console = EscapingConsole(sys.stderr)
    watched = track(seeds, "Hunting", console=console, transient=True, disable=not sys.stderr.isatty())
    return [judged_hunt_of_seed(scenario, seed, rule, policy) for seed in watched]
