"""A store that two people share: what the umask allows works, and everything else is said in one line."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from eagle3_data import PACKAGE_ROOT
from eagle3_data.identity import ExtractionIdentity
from eagle3_data.passes.batch_records import BatchRecord
from eagle3_data.records import write_json
from eagle3_data.records.batch_index import BatchIndex
from eagle3_data.records.checksum import file_checksum
from eagle3_data.store import Store
from eagle3_data.system.processes import this_process

ROOT = Path(__file__).parents[2]
GROUP = 54_320
FIRST, SECOND = 54_321, 54_322
IDENTITY = ExtractionIdentity("f" * 32, (2, 4, 5, 8), "bfloat16", "none", "module:VllmEngine", {})
KEYS = [f"{number:02x}" * 16 for number in range(3)]
NEW = f"{KEYS[0][:2]}{'f' * 30}"
"""A sample for a shelf that is there already."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as two other users")

COMMIT = """
import os, sys
from pathlib import Path
from eagle3_data import cli
from eagle3_data.system.processes import this_process
from eagle3_data.store import Store
def main():
    store = Store("store", sys.argv[1])
    store.prepare()
    with store.in_use():
        states = store.open_incoming(f"writer-{os.getuid()}", this_process()) / "x"
        states.write_bytes(b"states")
        facts = {"size_bytes": 6, "xxh3_128": "", "tokens": 1, "greedy_token": 1}
        assert store.commit(sys.argv[2], states, facts)
if __name__ == "__main__":
    cli.run(main)
"""


# What the program imports is imported first: the interpreter may lie where only root can read. All rights are
# lost with the user id.
AS_SECOND_USER = f"""
import os, sys
import encodings.ascii, mmap, pwd, pyarrow.parquet
del sys.argv[0]
program = compile(sys.argv[0], "program", "exec")
exec(program, {{"__name__": "imported"}})
os.setgroups([])
os.setresgid({GROUP}, {GROUP}, {GROUP})
os.setresuid({SECOND}, {SECOND}, {SECOND})
os.umask(0o002)
exec(program, {{"__name__": "__main__"}})
"""


