"""Hosts and leases of hosts.toml, the names of leased hosts, and the settings of shared builds and caches."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import click
import pytest

from perfbisect.cli.options.completion import host_names
from perfbisect.errors import RecipeError, UsageError
from perfbisect.recipes.configuration import load_configuration
from perfbisect.recipes.inventory import (
    LeasedHostName,
    expanded_names,
    leased_host_with_address,
    load_host,
    load_hosts,
    load_lease,
    parse_leased_host_name,
)
from perfbisect.recipes.toml import to_toml

Write = Callable[[str, str], Path]


def test_hosts_are_found_by_name(write: Write) -> None:
    """A given inventory has precedence, and does not hide the other hosts of the user's inventory."""
    big = '[hosts.big]\naddress = "me@big"\nserver_cpus = "0-7,16"\nccache_size = "5.5Gi"\nclass = "c8"\n'
    write("hosts.toml", f"{big}[hosts.small]\njobs = 1")
    write("mine.toml", "[hosts.small]\njobs = 2")
    host = load_host("big")
    assert (host.name, host.address, host.server_cpus, host.jobs, host.kind) == ("big", "me@big", "0-7,16", 0, "c8")
    assert 'class = "c8"' in to_toml(host)
    assert {host.name: host.jobs for host in load_hosts("mine.toml")} == {"big": 0, "small": 2}
    with pytest.raises(RecipeError, match=r"no host 'bgi'. Did you mean 'big'") as caught:
        load_host("bgi")
    assert caught.value.advice == "Hosts: big, small."
    with pytest.raises(UsageError, match=r"The file nowhere.toml does not exist"):
        load_host("big", "nowhere.toml")


POOL = """
[leases.pool]
acquire = ["lend", "{job}"]
release = ["back", "{job}"]
[leases.pool.host]
root = "/data/{address}"
jobs = 3
"""
VALUES = {"job": "j1", "user": "me", "address": "n7", "lease": "12"}


def test_names_of_leased_hosts_are_parsed_and_expanded() -> None:
    for rest, name, count in (("quiet", "quiet", 1), ("quiet*8", "quiet", 8), ("a&b|c/2", "a&b|c", 1), ("", "", 1)):
        assert parse_leased_host_name(f"slurm:{rest}") == LeasedHostName("slurm", name, count)
    assert [parse_leased_host_name(name) for name in ("local", "slurm:a b", "slurm:$(x)")] == [None] * 3
    assert expanded_names(["local", "s:a*2", "s:b"]) == ("local", "s:a/1", "s:a/2", "s:b")
    for wrong in ("s:a*0", "s:a*1001"):
        with pytest.raises(UsageError, match="1 to 1000 can be leased"):
            expanded_names([wrong])


def test_leased_host_has_the_settings_of_its_lease(write: Write) -> None:
    write("hosts.toml", POOL + "[hosts.post]\n")
    entry = load_host("pool:quiet/2")
    assert (entry.name, entry.kind, entry.jobs) == ("pool:quiet/2", "pool:quiet", 3)
    assert entry.leased and not entry.is_local
    there = leased_host_with_address(entry, VALUES)
    assert (there.address, there.root, there.leased) == ("n7", "/data/n7", False)
    with pytest.raises(UsageError, match=r"leases\.pool\.host\.root. is"):
        leased_host_with_address(entry, VALUES | {"address": "$(x)"})
    with pytest.raises(RecipeError, match=r"no lease 'pol'. Did you mean 'pool'"):
        load_host("pol:quiet")
    with pytest.raises(RecipeError, match="'pool' is not a host, but a lease") as caught:
        load_host("pool")
    assert "pool:FEATURES" in caught.value.advice
    context = click.Context(click.Command("run"))
    assert {each.value for each in host_names(context, click.Option(["--host"]), "po")} == {"pool:", "post"}


def test_lease_can_extend_another_lease_with_the_same_name(write: Write) -> None:
    write("hosts.toml", POOL + '[leases.own]\nextends = "pool"\n[leases.own.host]\njobs = 9\n')
    write("mine.toml", '[leases.pool]\nextends = "pool"\n[leases.pool.host]\nroot = "/scratch/{user}"\n')
    own = load_lease("own")
    assert (own.name, own.host.jobs, own.host.root, own.acquire) == ("own", 9, "/data/{address}", ["lend", "{job}"])
    pool = load_lease("pool", "mine.toml")
    assert (pool.host.root, pool.host.jobs, pool.acquire) == ("/scratch/{user}", 3, ["lend", "{job}"])
    assert pool.file.endswith("mine.toml")
    assert load_lease("pool").host.root == "/data/{address}"


def test_key_file_must_be_private_and_long_enough(write: Write, seal: Path) -> None:
    shared = load_configuration().shared
    assert (shared.builds, shared.secret(), shared.ccache) == (None, b"", ""), "without a file nothing is shared"
    write("config.toml", '[shared]\nbuilds = "/srv/builds"\nkey_file = "~/key"\n')
    shared, key = load_configuration().shared, seal / "key"
    with pytest.raises(RecipeError, match="cannot be read: No such file"):
        shared.secret()
    for text, mode, mistake in (
        ("0123456789abcdef", 0o640, "can be read by other users"),
        ("0123456789abcde", 0o600, "has fewer than 16 characters"),
        ("0123456789abcdef", 0o600, ""),
    ):
        key.write_text(f"{text}\n")
        key.chmod(mode)
        with pytest.raises(RecipeError, match=mistake) if mistake else nullcontext():
            assert shared.secret() == text.encode()


def test_shared_ccache_is_the_default_of_hosts(write: Write) -> None:
    write("config.toml", '[shared]\nccache = "redis://cache:6379"\n')
    write("hosts.toml", '[hosts.a]\n[hosts.b]\nccache_remote = "http://own"\n[hosts.c]\nccache_remote = "none"\n')
    assert [load_host(name).ccache_remote for name in "abc"] == ["redis://cache:6379", "http://own", "none"]
