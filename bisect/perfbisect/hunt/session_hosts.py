"""The hosts of a session: leased if need be, connected and checked before anything is built, locked while it works, cleaned up
at its end.
"""

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
from perfbisect.host.facts import PROCESSOR, ask, read_fingerprint
from perfbisect.host.leases import LeaseRequest, Say, Show
from perfbisect.host.lock import SESSION, HostLock, WaitCallback, hold, machine, wait
from perfbisect.host.protocol import Host
from perfbisect.host.registry import connect
from perfbisect.lab.building.candidates import FairLock, LabHost
from perfbisect.lab.building.commit_build import end_all
from perfbisect.lab.building.plan import for_processor
from perfbisect.lab.building.shared_builds import SharedBuilds
from perfbisect.lab.checks import CheckRequest, Level
from perfbisect.lab.checks.all_hosts import differing, read_side
from perfbisect.lab.checks.preflight import build_findings, findings, inspect_host, warnings
from perfbisect.lab.workload import dataset
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.builder_reader import variant_of
from perfbisect.recipes.inventory import HostEntry, at_once, load_host, load_lease, parse_lease_name
from perfbisect.recipes.workload import Workload
from perfbisect.wording.text import listed


@dataclass(frozen=True, slots=True)
class BuildHost:
    """A host that builds."""

    entry: HostEntry
    host: Host


@dataclass
class BuildHostChecks:
    """Connects to the build hosts of a hunt, each once although it may build for several hosts, and checks them."""

    settings: Settings
    builder: Builder
    waiting: WaitCallback | None
    known: dict[str, BuildHost] = field(default_factory=dict)
    compared: set[frozenset[str]] = field(default_factory=set)  # the names of hosts that build together

    def prepare(self, entry: HostEntry, host: Host) -> tuple[tuple[BuildHost, ...], tuple[Warned, ...]]:
        """The other hosts that build for ``host``, in the order of hosts.toml, and warnings about those that are new.

        Raises EnvironmentFailure for what one of them lacks and where they would make different binaries of a commit,
        UsageError where their builds do not run on ``host``.
        """
        if self.builder.build is None or not entry.built_elsewhere:
            return (), ()
        new = [name for name in entry.built_elsewhere if name not in self.known]
        warned = [warning for name in new for warning in self._connect(name)]
        found = tuple(self.known[name] for name in entry.built_elsewhere)
        for each in found:
            check_architectures(host, each.host)
            warned += other_processor(host, each.host, self.builder, self.settings.variant)
        if (together := frozenset(entry.built_on)) not in self.compared:
            self.compared.add(together)
            warned += self._compared(entry, host, found)
        return found, tuple(warned)

    def can_build(self, entry: HostEntry, host: Host, found: Sequence[BuildHost]) -> bool:
        """Whether ``host`` builds, or could make the same builds itself while the only other one that does is away."""
        if entry.builds or len(found) != 1:
            return entry.builds
        variant = variant_of(self.builder, self.settings.variant)
        sides = [read_side(each, variant) for each in (found[0].host, host)]
        native = for_processor(self.builder, variant)
        if any(each.level is not Level.NOTE for each in differing(host.name, sides, native=native)):
            return False
        request = CheckRequest.to_build(host, entry, self.builder, self.settings.variant)
        return all(each.level is not Level.REFUSED for each in build_findings(inspect_host(request)))

    def _connect(self, name: str) -> tuple[Warned, ...]:
        """Connect to a build host and check that it can build; its warnings."""
        entry = load_host(name, self.settings.hosts_path)
        host = connect(entry)
        if self.waiting:
            wait(host, self.waiting)
        self.known[name] = BuildHost(entry, host)
        request = CheckRequest.to_build(host, entry, self.builder, self.settings.variant)
        return warnings(build_findings(inspect_host(request)))

    def _compared(self, entry: HostEntry, host: Host, found: Sequence[BuildHost]) -> tuple[Warned, ...]:
        """Warnings about differences between all that build for ``host``, itself included if it does."""
        variant = variant_of(self.builder, self.settings.variant)
        sides = [read_side(each.host, variant) for each in found]
        sides += [read_side(host, variant)] if entry.builds else []
        return warnings(differing(host.name, sides, native=for_processor(self.builder, variant)))


