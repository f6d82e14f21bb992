"""The shape of ``hosts.toml``: the machines on which things are built and measured."""

import msgspec


class HostEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One machine."""

    name: str = ""  # its key, filled in by the reader
    summary: str = ""
    address: str = "local"  # "local", or what ssh takes
    root: str = "~/.cache/perfbisect"  # our folder on that host
    jobs: int = 0  # parallel compile jobs; 0: one for each core
    server_cpus: str = ""  # a taskset list such as "0-3"; empty: not pinned
    client_cpus: str = ""
    device: str = ""  # block device that iostat watches; empty: none
    ccache_size: str = "20G"


class Inventory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All machines."""

    hosts: dict[str, HostEntry]
