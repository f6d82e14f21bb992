"""`bisect replay`: repeat the decisions of a past hunt from its log, without touching a host."""

from contextlib import closing
from pathlib import Path

from perfbisect.cli.options.common import Given, history_option, id_argument, say, verb_command
from perfbisect.cli.options.measurement import announce, confidence_option, effect_option, limit_options, policy_of
from perfbisect.ui.stream import note

UNDECIDED = 2


@verb_command()
@id_argument()
@confidence_option()
@effect_option("Smallest change of interest.")
@limit_options
@history_option
def replay(given: Given) -> int:
    """Repeat the decisions of HUNT (default: the latest) from its log, with its own settings or with others.

    Each line is one decision: the number of runs before it, and the most probable culprit. Only runs of the log are
    available, so a replay with other settings may end before a verdict.

    \b
    Examples:
      bisect replay                       the latest hunt, with its own settings
      bisect replay 12 --confidence 80%   would a lower confidence have cost fewer runs?
      bisect replay 12 --max-runs 40      the verdict after 40 runs

    \b
    Exit status: that of a hunt with this verdict; 2 when the log ends before a verdict.
    """
    from perfbisect.core.domain.events import SessionStarted
    from perfbisect.core.domain.orders import Measure, Purpose
    from perfbisect.core.domain.session_state import fold
    from perfbisect.errors import UsageError
    from perfbisect.hunt.search_problem import SearchProblem
    from perfbisect.hunt.search_problem import replay as decisions
    from perfbisect.hunt.setup import read_hunt_range
    from perfbisect.recipes.requested import requested_builder
    from perfbisect.report.hunt_report import together_with
    from perfbisect.repository.commits import describe
    from perfbisect.repository.discovery import open_repository
    from perfbisect.store.history import History
    from perfbisect.wording.quantities import chance
    from perfbisect.wording.verdicts import Teller, exit_status

    with closing(History.open(given.history, read_only=True)) as store:
        number = store.latest() if given.hunt is None else given.hunt
        settings, began = store.settings(number), store.began(number)
        events = [(entry.at, entry.event) for entry in store.events(number)]
        candidates = store.candidates(number)
        together = together_with(store, number)
    builder = requested_builder(settings)
    announce(builder)
    span, _ = read_hunt_range(settings, builder)
    if span.candidates != candidates:
        raise UsageError(f"The range of hunt {number} in {settings.repository} has changed.")
    policy = policy_of(given, settings.policy)
    hosts = settings.hosts if settings.further_hosts else ()
    build_hosts = next((event.build_hosts for _, event in reversed(events) if isinstance(event, SessionStarted)), ())
    problem = SearchProblem(span.graph, candidates, policy, settings.metric, hosts, settings.prior, build_hosts)
    repository = open_repository(Path(settings.repository))
    if together:
        note(f"Hunt {number} was carried out {together}. Budgets count for it alone in a replay.")
    for runs, decision in decisions(problem, events, began, shared=bool(together)):
        order, culprit = decision.order, decision.belief.culprit
        if not isinstance(order, Measure):
            say(f"{runs:5} runs  verdict")
            commits = [describe(repository, commit) for commit in candidates]
            state = fold(events)
            state.use_range(candidates)
            state.belief = decision.belief
            say("\n".join(Teller(state, commits.__getitem__).sentences(order)))
            return exit_status(order)
        leader = int(culprit.argmax())
        alike = int((culprit > 0.99 * culprit[leader]).sum())
        first = f"{candidates[leader][:10]} leads" if alike == 1 else f"{alike} commits lead, each"
        leads = f"{first} with {chance(float(culprit[leader]))}"
        say(f"{runs:5} runs  {'the ends are compared' if order.purpose is Purpose.ENDS else leads}")
    say("The log ends here; with these settings the hunt would continue.")
    return UNDECIDED
