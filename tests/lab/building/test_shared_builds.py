"""Builds that hosts share by a store: kinds of stores, uploads and downloads of builds, refused builds, and failures of
the store."""

import ctypes
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Barrier
from typing import Any

import boto3
import fsspec
import msgspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from moto.server import ThreadedMotoServer

from perfbisect.core.domain.events import Warned
from perfbisect.core.domain.facts import BuildFacts
from perfbisect.errors import BuildFilesChanged
from perfbisect.lab.building import build_store, links
from perfbisect.lab.building.shared_builds import PAUSE, SharedBuilds
from perfbisect.lab.building.shared_store import (
    Manifest,
    OpenStoreObject,
    SharedBuildRefused,
    Store,
    header_lines,
    read_header,
)
from perfbisect.recipes.builder import Variant
from program import executable
from sharing import TINY, Yard, tiny
from waiting import finish

pytestmark = [
    pytest.mark.own_ccache,
    pytest.mark.skipif(not shutil.which("ccache"), reason="no ccache"),
    pytest.mark.tools,
]

SECRET = b"0123456789abcdef0123456789abcdef"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store that is a folder."""
    place = tmp_path / "store"
    place.mkdir()
    return place


@dataclass
class Team:
    """Hosts that share their builds in a folder. ``shared()`` is the access of one hunt to the folder."""

    yard: Yard
    folder: Path

    def shared(self, secret: bytes = b"") -> SharedBuilds:
        return SharedBuilds(str(self.folder), secret)

    def get(self, name: str, sha: str, shared: SharedBuilds | None = None, **more: Any) -> tuple[BuildFacts, list[str]]:
        """The build of a commit on the host ``name``, and the warnings."""
        built, warned = self.yard.obtain(name, shared or self.shared(), sha, **more)
        return built.facts, warned

    @property
    def stored(self) -> Path:
        """The only object of the store."""
        (found,) = self.folder.iterdir()
        return found

    def prefix(self, name: str, key: str) -> Path:
        return Path(build_store.prefix_folder(self.yard.on(name), key))

    def runs(self, name: str, key: str, program: str = "small") -> int:
        return subprocess.run([self.prefix(name, key) / "bin" / program], check=False).returncode


@pytest.fixture
def team(yard: Yard, folder: Path) -> Team:
    return Team(yard, folder)


@pytest.fixture
def sha(yard: Yard) -> str:
    return yard.git.commit(tiny(7))


@pytest.fixture
def made(team: Team, sha: str) -> BuildFacts:
    """A build that host one has made and stored."""
    facts, warned = team.get("one", sha)
    assert (facts.reused, warned) == (False, [])
    return facts


@pytest.fixture(params=["folder", "memory", pytest.param("s3", marks=pytest.mark.slow)])
def address(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a store of each kind."""
    if request.param != "s3":
        yield str(folder) if request.param == "folder" else f"memory://{uuid.uuid4().hex}"
        return
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        endpoint = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
        keys = {
            "ACCESS_KEY_ID": "key",
            "SECRET_ACCESS_KEY": "x",
            "DEFAULT_REGION": "us-east-1",
            "ENDPOINT_URL": endpoint,
        }
        for name, value in keys.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        fsspec.filesystem("s3").clear_instance_cache()
        client = boto3.client("s3", endpoint_url=endpoint)
        client.create_bucket(Bucket="builds")
        client.close()
        yield "s3://builds/team"
    finally:
        server.stop()


def read(store: Store, name: str) -> bytes:
    with store.read(name) as source:
        return b"".join(iter(lambda: source.read(1 << 16), b""))


