"""A real SLURM of one node on loopback with 8 GPUs that are only device files: slurmctld, slurmd and munge of
Debian, as root.

Everything lies in one directory, but for munge's key and links to the two configuration files where SLURM
looks for them: srun inside a job is not told of another place.

    python tests/slurm/cluster.py COMMAND ...    runs a command on such a cluster, then takes the cluster down
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

SYSTEM = Path("/etc/slurm")
CONFIGURATION = ("slurm.conf", "gres.conf")
MUNGE_RUN = Path("/run/munge")
OURS = "slurm-test-cluster"
"""Name of the cluster's own directory: what tells a link to it, also a dangling one, from any other."""
LOCK = Path("/run/slurm-test-cluster.lock")
"""One such cluster a machine: a second one waits for the first."""
PATIENCE_S = 120
"""For SLURM, on a machine that may have more to do."""
PACKAGES = ["slurmctld", "slurmd", "slurm-client", "munge"]

# The node claims the size of a GPU server (config_overrides), so that profiles/slurm is tested as it is
# shipped. Unless told otherwise, a job that can run may wait half a minute until SLURM looks
# (SchedulerParameters). cred_expire is also how long a job that was queued again waits before it starts: two
# minutes unless told otherwise.
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
ReturnToService=2
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
SlurmdSpoolDir={directory}/spool
StateSaveLocation={directory}/state
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.log
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc={directory}/jobs.log
GresTypes=gpu
SlurmdParameters=config_overrides
MinJobAge=300
SlurmdTimeout=5
KillWait=30
NodeName={host} NodeAddr=127.0.0.1 CPUs=32 Boards=1 SocketsPerBoard=1 CoresPerSocket=32 ThreadsPerCore=1 RealMemory=512000 Gres=gpu:8 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def why_impossible() -> str | None:
    """Why no cluster can be started here; None if one can."""
    if os.geteuid() != 0:
        return "needs root to start SLURM daemons"
    if not shutil.which("slurmctld") and not shutil.which("apt-get"):
        return "needs SLURM, or Debian's packages to install it from"
    if (SYSTEM / "slurm.conf").exists() and not left_by_a_test():
        return "needs a machine without a SLURM of its own"
    return None


def left_by_a_test() -> Path | None:
    """Directory of such a cluster that runs now or was never taken down; perhaps it is gone, and only the
    links to it are left."""
    link = SYSTEM / CONFIGURATION[0]
    if not link.is_symlink():
        return None
    directory = link.readlink().parent
    return directory if directory.name == OURS else None


