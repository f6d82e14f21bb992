"""The leased hosts of a session: acquired before anything is done there, released at its end."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.host import leases
from perfbisect.host.leases import LeaseRequest, Say, Show
from perfbisect.recipes.inventory import at_once, load_host, load_lease, parse_lease_name


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
