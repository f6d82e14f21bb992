"""Installed systems that somebody else has built: known by what they hold, used where they are, never written."""

import os
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.host.local import LocalHost
from perfbisect.lab.build import build_store, prebuilt
from perfbisect.recipes.builder import Build, Builder, Dataset, Variant, When

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
    dataset=Dataset(format="old"),
)


def install(folder: Path, version: str = "8.0.36-debug") -> Path:
    """A server that says its own path, which holds a number, and its version."""
    program = folder / "bin" / "kvd"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho "$0  Ver {version} for Linux on x86_64"\n')
    program.chmod(0o755)
    (folder / "bin" / "link").symlink_to("kvd")
    return folder


def pack(folder: Path, tarball: Path, *what: str) -> Path:
    subprocess.run(["tar", "-C", str(folder), "-caf", str(tarball), *what], check=True)
    return tarball


def times(folder: Path) -> dict[str, tuple[int, int]]:
    """What shows that somebody wrote there."""
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_ctime_ns) for path in [folder, *folder.rglob("*")]}


def test_a_folder_is_known_by_what_it_holds_and_used_where_it_is(host: LocalHost, tmp_path: Path) -> None:
    folder = install(tmp_path / "opt" / "kv-8.0.36")
    before = times(tmp_path / "opt")
    built = prebuilt.take(host, BUILDER, "old", str(folder))
    assert (built.facts.commit, built.version, built.prefix) == ("old", "8.0.36-debug", PurePosixPath(folder))
    fixed = build_store.put_in_place(host, "kv", built.facts.key, built.prefix)
    assert os.path.realpath(fixed) == str(folder)
    assert times(tmp_path / "opt") == before

    again = prebuilt.take(host, BUILDER, "other name", str(install(tmp_path / "elsewhere")))
    assert again.facts.key == built.facts.key
    (tmp_path / "elsewhere" / "bin" / "kvd").write_text("#!/bin/sh\necho 8.0.36-debug, but changed\n")
    assert prebuilt.take(host, BUILDER, "changed", str(tmp_path / "elsewhere")).facts.key != built.facts.key


def test_conditions_on_the_version_hold_by_what_is_installed(host: LocalHost, tmp_path: Path) -> None:
    formats = {
        version: prebuilt.take(host, BUILDER, version, str(install(tmp_path / version, version))).builder.dataset.format
        for version in ("8.0.9", "8.0.30")
    }
    assert formats == {"8.0.9": "old", "8.0.30": "new"}


@pytest.mark.parametrize("ending", prebuilt.UNPACKERS)
def test_a_tarball_is_unpacked_once(host: LocalHost, tmp_path: Path, ending: str) -> None:
    install(tmp_path / "kv-8.0.36-linux")
    tarball = pack(tmp_path, tmp_path / f"kv{ending}", "kv-8.0.36-linux")
    built = prebuilt.take(host, BUILDER, "old", str(tarball))
    place = Path(build_store.prefix(host, built.facts.key))
    assert sorted(path.name for path in place.rglob("*")) == ["bin", "kvd", "link"]
    folder = prebuilt.take(host, BUILDER, "folder", str(tmp_path / "kv-8.0.36-linux"))
    assert built.facts.binary == folder.facts.binary
    before = times(place)
    assert prebuilt.take(host, BUILDER, "again", str(tarball)).facts.key == built.facts.key
    assert times(place) == before
    (place / "bin" / "kvd").write_text("changed")
    assert prebuilt.take(host, BUILDER, "again", str(tarball)).facts.binary == built.facts.binary


def test_a_folder_that_installed_systems_have_is_not_left_out(host: LocalHost, tmp_path: Path) -> None:
    tarball = pack(install(tmp_path / "kv"), tmp_path / "kv.tar", "bin")
    assert prebuilt.take(host, BUILDER, "old", str(tarball)).version == "8.0.36-debug"


@pytest.mark.parametrize(("ending", "damage"), [(".tar", "nonsense"), (".tar", "cut"), (".tar.zst", "cut")])
def test_a_damaged_tarball_is_reported(host: LocalHost, tmp_path: Path, ending: str, damage: str) -> None:
    folder = install(tmp_path / "kv")
    (folder / "ballast").write_bytes(os.urandom(1 << 18))
    tarball = pack(tmp_path, tmp_path / f"kv{ending}", "kv")
    content = tarball.read_bytes()
    tarball.write_bytes(content[: len(content) // 2] if damage == "cut" else b"no tarball at all")
    for _ in range(2):  # nothing of it is taken for whole
        with pytest.raises(UsageError, match="damaged, or no tarball"):
            prebuilt.take(host, BUILDER, "old", str(tarball))
    tarball.write_bytes(content)
    assert prebuilt.take(host, BUILDER, "old", str(tarball)).version


def test_what_is_no_installed_system_is_reported(host: LocalHost, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"empty is no installed kv: .*kvd"):
        prebuilt.take(host, BUILDER, "old", str(tmp_path / "empty"))
    with pytest.raises(UsageError, match="There is no folder"):
        prebuilt.take(host, BUILDER, "old", str(tmp_path / "nothing"))
    mute = install(tmp_path / "mute", "")
    (mute / "bin" / "kvd").write_text("#!/bin/sh\necho $0: unknown\n")
    with pytest.raises(UsageError, match="does not print its version"):
        prebuilt.take(host, BUILDER, "old", str(mute))
    how = Build(compile=[["true"]], install=[["true"]], artifacts=["lib/libkv.so"])
    embedded = Builder(name="kv", folder=BUILDER.folder, summary="", driver="kv", variants=BUILDER.variants, build=how)
    with pytest.raises(UsageError, match=r"is no installed kv: it has no lib/libkv.so"):
        prebuilt.take(host, embedded, "old", str(mute))


def test_a_folder_that_cannot_be_read_is_reported(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = install(tmp_path / "kv")
    monkeypatch.setattr(prebuilt, "_FINGERPRINT", 'echo "sha256sum: ./x: Permission denied" >&2; echo abc')
    with pytest.raises(EnvironmentFailure, match="cannot be read: sha256sum"):
        prebuilt.take(host, BUILDER, "old", str(folder))
