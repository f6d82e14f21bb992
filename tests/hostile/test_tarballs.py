"""Tarballs of installed systems that contain what no system contains."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from perfbisect.errors import UsageError
from perfbisect.host.local import LocalHost
from perfbisect.lab.build import build_store, prebuilt
from perfbisect.recipes.builder import Builder, Variant

pytestmark = pytest.mark.tools

BUILDER = Builder(
    name="kv",
    folder="/nowhere",
    summary="",
    driver="kv",
    installed_version=["{prefix}/bin/kvd", "--version"],
    variants={"o2nofp": Variant()},
)
PROGRAM = "#!/bin/sh\necho Ver 8.0.36\n"

Member = tuple[str, bytes, str, int]  # name, type, content or target, mode
FILE, FOLDER, LINK, HARD = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


def pack(path: Path, *members: Member, top: str = "kv/") -> Path:
    """A tarball of a system that works, with these members before and after it."""
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, kind, content, mode in (*members, (f"{top}bin/kvd", FILE, PROGRAM, 0o755)):
            member = tarfile.TarInfo(name)
            member.type, member.mode = kind, mode
            data = content.encode() if kind == FILE else b""
            member.size = len(data)
            if kind in (LINK, HARD):
                member.linkname = content
            member.devmajor, member.devminor = 1, 3
            tar.addfile(member, io.BytesIO(data))
    return path


def take(host: LocalHost, tarball: Path) -> Path:
    """Where it is unpacked."""
    return Path(build_store.prefix(host, prebuilt.take(host, BUILDER, "old", str(tarball)).facts.key))


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that no tarball may write to; the tarballs are in another."""
    folder = tmp_path / "outside"
    (folder / "bin").mkdir(parents=True)
    (folder / "file").write_text("kept")
    return folder


def seen(folder: Path) -> list[tuple[str, str, int]]:
    return sorted(
        (str(path), path.read_text() if path.is_file() else "", path.lstat().st_mode) for path in folder.rglob("*")
    )


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([("kv/null", tarfile.CHRTYPE, "", 0o666)], "refused: kv/null is a device, a FIFO or a socket"),
        ([("kv/disk", tarfile.BLKTYPE, "", 0o666)], "refused: kv/disk is a device"),
        ([("kv/a/b/pipe", tarfile.FIFOTYPE, "", 0o666)], "refused: kv/a/b/pipe is a device"),
        ([("null", tarfile.CHRTYPE, "", 0o666)], "refused: null is a device"),
        ([("/tmp/perfbisect-evil", FILE, "x", 0o644)], "refused: it has names that lead out"),
        ([("../evil", FILE, "x", 0o644)], "refused: it has names that lead out"),
        ([("kv/../../evil", FILE, "x", 0o644)], "refused: it has names that lead out"),
        ([("kv/hard", HARD, "/etc/passwd", 0o644)], "refused: it has names that lead out"),
        ([("kv/hard", HARD, "../../../../etc/passwd", 0o644)], "refused: it has names that lead out"),
        ([("kv/l", LINK, "OUT", 0o777), ("kv/l/evil", FILE, "x", 0o644)], "damaged, or no tarball: .*Not a directory"),
        ([("kv/l", LINK, "../../../../../outside", 0o777), ("kv/l/evil", FILE, "x", 0o644)], "Not a directory"),
        ([("kv/d", FOLDER, "", 0o755), ("kv/d", LINK, "OUT", 0o777), ("kv/d/evil", FILE, "x", 0o644)], "Not a directory"),
        ([("kv/a", LINK, ".", 0o777), ("kv/a/b", LINK, "..", 0o777), ("kv/b/../e", FILE, "x", 0o644)], "names that lead out"),
        ([("kv/a", LINK, "OUT", 0o777), ("kv/b", LINK, "a", 0o777), ("kv/b/e", FILE, "x", 0o644)], "Not a directory|Cannot open"),
    ],
    ids=[
        "character device", "block device", "FIFO", "device at the top", "absolute name", "..", ".. inside",
        "hard link to an absolute name", "hard link with ..", "through a link", "through a relative link",
        "a folder that becomes a link", "through two links inside", "through two links outside",
    ],
)  # fmt: skip
def test_what_leads_out_or_is_no_file_is_refused(
    host: LocalHost, tmp_path: Path, outside: Path, members: list[Member], why: str
) -> None:
    if "device" in why and os.geteuid() != 0 and members[0][1] != tarfile.FIFOTYPE:
        pytest.skip("only root makes devices")
    members = [(name, kind, content.replace("OUT", str(outside)), mode) for name, kind, content, mode in members]
    before, above = seen(outside), sorted(path.name for path in tmp_path.iterdir())
    tarball = pack(tmp_path / "kv.tar", *members)
    with pytest.raises(UsageError, match=why):
        take(host, tarball)
    assert seen(outside) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({*above, "kv.tar"})
    assert not Path("/tmp/perfbisect-evil").exists()
    builds = Path(host.root, "builds")
    assert not list(builds.iterdir()) or not why.startswith("refused"), "nothing of it stays"
    assert not [path for path in builds.iterdir() if not path.name.endswith(".part")]
    assert take(host, pack(tmp_path / "good.tar")).is_dir(), "the next one is unpacked"


