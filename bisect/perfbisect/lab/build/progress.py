"""How far a build is."""

from collections.abc import Generator
from dataclasses import dataclass

from perfbisect.host import jobs
from perfbisect.host.protocol import Host
from perfbisect.lab.build.log_parser import BuildLog


@dataclass(frozen=True, slots=True)
class Progress:
    """Steps done of steps known in one stage of a build; ``total`` 0 when unknown."""

    stage: str  # "fetch", "send", "checkout", "configure", "compile", "install"
    done: int = 0
    total: int = 0


def follow(host: Host, job: jobs.Job, output: BuildLog) -> Generator[Progress, None, int]:
    """The progress of a build's job, read from its output; its status is the return value."""
    lines = jobs.wait(host, job)
    try:
        while True:
            if output.read(next(lines)):
                yield Progress(output.stage, output.done, output.total)
    except StopIteration as end:
        status: int = end.value
        return status
    finally:
        lines.close()
