"""Are the programs there, in usable versions, for building and for driving the workload?"""

from collections.abc import Iterator

from perfbisect.errors import UsageError
from perfbisect.host.conditions import DRIVERS
from perfbisect.host.facts import COMPILER, ONLINE, TOOLS, cpu_numbers
from perfbisect.host.programs import how_to_install, missing
from perfbisect.lab.checks.finding import Finding, Level, Look, Task
from perfbisect.recipes.lineage import variant_of

TO_MEASURE = ("sysbench", "timeout", "setsid", "flock", "ps", "awk", "base64", "tar")
NEEDED = ("git", "ccache", *TO_MEASURE, "ld", "objcopy", "readelf")
OF_SYSBENCH = frozenset({"mysql", "pgsql"})  # drivers that sysbench itself has, if it was compiled with them


def tools(look: Look) -> Iterator[Finding]:
    """Every program without which nothing can be built or measured."""
    absent = missing(look.task.host, needed(look.task))
    if absent:
        verb = "is" if len(absent) == 1 else "are"
        sentence = f"{', '.join(absent)} {verb} not installed on host {look.name}"
        yield Finding(Level.REFUSED, "tools", sentence, how_to_install(absent, look.system))
    versions = [f"{tool} {version}" for tool, fact in TOOLS.items() if (version := look.answers.get(fact))]
    compiler = look.answers.get(COMPILER)
    yield Finding(Level.OK, "tools", ", ".join([*versions, *([compiler] if compiler else [])]) or "no versions known")


def drivers(look: Look) -> Iterator[Finding]:
    """Can sysbench talk to the system?"""
    driver = look.task.builder.driver if look.task.builder else ""
    compiled = look.answers.get(DRIVERS)
    if driver in OF_SYSBENCH and compiled is not None and driver not in compiled:
        yield Finding(
            Level.REFUSED,
            "sysbench",
            f"sysbench on host {look.name} was compiled without its {driver} driver",
            "Install the package of your distribution, or compile sysbench with the client library of that database.",
        )


def needed(task: Task) -> list[str]:
    """The programs that the task needs."""
    to_pin = ["taskset"] if task.entry.server_cpus or task.entry.client_cpus else []
    if task.builder is None:
        return [*NEEDED, *to_pin]
    build, server = task.builder.build, task.builder.server
    as_nobody = ["setpriv"] if server and server.refuses_root else []
    if build is None:
        return [*TO_MEASURE, *as_nobody, *to_pin]
    chosen = variant_of(task.builder, task.variant)
    commands = repr((build.configure, build.compile, build.install, build.env))
    if task.entry.build_host:  # where the rest is needed
        return [*NEEDED, *as_nobody, *to_pin]
    compilers = [program for word, program in (("{cc}", chosen.cc), ("{cxx}", chosen.cxx)) if word in commands]
    return [*NEEDED, *compilers, *build.needs, *as_nobody, *to_pin]


def check_pinning(look: Look) -> None:
    """Raise UsageError for a list of CPUs with one in it that the host does not have: taskset would pass it over."""
    entry, online = look.task.entry, look.answers.get(ONLINE)
    for key, cpus in (("server_cpus", entry.server_cpus), ("client_cpus", entry.client_cpus)):
        if online and cpus and (absent := cpu_numbers(cpus) - online):
            raise UsageError(
                f'hosts.toml: `hosts.{look.name}.{key}` is "{cpus}", but that host has no CPU {min(absent)}',
                f"It has {len(online)}, numbered from {min(online)} to {max(online)}.",
            )
