"""Builds that one host has made and another needs: what it takes, what it refuses, and what it does without a store."""

import ctypes
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from threading import Barrier

import msgspec
import pytest

from perfbisect.errors import BuildChanged, EnvironmentFailure
from perfbisect.host.local import LocalHost
from perfbisect.host.protocol import Host
from perfbisect.lab.build import build_store, links
from perfbisect.lab.build.build_store import ship
from perfbisect.lab.build.shared_builds import PAUSE, SharedBuilds
from perfbisect.lab.build.shared_store import Manifest, header
from perfbisect.recipes.builder import Build, Variant
from sharing import RECIPE, Fleet
from waiting import finish

pytestmark = [pytest.mark.skipif(not shutil.which("ccache"), reason="no ccache"), pytest.mark.tools]


SECRET = b"0123456789abcdef0123456789abcdef"


def only(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def runs(root: Path, key: str, program: str = "small") -> int:
    return subprocess.run([root / "builds" / key / "prefix" / "bin" / program], check=False).returncode


@contextmanager
def without_privileges() -> Iterator[None]:
    """This thread opens and replaces files as any user would: the superuser's right to do so with all of them rests."""
    libc, header = ctypes.CDLL(None, use_errno=True), (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice
    assert libc.capget(header, data) == 0
    effective = data[0]
    data[0] &= ~0b1110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
    assert libc.capset(header, data) == 0
    try:
        yield
    finally:
        data[0] = effective
        assert libc.capset(header, data) == 0


def test_what_one_host_has_built_another_fetches(fleet: Fleet, folder: Path, tmp_path: Path) -> None:
    sha = fleet.commit(7)
    made, warned = fleet.obtain("one", SharedBuilds(str(folder)), sha)
    assert not warned
    assert not made.facts.reused
    fetched, warned = fleet.obtain("two", SharedBuilds(str(folder)), sha)
    assert not warned
    assert (fetched.facts.reused, fetched.facts.shared) == (True, True)
    assert (fetched.facts.cache_hits, fetched.facts.cache_misses) == (0, 0)
    assert fetched.facts.seconds > 0, "what it took"
    assert fetched.facts.binary == made.facts.binary
    assert fetched.facts.log == str(tmp_path / "two" / "builds" / made.facts.key / "log")
    assert Path(fetched.facts.log).is_file()
    assert runs(tmp_path / "two", made.facts.key) == 7
    assert [path.name for path in (tmp_path / "two" / "builds").iterdir()] == [made.facts.key]
    assert [path.name for path in (tmp_path / "one" / "builds").iterdir()] == [made.facts.key]
    again, _ = fleet.obtain("two", SharedBuilds(str(folder)), sha)
    assert (again.facts.reused, again.facts.shared, again.facts.seconds) == (True, False, 0.0)


def test_several_hosts_use_one_store_at_the_same_time(fleet: Fleet, folder: Path, tmp_path: Path) -> None:
    """As hosts of one hunt do: by one object, in a thread each. Two make the same build, and all get what another made."""
    shas, shared, hosts = [fleet.commit(value) for value in (7, 8, 9)], SharedBuilds(str(folder)), range(4)
    contexts = {number: fleet.context(f"host{number}") for number in hosts}

    def obtained(number: int, sha: str) -> tuple[str, bool, list[str]]:
        together.wait()
        built, warned = fleet.obtain(f"host{number}", shared, sha, contexts[number])
        return built.facts.key, built.facts.shared, warned

    def all_at_once(turn: int) -> list[tuple[str, bool, list[str]]]:
        return list(pool.map(lambda number: obtained(number, shas[(number + turn) % len(shas)]), hosts))

    together = Barrier(len(hosts))
    with ThreadPoolExecutor(len(hosts)) as pool:
        made, fetched = all_at_once(0), all_at_once(1)
    assert not [text for _, _, warned in made + fetched for text in warned]
    assert [shared for _, shared, _ in fetched] == [True] * len(hosts)
    assert len(list(folder.iterdir())) == len({key for key, _, _ in made}) == len(shas)
    for number, (key, _, _) in enumerate(fetched):
        assert runs(tmp_path / f"host{number}", key) == 7 + (number + 1) % len(shas)


ODD = r"""mkdir -p {prefix}/bin "$(printf '{prefix}/dir\377\nx')"; cp tiny {prefix}/bin; cp tiny {prefix}/bin/"$(printf 'caf\351\nx')"
ln -s "$(printf '../bin/caf\351\nx')" "$(printf '{prefix}/dir\377\nx/l')"; ln -s tiny {prefix}/bin/-rf; printf x >"$(printf '{prefix}/\302\205 \\n\t')"
"""


def test_names_that_are_no_text_travel_as_they_are(fleet: Fleet, folder: Path, tmp_path: Path) -> None:
    """By the store, and from a build host."""

    def names(host: Host) -> list[str]:
        top = Path(build_store.prefix(host, key))
        return sorted(str(path.relative_to(top)) for path in top.rglob("*"))

    sha, build = fleet.commit(7), msgspec.structs.replace(RECIPE.build, install=[["sh", "-c", ODD]])
    contexts = [fleet.context(name, build=build) for name in ("one", "two")]
    for context in contexts:
        made, warned = fleet.obtain(context.host.name, SharedBuilds(str(folder)), sha, context)
        assert not warned
    assert made.facts.shared
    key, hosts = made.facts.key, [context.host for context in contexts]
    hosts.append(LocalHost("three", PurePosixPath(tmp_path / "three")))
    ship(hosts[1], "tiny", key, hosts[2])
    assert len(names(hosts[0])) == 7
    for host in hosts:
        build_store.check(host, key)
        assert names(host) == names(hosts[0])
    odd = Path(os.fsdecode(b"bin/caf\xe9\nx"))
    (Path(build_store.prefix(hosts[2], key)) / odd).write_text("")
    with pytest.raises(BuildChanged, match=r"\(\./bin/caf\N{REPLACEMENT CHARACTER} x\)"):
        build_store.check(hosts[2], key)


def test_a_build_whose_files_have_changed_is_not_given_to_the_others(
    fleet: Fleet, folder: Path, tmp_path: Path
) -> None:
    sha = fleet.commit(7)
    key = fleet.obtain("one", None, sha)[0].facts.key
    (tmp_path / "one" / "builds" / key / "prefix" / "bin" / "tiny").chmod(0o700)
    _, [warned] = fleet.obtain("one", SharedBuilds(str(folder)), sha)
    assert "cannot be shared: files of its build on host one have changed since it was made (./bin/tiny)" in warned
    assert list(folder.iterdir()) == []
    shutil.rmtree(tmp_path / "one" / "builds" / key)
    fleet.obtain("one", SharedBuilds(str(folder)), sha)
    host = fleet.context("two").host
    fleet.obtain("two", SharedBuilds(str(folder)), sha)
    build_store.check(host, key)
    (tmp_path / "two" / "builds" / key / "prefix" / "bin" / "tiny").write_text("")
    with pytest.raises(BuildChanged, match="on host two"):
        build_store.check(host, key)


def test_a_build_of_before_is_given_to_the_others(fleet: Fleet, folder: Path) -> None:
    sha = fleet.commit(7)
    fleet.obtain("one", None, sha)
    fleet.obtain("one", SharedBuilds(str(folder)), sha)
    assert len(list(folder.iterdir())) == 1


def test_the_same_build_gives_the_same_archive(fleet: Fleet, folder: Path) -> None:
    sha = fleet.commit(7)
    fleet.obtain("one", SharedBuilds(str(folder)), sha)
    first = only(folder)
    before = first.read_bytes()
    first.unlink()
    context = fleet.context("one")
    key = next(iter((fleet.folder / "one" / "builds").iterdir())).name
    for file in (fleet.folder / "one" / "builds" / key).rglob("*"):
        if not file.is_symlink():
            file.touch()
    finish(SharedBuilds(str(folder)).offer(context, key, lambda: False))
    assert only(folder).read_bytes() == before


def test_a_build_can_be_linked_again_where_it_was_not_made(fleet: Fleet, folder: Path, tmp_path: Path) -> None:
    sha = fleet.commit(7)
    context = fleet.context("one", layouts=True)
    if context.recorder is None:
        pytest.skip("no linker")
    made, _ = fleet.obtain("one", SharedBuilds(str(folder)), sha, context)
    assert made.facts.linker, made.facts.fixed
    shutil.rmtree(tmp_path / "one")  # nothing of it is used
    other = fleet.context("two", layouts=True)
    fetched, _ = fleet.obtain("two", SharedBuilds(str(folder)), sha, other)
    assert fetched.facts.shared
    assert other.recorder
    layout = links.link(other.host, fetched.facts.key, 1, other.recorder.linker)
    assert runs(tmp_path / "two", layout, "tiny") == 7


def flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) * 2 // 3] ^= 1
    file.write_bytes(data)


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def with_manifest(change: Callable[[dict[str, object]], None]) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        line, _, archive = file.read_bytes().split(b"\n", 2)
        manifest = json.loads(line)
        change(manifest)
        file.write_bytes(header(msgspec.convert(manifest, Manifest, strict=False), b"") + archive)

    return damage


DAMAGES = {
    "flipped": (flipped, "not what its manifest has the hash of"),
    "truncated": (truncated, "not what its manifest has the hash of"),
    "emptied": (emptied, "does not begin with a manifest"),
    "hash": (with_manifest(lambda found: found.update(sha256="0" * 64)), "not what its manifest has the hash of"),
    "key": (with_manifest(lambda found: found.update(key="0" * 32)), "manifest is that of another build"),
    "format": (with_manifest(lambda found: found.update(format=2)), "not one of this version"),
    "toolchain": (with_manifest(lambda found: found.update(toolchain="gcc 99")), "manifest is that of another build"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_build_is_refused_and_built_again(fleet: Fleet, folder: Path, tmp_path: Path, damage: str) -> None:
    sha = fleet.commit(7)
    fleet.obtain("one", SharedBuilds(str(folder)), sha)
    change, reason = DAMAGES[damage]
    change(only(folder))
    built, warned = fleet.obtain("two", SharedBuilds(str(folder)), sha)
    assert len(warned) == 1
    assert "refused" in warned[0]
    assert reason in warned[0]
    assert not built.facts.reused
    assert runs(tmp_path / "two", built.facts.key) == 7
    fetched, warned = fleet.obtain("three", SharedBuilds(str(folder)), sha)
    assert (fetched.facts.shared, warned) == (True, []), "what was refused is replaced"


def test_the_build_of_another_commit_under_this_name_is_refused(fleet: Fleet, folder: Path, tmp_path: Path) -> None:
    first = fleet.commit(7)
    fleet.obtain("one", SharedBuilds(str(folder)), first)
    one = only(folder)
    second = fleet.commit(8)
    fleet.obtain("one", SharedBuilds(str(folder)), second)
    (other,) = (file for file in folder.iterdir() if file != one)
    shutil.copy(one, other)
    built, warned = fleet.obtain("two", SharedBuilds(str(folder)), second)
    assert "manifest is that of another build" in warned[0]
    assert runs(tmp_path / "two", built.facts.key) == 8
    # with its own manifest and the other's archive
    line, signature, _ = other.read_bytes().split(b"\n", 2)
    archive = one.read_bytes().split(b"\n", 2)[2]
    manifest = json.loads(line) | {"sha256": hashlib.sha256(archive).hexdigest(), "size": len(archive)}
    other.write_bytes(json.dumps(manifest).encode() + b"\n" + signature + b"\n" + archive)
    built, warned = fleet.obtain("three", SharedBuilds(str(folder)), second)
    assert "another build than its manifest says" in warned[0]
    assert runs(tmp_path / "three", built.facts.key) == 8


@pytest.mark.parametrize(
    ("writer", "reader", "reason"),
    [
        (SECRET, SECRET, ""),
        (b"", SECRET, "not signed"),
        (SECRET[::-1], SECRET, "signed with another key"),
        (SECRET, b"", ""),
    ],
)
def test_signatures(fleet: Fleet, folder: Path, writer: bytes, reader: bytes, reason: str) -> None:
    sha = fleet.commit(7)
    fleet.obtain("one", SharedBuilds(str(folder), writer), sha)
    built, warned = fleet.obtain("two", SharedBuilds(str(folder), reader), sha)
    assert built.facts.shared is (reason == "")
    assert [reason in text for text in warned] == ([True] if reason else [])


def test_a_signed_manifest_cannot_be_changed(fleet: Fleet, folder: Path) -> None:
    sha = fleet.commit(7)
    fleet.obtain("one", SharedBuilds(str(folder), SECRET), sha)
    file = only(folder)
    line, rest = file.read_bytes().split(b"\n", 1)
    file.write_bytes(line.replace(b'"absent":[]', b'"absent":["libx.so"]') + b"\n" + rest)
    built, warned = fleet.obtain("two", SharedBuilds(str(folder), SECRET), sha)
    assert not built.facts.shared
    assert "was changed after that" in warned[0]


def forged(file: Path, add: Callable[[tarfile.TarFile], None]) -> None:
    """Replace the archive by one with something more in it, hash and size corrected: whoever can write there can do that."""
    line, _, packed = file.read_bytes().split(b"\n", 2)
    manifest = msgspec.json.decode(line, type=Manifest)
    plain = subprocess.run([manifest.way, "-dc"], input=packed, capture_output=True, check=True).stdout
    stream = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(plain)) as old, tarfile.open(fileobj=stream, mode="w") as new:
        for member in old.getmembers():
            new.addfile(member, old.extractfile(member) if member.isreg() else None)
        add(new)
    archive = subprocess.run([manifest.way, "-c"], input=stream.getvalue(), capture_output=True, check=True).stdout
    changed = {"sha256": hashlib.sha256(archive).hexdigest(), "size": len(archive)}
    file.write_bytes(header(msgspec.structs.replace(manifest, **changed), b"") + archive)


def member(name: str, kind: bytes = tarfile.REGTYPE, mode: int = 0o755, to: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.mode, made.linkname = kind, mode, to
    return made


@pytest.mark.parametrize(
    ("evil", "reason"),
    [
        (lambda at: member(f"{at}/absolute"), "leads out of its folder"),
        (lambda _: member("./prefix/../../../outside"), "leads out of its folder"),
        (lambda _: member("./outside"), "what no build has"),
        (lambda _: member("./prefix/link", tarfile.SYMTYPE, to="/etc/passwd"), "a link that leads out"),
        (lambda _: member("./prefix/link", tarfile.SYMTYPE, to="../../../outside"), "a link that leads out"),
        (lambda _: member("./prefix/fifo", tarfile.FIFOTYPE), "a device"),
        (lambda _: member("./prefix/null", tarfile.CHRTYPE), "a device"),
        (lambda _: member("./prefix/su", mode=0o4755), "changes the user"),
        (lambda _: member("./prefix/sg", mode=0o2755), "changes the user"),
    ],
)
def test_an_archive_that_would_do_harm_is_refused(
    fleet: Fleet, folder: Path, tmp_path: Path, evil: Callable[[Path], tarfile.TarInfo], reason: str
) -> None:
    sha = fleet.commit(7)
    fleet.obtain("one", SharedBuilds(str(folder)), sha)
    forged(only(folder), lambda archive: archive.addfile(evil(tmp_path), io.BytesIO()))
    built, warned = fleet.obtain("two", SharedBuilds(str(folder)), sha)
    assert len(warned) == 1
    assert reason in warned[0]
    assert not built.facts.reused
    assert not list(tmp_path.rglob("absolute"))
    assert not list(tmp_path.rglob("outside"))


def test_a_hard_link_through_a_symbolic_link_reaches_nothing(fleet: Fleet, folder: Path, tmp_path: Path) -> None:
    sha = fleet.commit(7)
    fleet.obtain("one", SharedBuilds(str(folder)), sha)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "secret").write_text("secret")

    def add(archive: tarfile.TarFile) -> None:
        archive.addfile(member("./prefix/way", tarfile.SYMTYPE, to=str(tmp_path / "kept")))
        archive.addfile(member("./prefix/stolen", tarfile.LNKTYPE, to="./prefix/way/secret"))

    forged(only(folder), add)
    try:
        built, _ = fleet.obtain("two", SharedBuilds(str(folder)), sha)
        assert not built.facts.shared
    except EnvironmentFailure:
        pass
    assert not list((tmp_path / "two").rglob("stolen"))


def test_a_store_that_is_absent_is_said_once(fleet: Fleet, tmp_path: Path) -> None:
    shared = SharedBuilds(str(tmp_path / "nowhere"))
    first, second = fleet.commit(7), fleet.commit(8)
    built, warned = fleet.obtain("one", shared, first)
    assert not built.facts.reused
    assert {"cannot be read", "cannot be written"} == {
        word for word in ("cannot be read", "cannot be written") for text in warned if word in text
    }
    assert "there is no folder" in warned[0]
    assert not (tmp_path / "nowhere").exists(), "a mount that is missing is not filled"
    _, warned = fleet.obtain("one", shared, second)
    assert not warned


def test_an_object_of_another_user_that_cannot_be_read_is_a_missing_one(fleet: Fleet, folder: Path) -> None:
    """It is built, and takes the place of what only its writer could read; all others are fetched."""
    shas = [fleet.commit(value) for value in (7, 8, 9)]
    for sha in shas[:2]:
        fleet.obtain("one", SharedBuilds(str(folder)), sha)
        locked = max(folder.iterdir(), key=lambda file: file.stat().st_mtime_ns)
        locked.chmod(0)
    fleet.obtain("one", SharedBuilds(str(folder)), shas[2])
    shared = SharedBuilds(str(folder))
    with without_privileges():
        built, warned = fleet.obtain("two", shared, shas[0])
        assert not built.facts.reused
        assert ["cannot be read" in text and str(folder) in text for text in warned] == [True]
        assert fleet.obtain("two", shared, shas[2])[0].facts.shared, "the store is asked for others"
        assert not fleet.obtain("two", shared, shas[1])[1], "it is said once"
        built, warned = fleet.obtain("three", SharedBuilds(str(folder)), shas[0])
        assert (built.facts.shared, warned) == (True, [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can give files away")
def test_an_object_that_can_neither_be_read_nor_replaced_is_no_fault_of_the_store(fleet: Fleet, folder: Path) -> None:
    first, second = fleet.commit(7), fleet.commit(8)
    fleet.obtain("one", SharedBuilds(str(folder)), first)
    for path, mode in ((only(folder), 0o600), (folder, 0o1777)):
        os.chown(path, 4243, 4243)
        path.chmod(mode)
    shared = SharedBuilds(str(folder))
    with without_privileges():
        assert len(fleet.obtain("two", shared, first)[1]) == 1
        assert not fleet.obtain("two", shared, second)[1]
    assert len([*folder.iterdir()]) == 2


def test_a_folder_that_cannot_be_entered_is_a_store_that_cannot_be_used(fleet: Fleet, folder: Path) -> None:
    folder.chmod(0)
    with without_privileges():
        _, warned = fleet.obtain("one", SharedBuilds(str(folder)), fleet.commit(7))
    assert ["the shared builds in" in text and "Permission denied" in text for text in warned] == [True, True]


def test_a_store_that_goes_and_comes_back(fleet: Fleet, folder: Path) -> None:
    now = [0.0]
    shas = [fleet.commit(value) for value in range(4)]
    shared = SharedBuilds(str(folder), clock=lambda: now[0])
    _, warned = fleet.obtain("one", shared, shas[0])
    assert not warned
    away = folder.rename(folder.with_name("away"))
    built, warned = fleet.obtain("one", shared, shas[1])
    assert not built.facts.reused
    assert ["there is no folder" in text for text in warned] == [True, True]
    away.rename(folder)
    _, warned = fleet.obtain("one", shared, shas[2])
    assert not warned
    assert len([*folder.iterdir()]) == 1, "it is left alone for a while"
    now[0] = PAUSE
    fleet.obtain("one", shared, shas[3])
    assert len([*folder.iterdir()]) == 2


def test_a_store_that_is_only_read_is_read(fleet: Fleet, folder: Path) -> None:
    first, second = fleet.commit(7), fleet.commit(8)
    fleet.obtain("one", SharedBuilds(str(folder)), first)
    folder.chmod(0o555)
    shared = SharedBuilds(str(folder))
    with without_privileges():
        _, warned = fleet.obtain("two", shared, second)
        assert ["cannot be written" in text for text in warned] == [True]
        built, warned = fleet.obtain("two", shared, first)
        assert (built.facts.shared, warned) == (True, [])


def test_a_build_that_knows_its_place_stays_with_such_hosts(fleet: Fleet, folder: Path) -> None:
    rooted = Build(
        compile=[["sh", "-c", "$CC {cflags} -DPLACE='\"{prefix}\"' -o tiny {source}/main.c {source}/one.c"]],
        install=[["sh", "-c", "mkdir -p {prefix}/bin && cp tiny {prefix}/bin && echo {prefix} >{prefix}/place"]],
        artifacts=["bin/tiny"],
        env={"CC": "{cc}"},
    )
    sha = fleet.commit(7)
    fleet.obtain("one", SharedBuilds(str(folder)), sha, build=rooted)
    elsewhere, warned = fleet.obtain("two", SharedBuilds(str(folder)), sha, build=rooted)
    assert (elsewhere.facts.reused, warned) == (False, [])
    shutil.rmtree(fleet.folder / "one")
    same, _ = fleet.obtain("one", SharedBuilds(str(folder)), sha, build=rooted)
    assert same.facts.shared


@pytest.mark.parametrize("native", [False, True])
def test_a_tree_that_compiles_for_its_processor_stays_with_such_processors(
    fleet: Fleet, folder: Path, native: bool
) -> None:
    if native:
        (fleet.folder / "repo" / "Makefile").write_text("CFLAGS += -march=native\n")
    sha = fleet.commit(7)
    made = fleet.context("one")
    if not made.tools.processor:
        pytest.skip("the compiler does not say what native stands for")
    fleet.obtain("one", SharedBuilds(str(folder)), sha, made)
    shutil.rmtree(fleet.folder / "one")
    other = fleet.context("one")
    changed = replace(other, tools=replace(other.tools, processor="another"))
    built, _ = fleet.obtain("one", SharedBuilds(str(folder)), sha, changed)
    assert built.facts.shared is not native
    shutil.rmtree(fleet.folder / "one")
    same, _ = fleet.obtain("one", SharedBuilds(str(folder)), sha, fleet.context("one"))
    assert same.facts.shared


def test_a_host_without_a_library_builds_for_itself(fleet: Fleet, folder: Path) -> None:
    sha = fleet.commit(7)
    fleet.obtain("one", SharedBuilds(str(folder)), sha)
    program = fleet.folder / "lib.c"
    program.write_text("int f(void) { return 1; }\n")
    library, user = fleet.folder / "libodd.so", fleet.folder / "user"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, program], check=True)
    program.write_text("int f(void); int main(void) { return f(); }\n")
    subprocess.run(["gcc", "-o", user, program, library, "-Wl,-soname,x"], check=True)
    library.unlink()
    data = user.read_bytes()

    def add(archive: tarfile.TarFile) -> None:
        info = member("./prefix/bin/user")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))

    forged(only(folder), add)
    built, warned = fleet.obtain("two", SharedBuilds(str(folder)), sha)
    assert not built.facts.shared
    assert "libodd.so, which is not installed" in warned[0]
    assert len(list(folder.iterdir())) == 1, "others may have it"


