"""Rules that search a world, and one hunt by one of them, judged."""

from collections.abc import Callable

from perfbisect.core.domain.orders import Verdict
from perfbisect.core.domain.policy import Policy
from perfbisect.core.domain.prior_knowledge import NOTHING_KNOWN, PriorKnowledge
from perfbisect.simulate.hunt import hunt
from perfbisect.simulate.judge import account, favourite, is_named, judge, suspects
from perfbisect.simulate.scenario import Scenario
from perfbisect.simulate.tally import Trial
from perfbisect.simulate.world import World

Rule = Callable[[World, Policy], Verdict]


def ours(
    world: World,
    policy: Policy,
    hosts: int = 1,
    prior: PriorKnowledge = NOTHING_KNOWN,
    build_hosts: int = 0,
    builds_between: bool = False,
) -> Verdict:
    """The search of `bisect run`."""
    return hunt(world, policy, prior, hosts=hosts, build_hosts=build_hosts, builds_between=builds_between).verdict


def attempt(scenario: Scenario, seed: int, rule: Rule, policy: Policy) -> Trial:
    """One hunt by ``rule`` in the world of this seed."""
    world = scenario.world(seed)
    verdict = rule(world, policy)
    run = scenario.habits.run_seconds
    bad = world.graph.size - 1
    between = sum(seconds for v, seconds in world.build_seconds.items() if v not in (0, bad))
    suspect, stated = favourite(verdict)
    chosen, together = suspects(verdict)
    return Trial(
        judgement=judge(verdict, world, policy.min_effect),
        named=is_named(verdict),
        stated=stated,
        favoured=suspect in world.answers,
        builds=world.builds - world.cancelled,
        unused=world.unused,
        cancelled=world.cancelled,
        runs=world.runs,
        minutes=world.now / 60,
        cost=world.runs + (between + world.links * scenario.habits.link_seconds) / run,
        together=together,
        held=not world.answers.isdisjoint(chosen),
        steps=account(verdict, world, policy.min_effect) if policy.all_steps else None,
    )