class Shared:
    """A folder of one group, and two of its members."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.chmod(0o2775)
        os.chown(directory, FIRST, GROUP)

    def make_store(self, umask: int) -> Store:
        """By the first user: three samples, and a run that needs none."""
        store = Store(self.directory / "store", IDENTITY.extraction_id)
        before = os.umask(umask)
        write_json(store.directory / "identity.json", asdict(IDENTITY))
        for key in KEYS:
            part = store.open_incoming("first", this_process()) / "part"
            part.write_bytes(key.encode())
            facts = {"size_bytes": 32, "xxh3_128": file_checksum(part), "tokens": 5, "greedy_token": 1}
            store.commit(key, part, facts)
        facts = {"number": "001", "stripe": 0, "extraction_id": "other"}
        record = BatchRecord(**facts, batch="00000", fingerprint="f", samples=[], left_out=[])
        record.write(self.directory / "results/a/extraction/records/00000.json")
        os.umask(before)
        for path in (self.directory, *self.directory.rglob("*")):
            mode = stat.S_IMODE(path.stat().st_mode)
            os.chown(path, FIRST, GROUP)
            path.chmod(mode)  # chown takes the setgid bit away
        return store

    def call(self, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A program as the second user, whose umask is 002."""
        return subprocess.run(
            [sys.executable, "-c", AS_SECOND_USER, source, *arguments],
            cwd=self.directory,
            env={**os.environ, "PYTHONPATH": PACKAGE_ROOT, "HOME": str(self.directory)},
            capture_output=True,
            text=True,
            check=False,
        )

    def script(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.call((ROOT / "scripts" / name).read_text(encoding="utf-8"), *arguments)

    def store_py(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.script("store.py", command, "--store", "store", *arguments)

    def commit(self, key: str = NEW) -> subprocess.CompletedProcess[str]:
        return self.call(COMMIT, IDENTITY.extraction_id, key)


@pytest.fixture
def shared() -> Iterator[Shared]:
    directory = Path(tempfile.mkdtemp(prefix="shared-"))  # pytest's own are only for whoever runs it
    yield Shared(directory)
    shutil.rmtree(directory)


def assert_explained(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_with_umask_002_a_group_shares_everything(shared):
    store = shared.make_store(0o002)
    done = shared.commit()
    assert done.returncode == 0, done.stderr
    assert store.keys() == {*KEYS, NEW}
    written = [store.states_path(NEW), store.sidecar_path(NEW), store.directory / f"incoming/writer-{SECOND}"]
    for path in written:
        assert (path.stat().st_uid, path.stat().st_gid) == (SECOND, GROUP)
        assert path.stat().st_mode & (stat.S_IRGRP | stat.S_IWGRP)
    assert shared.store_py("list", "--tokens").returncode == 0
    done = shared.store_py("gc", "--delete")
    assert done.returncode == 0, done.stderr
    assert store.keys() == set()


def test_with_umask_022_others_read_and_learn_why_they_cannot_write(shared):
    store = shared.make_store(0o022)
    assert shared.store_py("list", "--tokens").returncode == 0
    assert shared.store_py("verify").returncode == 0
    assert "4 x" not in shared.store_py("gc").stderr
    told = ("permission denied", f"belongs to user {FIRST} (mode 2755)", "chmod -R g+rwX", "extraction.store")
    assert_explained(shared.commit(), *told)
    assert_explained(shared.store_py("gc", "--delete"), "permission denied", "chmod -R g+rwX")
    assert store.keys() == set(KEYS)


@pytest.mark.parametrize("command", ["list", "verify", "gc"])
def test_a_private_store_does_not_look_empty(shared, command):
    shared.make_store(0o077)
    assert_explained(shared.store_py(command), "permission denied", f"user {FIRST}")


def test_private_samples_in_a_readable_store_are_named_and_not_taken_for_damage(shared):
    store = shared.make_store(0o002)
    store.states_path(KEYS[1]).chmod(0o600)
    done = shared.store_py("verify", "--quarantine")
    assert_explained(done, "chmod -R g+rX")
    assert "no permission to read " in done.stdout
    assert done.stdout.endswith(f"it belongs to user {FIRST} (mode 0600)\n")
    assert store.holds(KEYS[1])


@pytest.mark.parametrize("place", ["", "passes", "records"])
def test_nothing_is_deleted_where_what_a_run_needs_cannot_be_read(shared, place):
    store = shared.make_store(0o002)
    directory = shared.directory / "results/a/extraction" / place
    directory.mkdir(exist_ok=True)
    directory.chmod(0o000)
    assert_explained(shared.store_py("gc", "--delete"), "results/a/extraction", "permission denied")
    assert store.keys() == set(KEYS)


@pytest.mark.parametrize("umask", [0o077, 0o022], ids=oct)
def test_a_pass_says_why_it_cannot_use_a_store_before_it_loads_anything(shared, umask):
    shared.make_store(umask)
    config = {
        "extraction": {"engine": IDENTITY.engine, "store": "store"},
        "target": {"path": "model"},
    }
    target = {
        "architecture": "LlamaForCausalLM", "text_architecture": "LlamaForCausalLM", "model_type": "llama",
        "num_hidden_layers": 8, "hidden_size": 4, "vocab_size": 100, "max_position_embeddings": 100,
        "quantization": "none", "weights_bytes": 1, "needs_remote_code": False,
        "fingerprint": IDENTITY.fingerprint, "path": "model",
    }  # fmt: skip
    write_sample_file(shared.directory / "mine/b/tokens")
    write_json(shared.directory / "mine/b/target.json", target)
    write_json(shared.directory / "config.json", config)
    options = {
        "--config": "config.json",
        "--results": "mine/b",
        "--pass-number": "001",
        "--stripe": "0",
        "--engine-log": "engine.log",
        "--ledger": "ledger.json",
    }
    done = shared.script("extract_pass.py", *(part for option in options.items() for part in option))
    assert_explained(done, "permission denied", f"user {FIRST}", "set extraction.store to another directory")
    assert not (shared.directory / "engine.log").exists()


def write_sample_file(directory: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    BatchIndex({}, samples=0, tokens=0).write(directory / "batches.json")
    pq.write_table(pa.table({"sample_id": KEYS, "key": KEYS}), directory / "samples.parquet")