@dataclass(frozen=True, slots=True)
class PreparedHost:
    """A host of a hunt that has passed its checks."""

    entry: HostEntry
    host: Host
    facts: HostFacts
    warnings: tuple[Warned, ...]
    build_hosts: tuple[BuildHost, ...] = ()  # the others that build for it
    can_build: bool = True  # if need be: it makes the same builds as they do
    counts: str = ""  # how the metric can be counted exactly there
    beside: str = ""  # how instructions are counted beside runs that are timed; "" where they are not

    @classmethod
    def prepare(
        cls,
        entry: HostEntry,
        settings: Settings,
        builder: Builder,
        workloads: tuple[Workload, ...],
        checks: BuildHostChecks,
    ) -> "PreparedHost":
        """Connect to the host and check it, and those that build for it.

        Raises EnvironmentFailure or UsageError for what they lack.
        """
        host = connect(entry)
        if checks.waiting:
            wait(host, checks.waiting)
        request = CheckRequest(host, entry, settings.metric, builder, settings.variant, workloads, notes=False)
        inspection = inspect_host(request)
        warned = warnings(findings(inspection))
        build_hosts, further = checks.prepare(entry, host)
        can_build = checks.can_build(entry, host, build_hosts)
        return cls(entry, host, read_fingerprint(host, inspection.answers), (*warned, *further), build_hosts, can_build)


class HostLocks:
    """The locks by which the labs of one session share its hosts; those that ``only_build`` have a second one.

    ``held`` are those that the session holds; ``shared`` are the builds that other machines share with them.
    """

    def __init__(
        self, held: Mapping[str, HostLock], only_build: Iterable[str] = (), shared: SharedBuilds | None = None
    ) -> None:
        self._held, self._shared = held, shared
        self._locks: dict[str, FairLock] = defaultdict(FairLock)
        self._beside = {name: FairLock() for name in only_build}

    def place(self, host: Host, entry: HostEntry) -> LabHost:
        """A host of the session, for a lab."""
        return LabHost(
            host, entry, self._locks[host.name], self._beside.get(host.name), self._shared, self._held.get(host.name)
        )


def check_architectures(host: Host, build_host: Host) -> None:
    """Raise UsageError unless builds of one host run on the other."""
    runs, builds = (each.run(["uname", "-m"]).stdout.strip() for each in (host, build_host))
    if runs != builds:
        raise UsageError(
            f"Host {host.name} is {runs} and its build host {build_host.name} is {builds}: builds of the latter do not"
            " run on the former.",
            "Choose build_hosts of the same architecture in hosts.toml.",
        )


def other_processor(host: Host, build_host: Host, builder: Builder, variant: str) -> Iterator[Warned]:
    """A warning where a build host makes builds for a processor that ``host`` does not have."""
    if not for_processor(builder, variant_of(builder, variant or builder.variant)):
        return
    built_for, measured_on = ask(build_host, PROCESSOR), ask(host, PROCESSOR)
    if built_for and measured_on and built_for != measured_on:
        yield Warned(
            f"host {build_host.name} compiles for its own processor, {built_for}, and host {host.name} has another:"
            f" {measured_on}",
            f"Choose a variant that does not depend on it, or remove {build_host.name} from `build_hosts` of {host.name} in"
            " hosts.toml.",
        )


def build_ahead(entries: Sequence[HostEntry]) -> bool:
    """Whether one set of other hosts builds for all hosts of a hunt, which are ``entries``: then they build ahead.

    Otherwise each host has at most one, which builds when it is to measure. Raises UsageError where one has several, and
    the others do not have the same.
    """
    measuring = {entry.name for entry in entries}
    sets = {frozenset(entry.built_elsewhere) for entry in entries}
    several = next((entry for entry in entries if len(entry.built_elsewhere) > 1), None)
    alike = len(sets) == 1 and sets.isdisjoint({frozenset()}) and not measuring & next(iter(sets))
    if several and not alike:
        raise UsageError(
            f"Several hosts build for {several.name}: {listed(several.built_elsewhere)}. In a hunt on several hosts these"
            " must build for all of them, and be none of them.",
            "Give the hosts of the hunt the same `build_hosts` in hosts.toml, or choose one of them.",
        )
    return alike


@contextmanager
def lock_hosts(
    sites: Sequence[PreparedHost], purpose: str, waiting: WaitCallback | None
) -> Iterator[dict[str, HostLock]]:
    """Hold the locks of all hosts of a session, for others to see with its ``purpose``; yields the lock of each by name.

    They are taken in the order of the machines, so that two hunts cannot deadlock. Before they are released, builds that an
    earlier session has left running on build hosts are ended, and the last visit's copy of the data is removed; not after
    a failure, whose cause it may show. Raises UsageError where two names lead to one root folder.
    """
    hosts = {each.host.name: each.host for site in sites for each in site.build_hosts}
    hosts |= {site.host.name: site.host for site in sites}
    with ExitStack() as stack:
        held = {
            host.name: stack.enter_context(hold(host, purpose, waiting, SESSION))
            for host in sorted(hosts.values(), key=lambda host: (machine(host), host.name))
        }
        for each in (each for site in sites for each in site.build_hosts):
            stack.callback(clean, end_all, each.host, held[each.host.name])  # that no session wanted any more
        for site in sites:
            stack.push(partial(clear, site.host, held[site.host.name]))
        yield held


