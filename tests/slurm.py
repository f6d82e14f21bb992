"""A real Slurm on this machine, with two nodes, for tests."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

import machine
from waiting import ended, processes, until

PROGRAMS = [
    "munged",
    "slurmctld",
    "slurmd",
    "salloc",
    "srun",
    "scancel",
    "squeue",
    "scontrol",
    "sinfo",
    "unshare",
    "sbatch",
]
CONFIGURATION = (Path(__file__).parent / "given" / "slurm.conf").read_text()

_NODE = 'mount -t tmpfs none "$1" && exec slurmd -D -N "$2" -f "$3"'


def why_not() -> str:
    """The reason why Slurm cannot run on this machine, or "" if Slurm can run."""
    return machine.why_not(PROGRAMS, ("--mount",))


class Slurm:
    """A cluster of node n1 with the features quiet and both, and node n2 with the features other and both."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/var/tmp"))
        self.roots = self.folder / "roots"  # empty on each node at first
        self.configuration = self.folder / "slurm.conf"
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.folder.chmod(0o711)
        for name in ("munge", "state", "roots"):
            (self.folder / name).mkdir()
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        self.configuration.write_text(CONFIGURATION.format(folder=self.folder, ports=_ports(3)))
        try:
            self._start()
        except BaseException:
            self.end()
            raise

    def _start(self) -> None:
        munge, to = self.folder / "munge", self.configuration
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        self._daemon("munged", "-F", "--force", *(f"--{option}={munge / name}" for option, name in files.items()))
        until((munge / "socket").exists)
        self._daemon("slurmctld", "-D", "-i", "-f", str(to))
        for node in ("n1", "n2"):
            self._daemon("unshare", "--mount", "sh", "-c", _NODE, "node", str(self.roots), node, str(to))
        self.wait_idle()

    def wait_idle(self) -> None:
        """Wait until no node is completing a job, because Slurm would give the other node to the next job."""
        until(lambda: self.run("sinfo", "--noheader", "--format=%D %t") == "2 idle\n")

    def _daemon(self, *command: str) -> None:
        with (self.folder / f"{Path(command[0]).name}.out").open("ab") as out:
            self._daemons.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
            )

    def run(self, *command: str) -> str:
        """Run a command of Slurm, and return its output."""
        env = os.environ | {"SLURM_CONF": str(self.configuration)}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=env).stdout

    def jobs(self) -> dict[str, str]:
        """The name of each job that has or waits for nodes → its state."""
        lines = self.run("squeue", "--noheader", "--format=%j %T").splitlines()
        return dict(line.rsplit(maxsplit=1) for line in lines if not line.endswith("COMPLETING"))

    def occupy(self, feature: str) -> None:
        """Allocate the node with this feature to a job named other."""
        self.run("salloc", "--no-shell", "--nodes=1", f"--constraint={feature}", "--job-name=other")
        assert "other" in self.jobs()

    def cancel(self, *names: str) -> None:
        """Cancel the jobs with these names, or all jobs if no name is given."""
        self.run("scancel", *(f"--name={name}" for name in names), *([] if names else ["--user=root"]))

    def end(self) -> None:
        """Stop the cluster, and remove its processes and files."""
        self.cancel()
        until(lambda: not self.run("squeue", "--noheader"))  # steps that cannot report their end would stay
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(60)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for pid in processes(str(self.folder)):  # step daemons, and commands of killed sessions that wait in the queue
            os.kill(pid, signal.SIGKILL)
            until(lambda pid=pid: ended(pid))
        shutil.rmtree(self.folder, ignore_errors=True)


def _ports(count: int) -> list[int]:
    """Unused ports."""
    with ExitStack() as stack:
        bound = [stack.enter_context(closing(socket.socket())) for _ in range(count)]
        for each in bound:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in bound]
