"""The plan of hunts: the search of one workload, or of several over the same range, which share their builds."""

from collections.abc import Sequence
from dataclasses import replace

from perfbisect.core.domain.events import Decided
from perfbisect.core.domain.orders import Fleet, Found, Measure
from perfbisect.core.search.decide import decide_together, seen_by
from perfbisect.core.search.situation import Situation
from perfbisect.hunt.driver import Member
from perfbisect.hunt.loop import Step
from perfbisect.hunt.search_problem import outlook


class Searches:
    """Gives the orders of all hunts of a session."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members

    def next(self, fleet: Fleet) -> Step:
        """The next order, of any hunt; or the verdict of one, while the others go on."""
        members = self._members
        ended = [number for number, member in enumerate(members) if not member.is_open]
        if len(ended) == len(members):
            return Step(None, at_once=True)
        if any(member.unpromising and member.is_open for member in members):  # another metric is looked for first
            return Step(None)
        number, decision = decide_together([situation(member) for member in members], ended, fleet)
        seen = seen_by(number, fleet) if len(members) > 1 else fleet
        order, several = decision.order, len(members) > 1
        own = replace(decision, builds=tuple(build for build in decision.builds if build.workload == number))
        decided = Decided(own, seen)
        member = members[number]
        if member.change_over and not member.asked and member.problem and outlook(member.problem, decision, member.log):
            member.asked, member.unpromising = True, decision.belief.effect
            return Step(None)
        if isinstance(order, Measure):
            order = replace(order, workload=number)
            return Step(order, decided, False, decision.builds, decision.cancelled, decision.waits, number)
        return Step(None, decided, at_once=isinstance(order, Found), workload=number, goes_on=several)


def situation(member: Member) -> Situation:
    """What the next decision of a hunt depends on."""
    problem = member.problem
    assert problem, "a hunt has a problem"
    seen = problem.observations(member.log.entries, member.log.began, member.log.state.pairing)
    rules, spent = problem.rules(member.log.state.pairing), problem.spent(member.log.entries)
    return Situation(problem.graph, seen, rules, problem.prior, elsewhere=spent)
