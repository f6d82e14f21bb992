"""Hosts of tests: this machine (``here``), and a simulated other machine (``Machine``).

A Machine is a network namespace at the end of a veth pair, with a real sshd, and with its own processes and mounts. Its
init runs in a pid namespace and a mount namespace, and restarts sshd if sshd ends. The project and the folders of the
tests are not visible on the machine.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from itertools import count
from pathlib import Path, PurePosixPath

from perfbisect.host.local import LocalHost
from waiting import until

SSHD = "/usr/sbin/sshd"
PROJECT = Path(__file__).parents[1]
PLACE = "/srv"  # the folder for perfbisect on each machine: builds of two machines may contain this path
_numbers = count()

# $1: the machine's folder, $2: the login shell of root, then the folders to hide
_INIT = f"""\
folder=$1 shell=$2; shift 2
for hidden do mount -t tmpfs none "$hidden" || exit; done
mount --bind "$folder/home" /root && mount --bind "$folder/root" {PLACE} && mount -t tmpfs none /run && mkdir -m 755 /run/sshd || exit
sed "s,^\\(root:.*:\\)[^:]*$,\\1$shell," /etc/passwd >"$folder/passwd" && mount --bind "$folder/passwd" /etc/passwd
cd /
while :; do {SSHD} -D -e -f "$folder/sshd_config" 2>>"$folder/log"; sleep 0.1; done
"""


def here(root: Path, name: str = "here") -> LocalHost:
    """This machine as a host with this root folder. The fixture ``host`` has the root ``tmp_path/root``."""
    root.mkdir(parents=True, exist_ok=True)
    return LocalHost(name, PurePosixPath(root))


@cache
def _network() -> int:
    """The third number of the addresses of this process's machines, locked until this process ends."""
    for number in range(250):
        lock = os.open(f"/var/tmp/perfbisect-tests-network-{number}", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        left = ["ip", "-4", "addr", "show", "to", f"10.177.{number}.0/24"]  # by a killed process
        if not subprocess.run(left, capture_output=True, check=True).stdout:
            return number
    raise AssertionError("no network is free")


def why_not(
    programs: Sequence[str] = (SSHD, "ip", "unshare", "nsenter", "ssh-keygen"),
    apart: Sequence[str] = ("--net", "--pid", "--mount", "--fork"),
) -> str:
    """The reason why no Machine can be made with these programs and namespaces; empty if it can be made."""
    if os.getuid() != 0:
        return "namespaces are made by root"
    if lacking := [program for program in programs if not shutil.which(program)]:
        return f"no {lacking[0]}"
    probe = ["unshare", *apart, "mount", "-t", "tmpfs", "none", "/mnt"]
    return "no namespaces here" if subprocess.run(probe, capture_output=True, check=False).returncode else ""


class Machine:
    """A running machine."""

    def __init__(self, keys: Path, hidden: list[Path], shell: str = "/bin/sh", port: int = 22) -> None:
        """``keys``: the ~/.ssh of the controller's user. A key is made if there is none."""
        self.folder = Path(tempfile.mkdtemp(prefix="machine-", dir="/var/tmp"))
        self.number = next(_numbers)
        self.name = f"pb{os.getpid()}n{self.number}"
        at = f"10.177.{_network()}.{{}}"
        self.here, self.address = (at.format(4 * (self.number % 63) + end) for end in (1, 2))
        self.port = port
        self.shell = shell
        self.hidden = hidden
        self.keys = keys
        self._init: subprocess.Popen[bytes] | None = None
        self._write()
        run("ip", "netns", "add", self.name)
        run("ip", "link", "add", f"{self.name}a", "type", "veth", "peer", "name", "eth0", "netns", self.name)
        run("ip", "addr", "add", f"{self.here}/30", "dev", f"{self.name}a")
        run("ip", "link", "set", f"{self.name}a", "up")
        for command in (["addr", "add", f"{self.address}/30", "dev", "eth0"], ["link", "set", "eth0", "up"]):
            run("ip", "-n", self.name, *command)
        run("ip", "-n", self.name, "link", "set", "lo", "up")
        self.power_on()

    def _write(self) -> None:
        for name in ("home", "root"):
            (self.folder / name).mkdir()
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "host_key"))
        self.keys.mkdir(mode=0o700, exist_ok=True)
        key = self.keys / "id_ed25519"
        if not key.exists():
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
        shutil.copy(key.with_suffix(".pub"), self.folder / "authorized_keys")
        (self.folder / "sshd_config").write_text(
            f"Port {self.port}\nHostKey {self.folder}/host_key\nAuthorizedKeysFile {self.folder}/authorized_keys\n"
            f"PidFile {self.folder}/pid\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
        )

    @property
    def root(self) -> str:
        """The folder of the machine for perfbisect, by its path on this machine. On the machine, it is ``PLACE``."""
        return str(self.folder / "root")

    def make_known(self) -> None:
        """Add the machine's key to the known_hosts of the controller's user."""
        public = (self.folder / "host_key.pub").read_text()
        name = self.address if self.port == 22 else f"[{self.address}]:{self.port}"
        with (self.keys / "known_hosts").open("a") as known:
            known.write(f"{name} {public}")

    def power_on(self) -> None:
        """Start the init of the machine, and wait for sshd."""
        hidden = [str(path) for path in self.hidden]
        apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"]
        script = ["sh", "-c", _INIT, "init", str(self.folder), self.shell, *hidden]
        # A machine starts with few environment variables, without the variables of the tests.
        clean = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        (self.folder / "pid").unlink(missing_ok=True)
        self._init = subprocess.Popen(["ip", "netns", "exec", self.name, *apart, *script], env=clean)
        until((self.folder / "pid").exists)

    def power_off(self) -> None:
        """Kill all processes of the machine, and wait until they have ended."""
        if self._init:
            first = self.first_process()
            self._init.kill()
            self._init.wait()
            self._init = None
            until(lambda: not _lives(first))

    def link(self, state: str) -> None:
        """Set the network link "down" or "up"."""
        run("ip", "link", "set", f"{self.name}a", state)

    def kill_sshd(self) -> None:
        """Kill sshd and its connections. The init restarts sshd."""
        (self.folder / "pid").unlink(missing_ok=True)
        self.inside("for each in /proc/[0-9]*; do [ $(cat $each/comm) != sshd ] || kill -9 ${each#/proc/}; done")
        until(lambda: self._init is None or (self.folder / "pid").exists())  # the machine may be powered off meanwhile

    def first_process(self) -> int:
        """The pid of the machine's init on this machine; 0 if the machine is powered off."""
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children") if self._init else None
        return int(children.read_text().split()[0]) if children else 0

    def inside(self, script: str) -> str:
        """The output of a script that runs on the machine."""
        enter = ["nsenter", "-t", str(self.first_process()), "-a", "sh", "-c", script]
        return subprocess.run(enter, capture_output=True, text=True, check=False).stdout

    def remove(self) -> None:
        """End the machine, and delete its files."""
        self.power_off()
        run("ip", "netns", "del", self.name)
        shutil.rmtree(self.folder)


def _lives(pid: int) -> bool:
    """Whether a process has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def run(*argv: str) -> None:
    """Run a command that must succeed."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{argv}: {done.stderr}"
