from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.errors import RecipeError, UsageError
from perfbisect.recipes.inventory import load_host, load_hosts
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
