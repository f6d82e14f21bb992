"""How runs are made: what those of two builds must have in common, beyond data and machine, to be compared."""

import hashlib
import json
from collections.abc import Mapping, Sequence

import msgspec

from perfbisect.lab.upload import files, recipe
from perfbisect.lab.workload import lua
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.workload import Workload

FOR_PEOPLE = frozenset({"summary", "group", "folder", "suspects"})  # of a workload: no run is another for them
OF_SERVER = ("sysbench", "perf_scope")  # the rest of a server's recipe is in the key of its data


def fingerprint(builder: Builder, workload: Workload, entries: Sequence[HostEntry]) -> str:
    """A hash of all that a run of the workload is told, its files included; ``entries`` are those of the hosts.

    What is as it is by default is left out, so that a key which a later release of ours brings is no change.
    """
    own = {name: each for name, each in msgspec.to_builtins(workload).items() if name not in FOR_PEOPLE}
    defaults = {field.name: field.default for field in msgspec.structs.fields(workload)}
    own = {name: each for name, each in own.items() if each and each != defaults[name]}
    served = msgspec.to_builtins(builder.server) if builder.server else {}
    commands = json.dumps([own, served])
    told = json.dumps(
        [own, builder.library, _driven(served), _conditional(builder), [_share(entry, commands) for entry in entries]],
        sort_keys=True,
    )
    given = recipe.archive(builder) if "{recipe}" in told else b""
    return hashlib.sha256(told.encode() + files.archive(lua.read_by_runs(workload)) + given).hexdigest()[:16]


def _driven(server: object) -> dict[str, object]:
    """What a server's recipe says of how it is driven and counted."""
    return {key: server[key] for key in OF_SERVER if key in server} if isinstance(server, Mapping) else {}


def _conditional(builder: Builder) -> list[object]:
    """The same of its conditions, each with what it depends on."""
    found = ((when, _driven(when.change.get("server"))) for when in builder.when)
    return [[when.version, when.file, when.missing, when.compiler, driven] for when, driven in found if driven]


def _share(entry: HostEntry, commands: str) -> list[object]:
    """What of a host is for the server and for the client; its sizes only if ``commands`` are told them."""
    return [
        entry.server_cpus,
        entry.client_cpus,
        entry.memory if "{memory}" in commands or "{cache}" in commands else 0,
        entry.jobs if "{jobs}" in commands else 0,
    ]
