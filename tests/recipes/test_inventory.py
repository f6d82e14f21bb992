"""Hosts and leases of hosts.toml, the names of leased hosts, and what the user shares with others."""

from collections.abc import Callable
from pathlib import Path

import click
import pytest

from perfbisect.cli.options.completion import host_name
from perfbisect.errors import RecipeError, UsageError
from perfbisect.recipes.configuration import load_configuration
from perfbisect.recipes.inventory import (
    LeaseName,
    expanded_names,
    load_host,
    load_hosts,
    load_lease,
    load_leases,
    parse_lease_name,
    reached,
)
from perfbisect.recipes.toml import to_toml

Write = Callable[[str, str], Path]


def test_a_host_is_found_by_name(write: Write) -> None:
    write("hosts.toml", '[hosts.big]\naddress = "me@big"\nserver_cpus = "0-7,16"\nccache_size = "5.5Gi"')
    host = load_host("big")
    assert (host.name, host.address, host.server_cpus, host.jobs) == ("big", "me@big", "0-7,16", 0)


def test_the_users_inventory_comes_first_and_hides_nothing_else(write: Write) -> None:
    write("hosts.toml", "[hosts.a]\njobs = 1\n[hosts.b]\njobs = 1")
    write("mine.toml", "[hosts.b]\njobs = 2")
    assert {host.name: host.jobs for host in load_hosts("mine.toml")} == {"a": 1, "b": 2}


def test_an_unknown_host_names_the_nearest(write: Write) -> None:
    write("hosts.toml", "[hosts.big]\n[hosts.small]")
    with pytest.raises(RecipeError, match=r"no host 'bgi'. Did you mean 'big'") as caught:
        load_host("bgi")
    assert caught.value.advice == "Hosts: big, small."


def test_an_inventory_given_must_exist() -> None:
    with pytest.raises(UsageError, match=r"no file nowhere.toml"):
        load_host("big", "nowhere.toml")


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ('adress = "x"', r"`hosts.big.adress` is an unknown key. Did you mean 'address'"),
        ("jobs = -1", r"`hosts.big.jobs` is the number -1, but must be a whole number from 0 to 1000000"),
        ('memory = "4 GiB"', r"`hosts.big.memory` is \"4 GiB\", but must be a whole number of MiB, 0 or more"),
        ('jobs = "4"', r'`hosts.big.jobs` is "4", but must be a whole number'),
        ('address = "-oProxyCommand=x"', r"`hosts.big.address` is .*, but must be \"local\", or an address"),
        ('address = "ssh://"', r"`hosts.big.address` is .*, but must be \"local\", or an address"),
        ('address = "ssh://me@"', r"`hosts.big.address` is .*, but must be \"local\", or an address"),
        ('root = "/a b"', r'`hosts.big.root` is "/a b", but must be a path of letters, digits'),
        ('root = "/$(x)"', r"`hosts.big.root` is .* but must be a path"),
        ('root = "/a\\n"', r"`hosts.big.root` is"),
        ('server_cpus = "0..3"', r"must be a list of CPUs such as"),
        ('ccache_size = "big"', r"must be a size such as"),
        ('class = "c 8"', r"`hosts.big.class` is .*, but must be a name such as"),
        ('kind = "c8"', r"`hosts.big.kind` is an unknown key"),
        ('ccache_remote = "cache:6379"', r"must be an address such as"),
        ('ccache_remote = "http://x|password=$y"', r"must be an address such as"),
        ('ccache_remote = "redis://me:se cret@cache:1"', r'is "redis://\*\*\*@cache:1", but'),
        ('device = "/dev/sd a"', r"must be a block device such as"),
    ],
)
def test_a_mistake_is_named(write: Write, entry: str, sentence: str) -> None:
    file = write("hosts.toml", f"[hosts.big]\n{entry}")
    with pytest.raises(RecipeError, match=sentence) as caught:
        load_hosts()
    assert str(caught.value).startswith(f"{file}:")


def test_a_class_is_shown_as_it_is_written(write: Write) -> None:
    write("hosts.toml", '[hosts.big]\nclass = "c8"')
    assert load_host("big").kind == "c8"
    assert 'class = "c8"' in to_toml(load_host("big"))


POOL = """
[leases.pool]
acquire = ["lend", "{job}"]
release = ["back", "{job}"]
[leases.pool.host]
root = "/data/{address}"
jobs = 3
"""
VALUES = {"job": "j1", "user": "me", "address": "n7", "lease": "12"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("slurm:quiet", LeaseName("slurm", "quiet")),
        ("slurm:quiet*8", LeaseName("slurm", "quiet", 8)),
        ("slurm:quiet/2", LeaseName("slurm", "quiet")),
        ("slurm:", LeaseName("slurm", "")),
        ("slurm:quiet&big|old", LeaseName("slurm", "quiet&big|old")),
        ("local", None),
        ("slurm:a b", None),
        ("slurm:$(x)", None),
    ],
)
def test_what_a_name_says(name: str, said: LeaseName | None) -> None:
    assert parse_lease_name(name) == said


def test_several_at_once_have_names_of_their_own() -> None:
    assert expanded_names(["local", "s:a*2", "s:b"]) == ("local", "s:a/1", "s:a/2", "s:b")
    for wrong in ("s:a*0", "s:a*1001"):
        with pytest.raises(UsageError, match="1 to 1000 can be leased"):
            expanded_names([wrong])


