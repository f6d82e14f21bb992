"""Are the programs there, in usable versions, for building and for driving the workload?"""

from collections.abc import Iterator

from perfbisect.errors import UsageError
from perfbisect.host.conditions import DRIVERS
from perfbisect.host.facts import COMPILER, ONLINE, TOOLS, cpu_numbers
from perfbisect.host.packages import how_to_install
from perfbisect.host.programs import missing
from perfbisect.lab.build.requirements import NEEDED, compilers, lacking_for, own_packages
from perfbisect.lab.checks.finding import Finding, Level, Look, Task
from perfbisect.recipes.inheritance import variant_of

TO_MEASURE = ("timeout", "setsid", "flock", "ps", "awk", "base64", "tar")
OF_SYSBENCH = frozenset({"mysql", "pgsql"})  # drivers that sysbench itself has, if it was compiled with them


def tools(look: Look) -> Iterator[Finding]:
    """Every program without which nothing can be built or measured, and what else the build needs."""
    task, host = look.task, look.task.host
    builder, build = task.builder, task.builder.build if task.builder else None
    maker = task.entry.built_elsewhere
    if builder is None or build is None or maker:  # where the rest is needed
        absent, own = missing(host, needed(task)), None
    else:
        absent = lacking_for(host, needed(task), build, variant_of(builder, task.variant))
        own = own_packages(build)
    if absent:
        verb = "is" if len(absent) == 1 else "are"
        sentence = f"{', '.join(absent)} {verb} not installed on host {look.name}"
        yield Finding(Level.REFUSED, "tools", sentence, how_to_install(absent, look.system, own))
    elif builder and maker:
        elsewhere = f"{builder.name} is built on host {maker}, which is not looked at here"
        yield Finding(Level.OK, "builder", elsewhere, f"Look with: bisect doctor {maker} --builder {builder.name}")
    elif builder and not build:
        yield Finding(Level.OK, "builder", f"{builder.name} is not built anywhere: its recipe has no [build]")
    elif builder and build:
        needs = ", ".join(dict.fromkeys((*compilers(build, variant_of(builder, task.variant)), *build.needs)))
        yield Finding(Level.OK, "builder", f"all that {builder.name} needs to be built is there: {needs}")
    versions = [f"{tool} {version}" for tool, fact in TOOLS.items() if (version := look.answers.get(fact))]
    compiler = look.answers.get(COMPILER)
    yield Finding(Level.OK, "tools", ", ".join([*versions, *([compiler] if compiler else [])]) or "no versions known")


def drivers(look: Look) -> Iterator[Finding]:
    """Can sysbench talk to the system?"""
    driver = look.task.builder.driver if look.task.builder and by_sysbench(look.task) else ""
    compiled = look.answers.get(DRIVERS)
    if driver in OF_SYSBENCH and compiled is not None and driver not in compiled:
        yield Finding(
            Level.REFUSED,
            "sysbench",
            f"sysbench on host {look.name} was compiled without its {driver} driver",
            "Install the package of your distribution, or compile sysbench with the client library of that database.",
        )


def needed(task: Task) -> list[str]:
    """The programs that measuring needs, and building any system if anything is to be built there."""
    built = not task.entry.built_elsewhere and (task.builder is None or task.builder.build is not None)
    server = task.builder.server if task.builder else None
    return [
        *(NEEDED if built else ()),
        *TO_MEASURE,
        *(["sysbench"] if by_sysbench(task) else []),
        *(["taskset"] if task.entry.server_cpus or task.entry.client_cpus else []),
        *(["setpriv"] if server and server.refuses_root else []),
    ]


def by_sysbench(task: Task) -> bool:
    """Whether sysbench drives a workload, as far as that is known."""
    return task.workloads is None or not all(workload.command for workload in task.workloads)


def check_pinning(look: Look) -> None:
    """Raise UsageError for a list of CPUs with one in it that the host does not have: taskset would pass it over."""
    entry, online = look.task.entry, look.answers.get(ONLINE)
    for key, cpus in (("server_cpus", entry.server_cpus), ("client_cpus", entry.client_cpus)):
        if online and cpus and (absent := cpu_numbers(cpus) - online):
            raise UsageError(
                f'hosts.toml: `hosts.{look.name}.{key}` is "{cpus}", but that host has no CPU {min(absent)}',
                f"It has {len(online)}, numbered from {min(online)} to {max(online)}.",
            )
