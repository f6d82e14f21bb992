"""What brings what is lacking, on which system; and how it is looked for."""

import shutil
from pathlib import Path

import pytest

from perfbisect.host.local import LocalHost
from perfbisect.host.packages import (
    Package,
    how_to_install,
    how_to_prepare,
    is_header,
    is_library,
    lacking,
    listed,
    read_system,
)


@pytest.mark.parametrize(
    ("needs", "system", "advice"),
    [
        (["setsid", "taskset", "g++"], "fedora", "Install with: sudo dnf install util-linux gcc-c++"),
        (["perf"], "debian", "Install with: sudo apt-get install linux-perf"),
        (["perf", "git"], "ubuntu", "Install with: sudo apt-get install linux-tools-generic git"),
        (["openssl/ssl.h", "libssl.pc"], "debian", "Install with: sudo apt-get install libssl-dev"),
        (["openssl/ssl.h", "zlib.h"], "ubuntu", "Install with: sudo apt-get install libssl-dev zlib1g-dev"),
        (["bison", "libzstd.pc"], "fedora", "Install with: sudo dnf install bison libzstd-devel"),
        (
            ["odd/odd.h", "odd.pc"],
            "fedora",
            "Install with: sudo dnf install /usr/include/odd/odd.h 'pkgconfig(odd)'",
        ),
        (["odd/odd.h", "odd.pc"], "debian", "Find what provides odd/odd.h, odd.pc with: apt-file search odd/odd.h"),
        (
            ["odd.h", "make"],
            "ubuntu",
            "Install with: sudo apt-get install make. Find what provides odd.h with: apt-file search odd.h",
        ),
        (
            ["zlib.h", "g++"],
            "",
            "Install with: apt-get install zlib1g-dev g++ (Debian, Ubuntu), or dnf install zlib-devel gcc-c++ (Fedora, RHEL)",
        ),
        (
            ["odd.h"],
            "",
            "Install with: dnf install /usr/include/odd.h (Fedora, RHEL). Find what provides odd.h with: apt-file search odd.h (Debian)",
        ),
    ],
)
def test_the_command_that_installs(needs: list[str], system: str, advice: str) -> None:
    assert how_to_install(needs, system) == advice


def test_what_a_recipe_knows_comes_first() -> None:
    own = {
        "odd.h": Package("libodd-dev", "odd-devel"),
        "zlib.h": Package("zlib-ng-dev", ""),
        "tool": Package("tools", ""),
    }
    assert how_to_install(["odd.h", "zlib.h", "tool"], "debian", own) == (
        "Install with: sudo apt-get install libodd-dev zlib-ng-dev tools"
    )
    assert how_to_install(["odd.h", "zlib.h", "tool"], "fedora", own) == (
        "Install with: sudo dnf install odd-devel /usr/include/zlib.h tool"
    )


def test_the_table_names_development_packages_for_files() -> None:
    files = [named for need, named in listed().items() if is_header(need) or is_library(need)]
    assert len(files) > 30
    assert all(named.debian.endswith("-dev") and named.fedora.endswith("-devel") for named in files)


SYSTEMS = {
    "fedora": ['ID="rhel"\nID_LIKE="fedora"\nVERSION_ID="8.9"\n', 'ID="centos"\nID_LIKE="rhel fedora"\n',
               'ID="almalinux"\nID_LIKE="rhel centos fedora"\n', "ID=fedora\nVARIANT_ID=server\n"],
    "debian": ["ID=debian\n", "# a comment\n\n  ID='debian'  \n", "ID=raspbian\nID_LIKE=debian\n",
               'NAME="Debian"\nID=devuan\nID_LIKE=debian\n'],
    "ubuntu": ['ID=linuxmint\nID_LIKE="ubuntu debian"\n', "ID=pop\nID_LIKE='ubuntu debian'\r\n", "ID=Ubuntu\n"],
    None: ['ID="opensuse-leap"\nID_LIKE="suse opensuse"\n', "ID=arch\n", 'PRETTY_NAME="Debian"\nBUG_ID=debian\n',
           "no assignment\n", ""],
}  # fmt: skip


@pytest.mark.parametrize(("system", "text"), [(system, text) for system, texts in SYSTEMS.items() for text in texts])
def test_the_family_of_a_system(system: str | None, text: str) -> None:
    assert read_system(text) == system


@pytest.mark.tools
@pytest.mark.skipif(not (shutil.which("g++") and shutil.which("pkg-config")), reason="needs g++ and pkg-config")
def test_headers_and_libraries_are_really_looked_for(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    include = tmp_path / "a b"
    include.mkdir()
    (include / "mine.h").write_text("FILE *needs_stdio;\n")
    (include / "mine.hpp").write_text("#include <vector>\n")
    (include / "mine.pc").write_text("Name: mine\nDescription: x\nVersion: 1\n")
    (include / "poor.h").write_text("#include <no/such.h>\n")
    monkeypatch.setenv("PKG_CONFIG_PATH", str(include))
    needs = ["sh", "stdio.h", "mine.h", "mine.hpp", "mine.pc", "poor.h", "no-such.h", "no-such.pc", "no-such"]
    with_include = f"-I'{include}'"
    assert lacking(host, needs, f"gcc {with_include}", f"g++ {with_include}") == (
        "no-such", "poor.h", "no-such.h", "no-such.pc",
    )  # fmt: skip
    assert lacking(host, ["mine.h", "mine.hpp"], "gcc", "g++") == ("mine.h", "mine.hpp")


@pytest.mark.tools
def test_what_looks_is_itself_lacking(host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert lacking(host, ["stdio.h", "a.hpp", "b.hpp", "zlib.pc"], "gcc -O2", "g++") == ("pkg-config", "gcc", "g++")


@pytest.mark.parametrize(
    ("system", "described", "command"),
    [
        ("debian", True, "sudo apt-get build-dep libpq-dev"),
        ("ubuntu", False, "sudo apt-get build-dep libpq-dev (needs `deb-src` among its sources in /etc/apt)"),
        ("fedora", False, "sudo dnf builddep postgresql-server"),
        ("", True, "apt-get build-dep libpq-dev (Debian, Ubuntu) or dnf builddep postgresql-server (Fedora, RHEL)"),
    ],
)
def test_what_a_distribution_builds_its_package_with(system: str, command: str, *, described: bool) -> None:
    advice = how_to_prepare(Package("libpq-dev", "postgresql-server"), system, described=described)
    assert advice == f"What its distribution builds it with: {command}"


def test_a_package_that_is_not_known_is_no_advice() -> None:
    assert how_to_prepare(Package("", "x"), "debian") == ""
    assert how_to_prepare(Package("x", ""), "fedora") == ""
    assert how_to_prepare(Package("", "")) == ""
    assert "dnf" not in how_to_prepare(Package("x", ""))
