"""All checks of a host. `bisect doctor` shows every finding; before a hunt, perfbisect shows only refusals and
warnings.

If a requirement is missing, the finding refuses the host. If a property of the host may distort results, the finding is
a warning with advice.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from perfbisect.core.domain.events import Warned
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.host import facts
from perfbisect.host.facts import COMPILER, DRIVERS, ONLINE, TOOLS, Fact, cpu_numbers, fingerprint_facts, read_facts
from perfbisect.host.packages import how_to_install, missing_programs
from perfbisect.lab.building import links
from perfbisect.lab.building.shared_builds import SharedBuilds
from perfbisect.lab.building.toolchain import (
    NEEDED,
    NO_REMOTE,
    REMOTE_ADVICE,
    build_dependencies_command,
    missing_programs_and_needs,
    needed_compilers,
    recipe_packages,
    remote_cache_error,
)
from perfbisect.lab.checks import CheckRequest, Finding, Severity, note, ok, refused, warning
from perfbisect.lab.checks.machine import (
    clock_speed_findings,
    core_sharing_findings,
    counter_findings,
    iostat_findings,
    load_findings,
    lock_and_leftover_findings,
    memory_layout_findings,
    space_findings,
    swap_findings,
    system_clock_findings,
)
from perfbisect.lab.workload import lua, sysbench
from perfbisect.masking import mask_credentials
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.builder_reader import find_variant
from perfbisect.wording.text import listed

TO_MEASURE = ("timeout", "setsid", "flock", "ps", "awk", "base64", "tar", "cmp")


def tool_findings(request: CheckRequest) -> Iterator[Finding]:
    """Findings about missing programs: the programs for building and measuring any system, and the needs of the
    builder's build."""
    host, builder, entry = request.host, request.builder, request.entry
    build = builder.build if builder else None
    if builder and build and entry.builds_itself:
        variant = find_variant(builder, request.variant)
        absent = missing_programs_and_needs(host, needed_programs(request), build, variant)
        packages = recipe_packages(build)
        besides = build_dependencies_command(builder, request.answers)
        needs = ", ".join(dict.fromkeys((*needed_compilers(build, variant), *build.needs)))
        fine = f"all build dependencies of {builder.name} are installed: {needs}"
    else:  # programs for builds are needed on other hosts, or nowhere
        absent, packages, besides = missing_programs(host, needed_programs(request)), None, ""
        reason = (
            "programs of the host are measured" if builder and builder.installed else "installed releases are measured"
        )
        fine = f"{builder.name} builds nothing: {reason}" if builder else ""
        if builder and not entry.builds_itself:
            elsewhere = entry.build_hosts_except_itself
            are, argument = ("host", elsewhere[0]) if len(elsewhere) == 1 else ("hosts", "--all")
            fine = f"{builder.name} is built on {are} {listed(elsewhere)}, which this command does not check"
            besides = f"To check: bisect doctor {argument} --builder {builder.name}"
    if absent:
        verb = "is" if len(absent) == 1 else "are"
        sentence = f"{', '.join(absent)} {verb} not installed on host {request.host_name}"
        also = besides if packages is not None else ""
        advice = ". ".join(filter(None, (how_to_install(absent, request.system, packages), also)))
        yield refused("tools", sentence, advice)
    elif fine:
        yield ok("builder", fine, besides)
    versions = [f"{tool} {version}" for tool, fact in TOOLS.items() if (version := request.answers.get(fact))]
    compiler = request.answers.get(COMPILER)
    yield ok("tools", ", ".join([*versions, *([compiler] if compiler else [])]) or "no versions known")


def driver_findings(request: CheckRequest) -> Iterator[Finding]:
    """A finding if sysbench on the host was compiled without the driver for the system's client protocol."""
    driver = request.builder.driver if request.builder and is_driven_by_sysbench(request) else ""
    compiled = request.answers.get(DRIVERS)
    if driver in lua.SYSBENCH_DRIVERS and compiled is not None and driver not in compiled:
        text = f"sysbench on host {request.host_name} was compiled without its {driver} driver"
        from_source = "compile sysbench with the client library of that database."
        yield refused("sysbench", text, f"Install the package of your distribution, or {from_source}")


def needed_programs(request: CheckRequest) -> list[str]:
    """The programs for measuring; if the host builds, also the programs that every build needs."""
    built = request.entry.builds_itself and (request.builder is None or request.builder.build is not None)
    server = request.builder.server if request.builder else None
    return [
        *(NEEDED if built else ()),
        *TO_MEASURE,
        *(["sysbench"] if is_driven_by_sysbench(request) else []),
        *(need for workload in request.workloads or () for need in workload.needs),
        *(["taskset"] if request.entry.server_cpus or request.entry.client_cpus else []),
        *(["setpriv"] if server and server.refuses_root else []),
    ]


def is_driven_by_sysbench(request: CheckRequest) -> bool:
    """Whether sysbench runs at least one of the workloads; also true if the workloads are not known yet."""
    return request.workloads is None or not all(workload.command for workload in request.workloads)


def check_pinning(request: CheckRequest) -> None:
    """Raise UsageError if ``server_cpus`` or ``client_cpus`` of the host names a CPU that the host lacks, because
    taskset would ignore this CPU."""
    entry, online = request.entry, request.answers.get(ONLINE)
    for key, cpus in (("server_cpus", entry.server_cpus), ("client_cpus", entry.client_cpus)):
        if online and cpus and (absent := cpu_numbers(cpus) - online):
            text = f'hosts.toml: `hosts.{request.host_name}.{key}` is "{cpus}", but that host has no CPU {min(absent)}'
            raise UsageError(text, f"The host has {len(online)} CPUs, numbered from {min(online)} to {max(online)}.")