class Cluster:
    def __init__(self, directory: Path) -> None:
        self.directory = directory / OURS
        self._started_munge = False

    def start(self) -> None:
        install_packages()
        for name in ("spool", "state", "gpus"):
            (self.directory / name).mkdir(parents=True)
        for n in range(8):
            os.mknod(
                self.directory / f"gpus/gpu{n}", 0o20666, os.makedev(195, n)
            )  # with plain files SLURM leaves CUDA_VISIBLE_DEVICES empty
        host = socket.gethostname().split(".")[0]
        (self.directory / "slurm.conf").write_text(CONF.format(host=host, directory=self.directory))
        (self.directory / "gres.conf").write_text(
            f"NodeName={host} Name=gpu File={self.directory}/gpus/gpu[0-7] Flags=nvidia_gpu_env\n"
        )
        SYSTEM.mkdir(exist_ok=True)
        for name in CONFIGURATION:
            link = SYSTEM / name
            if link.is_symlink():  # of a cluster that was killed, which may have left only one of them
                link.unlink()
            link.symlink_to(self.directory / name)
        if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode != 0:
            MUNGE_RUN.mkdir(exist_ok=True)
            shutil.chown(MUNGE_RUN, "munge")
            subprocess.run(["su", "-s", "/bin/sh", "munge", "-c", "/usr/sbin/munged"], check=True)
            self._started_munge = True
        self.start_controller()
        self.start_node()

    def stop(self) -> None:
        self.ask("scancel", "--user", "root")
        self.kill_node()
        self.stop_controller()
        if self._started_munge:
            end(MUNGE_RUN / "munged.pid")
        for name in CONFIGURATION:
            (SYSTEM / name).unlink(missing_ok=True)

    def heal(self) -> None:
        """After a test, whatever it did: nothing runs, and the daemons do."""
        if not psutil.pid_exists(read_pid(self.directory / "slurmctld.pid")):
            self.start_controller()
        self.ask("scancel", "--user", "root")
        if not psutil.pid_exists(read_pid(self.directory / "slurmd.pid")):
            self.start_node()
        wait_until(self._cancels_all, lambda: f"jobs do not end: {self.ask('squeue')}")

    def _cancels_all(self) -> bool:
        """Whether no job is left; asked more than once, for a controller that has just been started may not
        have heard it."""
        self.ask("scancel", "--user", "root")
        left = subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=False)
        return left.returncode == 0 and not left.stdout.strip()

    def start_controller(self) -> None:
        subprocess.run(["slurmctld"], check=True)

    def stop_controller(self) -> None:
        end(self.directory / "slurmctld.pid")

    def start_node(self) -> None:
        """Start slurmd, and wait until the controller takes the node for a working one."""
        subprocess.run(["slurmd"], check=True)
        up = ("idle", "mix", "alloc")
        log = self.directory / "slurmctld.log"
        wait_until(
            lambda: self.ask("sinfo", "-h", "-o", "%t") in up,
            lambda: f"the node did not come up: {log.read_text()[-2000:]}",
        )

    def kill_node(self) -> None:
        """What a power cut does: slurmd and everything it runs are gone at once."""
        end(self.directory / "slurmd.pid", kill=True)
        daemons = [
            process for process in psutil.process_iter(["name"]) if process.info["name"] == "slurmstepd"
        ]
        processes = {process for daemon in daemons for process in (daemon, *children(daemon))}
        for word in ("suspend", "kill"):  # first all stand still: none may live to report the end of another
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    getattr(process, word)()

    def ask(self, *command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    def state(self, job: str) -> str:
        """A job's state in SLURM's words, such as RUNNING or PENDING."""
        return self.ask("squeue", "-h", "--states=all", "-j", job, "-o", "%T")

    def finished_jobs(self) -> list[dict[str, str]]:
        """SLURM's records of the jobs that left it, in the order in which they did."""
        log = self.directory / "jobs.log"
        return [
            dict(word.split("=", 1) for word in line.split() if "=" in word)
            for line in log.read_text().splitlines()
        ]


def wait_until(condition: Callable[[], bool], complaint: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(complaint())
        time.sleep(0.25)


def children(process: psutil.Process) -> list[psutil.Process]:
    """All below a process; none where it is gone."""
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def read_pid(pid_file: Path) -> int:
    """The process a daemon's file names; -1, which no process has, where there is no file, or nothing in it
    yet."""
    return int(pid_file.read_text() or -1) if pid_file.exists() else -1


def end(pid_file: Path, kill: bool = False) -> None:
    """End the daemon that wrote `pid_file`, and wait until it is gone."""
    try:
        daemon = psutil.Process(read_pid(pid_file))
    except (ValueError, psutil.NoSuchProcess):  # psutil refuses -1
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        (daemon.kill if kill else daemon.terminate)()
        daemon.wait(30)
    pid_file.unlink(missing_ok=True)


def install_packages() -> None:
    if all(shutil.which(program) for program in ("slurmctld", "slurmd", "squeue", "munged")):
        return
    quiet = {"env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, "stdout": subprocess.DEVNULL}
    patiently = ["apt-get", "-o", "Acquire::Retries=5", "-o", "DPkg::Lock::Timeout=120"]
    subprocess.run([*patiently, "update"], check=True, **quiet)
    subprocess.run([*patiently, "install", "-y", "--no-install-recommends", *PACKAGES], check=True, **quiet)


@contextlib.contextmanager
def running_cluster(directory: Path) -> Iterator[Cluster]:
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if left := left_by_a_test():
            Cluster(left.parent).stop()
        cluster = Cluster(directory)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def main() -> int:
    if reason := why_impossible():
        print(f"no cluster can be started here: it {reason}", file=sys.stderr)
        return 1
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(128 + number)
    )  # the cluster is taken down then, too
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as directory,
        running_cluster(Path(directory)) as cluster,
    ):
        print(cluster.ask("sinfo", "-N", "-o", "%N %P %t %c CPUs, %m MB, %G"), flush=True)
        code = subprocess.run(sys.argv[1:], check=False).returncode
        print((cluster.directory / "jobs.log").read_text(), end="")
    return code


if __name__ == "__main__":
    sys.exit(main())