def test_a_leased_host_has_what_its_lease_says_of_all(write: Write) -> None:
    write("hosts.toml", POOL)
    entry = load_host("pool:quiet/2")
    assert (entry.name, entry.kind, entry.jobs, entry.leased, entry.is_here) == (
        "pool:quiet/2", "pool:quiet", 3, True, False,
    )  # fmt: skip
    there = reached(entry, VALUES)
    assert (there.address, there.root, there.leased) == ("n7", "/data/n7", False)
    with pytest.raises(UsageError, match="root folder"):
        reached(entry, VALUES | {"address": "$(x)"})
    with pytest.raises(RecipeError, match=r"no lease 'pol'. Did you mean 'pool'"):
        load_host("pol:quiet")


def test_a_lease_extends_another_also_the_shipped_one_of_its_name(write: Write) -> None:
    write("hosts.toml", POOL + '[leases.own]\nextends = "pool"\n[leases.own.host]\njobs = 9\n')
    write("mine.toml", '[leases.pool]\nextends = "pool"\n[leases.pool.host]\nroot = "/scratch/{user}"\n')
    own = load_lease("own")
    assert (own.name, own.host.jobs, own.host.root, own.acquire) == ("own", 9, "/data/{address}", ["lend", "{job}"])
    pool = load_lease("pool", "mine.toml")
    assert (pool.host.root, pool.host.jobs, pool.acquire) == ("/scratch/{user}", 3, ["lend", "{job}"])
    assert pool.file.endswith("mine.toml")
    assert load_lease("pool").host.root == "/data/{address}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[leases.a]\nacquire = ["x"]', r"`leases.a.release` is missing"),
        ('[leases.a]\nacquire = ["{lease}"]\nrelease = ["x"]', r"`leases.a.acquire\[0\]` has the unknown placeholder"),
        ('[leases.a]\nacquire = ["x"]\nrelease = ["{address}"]', r"`leases.a.release\[0\]` has the unknown placeholder"),
        ('[leases.a]\nextends = "b"', r"`leases.a.extends` is \"b\", and there is no such lease"),
        ('[leases.a]\nextends = "b"\n[leases.b]\nextends = "a"', r"no such lease to extend"),
        ('[leases.a]\nextends = "a"', r"no such lease to extend"),
        ('[leases.a]\nevery = 0', r"`leases.a.every` is the number 0, but must be a number of seconds"),
        ('[leases.a.host]\nroot = "/a b"', r"`leases.a.host.root` is"),
        ('[leases.a.host]\nleased = true', r"`leases.a.host.leased` is an unknown key"),
    ],
)  # fmt: skip
def test_a_mistake_of_a_lease_is_named(write: Write, text: str, sentence: str) -> None:
    write("hosts.toml", text)
    with pytest.raises(RecipeError, match=sentence):
        load_leases()


def test_a_lease_completes_as_far_as_its_colon(write: Write) -> None:
    write("hosts.toml", POOL + "[hosts.post]\n")
    context = click.Context(click.Command("run"))
    assert host_name(context, click.Option(["--host"]), "po") == ["pool:", "post"]


def test_a_lease_given_as_a_host_is_told_how_to_write_it(write: Write) -> None:
    write("hosts.toml", POOL)
    with pytest.raises(RecipeError, match="'pool' is not a host, but a lease") as told:
        load_host("pool")
    assert "pool:FEATURES" in told.value.advice


def test_without_a_file_nothing_is_shared() -> None:
    shared = load_configuration().shared
    assert (shared.builds, shared.secret(), shared.ccache) == (None, b"", "")


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ('builds = "builds"', '`shared.builds` is "builds", but must be an absolute path, or an address'),
        ('builds = "./builds"', "must be an absolute path"),
        ('builds = "s3://two words"', "must be an absolute path"),
        ('ccache = "cache:6379"', "must be an address"),
        ('store = "/srv"', "`shared.store` is an unknown key"),
    ],
)
def test_a_mistake_of_the_user_is_named(write: Write, line: str, mistake: str) -> None:
    write("config.toml", f"[shared]\n{line}\n")
    with pytest.raises(RecipeError) as caught:
        load_configuration()
    assert mistake in str(caught.value)


@pytest.mark.parametrize(
    ("text", "mode", "mistake"),
    [
        ("0123456789abcdef\n", 0o600, ""),
        ("0123456789abcdef\n", 0o640, "can be read by other users"),
        ("0123456789abcde\n", 0o600, "has fewer than 16 characters"),
        (None, 0, "cannot be read: No such file"),
    ],
)
def test_the_key_is_a_secret(write: Write, seal: Path, text: str | None, mode: int, mistake: str) -> None:
    write("config.toml", '[shared]\nbuilds = "/srv/builds"\nkey_file = "~/key"\n')
    if text is not None:
        (seal / "key").write_text(text)
        (seal / "key").chmod(mode)
    shared = load_configuration().shared
    if not mistake:
        assert shared.secret() == b"0123456789abcdef"
        return
    with pytest.raises(RecipeError, match=mistake):
        shared.secret()


def test_the_compilers_cache_is_that_of_hosts_that_have_none(write: Write) -> None:
    write("config.toml", '[shared]\nccache = "redis://cache:6379"\n')
    hosts = write(
        "hosts.toml", '[hosts.a]\n[hosts.b]\nccache_remote = "http://own"\n[hosts.c]\nccache_remote = "none"\n'
    )
    found = [load_host(name, hosts).ccache_remote for name in "abc"]
    assert found == ["redis://cache:6379", "http://own", "none"]
