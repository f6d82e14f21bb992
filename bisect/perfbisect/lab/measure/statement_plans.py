"""How a build executes the statements of its workload: what it answers when it is asked for their plans.

``plans.lua`` of the workload's driver runs the workload's own script for a few operations, and asks with its connection for
what that has sent. Such a run is not measured.
"""

import re
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

import msgspec

from perfbisect.core.domain.events import LabEvent, Planned
from perfbisect.core.domain.facts import PlanFacts
from perfbisect.errors import RunFailed
from perfbisect.host import jobs
from perfbisect.lab import upload
from perfbisect.lab.measure import visit
from perfbisect.lab.measure.visit import RunContext, SlowRuns, Turn, Visit
from perfbisect.lab.server.service import System, driver_options
from perfbisect.lab.workload import lua, sysbench
from perfbisect.lab.workload.result import lines_of
from perfbisect.recipes.workload import Workload

NAME = "plans"  # of the job
LIMIT = 120.0  # seconds
SECONDS = 2.0  # of operations, at most; the one that has begun is finished
OPERATIONS = 10  # in which a mixed workload sends each of its statements
STATEMENT, PLAN = "perfbisect statement: ", "perfbisect plan: "
ESCAPES = {"n": "\n", "r": "\r"}


def has_statements(workload: Workload) -> bool:
    """Whether the driver of a workload can be asked for plans."""
    return lua.explaining(workload) is not None


@dataclass(frozen=True, slots=True)
class PlanStudy:
    """Asks for the plans in one context; calls ``succeeded`` after each visit that ends well."""

    context: RunContext
    succeeded: Callable[[], None]

    def visit(self, system: System, dataset: str, turn: Turn) -> Generator[LabEvent]:
        """One event for each statement; none for a workload that has no statements. Raises as ``Runner.visit``."""
        if script := lua.explaining(self.context.workload):
            folder = upload.place(self.context.host, "scripts", {script.name: script})
            with visit.begin(self.context, system, turn.candidate, dataset, SlowRuns()) as opened:
                found = ask(opened, folder / script.name)
            for statement, plan in found.items():
                facts = PlanFacts(system.commit, system.key, self.context.host.name, statement, plan)
                yield Planned(turn.candidate, facts)
            self.succeeded()
        turn.left -= 1


def ask(opened: Visit, script: PurePosixPath) -> Mapping[str, str]:
    """Run the script ``script`` of the host beside the workload's own; returns each statement's plan. Raises RunFailed."""
    bench = opened.bench
    workload = short(bench.workload)
    measured = lua.on_host(bench.scripts, workload, lua.measured(workload))
    argv = sysbench.command(workload, script, driver_options(opened.system.builder, opened.service))
    env = lua.environment(workload, bench.scripts, opened.folder / "data", opened.system.library)
    env |= {"PERFBISECT_SCRIPT": str(measured)}
    job = jobs.start(bench.host, argv, name=NAME, timeout=LIMIT, cwd=opened.folder, env=env, merged=True)
    status = jobs.end(bench.host, job)
    lines = [*lines_of(jobs.printed(bench.host, job).text)]
    if wrong := sysbench.complaint(lines, status, LIMIT):
        raise RunFailed(f"its statements cannot be explained: {wrong}", stage="run", log=str(job.folder / "stdout"))
    jobs.remove(bench.host, job)
    return parse(lines)


def short(workload: Workload) -> Workload:
    """A workload that is run only to see its statements: by one thread, with the same values for each build."""
    few = {"events": OPERATIONS, "rand-seed": 1, "report-interval": 0}
    return msgspec.structs.replace(workload, threads=1, warmup=0.0, time=SECONDS, args={**workload.args, **few})


def parse(lines: Iterable[str]) -> Mapping[str, str]:
    """Statement → plan, one line a step, from what the script printed."""
    found: dict[str, list[str]] = {}
    plan: list[str] = []
    for line in lines:
        if line.startswith(STATEMENT):
            plan = found.setdefault(unescaped(line.removeprefix(STATEMENT)), [])
        elif line.startswith(PLAN):
            plan.append(unescaped(line.removeprefix(PLAN)))
    return {statement: "\n".join(steps) for statement, steps in found.items() if steps}


def unescaped(text: str) -> str:
    """A text as it was before the script put it on one line."""
    return re.sub(r"\\(.)", lambda found: ESCAPES.get(found[1], found[1]), text)
