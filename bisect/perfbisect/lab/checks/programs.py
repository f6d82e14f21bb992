"""Is on a host what builds and drives the workload: programs, the caches of compilations and builds, linkers of fresh layouts?"""

from collections.abc import Iterator

from perfbisect.errors import UsageError
from perfbisect.host.facts import COMPILER, DRIVERS, ONLINE, TOOLS, cpu_numbers
from perfbisect.host.packages import how_to_install, missing
from perfbisect.lab.build import ccache, links
from perfbisect.lab.build.shared_builds import SharedBuilds
from perfbisect.lab.build.toolchain import NEEDED, compilers, how_to_build, lacking_for, own_packages
from perfbisect.lab.checks.finding import CheckRequest, Finding, Inspection, Level
from perfbisect.masking import masked
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.builder_reader import variant_of
from perfbisect.wording.text import listed

TO_MEASURE = ("timeout", "setsid", "flock", "ps", "awk", "base64", "tar", "cmp")
OF_SYSBENCH = frozenset({"mysql", "pgsql"})  # drivers that sysbench itself has, if it was compiled with them


def tools(inspection: Inspection) -> Iterator[Finding]:
    """Every program without which nothing can be built or measured, and what else the build needs."""
    request, host = inspection.request, inspection.request.host
    builder, build = request.builder, request.builder.build if request.builder else None
    elsewhere, builds = request.entry.built_elsewhere, request.entry.builds
    if builder is None or build is None or not builds:  # where the rest is needed
        absent, own = missing(host, needed(request)), None
    else:
        absent = lacking_for(host, needed(request), build, variant_of(builder, request.variant))
        own = own_packages(build)
    if absent:
        verb = "is" if len(absent) == 1 else "are"
        sentence = f"{', '.join(absent)} {verb} not installed on host {inspection.name}"
        besides = how_to_build(builder, inspection.answers) if builder and own is not None else ""
        advice = ". ".join(filter(None, (how_to_install(absent, inspection.system, own), besides)))
        yield Finding(Level.REFUSED, "tools", sentence, advice)
    elif builder and not builds:
        are = "host" if len(elsewhere) == 1 else "hosts"
        known = f"{builder.name} is built on {are} {listed(elsewhere)}, not checked here"
        which = elsewhere[0] if len(elsewhere) == 1 else "--all"
        yield Finding(Level.OK, "builder", known, f"Check with: bisect doctor {which} --builder {builder.name}")
    elif builder and builder.installed:
        yield Finding(Level.OK, "builder", f"nothing of {builder.name} is built: the host's programs are run")
    elif builder and not build:
        yield Finding(Level.OK, "builder", f"nothing of {builder.name} is built: installed releases are measured")
    elif builder and build:
        needs = ", ".join(dict.fromkeys((*compilers(build, variant_of(builder, request.variant)), *build.needs)))
        known = f"everything that {builder.name} needs to be built is installed: {needs}"
        yield Finding(Level.OK, "builder", known, how_to_build(builder, inspection.answers))
    versions = [f"{tool} {version}" for tool, fact in TOOLS.items() if (version := inspection.answers.get(fact))]
    compiler = inspection.answers.get(COMPILER)
    yield Finding(Level.OK, "tools", ", ".join([*versions, *([compiler] if compiler else [])]) or "no versions known")


def drivers(inspection: Inspection) -> Iterator[Finding]:
    """Can sysbench drive the system?"""
    driver = inspection.request.builder.driver if inspection.request.builder and by_sysbench(inspection.request) else ""
    compiled = inspection.answers.get(DRIVERS)
    if driver in OF_SYSBENCH and compiled is not None and driver not in compiled:
        yield Finding(
            Level.REFUSED,
            "sysbench",
            f"sysbench on host {inspection.name} was compiled without its {driver} driver",
            "Install the package of your distribution, or compile sysbench with the client library of that database.",
        )


def needed(request: CheckRequest) -> list[str]:
    """The programs that measuring needs, and building any system if anything is to be built there."""
    built = request.entry.builds and (request.builder is None or request.builder.build is not None)
    server = request.builder.server if request.builder else None
    return [
        *(NEEDED if built else ()),
        *TO_MEASURE,
        *(["sysbench"] if by_sysbench(request) else []),
        *(need for workload in request.workloads or () for need in workload.needs),
        *(["taskset"] if request.entry.server_cpus or request.entry.client_cpus else []),
        *(["setpriv"] if server and server.refuses_root else []),
    ]


def by_sysbench(request: CheckRequest) -> bool:
    """Whether sysbench drives a workload, as far as that is known."""
    return request.workloads is None or not all(workload.command for workload in request.workloads)


def check_pinning(inspection: Inspection) -> None:
    """Raise UsageError for a list of CPUs with one in it that the host does not have: taskset would ignore it."""
    entry, online = inspection.request.entry, inspection.answers.get(ONLINE)
    for key, cpus in (("server_cpus", entry.server_cpus), ("client_cpus", entry.client_cpus)):
        if online and cpus and (absent := cpu_numbers(cpus) - online):
            raise UsageError(
                f'hosts.toml: `hosts.{inspection.name}.{key}` is "{cpus}", but that host has no CPU {min(absent)}',
                f"It has {len(online)}, numbered from {min(online)} to {max(online)}.",
            )


def compiler_cache(inspection: Inspection) -> Iterator[Finding]:
    """A compilation through the store and back; nothing where none is set, or nothing is built on the host."""
    request = inspection.request
    remote = request.entry.ccache_remote
    if remote in ("", ccache.NONE) or not request.entry.builds:
        return
    if missing(request.host, ["ccache", "cc"]):  # reported by the check of programs
        return
    if reason := ccache.try_remote(request.host, remote):
        said = f"the remote store {masked(remote)} of ccache on host {inspection.name}: {reason}"
        yield Finding(Level.WARNING, "ccache", said, ccache.ADVICE)
    else:
        yield Finding(Level.OK, "ccache", f"its remote store {masked(remote)} is read and written")


def layouts(inspection: Inspection) -> Iterator[Finding]:
    """Which linker makes fresh layouts, and what keeps it from that."""
    request = inspection.request
    if not request.entry.builds or (request.builder and obstacle(request.builder, request.variant)):
        return
    linker = links.find_linker(request.host)
    if linker and linker.moves_functions:
        yield Finding(Level.OK, "layouts", f"builds are linked again in other layouts by {linker.version}")
    elif linker:
        yield Finding(
            Level.NOTE,
            "layouts",
            f"the linker of host {inspection.name} moves whole object files only: layouts of a program differ little",
            how_to_install(["mold"], inspection.system),
        )


def obstacle(builder: Builder, variant: str, system: str = "") -> str:
    """Why no build of a system could be linked again; "" where one may be. ``system`` is the build system, if known."""
    if builder.build is None:
        return "nothing is built from source"
    if (system or builder.build.system) == "go":
        return "Go's linker knows one order of functions only"
    return links.why_fixed(variant_of(builder, variant))


def shared_findings(shared: SharedBuilds | None) -> Iterator[Finding]:
    """Whether an object can be written, read and removed; nothing where no builds are shared."""
    if shared is None:
        return
    try:
        shared.try_out()
    except OSError as trouble:
        reason = masked(trouble.strerror or str(trouble))
        said = f"the shared builds in {shared.address} cannot be used from this machine: {reason}"
        yield Finding(Level.WARNING, "shared", said, "Hunts go on without them: they build for themselves.")
    else:
        signed = "signed" if shared.signed else "not signed: who can write there can run code on your hosts"
        yield Finding(Level.OK, "shared", f"builds are shared in {shared.address}, {signed}")
