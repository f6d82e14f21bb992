"""Prebuilt systems (folders and tarballs), which are identified by their contents and never written; and archives that
a source tree needs."""

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec
import pytest

from perfbisect.core.domain.facts import BuildFacts
from perfbisect.errors import BuildFailed, EnvironmentFailure, UsageError
from perfbisect.host.local import LocalHost
from perfbisect.hunt.trials.rounds import borrowed_clients
from perfbisect.lab.building import build_store, prebuilt
from perfbisect.lab.building.log_parser import BuildStep
from perfbisect.lab.building.pipeline import build_commit
from perfbisect.lab.building.plan import InstalledBuild
from perfbisect.recipes.builder import Archive, Build, Builder, DataFormat, Server, Variant, When
from program import executable
from repos import Files
from sharing import TINY, Yard
from shelf import Shelf, packed, shelf, sum_of
from waiting import finish

pytestmark = pytest.mark.tools

BUILDER = Builder(
    name="kv",
    folder=str(Path(__file__).parent / "nothing"),
    summary="",
    driver="kv",
    installed_version=["{prefix}/bin/kvd", "--version"],
    variants={"o2nofp": Variant()},
    when=[
        When(version=">=8.0.30", change={"dataset": {"format": "new"}}),
        When(missing="autogen.sh", change={"dataset": {"format": "of a tree without autogen.sh"}}),
        When(compiler="gcc", change={"dataset": {"format": "of gcc"}}),
    ],
    dataset=DataFormat(format="old"),
)


def install(folder: Path, version: str = "8.0.36-debug") -> Path:
    """Install a server that prints its own path, which contains a number, and its version."""
    executable(folder / "bin" / "kvd", f'#!/bin/sh\necho "$0  Ver {version} for Linux on x86_64"\n')
    (folder / "bin" / "link").symlink_to("kvd")
    return folder


def pack(folder: Path, tarball: Path, *what: str) -> Path:
    subprocess.run(["tar", "-C", str(folder), "-caf", str(tarball), *what], check=True)
    return tarball


def times(folder: Path) -> dict[str, tuple[int, int]]:
    """The times of all files of a folder. A write to the folder changes some of the times."""
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_ctime_ns) for path in [folder, *folder.rglob("*")]}


def take(host: LocalHost, path: Path, builder: Builder = BUILDER) -> InstalledBuild:
    return prebuilt.install_prebuilt(host, builder, "old", str(path))


def unpacked(host: LocalHost, tarball: Path) -> Path:
    """The folder where the tarball is unpacked."""
    return Path(build_store.prefix_folder(host, take(host, tarball).facts.key))


def test_folder_is_identified_by_its_content_and_used_in_place(host: LocalHost, tmp_path: Path) -> None:
    folder, other = install(tmp_path / "opt" / "kv-8.0.36"), install(tmp_path / "elsewhere")
    before, built = times(tmp_path / "opt"), take(host, folder)
    assert (built.facts.commit, built.version, built.prefix) == ("old", "8.0.36-debug", PurePosixPath(folder))
    fixed = build_store.symlink_build(host, "kv", built.facts.key, built.prefix)
    assert os.path.realpath(fixed) == str(folder)
    assert times(tmp_path / "opt") == before
    assert take(host, other).facts.key == built.facts.key
    (other / "bin" / "kvd").write_text("#!/bin/sh\necho 8.0.36-debug, but changed\n")
    assert take(host, other).facts.key != built.facts.key


def test_conditions_use_the_installed_version(host: LocalHost, tmp_path: Path) -> None:
    for version, data in (("8.0.9", "old"), ("8.0.30", "new")):
        assert take(host, install(tmp_path / version, version)).builder.dataset.format == data


def test_clients_of_the_host_replace_clients_that_do_not_run(host: LocalHost, tmp_path: Path) -> None:
    """A client does not run if its program or a library is missing. A missing library of the server is an error."""
    folder, library = install(tmp_path / "kv"), tmp_path / "libkv.so.5"
    executable(folder / "bin" / "earlier", "#!/bin/sh\n")
    for source, *words in (
        ("", "-shared", "-Wl,-soname,libkv.so.5", "-o", library),
        ("int main() {}", "-Wl,--no-as-needed", library, "-o", "cat"),
    ):
        argv = ["cc", "-x", "c", "-", "-x", "none", *words]
        subprocess.run(argv, input=source, text=True, check=True, cwd=folder / "bin")
    library.unlink()
    for clients, found in ((["now earlier", "cat", "no-such sh"], ["cat", "sh"]), (["no-such"], None)):
        server = Server(initialise=[], start=["kvd"], ready=["kv"], clients=clients)
        builder = msgspec.structs.replace(BUILDER, server=server)
        if found:
            built = take(host, folder, builder)
            assert built.borrowed == tuple(map(shutil.which, found))
            assert [each.text.split(" is used")[0] for each in borrowed_clients([built])] == [
                f"the host's {path}" for path in built.borrowed
            ]
        else:
            with pytest.raises(EnvironmentFailure, match="no-such is not installed"):
                take(host, folder, builder)
    with pytest.raises(EnvironmentFailure, match=r"libkv\.so\.5 is not installed"):
        take(host, folder, msgspec.structs.replace(BUILDER, installed_version=["{prefix}/bin/cat"]))


