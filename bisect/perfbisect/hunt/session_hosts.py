"""Prepares the hosts of a session: leases hosts from a scheduler if necessary, checks hosts before the first build,
locks hosts, and removes temporary files of the session at the end."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from perfbisect.core.domain.events import Warned
from perfbisect.core.domain.facts import HostFacts
from perfbisect.core.domain.settings import Settings
from perfbisect.errors import EnvironmentFailure, Interrupted, PerfBisectError, UsageError
from perfbisect.host import leases
from perfbisect.host.facts import PROCESSOR_MODEL, read_fact, read_fingerprint
from perfbisect.host.leases import LeaseRequest, PrintMessage, ShowQueue
from perfbisect.host.lock import SESSION, HostLock, WaitCallback, hold_lock, lock_identity, wait_for_turn
from perfbisect.host.protocol import Host
from perfbisect.host.registry import connect
from perfbisect.lab.building.candidates import FairLock, LabHost
from perfbisect.lab.building.commit_build import end_running_builds
from perfbisect.lab.building.plan import is_processor_specific
from perfbisect.lab.building.shared_builds import SharedBuilds
from perfbisect.lab.checks import CheckRequest, Finding, Severity
from perfbisect.lab.checks.all_hosts import build_host_differences, read_build_host_properties
from perfbisect.lab.checks.preflight import build_host_findings, inspect_host, measurement_findings, warnings_or_refusal
from perfbisect.lab.workload import dataset
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.builder_reader import find_variant
from perfbisect.recipes.inventory import (
    HostEntry,
    leases_several_at_once,
    load_host,
    load_lease,
    parse_leased_host_name,
)
from perfbisect.recipes.workload import Workload
from perfbisect.wording.text import listed


@dataclass(frozen=True, slots=True)
class BuildHost:
    """A build host (a host that makes builds for another host) with an open connection, and its entry in hosts.toml."""

    entry: HostEntry
    host: Host


@dataclass
class BuildHostChecks:
    """Connects to the build hosts of a hunt and checks the build hosts. A build host that makes builds for several
    hosts is connected and checked only once.
    """

    settings: Settings
    builder: Builder
    waiting: WaitCallback | None
    connected: dict[str, BuildHost] = field(default_factory=dict)  # name → connected build host
    compared: set[frozenset[str]] = field(default_factory=set)  # sets of build hosts of one host that were compared

    def prepare(self, entry: HostEntry, host: Host) -> tuple[tuple[BuildHost, ...], tuple[Warned, ...]]:
        """Returns the checked build hosts of ``host``, in the sequence of hosts.toml, and warnings. Warnings that an
        earlier call has returned are not repeated.

        Raises EnvironmentFailure if a build host lacks a tool, or if the build hosts would make different binaries of
        a commit. Raises UsageError if programs that are built on a build host cannot run on ``host``.
        """
        if self.builder.build is None or not entry.build_hosts_except_itself:
            return (), ()
        new = [name for name in entry.build_hosts_except_itself if name not in self.connected]
        warned = [warning for name in new for warning in self._connect_build_host(name)]
        build_hosts = tuple(self.connected[name] for name in entry.build_hosts_except_itself)
        for build_host in build_hosts:
            check_architectures(host, build_host.host)
            warned += processor_warnings(host, build_host.host, self.builder, self.settings.variant)
        if (names := frozenset(entry.all_build_hosts)) not in self.compared:
            self.compared.add(names)
            warned += self._build_host_difference_warnings(entry, host, build_hosts)
        return build_hosts, tuple(warned)

    def can_build(self, entry: HostEntry, host: Host, build_hosts: Sequence[BuildHost]) -> bool:
        """Whether ``host`` may make builds: either at any time, or only while its only build host cannot be reached."""
        if entry.builds_itself or len(build_hosts) != 1:
            return entry.builds_itself
        differences = self._differences(host, (build_hosts[0].host, host))
        if any(finding.level is not Severity.NOTE for finding in differences):
            return False
        request = CheckRequest.for_build_host(host, entry, self.builder, self.settings.variant)
        return all(finding.level is not Severity.REFUSED for finding in build_host_findings(inspect_host(request)))

    def _connect_build_host(self, name: str) -> tuple[Warned, ...]:
        """Connect to a build host and check whether it can build. Returns warnings."""
        entry = load_host(name, self.settings.hosts_path)
        host = connect(entry)
        if self.waiting:
            wait_for_turn(host, self.waiting)
        self.connected[name] = BuildHost(entry, host)
        request = CheckRequest.for_build_host(host, entry, self.builder, self.settings.variant)
        return warnings_or_refusal(build_host_findings(inspect_host(request)))

    def _differences(self, host: Host, makers: Iterable[Host]) -> Iterator[Finding]:
        """Findings about differences between hosts that would make the builds of ``host``."""
        variant = find_variant(self.builder, self.settings.variant)
        sides = [read_build_host_properties(maker, variant) for maker in makers]
        return build_host_differences(host.name, sides, native=is_processor_specific(self.builder, variant))

    def _build_host_difference_warnings(
        self, entry: HostEntry, host: Host, build_hosts: Sequence[BuildHost]
    ) -> tuple[Warned, ...]:
        """Warnings about differences between the build hosts of ``host`` that could make their builds differ."""
        makers = [*(build_host.host for build_host in build_hosts), *([host] if entry.builds_itself else [])]
        return warnings_or_refusal(self._differences(host, makers))


@dataclass(frozen=True, slots=True)
class PreparedHost:
    """A host that has passed its checks, so that the session can use the host."""

    entry: HostEntry
    host: Host
    facts: HostFacts
    warnings: tuple[Warned, ...]
    build_hosts: tuple[BuildHost, ...] = ()  # other hosts that build for this host
    can_build: bool = True  # whether the host can make the same builds as its build hosts
    count_method: str = ""  # the method by which the metric is counted exactly; "": runs are timed
    beside_method: str = ""  # the method by which instructions are counted in addition to timed runs; "": no counts

    @classmethod
    def prepare(
        cls,
        entry: HostEntry,
        settings: Settings,
        builder: Builder,
        workloads: tuple[Workload, ...],
        checks: BuildHostChecks,
    ) -> "PreparedHost":
        """Connect to a host and to its build hosts, and check all of these hosts.

        Raises EnvironmentFailure or UsageError if a host does not meet a requirement of the hunt.
        """
        host = connect(entry)
        if checks.waiting:
            wait_for_turn(host, checks.waiting)
        request = CheckRequest(host, entry, settings.metric, builder, settings.variant, workloads, notes=False)
        inspection = inspect_host(request)
        warned = warnings_or_refusal(measurement_findings(inspection))
        build_hosts, further = checks.prepare(entry, host)
        can_build = checks.can_build(entry, host, build_hosts)
        return cls(entry, host, read_fingerprint(host, inspection.answers), (*warned, *further), build_hosts, can_build)


class HostLocks:
    """The locks by which threads of one session take turns on the hosts of the session. Each host that only makes
    builds has a second lock, for short tasks during a build. ``held`` maps the name of each host to the lock by which
    the session excludes other sessions. ``shared`` gives access to the store of shared builds.
    """

    def __init__(
        self, held: Mapping[str, HostLock], only_build: Iterable[str] = (), shared: SharedBuilds | None = None
    ) -> None:
        self._held, self._shared = held, shared
        self._locks: dict[str, FairLock] = defaultdict(FairLock)
        self._second_locks = {name: FairLock() for name in only_build}

    def lab_host(self, host: Host, entry: HostEntry) -> LabHost:
        """The ``LabHost`` of a host: the connected host with its entry in hosts.toml and its locks, which builds and
        runs need."""
        name = host.name
        return LabHost(host, entry, self._locks[name], self._second_locks.get(name), self._shared, self._held.get(name))


def check_architectures(host: Host, build_host: Host) -> None:
    """Raise UsageError if the architectures of a host and its build host differ."""
    runs, builds = (machine.run(["uname", "-m"]).stdout.strip() for machine in (host, build_host))
    if runs != builds:
        raise UsageError(
            f"Host {host.name} is {runs} and its build host {build_host.name} is {builds}, so builds of {build_host.name} do"
            f" not run on {host.name}.",
            f"Choose `build_hosts` of {host.name} with the same architecture in hosts.toml.",
        )


def processor_warnings(host: Host, build_host: Host, builder: Builder, variant: str) -> Iterator[Warned]:
    """A warning if the compiler options are specific to the build host's processor model, and ``host`` has another
    model."""
    if not is_processor_specific(builder, find_variant(builder, variant or builder.variant)):
        return
    built_for, measured_on = read_fact(build_host, PROCESSOR_MODEL), read_fact(host, PROCESSOR_MODEL)
    if built_for and measured_on and built_for != measured_on:
        yield Warned(
            f"host {build_host.name} compiles for its own processor, {built_for}, and host {host.name} has another:"
            f" {measured_on}",
            f"Choose a variant that does not depend on it, or remove {build_host.name} from `build_hosts` of {host.name} in"
            " hosts.toml.",
        )


def have_common_build_hosts(entries: Sequence[HostEntry]) -> bool:
    """Whether all hosts of a hunt (``entries``) have the same build hosts, so that the build hosts can make builds
    before a run needs the builds.

    If the hosts have different build hosts, each host may have only one build host, which makes a build when the host
    needs the build. Raises UsageError if a host has several build hosts, but another host of the hunt has different
    build hosts, or a host of the hunt is also one of the build hosts.
    """
    measuring = {entry.name for entry in entries}
    sets = {frozenset(entry.build_hosts_except_itself) for entry in entries}
    several = next((entry for entry in entries if len(entry.build_hosts_except_itself) > 1), None)
    alike = len(sets) == 1 and sets.isdisjoint({frozenset()}) and not measuring & next(iter(sets))
    if several and not alike:
        raise UsageError(
            f"Several hosts build for {several.name}: {listed(several.build_hosts_except_itself)}. In a hunt on several"
            " hosts these must build for all of them, and be none of them.",
            "Give the hosts of the hunt the same `build_hosts` in hosts.toml, or choose one of them.",
        )
    return alike


@contextmanager
def lock_hosts(
    sites: Sequence[PreparedHost], purpose: str, waiting: WaitCallback | None
) -> Iterator[dict[str, HostLock]]:
    """During the ``with`` block, hold the locks of all hosts of a session; yields the locks by the names of the hosts.

    Other sessions see the text ``purpose`` in the lock of a host. All sessions acquire the locks of machines in the
    same sequence, so that two sessions cannot deadlock. Before the locks are released, running builds on build hosts
    are ended, and the folder of the last visit (with its copy of the data) is removed. If the session has failed, this
    folder is kept, because its files may show the reason. Raises UsageError if two names refer to one root folder.
    """
    build_hosts = [build_host.host for site in sites for build_host in site.build_hosts]
    hosts = {host.name: host for host in (*build_hosts, *(site.host for site in sites))}
    with ExitStack() as stack:
        held = {
            host.name: stack.enter_context(hold_lock(host, purpose, waiting, SESSION))
            for host in sorted(hosts.values(), key=lambda host: (lock_identity(host), host.name))
        }
        for build_host in build_hosts:
            # At the end of the session, builds that still run are ended, because no session needs them any more.
            stack.callback(clean_up, end_running_builds, build_host, held[build_host.name])
        for site in sites:
            stack.push(partial(remove_last_visit, site.host, held[site.host.name]))
        yield held


def clean_up(action: Callable[[Host], object], host: Host, held: HostLock) -> None:
    """Carry out ``action``, which cleans up a host. Nothing is done if the session has lost the host's lock, or if the
    host cannot be reached.
    """
    if not held.lost:
        with suppress(PerfBisectError):  # out of reach: the next session, or `bisect gc`, cleans up
            held.check_held()  # after a long sleep of this machine, another session may hold the host
            action(host)


def remove_last_visit(host: Host, held: HostLock, failure: type[BaseException] | None, *_: object) -> None:
    """Remove the folder of the last visit (one start of the server) of a session, unless the session has failed."""
    if failure is None or not issubclass(failure, Exception) or issubclass(failure, Interrupted):
        clean_up(dataset.remove_visit, host, held)


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """The requirements of a session for the machines that it leases, in addition to the names of hosts."""

    nodes: Mapping[str, str] | None = None  # host → address of the machine on which an earlier attempt has measured
    with_build_hosts: bool = True  # whether the build hosts are leased, too
    purpose: str = ""
    minutes: float = 0  # the time limit of a hunt; 0: no limit
    # Returns the addresses of machines that are not used → the reason. Called only if a machine is leased.
    unfit: Callable[[], Mapping[str, str]] = dict


@contextmanager
def hold_leases(
    names: Sequence[str], hosts_path: str | Path, show: ShowQueue, say: PrintMessage, terms: LeaseTerms = LeaseTerms()
) -> Iterator[None]:
    """During the ``with`` block, hold leases of those hosts of ``names`` that a scheduler leases, so that
    ``host.registry.connect`` can connect to them.

    First, leases of killed sessions are released. A machine on which an earlier attempt of the session has measured is
    requested again, because its speed is known. Hosts with the same required features are leased in one request if the
    scheduler supports requests for several machines. Hosts with more required features are leased first, because fewer
    machines have all these features. Two sessions that wait for each other's machines would deadlock; the common
    sequence of requests prevents this in most cases, but not if each machine needs a separate request, or if a machine
    has the features of several requests.
    """
    leases.release_jobs_of_killed_sessions(say)
    leased_names = _leased_names(names, hosts_path, terms.with_build_hosts)
    with ExitStack() as stack:
        for request in _lease_requests(leased_names, hosts_path, terms.nodes or {}, terms.purpose):
            stack.push(_lease_fit_machines(replace(request, minutes=terms.minutes), show, say, terms.unfit()))
        yield


def _lease_fit_machines(
    request: LeaseRequest, show: ShowQueue, say: PrintMessage, unfit: Mapping[str, str]
) -> ExitStack:
    """Lease machines, except machines that a fitness check has found unfit. Closing the returned stack releases the
    leased machines.

    If the scheduler lends an unfit machine, the session keeps the machine until it has a fit machine, because otherwise
    the scheduler would lend the unfit machine again. Raises EnvironmentFailure if the scheduler lends only unfit
    machines.
    """
    fit = {name: node for name, node in request.earlier_addresses.items() if node not in unfit}
    request = replace(request, earlier_addresses=fit)
    with ExitStack() as unfit_leases:
        for _ in range(len(unfit) + 1):
            with ExitStack() as stack:
                job = stack.enter_context(leases.lease_machines(request, show, say))
                refused = [unfit[leased.address] for leased in job.machines if leased.address in unfit]
                if not refused:
                    return stack.pop_all()
                unfit_leases.push(stack.pop_all())
            for reason in refused:
                say(f"This machine is not used, and is released once another is leased: {reason}")
        raise EnvironmentFailure(f"{request.label} cannot be leased, because only unfit machines are lent", refused[0])


def _leased_names(names: Sequence[str], hosts_path: str | Path, with_build_hosts: bool) -> list[str]:
    """The hosts of ``names`` that a scheduler leases, each name once. If ``with_build_hosts`` is true, the leased build
    hosts of ``names`` are included.

    Raises UsageError if a host is in ``names`` twice.
    """
    if twice := [name for name in names if names.count(name) > 1]:
        advice = "Give each host once. To lease several equal machines, write their number, such as slurm:FEATURE*3."
        raise UsageError(f"Host {twice[0]} is given twice.", advice)
    entries = [load_host(name, hosts_path) for name in names]
    if with_build_hosts:
        entries += [load_host(name, hosts_path) for entry in entries for name in entry.build_hosts_except_itself]
    return [*dict.fromkeys(entry.name for entry in entries if entry.leased)]


def _lease_requests(
    names: Sequence[str], hosts_path: str | Path, nodes: Mapping[str, str], purpose: str
) -> Iterator[LeaseRequest]:
    """The requests for the hosts that this process has to lease, in a sequence that is the same in all sessions."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names:
        lease_name = parse_leased_host_name(name)
        assert lease_name, "the name of a leased host has the form of a lease"
        if not leases.is_leased_by_this_process(name):  # otherwise another hunt of this process shares the lease
            groups.setdefault((lease_name.lease, lease_name.features), []).append(name)
    ordered = sorted(groups.items(), key=lambda group: (-len(re.findall(r"[\w.-]+", group[0][1])), group[0]))
    for (recipe, features), members in ordered:
        lease = load_lease(recipe, hosts_path)
        for requested in [members] if leases_several_at_once(lease) else [[name] for name in members]:
            earlier_nodes = {name: nodes[name] for name in requested if name in nodes}
            yield LeaseRequest(lease, features, tuple(requested), earlier_nodes, purpose)