def test_store_has_complete_objects_and_no_partial_objects(address: str) -> None:
    """Errors of the reader or of the writer are raised unchanged."""
    store = Store(address)
    SharedBuilds(address).check_access()
    data = os.urandom(12_000_000)  # more than one part of an upload
    assert not store.has("one.build")
    with pytest.raises(FileNotFoundError):
        read(store, "one.build")
    for parts in ([data[:100], data[100:7_000_000], data[7_000_000:]], [b"new"]):
        store.write("one.build", parts)
        assert store.has("one.build")
        assert read(store, "one.build") == b"".join(parts)
    with pytest.raises(KeyError), store.read("one.build"):
        raise KeyError("ours")
    store.remove("one.build")
    with suppress(FileNotFoundError):  # S3 does not say
        store.remove("one.build")

    def parts_until(failure: Exception) -> Iterator[bytes]:
        yield b"begin"
        raise failure

    for failure in (ConnectionResetError("the host is gone"), KeyError("ours")):
        with pytest.raises(type(failure)):
            store.write("one.build", parts_until(failure))
        assert not store.has("one.build")


@pytest.mark.parametrize(
    ("folder_mode", "group", "mode"),
    [(0o755, 0, 0o644), (0o2770, 0, 0o660), (0o1777, 0, 0o644), (0o700, 0, 0o600), (0o770, 4242, 0o660)],
)
def test_objects_get_the_permissions_of_their_folder(folder: Path, folder_mode: int, group: int, mode: int) -> None:
    """The umask of the writer has no effect. In a folder with the sticky bit, only the writer may change a file."""
    if group and os.geteuid() != 0:
        pytest.skip("only the superuser can give files away")
    os.chown(folder, -1, group or -1)
    folder.chmod(folder_mode)
    before = os.umask(0o077)
    try:
        Store(str(folder)).write("one.build", [b"new"])
    finally:
        os.umask(before)
    facts = (folder / "one.build").stat()
    assert (stat.S_IMODE(facts.st_mode), facts.st_gid) == (mode, folder.stat().st_gid)


@contextmanager
def without_privileges() -> Iterator[None]:
    """Suspend the superuser's right of this thread to open and replace the files of other users."""
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


def test_unreadable_object_is_refused_and_replaced_if_allowed(folder: Path) -> None:
    store, file = Store(str(folder)), folder / "one.build"
    store.write(file.name, [b"old"])
    file.chmod(0)
    places = (file, folder) if os.geteuid() == 0 else ()  # only the superuser can give files away
    for place in places:
        os.chown(place, 4243, 4243)
    for mode in (0o1777, 0o777) if places else (0o755,):
        folder.chmod(mode)
        with without_privileges():
            with pytest.raises(SharedBuildRefused, match="cannot be read: permission denied"):
                read(store, file.name)
            store.write(file.name, [b"new"])
            assert [path.name for path in folder.iterdir()] == [file.name]
        assert file.stat().st_mode & 0o777 == (0 if mode & stat.S_ISVTX else 0o644 | mode & 0o022)
    assert read(store, file.name) == b"new"


def test_folder_that_is_read_only_or_closed_is_a_permission_error(folder: Path) -> None:
    store = Store(str(folder))
    store.write("one.build", [b"old"])
    for mode, is_read in ((0o555, True), (0, False)):
        folder.chmod(mode)
        with without_privileges():
            with pytest.raises(PermissionError):
                store.write("two.build", [b"new"])
            with nullcontext() if is_read else pytest.raises(PermissionError):
                assert read(store, "one.build") == b"old"


def test_error_of_a_bucket_without_text_is_named_by_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, an error of Ceph's server."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(None) from ValueError("SignatureDoesNotMatch")

    monkeypatch.setattr(MemoryFileSystem, "open", refuse)
    with pytest.raises(PermissionError, match="SignatureDoesNotMatch"):
        Store("memory://team").write("one.build", [b"new"])


def test_addresses_of_stores(tmp_path: Path) -> None:
    assert Store(f"file://{tmp_path}").folder == tmp_path
    assert Store("~/builds").folder == Path("~/builds").expanduser()
    for address in ("https://cache/builds", "nonsense://x"):  # after an OSError, a hunt continues without a store
        with pytest.raises(OSError):
            Store(address)