@pytest.mark.parametrize("top", ["kv", "bin", "lib"])
@pytest.mark.parametrize("target", ["/", "/usr", ".", "..", "nowhere", "{outside}"])
def test_a_top_that_is_a_link_is_refused(host: LocalHost, tmp_path: Path, outside: Path, top: str, target: str) -> None:
    (outside / "bin" / "kvd").write_text(PROGRAM)
    (outside / "bin" / "kvd").chmod(0o755)
    before = seen(outside)
    with tarfile.open(tmp_path / "kv.tar", "w") as tar:
        link = tarfile.TarInfo(top)
        link.type, link.linkname = LINK, target.format(outside=outside)
        tar.addfile(link)
    with pytest.raises(UsageError, match=f"refused: its top, {top}, is a symbolic link"):
        take(host, tmp_path / "kv.tar")
    assert seen(outside) == before
    assert not list(Path(host.root, "builds").iterdir())


def test_setuid_bits_are_dropped_and_owners_are_ours(host: LocalHost, tmp_path: Path) -> None:
    members: list[Member] = [(f"kv/{mode:o}", FILE, "x", mode) for mode in (0o4755, 0o2755, 0o6777, 0o7777)]
    prefix = take(host, pack(tmp_path / "kv.tar", *members, ("kv/folder", FOLDER, "", 0o7777)))
    modes = {path.name: path.lstat().st_mode & 0o7022 for path in prefix.rglob("*")}
    assert {name for name, mode in modes.items() if mode} == set()


def test_files_without_any_right_are_unpacked_and_can_be_removed(host: LocalHost, tmp_path: Path) -> None:
    members: list[Member] = [
        ("kv/shut/in/file", FILE, "x", 0),
        ("kv/shut/in", FOLDER, "", 0),
        ("kv/shut", FOLDER, "", 0),
    ]
    prefix = take(host, pack(tmp_path / "kv.tar", *members))
    assert (prefix / "shut" / "in" / "file").stat().st_mode & 0o400
    assert (prefix / "shut").stat().st_mode & 0o700 == 0o700


@pytest.mark.parametrize("name", ["-rf", "a b", "*", "$(id)", "a\nb", "inner", "prefix"])
def test_tops_with_odd_names(host: LocalHost, tmp_path: Path, name: str) -> None:
    prefix = take(host, pack(tmp_path / "kv.tar", (f"{name}/share/text", FILE, "x", 0o644), top=f"{name}/"))
    assert (prefix / "bin" / "kvd").is_file()
    assert (prefix / "share" / "text").read_text() == "x"


def test_links_inside_and_to_the_system_may_stay(host: LocalHost, tmp_path: Path, outside: Path) -> None:
    """Installed systems have both; nothing is written through them."""
    before = seen(outside)
    members: list[Member] = [
        ("kv/lib/libkv.so", LINK, "libkv.so.1", 0o777),
        ("kv/share", LINK, str(outside), 0o777),
        ("kv/lib/libc.so", LINK, "/lib/x86_64-linux-gnu/libc.so.6", 0o777),
    ]
    prefix = take(host, pack(tmp_path / "kv.tar", *members))
    assert (prefix / "share").is_symlink()
    assert seen(outside) == before


@pytest.mark.parametrize(
    "content", [b"", b"not a tarball", b"\0" * 10240, os.urandom(2000)], ids=["empty", "text", "zeros", "noise"]
)
def test_what_is_no_tarball(host: LocalHost, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "kv.tar").write_bytes(content)
    with pytest.raises(UsageError):
        take(host, tmp_path / "kv.tar")


def test_a_tarball_with_many_bad_names_is_refused_with_one(host: LocalHost, tmp_path: Path) -> None:
    names: list[Member] = [(f"../{'x' * 200}{number}", FILE, "", 0o644) for number in range(5000)]
    with pytest.raises(UsageError, match="names that lead out") as caught:
        take(host, pack(tmp_path / "kv.tar", *names))
    assert len(str(caught.value)) < 2000
