"""A real SLURM of one node on loopback with 8 GPUs that are only device files: slurmctld, slurmd and munge of Debian, as root.

Everything lies in one directory, but for munge's key and links to the two configuration files where SLURM looks for them:
srun inside a job is not told of another place.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

SYSTEM = Path("/etc/slurm")
PACKAGES = ["slurmctld", "slurmd", "slurm-client", "munge"]

# The node claims the size of a GPU server (config_overrides), so that profiles/slurm is tested as it is shipped.
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
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
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc={directory}/jobs.log
GresTypes=gpu
SlurmdParameters=config_overrides
MinJobAge=300
SlurmdTimeout=20
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=32 Boards=1 SocketsPerBoard=1 CoresPerSocket=32 ThreadsPerCore=1 RealMemory=512000 Gres=gpu:8 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def why_impossible() -> str | None:
    """Why no cluster can be started here; None if one can."""
    if os.geteuid() != 0:
        return "needs root to start SLURM daemons"
    if not shutil.which("slurmctld") and not shutil.which("apt-get"):
        return "needs SLURM, or Debian's packages to install it from"
    if (SYSTEM / "slurm.conf").exists():
        return "needs a machine without a SLURM of its own"
    return None


class Cluster:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def start(self) -> None:
        if not all(shutil.which(program) for program in ("slurmctld", "slurmd", "squeue", "munged")):
            quiet = {"env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, "stdout": subprocess.DEVNULL}
            subprocess.run(["apt-get", "update"], check=True, **quiet)
            subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES], check=True, **quiet)
        for name in ("spool", "state", "gpus"):
            (self.directory / name).mkdir(parents=True)
        for n in range(8):
            os.mknod(self.directory / f"gpus/gpu{n}", 0o20666, os.makedev(195, n))  # with plain files SLURM leaves CUDA_VISIBLE_DEVICES empty
        host = socket.gethostname().split(".")[0]
        (self.directory / "slurm.conf").write_text(CONF.format(host=host, directory=self.directory))
        (self.directory / "gres.conf").write_text(f"NodeName={host} Name=gpu File={self.directory}/gpus/gpu[0-7] Flags=nvidia_gpu_env\n")
        SYSTEM.mkdir(exist_ok=True)
        for name in ("slurm.conf", "gres.conf"):
            (SYSTEM / name).unlink(missing_ok=True)  # a dangling link of a run that was killed
            (SYSTEM / name).symlink_to(self.directory / name)
        if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode != 0:
            Path("/run/munge").mkdir(exist_ok=True)
            shutil.chown("/run/munge", "munge")
            subprocess.run(["su", "-s", "/bin/sh", "munge", "-c", "/usr/sbin/munged"], check=True)
        subprocess.run(["slurmctld"], check=True)
        subprocess.run(["slurmd"], check=True)
        for _ in range(60):
            if self.ask("sinfo", "-h", "-o", "%t") == "idle":
                return
            time.sleep(0.5)
        raise RuntimeError(f"the cluster did not come up: {(self.directory / 'slurmctld.log').read_text()[-2000:]}")

    def ask(self, *command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    def stop(self) -> None:
        for name in ("slurmd", "slurmctld"):
            pid_file = self.directory / f"{name}.pid"
            if pid_file.exists():
                os.kill(int(pid_file.read_text()), signal.SIGTERM)
        for name in ("slurm.conf", "gres.conf"):
            (SYSTEM / name).unlink(missing_ok=True)
