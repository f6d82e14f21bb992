"""A hash of how runs are done: runs of two builds can be compared when it is equal, besides data and machine."""

import hashlib
import json
from collections.abc import Mapping, Sequence

import msgspec

from perfbisect.lab import upload
from perfbisect.lab.workload import lua
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.workload import Workload

NO_EFFECT = frozenset({"summary", "group", "folder", "suspects"})  # keys of a workload that do not affect runs
OF_SERVER = ("sysbench", "perf_scope")  # the rest of a server's recipe is in the key of its data


def fingerprint(builder: Builder, workload: Workload, entries: Sequence[HostEntry], counted: Sequence[str] = ()) -> str:
    """A hash of the inputs of a run of the workload, its files included; ``entries`` are those of the hosts.

    ``counted`` is how each of them counts exactly; "" where runs are timed. Defaults are omitted, so that new keys do not
    change old hashes.
    """
    own = {name: each for name, each in msgspec.to_builtins(workload).items() if name not in NO_EFFECT}
    defaults = {field.name: field.default for field in msgspec.structs.fields(workload)}
    own = {name: each for name, each in own.items() if each and each != defaults[name]}
    served = msgspec.to_builtins(builder.server) if builder.server else {}
    commands = json.dumps([own, served])
    shares = [_share(entry, commands) for entry in entries]
    methods = [list(counted)] if any(counted) else []
    inputs = json.dumps(
        [own, builder.library, _driven(served), _conditional(builder), shares, *methods], sort_keys=True
    )
    given = upload.recipe_archive(builder) if "{recipe}" in inputs else b""
    return hashlib.sha256(inputs.encode() + upload.archive(lua.read_by_runs(workload)) + given).hexdigest()[:16]


def _driven(server: object) -> dict[str, object]:
    """The parts of a server's recipe that affect how it is driven and counted."""
    return {key: server[key] for key in OF_SERVER if key in server} if isinstance(server, Mapping) else {}


def _conditional(builder: Builder) -> list[object]:
    """The same parts of its conditional blocks, each with its condition."""
    found = ((when, _driven(when.change.get("server"))) for when in builder.when)
    return [[when.version, when.file, when.missing, when.compiler, driven] for when, driven in found if driven]


def _share(entry: HostEntry, commands: str) -> list[object]:
    """The resources of a host for server and client; its sizes only if ``commands`` use them."""
    return [
        entry.server_cpus,
        entry.client_cpus,
        entry.memory if "{memory}" in commands or "{cache}" in commands else 0,
        entry.jobs if "{jobs}" in commands else 0,
    ]