def test_links_that_leave_the_installation_are_not_shared(fleet: Fleet, folder: Path) -> None:
    build = msgspec.structs.replace(
        RECIPE.build,
        install=[["sh", "-c", "mkdir -p {prefix}/bin && cp tiny {prefix}/bin && ln -s /etc/hostname {prefix}/name"]],
    )
    built, warned = fleet.obtain("one", SharedBuilds(str(folder)), fleet.commit(7), build=build)
    assert not built.facts.reused
    assert "are not shared" in warned[0]
    assert not list(folder.iterdir())


def test_a_build_is_kept_for_one_toolchain_and_distribution(fleet: Fleet, folder: Path) -> None:
    sha = fleet.commit(7)
    fleet.obtain("one", SharedBuilds(str(folder)), sha)
    shared = SharedBuilds(str(folder))
    shared._surroundings["two"] = "riscv64\nother 1\n"
    built, warned = fleet.obtain("two", shared, sha)
    assert (built.facts.reused, warned) == (False, [])
    variants = {"o2nofp": Variant(cflags="-O1")}
    built, _ = fleet.obtain("three", SharedBuilds(str(folder)), sha, variants=variants)
    assert not built.facts.reused
    assert build_store.find(fleet.context("three").host, built.facts.key, sha)


FAILING = '#!/bin/sh\n[ "$1 ${{2%%=*}}" != "{option} --use-compress-program" ] || {{ echo \'tar: out of luck\' >&2; exit 2; }}\nexec {tar} "$@"\n'


@pytest.mark.parametrize(("option", "said"), [("-x", "cannot be unpacked there"), ("-c", "cannot be shared")])
def test_a_host_that_cannot_pack_or_unpack_builds_for_itself(
    fleet: Fleet, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, said: str
) -> None:
    sha = fleet.commit(7)
    fleet.obtain("one", SharedBuilds(str(folder)), sha)
    tar = tmp_path / "bin" / "tar"
    tar.parent.mkdir()
    tar.write_text(FAILING.format(option=option, tar=shutil.which("tar")))
    tar.chmod(0o755)
    context = fleet.context("two")
    if option == "-c":
        only(folder).unlink()
    monkeypatch.setenv("PATH", str(tar.parent), prepend=":")
    built, warned = fleet.obtain("two", SharedBuilds(str(folder)), sha, context)
    assert not built.facts.reused
    assert len(warned) == 1
    assert said in warned[0]
    assert "out of luck" in warned[0]
    assert not list(tmp_path.rglob("*.part"))
