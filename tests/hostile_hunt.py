"""The sample hunt with hostile text in everything that a repository, a host or a server gives."""

from dataclasses import replace

import explained_hunt as reason
import sample_hunt as sample
from perfbisect.core.domain.events import Commit
from perfbisect.core.domain.explanation import PlanRow
from perfbisect.report.page.case import hunt_page
from perfbisect.store.history import History

HOSTILE = (
    "</title></script><script>document.title='EVIL'</script><img src=x onerror=alert(1)>\" ' {{7*7}} {% x %} \u202egnp"
)


def hostile_page(history: History) -> str:
    """The page of a hunt in which everything from outside is hostile."""
    story, drawn = reason.explained(history, sample.write(history))
    [case] = story.cases
    found = replace(
        case.explanation,
        functions=tuple(
            replace(one, function=HOSTILE, callers=(HOSTILE,), partner=HOSTILE) for one in case.explanation.functions
        ),
        counters=tuple(replace(one, name=HOSTILE) for one in case.explanation.counters),
        missing=(HOSTILE,),
    )
    commit = Commit(case.commit.sha, HOSTILE, HOSTILE, HOSTILE)
    plans = (PlanRow(HOSTILE, HOSTILE, HOSTILE),)
    story = replace(
        story,
        cases=(replace(case, commit=commit, why=HOSTILE, plans=plans, explanation=found),),
        candidates=tuple(
            replace(one, commit=Commit(one.commit.sha, HOSTILE, HOSTILE, HOSTILE)) for one in story.candidates
        ),
        warnings={HOSTILE: HOSTILE},
        again=HOSTILE,
        settings=replace(story.settings, repository=HOSTILE, good=HOSTILE, overrides={HOSTILE: HOSTILE}),
        hosts=tuple(replace(host, name=HOSTILE, cpu=HOSTILE, settings={HOSTILE: HOSTILE}) for host in story.hosts),
        verdict=(HOSTILE, HOSTILE),
        proofs={HOSTILE: (HOSTILE,)},
    )
    profiles = replace(reason.PROFILES, parent={f"{HOSTILE};{HOSTILE}": 1.0}, culprit={HOSTILE: 2.0}, notes=(HOSTILE,))
    diff = f"diff --git a/{HOSTILE} b/{HOSTILE}\n@@ -1 +1 @@ {HOSTILE}\n-{HOSTILE}\n+{HOSTILE}\n"
    return hunt_page(story, replace(drawn, profiles=profiles), lambda _before, _after: (diff, 3), None)