MANIFEST = Manifest(name="n.build", sha256="0" * 64, size=9, way="gzip", root="/srv")
SIGNED, PLAIN = header_lines(MANIFEST, SECRET), header_lines(MANIFEST, b"")


def with_manifest(data: bytes, **changes: object) -> bytes:
    line, _, archive = data.split(b"\n", 2)
    return json.dumps(json.loads(line) | changes).encode() + b"\n\n" + archive


@pytest.mark.parametrize(
    ("data", "secret", "reason"),
    [
        (SIGNED, SECRET, ""),
        (SIGNED, b"", ""),
        (PLAIN, b"", ""),
        (PLAIN, SECRET, "not signed"),
        (header_lines(MANIFEST, SECRET[::-1]), SECRET, "with another key"),
        (SIGNED.replace(b'"absent":[]', b'"absent":["libx.so"]'), SECRET, "was changed after signing"),
        (b"x" * 10_000_000, b"", "does not begin with a manifest"),
        (with_manifest(PLAIN, way="touch"), b"", "the manifest of the file cannot be read"),
        (with_manifest(PLAIN, name="0" * 40), b"", "describes another build"),
    ],
)
def test_manifest_of_a_shared_build_is_verified(data: bytes, secret: bytes, reason: str) -> None:
    source = OpenStoreObject(lambda: io.BytesIO(data + b"archive"))
    if not reason:
        assert read_header(source, MANIFEST.name, secret) == MANIFEST
        assert source.read(10) == b"archive"
        return
    with pytest.raises(SharedBuildRefused, match=reason):
        read_header(source, MANIFEST.name, secret)


def test_host_fetches_the_build_of_another_host(team: Team, made: BuildFacts, sha: str) -> None:
    facts, warned = team.get("two", sha)
    assert (facts.reused, facts.shared, facts.cache_hits, facts.cache_misses, warned) == (True, True, 0, 0, [])
    assert facts.seconds > 0, "the seconds of the original build"
    place = team.prefix("two", made.key).parent
    assert (facts.key, facts.binary, facts.log) == (made.key, made.binary, str(place / "log"))
    assert (Path(facts.log).is_file(), team.runs("two", made.key)) == (True, 7)
    assert [path.name for path in place.parent.iterdir()] == [made.key]
    again = team.get("two", sha)[0]
    assert (again.reused, again.shared, again.seconds) == (True, False, 0.0)


def test_several_hosts_use_one_store_at_the_same_time(team: Team) -> None:
    """As in a hunt, each host has a thread. Two hosts make the same build, then each host gets another host's build."""
    shas, shared, hosts = team.yard.git.history(map(tiny, (7, 8, 9))), team.shared(), range(4)
    contexts, together = [team.yard.context(on=f"host{number}") for number in hosts], Barrier(len(hosts))

    def all_at_once(turn: int) -> list[tuple[BuildFacts, list[str]]]:
        def obtained(number: int) -> tuple[BuildFacts, list[str]]:
            together.wait()
            return team.get(f"host{number}", shas[(number + turn) % len(shas)], shared, context=contexts[number])

        return list(pool.map(obtained, hosts))

    with ThreadPoolExecutor(len(hosts)) as pool:
        made, fetched = all_at_once(0), all_at_once(1)
    assert not [text for _, warned in made + fetched for text in warned]
    assert all(facts.shared for facts, _ in fetched)
    assert len(list(team.folder.iterdir())) == len({facts.key for facts, _ in made}) == len(shas)
    for number, (facts, _) in enumerate(fetched):
        assert team.runs(f"host{number}", facts.key) == 7 + (number + 1) % len(shas)


ODD = r"""mkdir -p {prefix}/bin "$(printf '{prefix}/dir\377\nx')"; cp tiny {prefix}/bin; cp tiny {prefix}/bin/"$(printf 'caf\351\nx')"
ln -s "$(printf '../bin/caf\351\nx')" "$(printf '{prefix}/dir\377\nx/l')"; ln -s tiny {prefix}/bin/-rf; printf x >"$(printf '{prefix}/\302\205 \\n\t')"
"""


