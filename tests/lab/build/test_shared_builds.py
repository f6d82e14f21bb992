"""Builds that one host has made and another needs: where they are kept, what is taken of them, what is refused, and what
happens without a store."""

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
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import boto3
import fsspec
import msgspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from moto.server import ThreadedMotoServer

from perfbisect.core.domain.events import Warned
from perfbisect.core.domain.facts import BuildFacts
from perfbisect.errors import BuildChanged
from perfbisect.host.protocol import Host
from perfbisect.lab.build import build_store, links
from perfbisect.lab.build.shared_builds import PAUSE, SharedBuilds
from perfbisect.lab.build.shared_store import Manifest, Opened, Refused, Store, header, read_header
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


@pytest.fixture
def sha(yard: Yard) -> str:
    return yard.git.commit(tiny(7))


@pytest.fixture
def stored(yard: Yard, folder: Path, sha: str) -> Path:
    """The object of a build that host one has made."""
    assert yard.obtain("one", team(folder), sha)[1] == []
    return only(folder)


def team(folder: Path, secret: bytes = b"") -> SharedBuilds:
    return SharedBuilds(str(folder), secret)


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


@pytest.fixture(params=["folder", "memory", pytest.param("s3", marks=pytest.mark.slow)])
def address(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A store of each kind."""
    if request.param != "s3":
        yield str(folder) if request.param == "folder" else f"memory://{uuid.uuid4().hex}"
        return
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        endpoint = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
        given = ("ACCESS_KEY_ID=key", "SECRET_ACCESS_KEY=x", "DEFAULT_REGION=us-east-1", f"ENDPOINT_URL={endpoint}")
        for name, _, value in (each.partition("=") for each in given):
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


def test_what_is_written_is_read_and_what_is_cut_off_is_not_there(address: str) -> None:
    """An error of who reads or writes is none of the store."""
    store = Store(address)
    SharedBuilds(address).try_out()
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
def test_who_may_read_a_folder_may_read_what_is_written_there(
    folder: Path, folder_mode: int, group: int, mode: int
) -> None:
    """Whatever the umask of the user who writes. In a folder with the sticky bit, a file is its writer's alone to change."""
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


def test_an_error_of_a_bucket_that_has_no_words_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of Ceph's server."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(None) from ValueError("SignatureDoesNotMatch")

    monkeypatch.setattr(MemoryFileSystem, "open", refuse)
    with pytest.raises(PermissionError, match="SignatureDoesNotMatch"):
        Store("memory://team").write("one.build", [b"new"])


def test_addresses(tmp_path: Path) -> None:
    assert Store(f"file://{tmp_path}").folder == tmp_path
    assert Store("~/builds").folder == Path("~/builds").expanduser()
    for address in ("https://cache/builds", "nonsense://x"):  # a hunt goes on without; any other error would end it
        with pytest.raises(OSError):
            Store(address)


def test_what_one_host_has_built_another_fetches(yard: Yard, folder: Path, sha: str, tmp_path: Path) -> None:
    made, warned = yard.obtain("one", team(folder), sha)
    fetched, warnings = yard.obtain("two", team(folder), sha)
    facts, key = fetched.facts, made.facts.key
    assert (made.facts.reused, warned, warnings) == (False, [], [])
    assert (facts.reused, facts.shared, facts.cache_hits, facts.cache_misses) == (True, True, 0, 0)
    assert facts.seconds > 0, "what it took"
    assert facts.binary == made.facts.binary
    assert facts.log == str(tmp_path / "two" / "builds" / key / "log")
    assert Path(facts.log).is_file()
    assert runs(tmp_path / "two", key) == 7
    for name in ("one", "two"):
        assert [path.name for path in (tmp_path / name / "builds").iterdir()] == [key]
    again = yard.obtain("two", team(folder), sha)[0].facts
    assert (again.reused, again.shared, again.seconds) == (True, False, 0.0)


def test_several_hosts_use_one_store_at_the_same_time(yard: Yard, folder: Path, tmp_path: Path) -> None:
    """As hosts of one hunt do: by one object, in a thread each. Two make the same build, and all get what another made."""
    shas, shared, hosts = yard.git.history(map(tiny, (7, 8, 9))), team(folder), range(4)
    contexts = {number: yard.context(on=f"host{number}") for number in hosts}

    def obtained(number: int, sha: str) -> tuple[str, bool, list[str]]:
        together.wait()
        built, warned = yard.obtain(f"host{number}", shared, sha, contexts[number])
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


def installing(script: str) -> dict[str, object]:
    return {"build": msgspec.structs.replace(TINY.build, install=[["sh", "-c", script]])}


@pytest.mark.slow
def test_names_that_are_no_text_travel_as_they_are(yard: Yard, folder: Path, sha: str) -> None:
    """By the store, and from a build host."""

    def names(host: Host) -> list[str]:
        top = Path(build_store.prefix(host, key))
        return sorted(str(path.relative_to(top)) for path in top.rglob("*"))

    for name in ("one", "two"):
        made, warned = yard.obtain(name, team(folder), sha, **installing(ODD))
        assert not warned
    assert made.facts.shared
    key, hosts = made.facts.key, [yard.on(name) for name in ("one", "two", "three")]
    build_store.ship(hosts[1], "tiny", key, hosts[2])
    assert len(names(hosts[0])) == 7
    for host in hosts:
        build_store.check(host, key)
        assert names(host) == names(hosts[0])
    odd = Path(os.fsdecode(b"bin/caf\xe9\nx"))
    (Path(build_store.prefix(hosts[2], key)) / odd).write_text("")
    with pytest.raises(BuildChanged, match=r"\(\./bin/caf\N{REPLACEMENT CHARACTER} x\)"):
        build_store.check(hosts[2], key)


def test_a_build_of_before_is_given_to_the_others_unless_its_files_have_changed(
    yard: Yard, folder: Path, sha: str
) -> None:
    """It is packed the same each time."""
    key = yard.obtain("one", None, sha)[0].facts.key
    program = yard.folder / "one" / "builds" / key / "prefix" / "bin" / "tiny"
    mode = program.stat().st_mode
    program.chmod(0o700)
    _, [warned] = yard.obtain("one", team(folder), sha)
    assert "cannot be shared: files of its build on host one have changed since it was made (./bin/tiny)" in warned
    assert list(folder.iterdir()) == []
    program.chmod(mode)
    facts = yard.obtain("one", team(folder), sha)[0].facts
    before = only(folder).read_bytes()
    only(folder).unlink()
    program.touch()
    finish(team(folder).offer(yard.context(on="one"), facts))
    assert only(folder).read_bytes() == before
    yard.obtain("two", team(folder), sha)
    build_store.check(yard.on("two"), key)
    (yard.folder / "two" / "builds" / key / "prefix" / "bin" / "tiny").write_text("")
    with pytest.raises(BuildChanged, match="on host two"):
        build_store.check(yard.on("two"), key)


@pytest.mark.slow
def test_a_build_can_be_linked_again_where_it_was_not_made(yard: Yard, folder: Path, sha: str, tmp_path: Path) -> None:
    context = yard.context(on="one", layouts=True)
    if context.recorder is None:
        pytest.skip("no linker")
    made, _ = yard.obtain("one", team(folder), sha, context)
    assert made.facts.linker, made.facts.fixed
    shutil.rmtree(tmp_path / "one")  # nothing of it is used
    fetched, _ = yard.obtain("two", team(folder), sha, layouts=True)
    assert fetched.facts.shared
    layout = links.link(yard.on("two"), fetched.facts.key, 1, context.recorder.linker)
    assert runs(tmp_path / "two", layout, "tiny") == 7


def with_manifest(data: bytes, **changes: object) -> bytes:
    line, _, archive = data.split(b"\n", 2)
    return json.dumps(json.loads(line) | changes).encode() + b"\n\n" + archive


MANIFEST = Manifest(name="n.build", sha256="0" * 64, size=9, way="gzip", root="/srv")
SIGNED = header(MANIFEST, SECRET)
PLAIN = header(MANIFEST, b"")


@pytest.mark.parametrize(
    ("data", "secret", "reason"),
    [
        (SIGNED, SECRET, ""),
        (SIGNED, b"", ""),
        (PLAIN, b"", ""),
        (PLAIN, SECRET, "not signed"),
        (header(MANIFEST, SECRET[::-1]), SECRET, "with another key"),
        (SIGNED.replace(b'"absent":[]', b'"absent":["libx.so"]'), SECRET, "was changed after that"),
        (b"", b"", "does not begin with a manifest"),
        (b"x" * 10_000_000, b"", "does not begin with a manifest"),
        (with_manifest(PLAIN, way="touch"), b"", "its manifest cannot be read"),
        (with_manifest(PLAIN, size=-1), b"", "its manifest cannot be read"),
        (with_manifest(PLAIN, name="0" * 40), b"", "manifest is that of another build"),
    ],
)
def test_what_a_shared_build_says_of_itself(data: bytes, secret: bytes, reason: str) -> None:
    source = Opened(lambda: io.BytesIO(data + b"archive"))
    if not reason:
        assert read_header(source, MANIFEST.name, secret) == MANIFEST
        assert source.read(10) == b"archive"
        return
    with pytest.raises(Refused, match=reason):
        read_header(source, MANIFEST.name, secret)


def test_what_is_refused_is_built_again_and_replaced(yard: Yard, folder: Path, stored: Path) -> None:
    second = yard.git.commit(tiny(8))
    yard.obtain("one", team(folder), second)
    (place,) = (file for file in folder.iterdir() if file != stored)
    sound, other = place.read_bytes(), stored.read_bytes()
    at = len(sound) * 2 // 3
    archive = other.split(b"\n", 2)[2]  # with the manifest of the other
    changes = {"sha256": hashlib.sha256(archive).hexdigest(), "size": len(archive)}
    refused = {
        "not what its manifest has the hash of": sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :],
        "manifest is that of another build": other,
        "another build than its manifest says": with_manifest(sound.split(b"\n", 2)[0] + b"\n\n" + archive, **changes),
        "is not signed": sound,
    }
    for number, (reason, data) in enumerate(refused.items()):
        place.write_bytes(data)
        shared = team(folder, SECRET if "signed" in reason else b"")
        built, [warned] = yard.obtain(f"host{number}", shared, second)
        assert "refused" in warned and reason in warned
        assert not built.facts.reused
        assert runs(yard.folder / f"host{number}", built.facts.key) == 8
        assert place.read_bytes() != data
    assert yard.obtain("last", shared, second)[0].facts.shared, "signed with the same key"