def compiler_cache_findings(request: CheckRequest) -> Iterator[Finding]:
    """A finding that says whether ccache can use its remote store; no finding if ccache has no remote store, or if the
    host makes no builds.
    """
    host, remote = request.host, request.entry.ccache_remote
    if remote in ("", NO_REMOTE) or not request.entry.builds_itself:
        return
    if missing_programs(host, ["ccache", "cc"]):  # tool_findings reports missing programs
        return
    if reason := remote_cache_error(host, remote):
        sentence = f"the remote store {mask_credentials(remote)} of ccache on host {request.host_name}: {reason}"
        yield warning("ccache", sentence, REMOTE_ADVICE)
    else:
        yield ok("ccache", f"ccache reads and writes its remote store {mask_credentials(remote)}")


def layout_findings(request: CheckRequest) -> Iterator[Finding]:
    """A finding about the linker that makes randomized layouts; no finding if builds cannot be linked again, or if the
    host has no linker.
    """
    if not request.entry.builds_itself or (request.builder and layout_obstacle(request.builder, request.variant)):
        return
    linker = links.find_linker(request.host)
    if linker and linker.name != links.OBJECTS:
        yield ok("layouts", f"{linker.version} can link builds in randomized layouts")
    elif linker:
        effect = "can move only whole object files, so layouts of a program differ little"
        text = f"the linker of host {request.host_name} {effect}"
        yield note("layouts", text, how_to_install(["mold"], request.system))


def layout_obstacle(builder: Builder, variant: str, system: str = "") -> str:
    """The reason why builds cannot be linked again in randomized layouts; "" if they can be. ``system`` is the build
    system, if known.
    """
    if builder.build is None:
        return "nothing is built from source"
    if (system or builder.build.system) == "go":
        return links.GO
    return links.why_not_relinkable(find_variant(builder, variant))


def shared_build_findings(shared: SharedBuilds | None) -> Iterator[Finding]:
    """A finding that says whether this machine can write, read and remove an object in the store of shared builds; no
    finding if no builds are shared.
    """
    if shared is None:
        return
    try:
        shared.check_access()
    except OSError as trouble:
        reason = mask_credentials(trouble.strerror or str(trouble))
        sentence = f"the shared builds in {shared.address} cannot be used from this machine: {reason}"
        yield warning("shared", sentence, "Hunts continue without shared builds.")
    else:
        signed = (
            "signed"
            if shared.signed
            else "without signatures: every user who can write there can run code on your hosts"
        )
        yield ok("shared", f"builds are shared in {shared.address}, {signed}")


# CHECKS: the checks of a host that measures, the most serious first. OF_BUILDS: the checks of a host that only builds.
CHECKS = (
    tool_findings, driver_findings, compiler_cache_findings, space_findings, counter_findings, iostat_findings, load_findings, lock_and_leftover_findings, clock_speed_findings, core_sharing_findings, memory_layout_findings, layout_findings, swap_findings, system_clock_findings,
)  # fmt: skip
OF_BUILDS = (tool_findings, compiler_cache_findings, space_findings, lock_and_leftover_findings, layout_findings)

FURTHER: tuple[Fact[object], ...] = (
    facts.ONLINE, facts.LOAD, facts.SYSTEM, facts.DEB_SRC, facts.SWAP_TOTAL_AND_USED_MIB, facts.STEAL_SHARE, facts.THROTTLED,
    facts.TURBO_SWITCH, facts.CLOCK_SOURCE, facts.SYNCHRONISED, facts.LISTENING_PORTS, facts.DRIVERS,
)  # fmt: skip


def inspect_host(request: CheckRequest) -> CheckRequest:
    """Read facts of the host by a single command; returns ``request`` with these facts."""
    host = request.host
    asked = (*fingerprint_facts(host), *FURTHER, facts.free_bytes_fact(host.root), facts.reflink_fact(host))
    answers = read_facts(host, asked)
    return replace(request, answers=answers, system=answers.get(facts.SYSTEM) or "")


def measurement_findings(request: CheckRequest) -> Iterator[Finding]:
    """All findings about a host that measures. A workload that is a command cannot be checked before its first run.

    Raises UsageError for a workload that sysbench cannot run, and for settings in hosts.toml that do not fit the host.
    """
    for workload in request.workloads or ():
        if not workload.command:
            sysbench.run_argv(workload, lua.timed_run_script(workload))
            lua.prepare_script(workload)
    check_pinning(request)
    for check in CHECKS:
        yield from check(request)


def build_host_findings(request: CheckRequest) -> Iterator[Finding]:
    """All findings about a host that makes builds for other hosts: see ``CheckRequest.for_build_host``."""
    for check in OF_BUILDS:
        yield from check(request)


def warnings_or_refusal(results: Iterable[Finding]) -> tuple[Warned, ...]:
    """The warnings among ``results``, for the user before a hunt. Raises EnvironmentFailure for the first finding that
    refuses the host."""
    warned = []
    for finding in results:
        if finding.level is Severity.REFUSED:
            raise EnvironmentFailure(finding.text, finding.advice)
        warned += [Warned(finding.text, finding.advice)] if finding.level is Severity.WARNING else []
    return tuple(warned)