def installing(script: str) -> dict[str, object]:
    return {"build": msgspec.structs.replace(TINY.build, install=[["sh", "-c", script]])}


@pytest.mark.slow
def test_file_names_that_are_no_text_are_kept(team: Team, sha: str) -> None:
    """Both by the store and from a build host."""
    (_, first), (facts, second) = (team.get(name, sha, **installing(ODD)) for name in ("one", "two"))
    assert (facts.shared, first, second) == (True, [], [])
    hosts = [team.yard.on(name) for name in ("one", "two", "three")]
    build_store.ship_build(hosts[1], "tiny", facts.key, hosts[2])
    tops = [team.prefix(host.name, facts.key) for host in hosts]
    names = [sorted(str(path.relative_to(top)) for path in top.rglob("*")) for top in tops]
    assert names == [names[0]] * 3
    assert len(names[0]) == 7
    for host in hosts:
        build_store.check_unchanged(host, facts.key)
    (tops[2] / os.fsdecode(b"bin/caf\xe9\nx")).write_text("")
    with pytest.raises(BuildFilesChanged, match=r"\(\./bin/caf\N{REPLACEMENT CHARACTER} x\)"):
        build_store.check_unchanged(hosts[2], facts.key)


def test_earlier_build_is_shared_unless_its_files_have_changed(team: Team, sha: str) -> None:
    """A build is packed to the same archive each time."""
    key = team.yard.obtain("one", None, sha)[0].facts.key
    program = team.prefix("one", key) / "bin" / "tiny"
    mode = program.stat().st_mode
    program.chmod(0o700)
    _, [warned] = team.get("one", sha)
    assert "cannot be shared: files of the build on host one have changed since the build ended (./bin/tiny)" in warned
    assert not list(team.folder.iterdir())
    program.chmod(mode)
    facts, warned = team.get("one", sha)
    assert warned == []
    before = team.stored.read_bytes()
    team.stored.unlink()
    program.touch()
    finish(team.shared().upload(team.yard.context(on="one"), facts))
    assert team.stored.read_bytes() == before
    team.get("two", sha)
    build_store.check_unchanged(team.yard.on("two"), key)
    (team.prefix("two", key) / "bin" / "tiny").write_text("")
    with pytest.raises(BuildFilesChanged, match="on host two"):
        build_store.check_unchanged(team.yard.on("two"), key)


@pytest.mark.slow
def test_shared_build_can_be_linked_again_on_another_host(team: Team, sha: str) -> None:
    context = team.yard.context(on="one", layouts=True)
    if context.recorder is None:
        pytest.skip("no linker")
    made = team.get("one", sha, context=context)[0]
    assert made.linker, made.fixed
    shutil.rmtree(team.yard.folder / "one")  # no file of the original build is used
    facts = team.get("two", sha, layouts=True)[0]
    assert facts.shared
    assert team.runs("two", links.link_layout(team.yard.on("two"), facts.key, 1, context.recorder.linker), "tiny") == 7


def test_refused_build_is_made_again_and_replaced(team: Team, made: BuildFacts, sha: str) -> None:
    second, shared = team.yard.git.commit(tiny(8)), team.shared(SECRET)
    team.get("one", second, shared)
    facts, [warned] = team.get("two", sha, shared)
    assert "a shared build is not trusted, so host two builds it again: " in warned and "is not signed" in warned
    assert not facts.reused
    assert team.runs("two", made.key) == 7
    assert team.get("two", second, shared)[0].shared, "other builds are still fetched"
    assert team.get("three", sha, team.shared(SECRET))[0].shared, "signed with the same key"


def with_archive(data: bytes, archive: bytes) -> bytes:
    """An object with another archive, and correct hash and size: each user who can write to the store can make this."""
    line = data.split(b"\n", 1)[0]
    return with_manifest(line + b"\n\n" + archive, sha256=hashlib.sha256(archive).hexdigest(), size=len(archive))


