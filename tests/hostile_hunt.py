"""The sample hunt with hostile text in everything that a repository, a host or a server gives."""

from dataclasses import replace

import explained_hunt as reason
import sample_hunt as sample
from perfbisect.core.domain.events import Commit
from perfbisect.core.domain.explanation import PlanRow
from perfbisect.report.page.data import HuntData, read_hunt
from perfbisect.report.page.hunt import hunt_page
from perfbisect.store.history import History

HOSTILE = (
    "</title></script><script>document.title='EVIL'</script><img src=x onerror=alert(1)>\" ' {{7*7}} {% x %} \u202egnp"
)


def hostile(data: HuntData) -> HuntData:
    """The same with hostile text in everything that a repository, a host or a server gives."""
    row, file = data.explanation, f"{HOSTILE};{HOSTILE}"
    assert row is not None
    return replace(
        data,
        story=replace(
            data.story,
            warnings={HOSTILE: HOSTILE},
            again=HOSTILE,
            settings=replace(data.story.settings, repository=HOSTILE, good=HOSTILE, overrides={HOSTILE: HOSTILE}),
            hosts=tuple(
                replace(host, name=HOSTILE, cpu=HOSTILE, settings={HOSTILE: HOSTILE}) for host in data.story.hosts
            ),
            verdict=(HOSTILE, HOSTILE),
            proofs={HOSTILE: (HOSTILE,)},
        ),
        explanation=replace(
            row,
            functions=tuple(
                replace(one, function=HOSTILE, callers=(HOSTILE,), partner=HOSTILE) for one in row.functions
            ),
            counters=tuple(replace(one, name=HOSTILE) for one in row.counters),
            missing=(HOSTILE,),
        ),
        profiles=replace(reason.PROFILES, parent={file: 1.0}, culprit={HOSTILE: 2.0}, notes=(HOSTILE,)),
    )


def hostile_page(history: History) -> str:
    """The page of a hunt in which everything from outside is hostile."""
    hunt = sample.write(history)
    data = read_hunt(history, hunt, lambda sha: Commit(sha, HOSTILE, HOSTILE, HOSTILE))
    case = data.story.cases[0]
    texts = [replace(one, commit=Commit(one.commit.sha, HOSTILE, HOSTILE, HOSTILE)) for one in data.story.candidates]
    named = replace(
        case,
        commit=Commit(case.commit.sha, HOSTILE, HOSTILE, HOSTILE),
        why=HOSTILE,
        plans=(PlanRow(HOSTILE, HOSTILE, HOSTILE),),
    )
    story = replace(data.story, cases=(named,), candidates=tuple(texts))
    diff = f"diff --git a/{HOSTILE} b/{HOSTILE}\n@@ -1 +1 @@ {HOSTILE}\n-{HOSTILE}\n+{HOSTILE}\n"
    data = hostile(replace(data, story=story, explanation=reason.EXPLANATION))
    return hunt_page(data, diff_of=lambda _before, _after: (diff, 3), history=None)
