"""Connections that are refused, lost and restored: to a real sshd on a separate machine, and through a command."""

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

import pytest
from paramiko import Channel

from machine import Machine
from perfbisect.errors import CommandFailed, ConnectionLost, EnvironmentFailure
from perfbisect.host import jobs, ssh, through
from perfbisect.host.local import LocalHost
from perfbisect.host.protocol import Command, Result
from perfbisect.host.registry import connect
from perfbisect.host.ssh import SshHost
from perfbisect.host.through import Shell, ThroughHost
from perfbisect.recipes.inventory import HostEntry
from program import executable
from waiting import ended, until

pytestmark = pytest.mark.tools

Make = Callable[..., Machine]


def entry(machine: Machine, **changes: object) -> HostEntry:
    return HostEntry(**{"name": "far", "address": machine.address, "root": machine.root, **changes})  # type: ignore[arg-type]


def refused(asked: HostEntry, sentence: str) -> str:
    """The advice of the error, which contains ``sentence``, if a host cannot be reached."""
    with pytest.raises(EnvironmentFailure, match=sentence) as caught:
        connect(asked)
    return caught.value.advice


def test_login_shell_that_prints_text_is_refused_with_advice(make_machine: Make) -> None:
    machine = make_machine(shell="/bin/bash")
    for text in ("Welcome to far", "/etc/motd"):
        (machine.folder / "home/.bashrc").write_text(f"echo {text}\n")
        assert refused(entry(machine), f"shell on host far prints '{text}'").startswith("The file must print nothing")


def test_ssh_connect_timeout_and_root_below_home_are_used(machine: Machine) -> None:
    for config, seconds in (("", ssh.PROMPT), ("Host *\n  ConnectTimeout 7\n", 7)):
        (machine.keys / "config").write_text(config)
        with connect(entry(machine, root="~/a/b")) as host:
            assert host.connection.open().connect_timeout == seconds
            assert host.root == PurePosixPath("/", "root", "a", "b")
    assert (machine.folder / "home/a/b").is_dir()


def test_unknown_or_changed_host_key_is_refused_with_a_command(make_machine: Make) -> None:
    machine, other = make_machine(port=2222, known=False), make_machine(known=False)
    asked = entry(machine, port=2222)
    advice = refused(asked, r"key of host far is not known: .* showed ssh-ed25519 SHA256:")
    assert not (machine.keys / "known_hosts").exists()
    subprocess.run(advice.partition("add it with: ")[2], shell=True, check=True, capture_output=True)
    with connect(asked) as host:
        assert host.run(["true"]).ok
    key = (other.folder / "host_key.pub").read_text()
    (machine.keys / "known_hosts").write_text(f"[{machine.address}]:2222 {key}")
    assert "ssh-keygen -R" in refused(asked, "differs from the known key")


def test_unreachable_host_is_refused_with_the_reason(machine: Machine) -> None:
    refused(entry(machine, address="nowhere.invalid"), r"name nowhere\.invalid of host far cannot be resolved: ")
    refused(entry(machine, root="/proc/x"), "root folder /proc/x of host far cannot be created")
    assert "sshd" in refused(entry(machine, port=2345), r"does not answer at 10\.\S+:2345: ")
    (machine.folder / "authorized_keys").write_text("")
    asked = entry(machine, address=f"root@{machine.address}")
    assert "ssh-copy-id" in refused(asked, "far refuses to log root in")


def test_ssh_configuration_of_the_user_is_used(make_machine: Make) -> None:
    """An alias that sets user, port, key and known_hosts, behind a jump host."""
    jump, machine = make_machine(), make_machine(port=2222)
    shutil.move(machine.keys / "id_ed25519", machine.keys / "mine")
    shutil.move(machine.keys / "known_hosts", machine.keys / "known")
    (machine.keys / "config").write_text(
        f"Host *\n  User root\n  IdentityFile ~/.ssh/mine\n  UserKnownHostsFile ~/.ssh/known\n"
        f"Host door\n  HostName {jump.address}\nHost big\n  HostName {machine.address}\n  Port 2222\n  ProxyJump door\n"
    )
    subprocess.run(["ip", "route", "flush", machine.address], check=False)
    for one, other in ((jump, machine), (machine, jump)):
        subprocess.run(["ip", "-n", one.name, "route", "add", other.address, "via", one.here], check=True)
        Path("/proc/sys/net/ipv4/conf", f"{one.name}a", "forwarding").write_text("1")
    with connect(entry(machine, address="big")) as host:
        assert host.run(["sh", "-c", "echo $SSH_CONNECTION"]).stdout.split()[0] == jump.address