def forged(data: bytes, *members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """An object with additional members in its archive."""
    line, _, packed = data.split(b"\n", 2)
    way, stream = json.loads(line)["way"], io.BytesIO()
    plain = subprocess.run([way, "-dc"], input=packed, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(plain)) as old, tarfile.open(fileobj=stream, mode="w") as new:
        for each in old.getmembers():
            new.addfile(each, old.extractfile(each) if each.isreg() else None)
        for each, content in members:
            each.size = len(content)
            new.addfile(each, io.BytesIO(content))
    done = subprocess.run([way, "-c"], input=stream.getvalue(), capture_output=True, check=True)
    return with_archive(data, done.stdout)


def member(name: str, kind: bytes = tarfile.REGTYPE, mode: int = 0o755, to: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.mode, made.linkname = kind, mode, to
    return made


EVIL = [
    (member("/tmp/perfbisect-absolute"), "leads out of its folder"),
    (member("./prefix/../../../outside"), "leads out of its folder"),
    (member("./outside"), "what no build has"),
    (member("./prefix/link", tarfile.SYMTYPE, to="../../../outside"), "a link that leads out"),
    (member("./prefix/fifo", tarfile.FIFOTYPE), "a device"),
    (member("./prefix/su", mode=0o4755), "changes the user"),
    (member("./prefix/sg", mode=0o2755), "changes the user"),
]


def test_harmful_archive_is_refused_and_removed(team: Team, made: BuildFacts) -> None:
    kept = team.yard.folder / "kept"
    kept.mkdir()
    (kept / "secret").write_text("secret")
    stored, context = team.stored, team.yard.context(on="two")
    sound = stored.read_bytes()
    team.get("one", team.yard.git.commit(tiny(8)))
    (other,) = (file.read_bytes() for file in team.folder.iterdir() if file != stored)
    at = len(sound) * 2 // 3
    way = member("./prefix/way", tarfile.SYMTYPE, to=str(kept))
    stolen = member("./prefix/stolen", tarfile.LNKTYPE, to="./prefix/way/secret")
    for data, reason in (
        *((forged(sound, (each, b"")), reason) for each, reason in EVIL),
        (sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :], "not what its manifest has the hash of"),
        (with_archive(sound, other.split(b"\n", 2)[2]), "another build than its manifest says"),
        (forged(sound, (way, b""), (stolen, b"")), ""),  # a hard link through a symbolic link reaches nothing
    ):
        stored.write_bytes(data)
        events, is_there = finish(team.shared().fetch(context, made.key))
        [warned] = [event.text for event in events if isinstance(event, Warned)]
        assert reason in warned
        assert stored.exists() == (not reason), "a refused object is removed"
        assert not is_there
        assert not list((team.yard.folder / "two" / "builds").iterdir())
        assert not [*team.yard.folder.rglob("outside"), *Path("/tmp").glob("perfbisect-absolute")]


def test_store_that_was_missing_is_used_again_after_a_pause(team: Team) -> None:
    now, shas, folder = [0.0], team.yard.git.history(map(tiny, range(4))), team.folder
    shared = SharedBuilds(str(folder), clock=lambda: now[0])
    assert team.get("one", shas[0], shared)[1] == []
    away = folder.rename(folder.with_name("away"))
    facts, (read, written) = team.get("one", shas[1], shared)
    assert not facts.reused
    assert "cannot be read: the folder" in read
    assert "cannot be written: the folder" in written
    assert not folder.exists(), "the folder of a missing mount is not created"
    away.rename(folder)
    for sha, later, objects in ((shas[2], 0.0, 1), (shas[3], PAUSE, 2)):  # for a while, the store is not used
        now[0] = later
        assert team.get("one", sha, shared)[1] == []
        assert len([*folder.iterdir()]) == objects


def test_build_with_a_link_out_of_the_installation_is_not_shared(team: Team, sha: str) -> None:
    leaving = installing("mkdir -p {prefix}/bin && cp tiny {prefix}/bin && ln -s /etc/hostname {prefix}/name")
    _, [warned] = team.get("one", sha, **leaving)
    assert "name is a link that leads out of the installation" in warned
    assert not list(team.folder.iterdir())


def test_build_that_contains_its_path_is_shared_only_with_equal_roots(team: Team, sha: str) -> None:
    rooted = installing("mkdir -p {prefix}/bin && cp tiny {prefix}/bin && echo {prefix} >{prefix}/place")
    for name in ("one", "two"):
        facts, warned = team.get(name, sha, **rooted)
        assert (facts.reused, warned) == (False, [])
    shutil.rmtree(team.yard.folder / "one")
    assert team.get("one", sha, **rooted)[0].shared


@pytest.mark.parametrize("native", [pytest.param(False, marks=pytest.mark.slow), True])
def test_native_build_is_shared_only_with_equal_processors(team: Team, native: bool) -> None:
    sha = team.yard.git.commit(tiny(7) | ({"Makefile": "CFLAGS += -march=native\n"} if native else {}))
    usual = team.yard.context(on="one")
    if not usual.tools.processor:
        pytest.skip("the compiler does not say what native stands for")
    team.get("one", sha)
    other = replace(usual, tools=replace(usual.tools, processor="another"))
    for context, fetched in ((other, not native), (team.yard.context(on="one"), True)):
        shutil.rmtree(team.yard.folder / "one" / "builds")
        assert team.get("one", sha, context=context)[0].shared is fetched


def test_host_that_lacks_a_library_makes_its_own_build(team: Team, made: BuildFacts, sha: str) -> None:
    program, library, user = (team.yard.folder / name for name in ("lib.c", "libodd.so", "user"))
    program.write_text("int f(void) { return 1; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, program], check=True)
    program.write_text("int f(void); int main(void) { return f(); }\n")
    subprocess.run(["gcc", "-o", user, program, library, "-Wl,-soname,x"], check=True)
    library.unlink()
    team.stored.write_bytes(forged(team.stored.read_bytes(), (member("./prefix/bin/user"), user.read_bytes())))
    facts, warned = team.get("two", sha)
    assert not facts.shared
    assert "libodd.so, which is not installed" in warned[0]
    assert team.stored.exists(), "other hosts may have the library"


def test_build_is_shared_only_with_equal_toolchain_and_distribution(team: Team, made: BuildFacts, sha: str) -> None:
    other = team.shared()
    other._surroundings["two"] = "riscv64\nother 1\n"
    facts, warned = team.get("two", sha, other)
    assert (facts.reused, warned) == (False, [])
    assert not team.get("three", sha, variants={"o2nofp": Variant(cflags="-O1")})[0].reused


FAILING = '#!/bin/sh\n[ "$1 ${{2%%=*}}" != "{option} --use-compress-program" ] || {{ echo \'tar: out of luck\' >&2; exit 2; }}\nexec {tar} "$@"\n'


@pytest.mark.parametrize(
    ("option", "said"), [("-x", "are not used on host two: tar: out of luck"), ("-c", "cannot be shared")]
)
def test_host_that_cannot_pack_or_unpack_makes_its_own_build(
    team: Team, made: BuildFacts, sha: str, monkeypatch: pytest.MonkeyPatch, option: str, said: str
) -> None:
    tar = executable(team.yard.folder / "bin" / "tar", FAILING.format(option=option, tar=shutil.which("tar")))
    context = team.yard.context(on="two")
    if option == "-c":
        team.stored.unlink()
    monkeypatch.setenv("PATH", str(tar.parent), prepend=":")
    facts, [warned] = team.get("two", sha, context=context)
    assert not facts.reused
    assert said in warned and "out of luck" in warned
    assert not list(team.yard.folder.rglob("*.part"))
