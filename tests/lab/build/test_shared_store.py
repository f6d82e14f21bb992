"""Stores of objects: a folder, a bucket on a server that speaks S3, and what fsspec has in memory."""

import http.server
import os
import shutil
import stat
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import boto3
import fsspec
import pytest
from moto.server import ThreadedMotoServer

from perfbisect.lab.build.shared_builds import SharedBuilds
from perfbisect.lab.build.shared_store import Store
from sharing import Fleet

KINDS = ("folder", "memory", "s3")


@pytest.fixture(params=KINDS)
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A store of each kind."""
    match request.param:
        case "folder":
            (tmp_path / "store").mkdir()
            yield str(tmp_path / "store")
        case "memory":
            yield f"memory://{uuid.uuid4().hex}"
        case "s3":
            yield from bucket(monkeypatch)


def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in (("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", "secret"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        endpoint = f"http://127.0.0.1:{port}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        client = boto3.client("s3", endpoint_url=endpoint)
        client.create_bucket(Bucket="builds")
        client.close()
        fsspec.filesystem("s3").clear_instance_cache()
        yield "s3://builds/team"
    finally:
        server.stop()


def test_what_is_written_is_read(address: str) -> None:
    store = Store(address)
    data = os.urandom(12_000_000)  # more than one part of an upload
    assert not store.has("one.build")
    with pytest.raises(FileNotFoundError), store.read("one.build") as source:
        source.read(1)
    store.write("one.build", [data[:100], data[100:7_000_000], data[7_000_000:]])
    assert store.has("one.build")
    with store.read("one.build") as source:
        found = bytearray()
        while part := source.read(1 << 16):
            found += part
    assert bytes(found) == data
    store.write("one.build", [b"new"])
    with store.read("one.build") as source:
        assert source.read(10) == b"new"
    store.remove("one.build")
    assert not store.has("one.build")
    with suppress(FileNotFoundError):  # S3 does not say
        store.remove("one.build")


def test_what_is_cut_off_is_not_there(address: str) -> None:
    def parts() -> Iterator[bytes]:
        yield b"begin"
        raise ConnectionResetError("the host is gone")

    store = Store(address)
    with pytest.raises(OSError, match="gone"):
        store.write("one.build", parts())
    assert not store.has("one.build")


@pytest.mark.tools
def test_a_build_by_every_way(fleet: Fleet, address: str) -> None:
    SharedBuilds(address).try_out()
    sha = fleet.commit(7)
    _, warned = fleet.obtain("one", SharedBuilds(address), sha)
    assert not warned
    built, warned = fleet.obtain("two", SharedBuilds(address), sha)
    assert (built.facts.shared, warned) == (True, [])


def write_privately(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        Store(str(folder)).write("one.build", [b"new"])
    finally:
        os.umask(before)


@pytest.mark.parametrize(("folder_mode", "mode"), [(0o755, 0o644), (0o2770, 0o660), (0o1777, 0o644), (0o700, 0o600)])
def test_who_may_read_a_folder_may_read_what_is_written_there(tmp_path: Path, folder_mode: int, mode: int) -> None:
    """Whatever the umask of the user who writes. In a folder with the sticky bit, a file is its writer's alone to change."""
    tmp_path.chmod(folder_mode)
    write_privately(tmp_path)
    assert stat.S_IMODE((tmp_path / "one.build").stat().st_mode) == mode


@pytest.mark.tools
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs other users")
def test_colleagues_of_one_group_read_each_others_builds(tmp_path: Path) -> None:
    """The folder is the group's, and makes no use of the bit that hands its group down."""
    tmp_path.chmod(0o770)
    os.chown(tmp_path, 0, 4242)
    write_privately(tmp_path)
    reader = ["setpriv", "--reuid=4243", "--regid=4243", "--groups=4242"]
    assert (
        subprocess.run([*reader, "cat", "one.build"], cwd=tmp_path, capture_output=True, check=False).stdout == b"new"
    )


class Wordless(http.server.BaseHTTPRequestHandler):
    """Refuses a write as Ceph's server does: with the name of an error, and an empty message."""

    protocol_version = "HTTP/1.1"  # which answers "Expect: 100-continue"

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        text = b"<Error><Code>SignatureDoesNotMatch</Code><Message></Message><RequestId>tx1</RequestId><HostId>rgw</HostId></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_an_error_of_a_bucket_that_has_no_words_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Wordless) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        for name, value in (("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", "wrong"), ("ENDPOINT_URL", address)):
            monkeypatch.setenv(f"AWS_{name}", value)
        fsspec.filesystem("s3").clear_instance_cache()
        with pytest.raises(PermissionError, match="SignatureDoesNotMatch"):
            Store("s3://builds/team").write("one.build", [b"new"])
        server.shutdown()


@pytest.mark.parametrize("address", ["https://cache/builds", "nonsense://x"])
def test_an_address_that_cannot_be_used_is_an_error_of_the_store(address: str) -> None:
    """A hunt goes on without the store; anything else would end it."""
    with pytest.raises(OSError):
        Store(address)


def test_a_folder_may_be_given_as_a_url_or_below_the_home(tmp_path: Path) -> None:
    assert Store(f"file://{tmp_path}").folder == tmp_path
    assert Store("~/builds").folder == Path("~/builds").expanduser()