def forged(file: Path, *members: tuple[tarfile.TarInfo, bytes]) -> None:
    """Replace the archive by one with something more in it, hash and size corrected: whoever can write there can do that."""
    line, _, packed = file.read_bytes().split(b"\n", 2)
    manifest = msgspec.json.decode(line, type=Manifest)
    plain = subprocess.run([manifest.way, "-dc"], input=packed, capture_output=True, check=True).stdout
    stream = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(plain)) as old, tarfile.open(fileobj=stream, mode="w") as new:
        for each in old.getmembers():
            new.addfile(each, old.extractfile(each) if each.isreg() else None)
        for each, content in members:
            each.size = len(content)
            new.addfile(each, io.BytesIO(content))
    archive = subprocess.run([manifest.way, "-c"], input=stream.getvalue(), capture_output=True, check=True).stdout
    changed = {"sha256": hashlib.sha256(archive).hexdigest(), "size": len(archive)}
    file.write_bytes(header(msgspec.structs.replace(manifest, **changed), b"") + archive)


def member(name: str, kind: bytes = tarfile.REGTYPE, mode: int = 0o755, to: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.mode, made.linkname = kind, mode, to
    return made


def fetched(yard: Yard, folder: Path, built: BuildFacts) -> list[str]:
    """The warnings where host two asks for a build that is refused."""
    events, is_there = finish(team(folder).fetch(yard.context(on="two"), built.key))
    assert not is_there
    assert not list((yard.folder / "two" / "builds").iterdir())
    return [event.text for event in events if isinstance(event, Warned)]


def test_an_archive_that_would_do_harm_is_refused(yard: Yard, folder: Path, sha: str) -> None:
    evil = [
        (member(f"{yard.folder}/absolute"), "leads out of its folder"),
        (member("./prefix/../../../outside"), "leads out of its folder"),
        (member("./outside"), "what no build has"),
        (member("./prefix/link", tarfile.SYMTYPE, to="/etc/passwd"), "a link that leads out"),
        (member("./prefix/link", tarfile.SYMTYPE, to="../../../outside"), "a link that leads out"),
        (member("./prefix/fifo", tarfile.FIFOTYPE), "a device"),
        (member("./prefix/null", tarfile.CHRTYPE), "a device"),
        (member("./prefix/su", mode=0o4755), "changes the user"),
        (member("./prefix/sg", mode=0o2755), "changes the user"),
    ]
    built = yard.obtain("one", team(folder), sha)[0].facts
    stored = only(folder)
    sound = stored.read_bytes()
    for each, reason in evil:
        stored.write_bytes(sound)
        forged(stored, (each, b""))
        [warned] = fetched(yard, folder, built)
        assert reason in warned
        assert not stored.exists()
        assert not [*yard.folder.rglob("absolute"), *yard.folder.rglob("outside")]
    (yard.folder / "kept").mkdir()
    (yard.folder / "kept" / "secret").write_text("secret")
    stored.write_bytes(sound)
    way = member("./prefix/way", tarfile.SYMTYPE, to=str(yard.folder / "kept"))
    forged(stored, (way, b""), (member("./prefix/stolen", tarfile.LNKTYPE, to="./prefix/way/secret"), b""))
    assert fetched(yard, folder, built), "a hard link through a symbolic link reaches nothing"
    assert not list((yard.folder / "two").rglob("stolen"))


def test_an_object_of_another_user_that_cannot_be_read_is_a_missing_one(yard: Yard, folder: Path) -> None:
    """It is built, and takes the place of what only its writer could read, if it may; all others are fetched."""
    shas = yard.git.history(map(tiny, (7, 8)))
    yard.obtain("one", team(folder), shas[0])
    unread = only(folder)
    unread.chmod(0)
    yard.obtain("one", team(folder), shas[1])
    if os.geteuid() == 0:  # nobody but the superuser can give files away
        os.chown(unread, 4243, 4243)
        os.chown(folder, 4243, 4243)
        folder.chmod(0o1777)
    for name in ["two"] * (os.geteuid() == 0) + ["three"]:
        shared = team(folder)
        with without_privileges():
            built, [warned] = yard.obtain(name, shared, shas[0])
            assert not built.facts.reused
            assert "cannot be read" in warned and str(folder) in warned
            assert yard.obtain(name, shared, shas[1])[0].facts.shared, "the store is asked for others"
        if name == "two":
            os.chown(folder, os.geteuid(), -1)
            folder.chmod(0o755)
    built, warnings = yard.obtain("four", team(folder), shas[0])
    assert (built.facts.shared, warnings) == (True, [])


def test_a_store_that_goes_and_comes_back(yard: Yard, folder: Path) -> None:
    now, shas = [0.0], yard.git.history(map(tiny, range(4)))
    shared = SharedBuilds(str(folder), clock=lambda: now[0])
    assert yard.obtain("one", shared, shas[0])[1] == []
    away = folder.rename(folder.with_name("away"))
    built, (read, written) = yard.obtain("one", shared, shas[1])
    assert not built.facts.reused
    assert "cannot be read: there is no folder" in read
    assert "cannot be written: there is no folder" in written
    assert not folder.exists(), "a mount that is missing is not filled"
    away.rename(folder)
    assert yard.obtain("one", shared, shas[2])[1] == []
    assert len([*folder.iterdir()]) == 1, "it is left alone for a while"
    now[0] = PAUSE
    yard.obtain("one", shared, shas[3])
    assert len([*folder.iterdir()]) == 2


def test_a_folder_that_is_only_read_or_cannot_be_entered(yard: Yard, folder: Path, stored: Path, sha: str) -> None:
    second = yard.git.commit(tiny(8))
    for name, mode, fails in (("two", 0o555, ["written"]), ("three", 0, ["read", "written"])):
        folder.chmod(mode)
        shared = team(folder)
        with without_privileges():
            _, warned = yard.obtain(name, shared, second)
            assert len(warned) == len(fails)
            assert all(f"cannot be {what}" in text for what, text in zip(fails, warned, strict=True))
            assert all("Permission denied" in text for text in warned)
            if mode:
                assert yard.obtain(name, shared, sha)[0].facts.shared


def test_what_leads_out_of_the_installation_is_not_shared(yard: Yard, folder: Path, sha: str) -> None:
    leaving = installing("mkdir -p {prefix}/bin && cp tiny {prefix}/bin && ln -s /etc/hostname {prefix}/name")
    _, [warned] = yard.obtain("one", team(folder), sha, **leaving)
    assert "name is a link that leads out of the installation" in warned
    assert not list(folder.iterdir())


def test_a_build_that_knows_its_place_stays_with_such_hosts(yard: Yard, folder: Path, sha: str) -> None:
    rooted = installing("mkdir -p {prefix}/bin && cp tiny {prefix}/bin && echo {prefix} >{prefix}/place")
    yard.obtain("one", team(folder), sha, **rooted)
    elsewhere, warned = yard.obtain("two", team(folder), sha, **rooted)
    assert (elsewhere.facts.reused, warned) == (False, [])
    shutil.rmtree(yard.folder / "one")
    assert yard.obtain("one", team(folder), sha, **rooted)[0].facts.shared


@pytest.mark.parametrize("native", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_tree_that_compiles_for_its_processor_stays_with_such_processors(
    yard: Yard, folder: Path, native: bool
) -> None:
    sha = yard.git.commit(tiny(7) | ({"Makefile": "CFLAGS += -march=native\n"} if native else {}))
    usual = yard.context(on="one")
    if not usual.tools.processor:
        pytest.skip("the compiler does not say what native stands for")
    yard.obtain("one", team(folder), sha)
    other = replace(usual, tools=replace(usual.tools, processor="another"))
    for context, fetched in ((other, not native), (yard.context(on="one"), True)):
        shutil.rmtree(yard.folder / "one" / "builds")
        assert yard.obtain("one", team(folder), sha, context)[0].facts.shared is fetched


def test_a_host_without_a_library_builds_for_itself(yard: Yard, folder: Path, stored: Path, sha: str) -> None:
    program, library, user = (yard.folder / name for name in ("lib.c", "libodd.so", "user"))
    program.write_text("int f(void) { return 1; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, program], check=True)
    program.write_text("int f(void); int main(void) { return f(); }\n")
    subprocess.run(["gcc", "-o", user, program, library, "-Wl,-soname,x"], check=True)
    library.unlink()
    forged(stored, (member("./prefix/bin/user"), user.read_bytes()))
    built, warned = yard.obtain("two", team(folder), sha)
    assert not built.facts.shared
    assert "libodd.so, which is not installed" in warned[0]
    assert stored.exists(), "others may have it"


def test_a_build_is_kept_for_one_toolchain_and_distribution(yard: Yard, folder: Path, stored: Path, sha: str) -> None:
    other = team(folder)
    other._surroundings["two"] = "riscv64\nother 1\n"
    built, warned = yard.obtain("two", other, sha)
    assert (built.facts.reused, warned) == (False, [])
    built, _ = yard.obtain("three", team(folder), sha, variants={"o2nofp": Variant(cflags="-O1")})
    assert not built.facts.reused


FAILING = '#!/bin/sh\n[ "$1 ${{2%%=*}}" != "{option} --use-compress-program" ] || {{ echo \'tar: out of luck\' >&2; exit 2; }}\nexec {tar} "$@"\n'


@pytest.mark.parametrize(
    ("option", "said"), [("-x", "are not used on host two: tar: out of luck"), ("-c", "cannot be shared")]
)
def test_a_host_that_cannot_pack_or_unpack_builds_for_itself(
    yard: Yard, folder: Path, stored: Path, sha: str, monkeypatch: pytest.MonkeyPatch, option: str, said: str
) -> None:
    tar = executable(yard.folder / "bin" / "tar", FAILING.format(option=option, tar=shutil.which("tar")))
    context = yard.context(on="two")
    if option == "-c":
        stored.unlink()
    monkeypatch.setenv("PATH", str(tar.parent), prepend=":")
    built, [warned] = yard.obtain("two", team(folder), sha, context)
    assert not built.facts.reused
    assert said in warned and "out of luck" in warned
    assert not list(yard.folder.rglob("*.part"))