def clean(action: Callable[[Host], object], host: Host, held: HostLock) -> None:
    """Remove what a session leaves on a host, as long as the host is the session's."""
    if not held.lost:
        with suppress(PerfBisectError):  # out of reach: the next session, or `bisect gc`, does that
            held.confirm()  # after a long sleep the host may belong to another session
            action(host)


def clear(host: Host, held: HostLock, failure: type[BaseException] | None, *_: object) -> None:
    """Remove what the last visit of a session has left, unless the session failed."""
    if failure is None or not issubclass(failure, Exception) or issubclass(failure, Interrupted):
        clean(dataset.remove_visit, host, held)


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """What is asked of leases beside the hosts' names."""

    nodes: Mapping[str, str] | None = None  # host → address of the machine on which an earlier attempt has measured
    builders: bool = True  # lease those that build for the hosts, too
    purpose: str = ""
    minutes: float = 0  # for which a hunt may measure, if that is limited
    # Addresses of machines that are not taken, each with a sentence that says why; called if anything is leased
    unfit: Callable[[], Mapping[str, str]] = dict


@contextmanager
def leased_hosts(
    names: Sequence[str], hosts_path: str | Path, show: Show, say: Say, terms: LeaseTerms = LeaseTerms()
) -> Iterator[None]:
    """Lease what is leased of the hosts of these names. Within the block ``host.registry.connect`` reaches them.

    First what killed sessions have left is released. The levels of machines on which the session has measured are known, so
    these are wanted again. Hosts of the same features are leased together where the scheduler can do that, and those of more
    features first, since fewer machines have them; so all sessions lease in the same order. Two may still wait for each other
    where machines are leased one by one, or have the features of several groups.
    """
    leases.free_abandoned(say)
    with ExitStack() as stack:
        for wanted in _wanted(_every(names, hosts_path, terms.builders), hosts_path, terms.nodes or {}, terms.purpose):
            stack.push(_fit_ones(replace(wanted, minutes=terms.minutes), show, say, terms.unfit()))
        yield


def _fit_ones(wanted: LeaseRequest, show: Show, say: Say, unfit: Mapping[str, str]) -> ExitStack:
    """Lease machines none of which is unfit. Until then all are held, or the scheduler would lend the same ones again.

    Raises EnvironmentFailure where it lends unfit ones only.
    """
    wanted = replace(wanted, nodes={name: node for name, node in wanted.nodes.items() if node not in unfit})
    with ExitStack() as given_back:
        for _ in range(len(unfit) + 1):
            with ExitStack() as stack:
                job = stack.enter_context(leases.leased(wanted, show, say))
                refused = [unfit[each.address] for each in job.machines if each.address in unfit]
                if not refused:
                    return stack.pop_all()
                given_back.push(stack.pop_all())
            for why in refused:
                say(f"Not used, and given back once another is leased: {why}")
        raise EnvironmentFailure(f"{wanted.kind} cannot be leased: unfit machines alone are lent", refused[0])


def _every(names: Sequence[str], hosts_path: str | Path, builders: bool) -> list[str]:
    """All names of leased hosts, each once. Raises UsageError for a host that is given twice."""
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"Host {twice[0]} is given twice.", "Give each host once; several of a lease as NAME*3.")
    entries = [load_host(name, hosts_path) for name in names]
    if builders:
        entries += [load_host(name, hosts_path) for entry in entries for name in entry.built_elsewhere]
    return [*dict.fromkeys(entry.name for entry in entries if entry.leased)]


def _wanted(
    names: Sequence[str], hosts_path: str | Path, nodes: Mapping[str, str], purpose: str
) -> Iterator[LeaseRequest]:
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names:
        said = parse_lease_name(name)
        assert said, "a leased host has the name of one"
        if not leases.is_held(name):  # another hunt of this process shares it
            groups.setdefault((said.lease, said.features), []).append(name)
    for (recipe, features), members in sorted(
        groups.items(), key=lambda group: (-len(re.findall(r"[\w.-]+", group[0][1])), group[0])
    ):
        lease = load_lease(recipe, hosts_path)
        for some in [members] if at_once(lease) else [[name] for name in members]:
            again = {name: nodes[name] for name in some if name in nodes}
            yield LeaseRequest(lease, features, tuple(some), again, purpose)