@pytest.mark.parametrize("ending", prebuilt.UNPACKERS)
def test_tarball_is_unpacked_once(host: LocalHost, tmp_path: Path, ending: str) -> None:
    """If the top folder of the tarball is `bin`, the folder is kept."""
    folder = install(tmp_path / "kv-8.0.36-linux")
    tarball = pack(tmp_path, tmp_path / f"kv{ending}", folder.name)
    built, place = take(host, tarball).facts, unpacked(host, tarball)
    assert sorted(path.name for path in place.rglob("*")) == ["bin", "kvd", "link"]
    assert built.binary == take(host, folder).facts.binary
    before = times(place)
    assert take(host, tarball).facts.key == built.key
    assert times(place) == before
    (place / "bin" / "kvd").write_text("changed")
    assert take(host, tarball).facts.binary == built.binary
    assert take(host, pack(folder, tarball, "bin")).version == "8.0.36-debug"


def test_damaged_tarball_is_reported(host: LocalHost, tmp_path: Path) -> None:
    (install(tmp_path / "kv") / "ballast").write_bytes(bytes(1 << 18))
    for ending in (".tar", ".tar.zst"):
        tarball = pack(tmp_path, tmp_path / f"kv{ending}", "kv")
        content = tarball.read_bytes()
        for damaged in (
            b"no tarball at all",
            b"",
            bytes(10240),
            bytes(range(1, 256)) * 8,
            content[: len(content) // 2],
        ):
            tarball.write_bytes(damaged)
            for _ in range(2):  # no part counts as complete
                with pytest.raises(UsageError, match=r"damaged, or not a tarball|is not an installation of kv"):
                    take(host, tarball)
        tarball.write_bytes(content)
        assert take(host, tarball).version


def test_folder_without_the_system_is_refused(host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mute = install(tmp_path / "mute")
    (mute / "bin" / "kvd").write_text("#!/bin/sh\necho $0: unknown\n")
    (tmp_path / "empty").mkdir()
    embedded = msgspec.structs.replace(BUILDER, build=Build(artifacts=["lib/libkv.so"]), installed_version=[], when=[])
    for builder, name, sentence in (
        (BUILDER, "empty", r"empty is not an installation of kv: .*kvd"),
        (BUILDER, "nothing", "The folder .*nothing does not exist"),
        (BUILDER, "mute", "The version of .*mute is unknown"),
        (embedded, "mute", "is not an installation of kv: it has no lib/libkv.so"),
    ):
        with pytest.raises(UsageError, match=sentence):
            take(host, tmp_path / name, builder)
    monkeypatch.setattr(prebuilt, "_FINGERPRINT", 'echo "sha256sum: ./x: Permission denied" >&2; echo abc')
    with pytest.raises(EnvironmentFailure, match="cannot be read: sha256sum"):
        take(host, install(tmp_path / "kv"))


Member = tuple[str, bytes, str, int]  # name, type, content or target, mode
FILE, FOLDER, LINK, HARD = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


def hostile(path: Path, *members: Member, top: str = "kv/") -> Path:
    """A tarball with these members and then a working system; or only with a link, if the top folder is a link."""
    system: Member = (f"{top}bin/kvd", FILE, "#!/bin/sh\necho Ver 8.0.36\n", 0o755)
    is_link = [kind for name, kind, _, _ in members if "/" not in name] == [LINK]
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, kind, content, mode in members if is_link else (*members, system):
            member = tarfile.TarInfo(name)
            member.type, member.mode = kind, mode
            data = content.encode() if kind == FILE else b""
            member.size = len(data)
            member.linkname = content if kind in (LINK, HARD) else ""
            member.devmajor, member.devminor = 1, 3
            tar.addfile(member, io.BytesIO(data))
    return path


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder outside of the root folder, to which no tarball may write."""
    folder = tmp_path / "outside"
    (folder / "bin").mkdir(parents=True)
    (folder / "file").write_text("kept")
    return folder


ODD: list[tuple[list[Member], str]] = [
    ([("kv/null", tarfile.CHRTYPE, "", 0o666)], "refused: kv/null is a device, a FIFO or a socket"),
    ([("kv/a/b/pipe", tarfile.FIFOTYPE, "", 0o666)], "refused: kv/a/b/pipe is a device"),
    ([("/tmp/perfbisect-evil", FILE, "x", 0o644)], "refused: it has names that lead out"),
    ([("kv/../../evil", FILE, "x", 0o644)], "refused: it has names that lead out"),
    ([("kv/hard", HARD, "../../../../etc/passwd", 0o644)], "refused: it has names that lead out"),
    ([("kv/l", LINK, "OUT", 0o777), ("kv/l/evil", FILE, "x", 0o644)], "damaged, or not a tarball: .*Not a directory"),
    ([("kv/d", FOLDER, "", 0o755), ("kv/d", LINK, "OUT", 0o777), ("kv/d/evil", FILE, "x", 0o644)], "Not a directory"),
    ([("kv/a", LINK, ".", 0o777), ("kv/a/b", LINK, "..", 0o777), ("kv/b/../e", FILE, "x", 0o644)], "names that lead out"),
    ([("kv/a", LINK, "OUT", 0o777), ("kv/b", LINK, "a", 0o777), ("kv/b/e", FILE, "x", 0o644)], "Not a directory|Cannot open"),
    ([(f"../{'x' * 200}{number}", FILE, "", 0o644) for number in range(5000)], "names that lead out"),
    ([("kv", LINK, "OUT", 0o777)], "refused: its top, kv, is a symbolic link"),
    ([("bin", LINK, "/usr", 0o777)], "refused: its top, bin, is a symbolic link"),
]  # fmt: skip


def test_unsafe_members_of_a_tarball_are_refused(host: LocalHost, tmp_path: Path, outside: Path) -> None:
    before, builds, tarball = times(outside), Path(host.root, "builds"), tmp_path / "kv.tar"
    above = {*(path.name for path in tmp_path.iterdir()), tarball.name}
    for members, why in ODD:
        if members[0][1] == tarfile.CHRTYPE and os.geteuid() != 0:
            continue  # only root makes devices
        placed = [(name, kind, content.replace("OUT", str(outside)), mode) for name, kind, content, mode in members]
        with pytest.raises(UsageError, match=why) as caught:
            take(host, hostile(tarball, *placed))
        assert len(str(caught.value)) < 2000
        assert times(outside) == before
        assert {path.name for path in tmp_path.iterdir()} == above
        assert not Path("/tmp/perfbisect-evil").exists()
        left = [path.name for path in builds.iterdir()]
        assert all(name.endswith(".part") for name in left) and not (left and why.startswith("refused"))
        assert unpacked(host, hostile(tarball)).is_dir(), "the next tarball is unpacked"
        shutil.rmtree(builds)


def test_unusual_but_harmless_tarball_is_unpacked(host: LocalHost, tmp_path: Path, outside: Path) -> None:
    """Setuid bits are removed, and files can be deleted. Links stay, but no file is written through a link."""
    before, tarball = times(outside), tmp_path / "kv.tar"
    members: list[Member] = [
        *((f"kv/{mode:o}", FILE, "x", mode) for mode in (0o4755, 0o2755, 0o6777, 0o7777)),
        ("kv/folder", FOLDER, "", 0o7777),
        ("kv/shut/in/file", FILE, "x", 0),
        ("kv/shut/in", FOLDER, "", 0),
        ("kv/shut", FOLDER, "", 0),
        ("kv/lib/libkv.so", LINK, "libkv.so.1", 0o777),
        ("kv/share", LINK, str(outside), 0o777),
        ("kv/lib/libc.so", LINK, "/lib/x86_64-linux-gnu/libc.so.6", 0o777),
    ]
    prefix = unpacked(host, hostile(tarball, *members))
    assert not any(path.lstat().st_mode & 0o7022 for path in prefix.rglob("*") if not path.is_symlink())
    assert (prefix / "shut" / "in" / "file").stat().st_mode & 0o400
    assert (prefix / "shut").stat().st_mode & 0o700 == 0o700
    assert (prefix / "share").is_symlink()
    assert times(outside) == before
    for name in ("-rf", "a b", "*", "$(id)", "a\nb", "inner", "prefix"):
        prefix = unpacked(host, hostile(tarball, (f"{name}/share/text", FILE, "x", 0o644), top=f"{name}/"))
        assert (prefix / "bin" / "kvd").is_file()
        assert (prefix / "share" / "text").read_text() == "x"
        shutil.rmtree(Path(host.root, "builds"))


UNITS = {
    version: packed({f"unit-{version}/unit.h": f"#define UNIT {value}\n"})
    for version, value in (("1.0", 3), ("2.0", 4))
}


@pytest.fixture
def server() -> Iterator[Shelf]:
    with shelf({f"/{version}/unit_{version[0]}_0.tar.gz": unit for version, unit in UNITS.items()}) as state:
        yield state


def archive(server: Shelf, **keys: object) -> Archive:
    usual = {
        "address": f"{server.address}/{{version}}/unit_{{version:_}}.tar.gz",
        "file": "cmake/unit.cmake",
        "pattern": r'UNIT_NAME "unit_([0-9_]+)"',
        "unless": "extra/unit",
        "sha256": {version: sum_of(unit) for version, unit in UNITS.items()},
    }
    return msgspec.convert(usual | keys, Archive)


@pytest.fixture
def units(yard: Yard, server: Shelf) -> Yard:
    """Builds a program that exits with the value UNIT of a header in the archive `unit`."""
    compiled = ["sh", "-c", "$CC {cflags} -I '{archives.unit}' {source}/main.c -o tiny"]
    assert TINY.build
    how = msgspec.structs.replace(TINY.build, compile=[compiled])
    yard.recipe = msgspec.structs.replace(yard.recipe, build=how, archives={"unit": archive(server)})
    return yard


def tree(named: str) -> Files:
    return {
        "main.c": "#include <unit.h>\nint main(void) { return UNIT; }\n",
        "cmake/unit.cmake": f'SET(UNIT_NAME "{named}")\n',
    }


def test_each_commit_gets_the_archive_version_that_it_names(units: Yard, server: Shelf) -> None:
    steps, built = finish(build_commit(units.context(), units.git.commit(tree("unit_1_0"))))
    assert [each.stage for each in steps if isinstance(each, BuildStep)][:4] == ["checkout", "fetch", "fetch", "send"]
    first, second = built.facts, units.build(tree("unit_2_0"))
    assert first.binary != second.binary
    again = units.build(tree("unit_1_0") | {"other.c": "x"})
    assert again.binary == first.binary
    assert [path for path, _ in server.asked] == ["/1.0/unit_1_0.tar.gz", "/2.0/unit_2_0.tar.gz"]
    place = Path(build_store.prefix_folder(units.host, sum_of(UNITS["1.0"])[:32]))
    assert [path.name for path in place.iterdir()] == ["unit.h"]
    (place / "unit.h").unlink()
    units.build(tree("unit_1_0") | {"other.c": "y"})
    assert (place / "unit.h").exists(), "a changed archive folder is unpacked again"
    assert len(server.asked) == 2


def replaced(units: Yard, server: Shelf, files: dict[str, str]) -> BuildFacts:
    """A build with another archive of version 1.0, and with the checksum of this archive in the recipe."""
    other = server.files["/1.0/unit_1_0.tar.gz"] = packed(files)
    return units.build(tree("unit_1_0"), archives={"unit": archive(server, sha256={"1.0": sum_of(other)})})


@pytest.mark.slow
def test_checksum_of_an_archive_is_part_of_the_build_key(units: Yard, server: Shelf) -> None:
    first = units.build(tree("unit_1_0"))
    assert units.build(units.git.head).reused
    changed = replaced(units, server, {"unit.h": "#define UNIT 5\n"})
    assert (changed.key != first.key, changed.binary != first.binary) == (True, True)


def test_archive_that_would_write_elsewhere_is_refused(units: Yard, server: Shelf) -> None:
    with pytest.raises(UsageError, match="is refused: it has names that lead out of the folder") as failed:
        replaced(units, server, {"../../out": "x"})
    assert failed.value.advice.startswith("The file is unit 1.0, from http://127.0.0.1")


def test_tree_that_needs_no_archive_fetches_no_archive(units: Yard, server: Shelf) -> None:
    main = {"main.c": "int main(void) { return 0; }\n"}
    for more in ({}, {"cmake/unit.cmake": "SET(UNIT_NAME", "extra/unit/unit.h": ""}):
        units.build(main | more)
    assert server.asked == []


def test_commit_whose_archive_version_is_unknown_is_skipped(units: Yard) -> None:
    for named, sentence, hint in (
        (
            "unit_9_9",
            "the commit needs unit 9.9, but the recipe has no checksum of that version",
            'Add "9.9" = "SHA256" to [archives.unit.',
        ),
        ("odd", "the file cmake/unit.cmake has no version of unit", "Change `archives.unit.pattern` of the recipe"),
    ):
        with pytest.raises(BuildFailed) as failed:
            units.build(tree(named))
        assert str(failed.value) == f"commit {units.git.head[:10]} cannot be checked out: {sentence}"
        assert failed.value.advice.startswith(hint)