def test_command_is_repeated_after_a_lost_connection(far: SshHost, machine: Machine) -> None:
    pids = Path(machine.root, "pids")

    def lose() -> None:
        until(lambda: pids.exists() and pids.read_text().endswith("\n"))
        machine.kill_sshd()

    loss = threading.Thread(target=lose)
    loss.start()
    script = 'echo $$ >>"$1/pids"; [ "$(wc -l <"$1/pids")" -gt 1 ] || sleep 1000; cat "$1/pids"'
    first, second = far.run(["sh", "-c", script, "x", str(far.root)]).stdout.split()
    loss.join()
    assert first != second
    until(lambda: machine.inside(f"ps -o pid= -p {first}") == "")


def test_truncated_script_or_stdin_is_not_used(far: SshHost, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection breaks in the middle of a path, and in the middle of the input of a command."""

    whole = Channel.sendall

    def tear(part: bytes) -> None:
        def torn(channel: Channel, data: bytes) -> None:
            if part not in data:
                whole(channel, data)
                return
            monkeypatch.setattr(Channel, "sendall", whole)
            whole(channel, data[: data.index(part)])
            time.sleep(0.3)
            machine.kill_sshd()

        far.run(["true"])
        monkeypatch.setattr(Channel, "sendall", torn)

    kept, read, text = Path(machine.root, "kept"), Path(machine.root, "read"), "é\n" * 100_000
    kept.touch()
    tear(b"/no/such/")
    far.run(["rm", "-rf", "--", f"{kept}/no/such/thing"])
    assert kept.exists()
    tear("\né".encode())
    far.run(["sh", "-c", 'cat >>"$1"; echo end >>"$1"', "x", f"{far.root}/read"], stdin=text)
    assert read.read_text() == f"{text}end\n"


def test_restart_of_a_host_is_awaited_and_reported(far: SshHost, machine: Machine) -> None:
    events: list[str] = []

    def see(event: str) -> None:
        events.append(event)
        if "tries to reconnect" in event:
            machine.power_on()

    unsubscribe = far.subscribe(see)
    machine.power_off()
    assert far.run(["echo", "back"]).stdout == "back\n"
    assert [event.partition(";")[0].partition(":")[0] for event in events] == [
        "the connection to host far is lost",
        "the connection to host far is restored",
    ]
    unsubscribe()
    machine.power_off()
    machine.power_on()
    assert far.run(["true"]).ok
    assert len(events) == 2


def test_released_host_reconnects_if_it_is_used(far: SshHost) -> None:
    with far:
        transport = far.connection.open().transport
    assert not transport.active
    assert far.run(["echo", "again"]).stdout == "again\n"


def test_reconnecting_ends_after_its_time_limit(far: SshHost, machine: Machine) -> None:
    events: list[str] = []
    far.subscribe(events.append)
    far.connection.patience = 4  # longer than one attempt takes on a busy machine
    machine.power_off()
    with pytest.raises(ConnectionLost, match="connection to host far is lost: host far"):
        far.run(["true"], timeout=0.5)
    assert [event.partition(";")[2][:30] for event in events] == [" perfbisect tries to reconnect"]
    far.connection.patience = 1000
    with pytest.raises(ConnectionLost):  # a command that cleans up does not wait again
        far.run(["true"])
    machine.power_on()
    assert far.run(["true"]).ok


def test_later_commands_do_not_wait_for_a_host_after_ctrl_c(far: SshHost, machine: Machine) -> None:
    """A command that cleans up makes one attempt to connect."""
    machine.power_off()

    def interrupt(_event: str) -> None:
        raise KeyboardInterrupt

    far.subscribe(interrupt)
    with pytest.raises(KeyboardInterrupt):
        far.run(["true"])
    with pytest.raises(ConnectionLost):
        far.run(["true"])


def test_job_survives_a_lost_connection_and_not_a_restart(far: SshHost, machine: Machine) -> None:
    job = jobs.start(far, ["sh", "-c", "mkfifo go; echo one; read -r line <go; echo two"], name="x", timeout=600)
    lines = jobs.follow_stdout(far, job)
    assert next(lines) == "one"
    machine.kill_sshd()
    machine.inside(f"echo >{far.root}/go")
    assert (list(lines), jobs.status(far, job)) == (["two"], 0)
    job = jobs.start(far, ["sleep", "1000"], name="x", timeout=2000)
    machine.power_off()
    machine.power_on()
    assert (jobs.status(far, job), jobs.running_jobs(far)) == (jobs.LOST, ())


def test_job_that_is_started_twice_runs_once(tmp_path: Path) -> None:
    """The host runs each command twice, as after a lost connection."""

    class Twice(LocalHost):
        def execute(self, command: Command) -> Result:
            super().execute(command)
            return super().execute(command)

    twice = Twice("here", PurePosixPath(tmp_path))
    job = jobs.start(twice, ["sh", "-c", "echo ran >>ran; echo read"], name="x", timeout=9)
    assert list(jobs.follow_stdout(twice, job)) == ["read"]
    assert (tmp_path / "ran").read_text() == "ran\n"
    jobs.kill(twice, job)
    jobs.remove_folder(twice, job)


@pytest.mark.parametrize("losing", [False, True])
def test_writing_to_an_ended_stream_is_an_error(far: SshHost, machine: Machine, losing: bool) -> None:
    """The test writes more than any buffer holds: the writer must not wait for ever."""
    command = ["sleep", "600"] if losing else ["sh", "-c", "echo no >&2; exit 4"]
    loss = threading.Thread(target=machine.kill_sshd if losing else int)
    with pytest.raises(ConnectionLost if losing else CommandFailed), far.stream(command) as end:
        end.settimeout(600)
        loss.start()
        with pytest.raises(BrokenPipeError):
            end.sendall(bytes(50_000_000))
    loss.join()


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_script_receiver_without_its_reader_returns_no_status(tmp_path: Path, shell: str) -> None:
    """`head`, which reads the script, is killed. Status 0 would mean that an empty script has succeeded."""
    executable(tmp_path / "head", "#!/bin/sh\nkill -s KILL $$\n")
    script = b"{\necho done\n}"
    ends = []
    for path in ("/usr/bin:/bin", f"{tmp_path}:/usr/bin:/bin"):
        argv = [shell, "-c", ssh.script_receiver(len(script), "mark")]
        done = subprocess.run(argv, input=script, env={"PATH": path}, capture_output=True, check=False)
        ends.append((done.returncode, done.stdout))
    assert ends == [(0, b"done\n"), (-9, b"")]


# Hosts that are reached through a command, here `env`, which runs the words that are appended.


@pytest.fixture
def box(tmp_path: Path) -> Iterator[ThroughHost]:
    made = connect(HostEntry(name="box", through=["env", "BOX=1"], root=str(tmp_path / "root")))
    assert isinstance(made, ThroughHost)
    yield made
    made.close_connection()


def test_lost_shell_is_restarted_and_reported(box: ThroughHost) -> None:
    events: list[str] = []
    box.subscribe(events.append)
    once = box.root / "once"
    done = box.run(["sh", "-c", f"[ -e {once} ] || {{ touch {once}; kill -9 {server(box)}; sleep 100; }}; echo again"])
    assert done.stdout == "again\n"
    assert [event.split()[-1] for event in events] == ["s", "restored"]


def test_text_that_the_connecting_command_prints_is_ignored(box: ThroughHost) -> None:
    """A scheduler may print a notice at any time, also without a newline at the end."""
    events: list[str] = []
    box.subscribe(events.append)
    notice = "step 1.0 is told: 5 minutes left\n1 0 a b\n\nperfbisect: x\nno end"
    for number in range(3):
        done = box.run(["sh", "-c", f"printf '{notice}' >/proc/{server(box)}/fd/1; echo {number}; exit 3"], check=False)
        assert (done.status, done.stdout) == (3, f"{number}\n")
    assert events == []


def test_connecting_commands_errors_are_read_while_it_writes(box: ThroughHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command and the reader share an open file, and so its offset."""
    running = box.connection.open()
    errors = running._errors

    class Written:
        """A file to which the command writes just before each read."""

        def read(self) -> bytes:
            os.write(errors.fileno(), b"late\n")
            return errors.read()

        def __getattr__(self, name: str) -> object:
            return getattr(errors, name)

    os.write(errors.fileno(), b"early\n" * 1000)
    monkeypatch.setattr(running, "_errors", Written())
    assert running.last_stderr_line() == "early"
    os.write(errors.fileno(), b"end\n")
    assert os.pread(errors.fileno(), 1 << 16, 0) == b"early\n" * 1000 + b"end\n"


def test_greeting_of_the_connecting_command_is_skipped(tmp_path: Path) -> None:
    led = ["sh", "-c", 'printf "welcome\n\nto the node: "; exec "$@"', "led"]
    with connect(HostEntry(name="box", through=led, root=str(tmp_path / "root"))) as box:
        assert box.run(["echo", "on"]).stdout == "on\n"


def test_failed_connecting_command_is_an_error_with_its_message(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"box cannot be reached with sh: .*the allocation has expired"):
        connect(HostEntry(name="box", through=["sh", "-c", "echo the allocation has expired >&2"], root=str(tmp_path)))
    with pytest.raises(EnvironmentFailure, match="no-such-command does not start"):
        connect(HostEntry(name="box", through=["no-such-command"], root=str(tmp_path)))


def test_ctrl_c_ends_the_command_on_the_host(box: ThroughHost, monkeypatch: pytest.MonkeyPatch) -> None:
    note = box.root / "pid"
    main = threading.get_ident()

    def interrupt() -> None:
        until(lambda: Path(note).exists() and Path(note).read_text().strip())
        signal.pthread_kill(main, signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            box.run(["sh", "-c", f"echo $$ >{note}; sleep 1000"], timeout=2000)
    until(lambda: ended(Path(note).read_text().strip()))
    assert box.run(["echo", "on"]).stdout == "on\n"


def test_stream_that_ends_early_is_a_lost_connection(tmp_path: Path) -> None:
    led = ["sh", "-c", '[ "$4" = stream ] && { echo "step killed" >&2; exit 0; }; exec "$@"', "led"]
    box = connect(HostEntry(name="box", through=led, root=str(tmp_path / "root")))
    with box, pytest.raises(ConnectionLost, match="step killed"), box.stream(["true"]):
        pass


def test_released_host_leaves_nothing_behind(box: ThroughHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    box.close_connection()
    box.run(["true"])
    pid = server(box)
    assert list((tmp_path / "tmp").glob("perfbisect-shell-*"))
    box.close_connection()
    assert ended(pid)
    assert not list((tmp_path / "tmp").glob("perfbisect-shell-*"))


def server(box: ThroughHost) -> int:
    """The pid of the process that runs the shell of a host."""
    return box.connection.open()._process.pid


@pytest.mark.parametrize("closed", [False, True])
def test_shell_that_stops_reading_is_lost_and_can_be_closed(closed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(through, "ENDING", 0.5)
    shell = Shell("x", ["sh", "-c", "echo 'perfbisect: 0 0   end'; exec sleep 1000"])
    shell.open()
    host, failures = ThroughHost("x", PurePosixPath("/"), shell), list[str]()

    def call() -> None:
        with pytest.raises(ConnectionLost) as caught:
            host.run_script_once("true", bytes(300_000), "", 1000 if closed else 0.5)  # more than a pipe holds
        failures.append(str(caught.value))

    work = [threading.Thread(target=each, daemon=True) for each in (call, shell.close)]
    for thread, seconds in zip(work, (0.5 if closed else 60, 60), strict=True):
        thread.start()
        thread.join(seconds)  # the first thread needs time to fill the pipe
    work[0].join(60)
    assert [thread.is_alive() for thread in work] == [False, False]
    assert closed or "does not answer" in failures[0]
