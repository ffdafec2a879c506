"""What the status says, told from small hand-made records: what counts, why the rest does not, and the
command that goes on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle3_data.errors import SampleError
from eagle3_data.hashing import batch_fingerprint
from eagle3_data.passes.batch_records import FailureRecord
from eagle3_data.passes.lease import SILENT_S
from eagle3_data.passes.paths import PassPaths
from eagle3_data.records import write_json
from eagle3_data.records.failures import describe_situation
from eagle3_data.system.processes import this_process
from eagle3_data.validation.verdict import BatchVerdict

SCRIPT = Path(__file__).parents[2] / "scripts/show_status.py"
COMMAND = "snakemake --cores all extract --configfile config/mine.yaml"
NOW, BEFORE = "extraction-now", "extraction-before"
SAMPLES = 3
NO_PROCESS = {**this_process().to_json(), "pid_started": "another process had this number"}


class Records:
    """A run's records below `directory`/results/test: tokenized in `batches` batches of three samples."""

    def __init__(self, directory: Path, batches: int = 2) -> None:
        self.directory, self.results = directory, directory / "results/test"
        self.paths = PassPaths(self.results / "extraction")
        self.tokenize({f"{number:05d}": f"tokens of {number:05d}" for number in range(batches)})

    def tokenize(self, fingerprints: dict[str, str]) -> None:
        self.fingerprints = fingerprints
        entries = {
            batch: {"samples": SAMPLES, "tokens": 30, "row_group": 0, "fingerprint": told}
            for batch, told in fingerprints.items()
        }
        counts = {
            "samples": SAMPLES * len(entries),
            "tokens": 30 * len(entries),
            "dropped": {},
            "remarks": [],
        }
        write_json(self.results / "tokens/batches.json", {"batches": entries, **counts})

    def fingerprint(self, batch: str, extraction_id: str = NOW) -> str:
        return batch_fingerprint(extraction_id, self.fingerprints[batch])

    def gate(self, batch: str, extraction_id: str = NOW) -> None:
        record = {
            "batch": batch,
            "fingerprint": self.fingerprint(batch, extraction_id),
            "ledger": "",
            "samples": SAMPLES,
            "left_out": [],
        }
        write_json(self.results / f"extraction/batches/{batch}.json", record)

    def validation(self, batch: str, extraction_id: str = NOW, samples: int = SAMPLES) -> None:
        verdict = BatchVerdict(batch, self.fingerprint(batch, extraction_id), extraction_id, samples, 30, 1)
        verdict.write(self.results / f"validation/{batch}.json")

    def ledger(
        self,
        number: str,
        stripe: int | str = 0,
        extraction_id: str = NOW,
        causes: dict[str, str] | None = None,
        **facts: Any,
    ) -> None:
        """A ledger that says of each batch in `causes` that one sample failed so, or, for an empty cause,
        that it is complete."""
        batches = {}
        for batch, cause in (causes or {}).items():
            failed = (
                [
                    {
                        "sample_id": "s",
                        "key": "k",
                        "record": f"results/test/extraction/failures/{batch}/{number}-k.json",
                    }
                ]
                if cause
                else []
            )
            batches[batch] = {
                "state": "failed" if cause else "complete",
                "fingerprint": self.fingerprint(batch, extraction_id),
                "samples": SAMPLES,
                "left_out": [],
                "failed": failed,
                "not_reached": 0,
            }
            if cause:
                FailureRecord(
                    number=number,
                    stripe=stripe,
                    extraction_id=extraction_id,
                    versions={},
                    retry=None,
                    batch=batch,
                    sample_id="s",
                    key="k",
                    tokens=10,
                    attempt=1,
                    failure=describe_situation(SampleError, cause),
                ).write(self.paths.failure(batch, number, "k"))
        told = {
            "pass": number,
            "stripe": stripe,
            "extraction_id": extraction_id,
            "written_bytes": 0,
            "failure": None,
            "batches": batches,
            **facts,
        }
        write_json(self.paths.ledger(number, stripe), told)

    def lease(
        self,
        number: str,
        stripe: int = 0,
        jobs: int = 1,
        process: dict[str, Any] | None = None,
        extraction_id: str = NOW,
        **facts: Any,
    ) -> None:
        told = {"phase": "loading", "started_at": 0.0, "updated_at": 5.0, "token": "t", "beat": 1}
        record = {
            **(process or this_process().to_json()),
            "pass": number,
            "stripe": stripe,
            "extraction_id": extraction_id,
            **told,
            **facts,
        }
        write_json(self.paths.running / f"{stripe}-of-{jobs}.json", record)

    def log(self, number: str, stripe: int = 0, age_s: float = 2 * SILENT_S) -> None:
        path = self.directory / f"logs/test/extract_pass/{number}/{stripe}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (path.stat().st_mtime - age_s,) * 2)

    def refuse(self, title: str) -> None:
        finding = {
            "id": "layer-out-of-range",
            "level": "fail",
            "title": title,
            "remedy": "choose others",
            "accepted": False,
        }
        write_json(
            self.results / "compatibility/report.failed.json", {"verdict": "fail", "findings": [finding]}
        )

    def status(
        self,
        *arguments: str,
        results: Path | str = "results/test",
        cwd: Path | None = None,
        command: str = "",
    ) -> str:
        """What the script says. `command` is the one Snakemake was called with, where Snakemake calls the
        script."""
        environment = {**os.environ, "EAGLE3_DATA_COMMAND": command}
        call = [sys.executable, str(SCRIPT), "--results", str(results), *arguments]
        done = subprocess.run(
            call, cwd=cwd or self.directory, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def squeezed(told: str) -> str:
    """The text with one blank for several: whatever the columns of a table are aligned to."""
    return re.sub(" +", " ", told)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path)


def test_rejections_are_causes_also_of_batches_that_no_pass_had_to_extract(tmp_path: Path) -> None:
    records = Records(tmp_path, batches=1)
    reasons = {
        "a": "unreadable: a.safetensors is torn",
        "b": "checksum: b is not what was written",
        "c": "unreadable: c.safetensors is torn",
    }
    verdict = BatchVerdict("00000", "", NOW, SAMPLES, 30, 0, reasons)
    verdict.write(records.results / "validation/rejected/00000.json")
    told = records.status()
    assert "00000  rejected" in told
    assert (
        "  2 samples: rejected by validation: unreadable: a.safetensors is torn\n  1 sample: rejected by"
        " validation: checksum" in told
    )
    assert "logs/test/validate_pass, logs/test/validate_batch" in told
    assert "logs: logs/test\n" not in told


def finished(records: Records, extraction_id: str = NOW) -> None:
    """All is extracted and validated, by pass 001."""
    records.ledger(
        "001", extraction_id=extraction_id, causes=dict.fromkeys(records.fingerprints, ""), command=COMMAND
    )
    for batch in records.fingerprints:
        records.gate(batch, extraction_id)
        records.validation(batch, extraction_id)


def test_a_finished_run_is_summed_up_in_counts_alone(records: Records) -> None:
    finished(records)
    for told in (records.status(), records.status("--extraction-id", NOW)):
        assert "2 of 2 batches extracted, 2 validated" in told
        assert "snakemake" not in told


def test_what_validation_could_not_prove_is_listed(records: Records) -> None:
    finished(records)
    proof = {"proof": "greedy-token", "samples": 2, "covers": "last slot"}
    for batch in records.fingerprints:
        path = records.results / f"validation/{batch}.json"
        write_json(path, {**json.loads(path.read_text()), "proofs": [proof]})
    told = records.status()
    assert "  proof: greedy-token: 4 samples (last slot)\n  not proven: " in told
    assert "no reference was made\n" in told


def test_what_tokenization_cut_or_left_out_is_counted(records: Records) -> None:
    path = records.results / "tokens/batches.json"
    record = json.loads(path.read_text())
    write_json(
        path, {**record, "remarks": ["3 samples cut", "2 x ignored-field"], "dropped": {"duplicate": 4}}
    )
    assert (
        "  dropped by tokenization: 4 duplicate\n  tokenization: 3 samples cut\n  tokenization: 2 x"
        " ignored-field\n" in records.status()
    )


def test_what_another_extraction_left_does_not_count(records: Records) -> None:
    finished(records, BEFORE)
    told = records.status("--extraction-id", NOW, command=COMMAND)
    assert "0 of 2 batches extracted, 0 validated" in told
    assert told.count(" pending ") == 2
    assert f"\n    {COMMAND}\n" in told


def test_what_other_tokens_left_does_not_count(records: Records) -> None:
    finished(records)
    records.tokenize({"00000": "tokens of 00000", "00001": "an edited row", "00002": "a new batch"})
    told = records.status("--all")
    assert "1 of 3 batches extracted, 1 validated" in told
    assert [line.split()[1] for line in told.splitlines() if line.startswith("  00")] == [
        "validated",
        "pending",
        "pending",
    ]


def test_a_validation_of_what_the_gate_no_longer_stands_for_does_not_count(records: Records) -> None:
    finished(records)
    records.validation("00000", BEFORE)
    records.validation("00001", samples=SAMPLES - 1)  # the sample it went without has been extracted since
    assert "2 of 2 batches extracted, 0 validated" in records.status()


def test_a_training_set_of_another_extraction_is_not_announced(records: Records) -> None:
    finished(records)
    provenance = records.results / "training_set/provenance.json"
    write_json(provenance, {"extraction_id": BEFORE})
    assert "training set:" not in records.status()
    write_json(provenance, {"extraction_id": NOW})
    assert "training set: results/test/training_set" in records.status()


def test_the_last_lines_of_a_finished_run_train_a_draft(records: Records) -> None:
    finished(records)
    command = "speculators train --config results/test/training_set/train.yaml"
    facts = {
        "extraction_id": NOW,
        "draft_vocabulary": {"size": 8000, "coverage": 0.9961, "recommended": True, "full": False},
        "formats": {"speculators": {"folder": ".", "auxiliary_layers": [2, 4], "command": command}},
    }
    write_json(records.results / "training_set/provenance.json", facts)
    told = records.status("--extraction-id", NOW, "--part", "summary", "--command", "snakemake TARGET")
    assert "  draft vocabulary: 8,000 tokens, 99.61% of trained tokens, as recommended\n" in told
    assert told.endswith(f"with speculators (results/test/training_set/README.md):\n    {command}\n")


@pytest.mark.parametrize("process", [None, NO_PROCESS], ids=["running", "killed"])
def test_the_newest_pass_tells_which_extraction_is_meant_also_before_its_ledger(
    records: Records, process: dict[str, Any] | None
) -> None:
    finished(records, BEFORE)
    records.lease("002", process=process)
    assert "0 of 2 batches extracted" in records.status()


def test_batches_that_were_all_in_the_store_count_without_any_pass(records: Records) -> None:
    records.ledger("001", "stored", causes=dict.fromkeys(records.fingerprints, ""))
    for batch in records.fingerprints:
        records.gate(batch)
    assert "2 of 2 batches extracted" in records.status()


def test_under_impossible_layer_ids_nothing_counts_and_the_check_tells_why(records: Records) -> None:
    finished(records)
    records.refuse("layer id 99 is outside 0..8")
    told = records.status("--extraction-id", "", "--failed", "--part", "summary", command=COMMAND)
    assert "0 of 2 batches extracted, 0 validated" in told
    assert "  layer-out-of-range: layer id 99 is outside 0..8; choose others\n" in told
    assert "logs/test/check_compatibility.log" in told
    assert f"\n    {COMMAND}\n" in told


def test_another_terminal_hears_of_a_failed_check_that_no_pass_has_followed(records: Records) -> None:
    """It cannot know the configuration that failed the check: the counts are those of the last pass."""
    finished(records)
    records.refuse("layer id 99 is outside 0..8")
    assert "layer-out-of-range" in records.status()
    assert "layer-out-of-range" not in records.status("--extraction-id", NOW), (
        "the configuration has been set back, nothing is missing"
    )
    write_json(records.results / "compatibility/report.json", {"verdict": "pass", "findings": []})
    assert "layer-out-of-range" not in records.status()


def test_a_run_that_failed_past_the_extraction_says_where_to_look_and_what_to_call(records: Records) -> None:
    finished(records)
    told = records.status("--extraction-id", NOW, "--failed", "--part", "summary", command=COMMAND)
    assert "2 of 2 batches extracted, 2 validated" in told
    assert "  logs: logs/test/assemble_training_set.log\n" in told
    assert f"\n    {COMMAND}\n" in told
    (records.results / "validation/00001.json").unlink()
    assert "  logs: logs/test/validate_pass, logs/test/validate_batch\n" in records.status(
        "--extraction-id", NOW, "--failed", "--part", "summary", command=COMMAND
    )


def test_a_run_that_failed_before_there_are_batches_says_where_to_look_and_what_to_call(
    records: Records,
) -> None:
    (records.results / "tokens/batches.json").unlink()
    told = records.status("--extraction-id", "", "--failed", "--part", "summary", command=COMMAND)
    assert "nothing is tokenized" in told
    assert "the logs are in logs/test" in told
    assert f"\n    {COMMAND}\n" in told
    assert records.status("--extraction-id", "", "--part", "summary", command=COMMAND) == "", (
        "it was not asked for any"
    )


def test_another_terminal_shows_the_command_of_the_newest_pass(records: Records) -> None:
    records.ledger("001", causes={"00000": "poison"}, command="snakemake an older one")
    records.ledger("002", causes={"00000": "poison"}, command=COMMAND)
    assert f"After fixing the cause, rerun only what is missing:\n    {COMMAND}\n" in records.status()
    records.lease("003", command="snakemake the one that runs")
    assert "\n    snakemake the one that runs\n" in records.status()


@pytest.mark.parametrize("a_pass", [False, True], ids=["no pass yet", "a pass called by hand"])
def test_where_the_command_is_not_known_none_is_invented(records: Records, a_pass: bool) -> None:
    if a_pass:
        records.ledger("001", causes={"00000": "poison"}, command=None)
    told = records.status()
    assert "missing with the command you started it with" in told
    assert "snakemake --cores" not in told


def test_from_another_directory_causes_logs_and_command_are_found_all_the_same(
    records: Records, tmp_path_factory: pytest.TempPathFactory
) -> None:
    records.ledger("001", causes={"00000": "this sample is poison"}, command=COMMAND)
    told = records.status(results=records.results, cwd=tmp_path_factory.mktemp("elsewhere"))
    assert "00000 failed 3 30 1 sample: SampleError: this sample is poison" in squeezed(told)
    assert "  1 sample: SampleError: this sample is poison" in told
    assert "see " not in told
    assert f"{records.directory}/logs/test/extract_pass" in told
    assert f"\n    cd {records.directory} && {COMMAND}\n" in told


def test_a_pass_that_left_no_ledger_is_the_cause_and_not_what_an_earlier_one_met(records: Records) -> None:
    records.ledger("001", causes={"00000": "old cause", "00001": ""})
    records.gate("00001")
    records.log("001")
    records.log("002")
    records.lease("002", process=NO_PROCESS)
    told = records.status()
    assert (
        "  pass 002 ended without a ledger (killed, probably out of memory); see logs/test/extract_pass/002\n"
        in told
    )
    assert "00000 pending 3 30 pass 002 ended without a ledger\n" in squeezed(told)
    assert "old cause" not in told
    records.ledger("002", causes={"00000": "new cause"})
    told = records.status()
    assert "without a ledger" not in told
    assert "1 sample: SampleError: new cause" in told


def test_a_pass_that_has_just_started_is_not_called_ended(records: Records) -> None:
    records.ledger("001", causes={"00000": "old cause"})
    records.log("002", age_s=3)
    assert "without a ledger" not in records.status()
    assert "pass 002 ended without a ledger" in records.status("--extraction-id", NOW, "--failed"), (
        "Snakemake knows that its jobs are over"
    )
    records.log("002")
    assert "pass 002 ended without a ledger" in records.status()


def test_a_pass_that_waits_for_another_is_not_called_ended(records: Records) -> None:
    records.log("001")
    records.lease("001")
    records.log("002")
    told = records.status()
    assert "running: pass 001" in told
    assert "without a ledger" not in told


def test_of_a_pass_that_may_have_died_on_another_machine_only_what_is_known_is_said(records: Records) -> None:
    """Snakemake hears of the job's end within seconds; the lease of a dead process on another machine looks
    alive for a minute."""
    records.ledger("001", causes={"00000": "old cause"})
    records.log("002")
    records.lease(
        "002", process={**NO_PROCESS, "kernel": "another machine", "host": "node7", "slurm_job_id": "12"}
    )
    told = records.status("--extraction-id", NOW, "--failed", command=COMMAND)
    assert "running: pass 002 stripe 0 on node7, SLURM job 12" in told
    assert (
        "  pass 002 has left no ledger; if its job has ended, it was killed, probably out of memory; see"
        " logs/test/extract_pass/002\n" in told
    )
    assert "1 sample: SampleError: old cause" not in told


def two_stripes(directory: Path, even: str, odd: str) -> Records:
    """Four batches in two stripes; in the first pass each stripe failed a sample of one batch."""
    records = Records(directory, batches=4)
    records.ledger("001", 0, causes={"00000": even, "00002": ""}, stripes=2)
    records.ledger("001", 1, causes={"00001": odd, "00003": ""}, stripes=2)
    return records


def test_one_dead_stripe_hides_nothing_of_the_others(tmp_path: Path) -> None:
    records = two_stripes(tmp_path, "even old", "odd old")
    records.log("002", 0)
    records.lease("002", 0, jobs=2, process=NO_PROCESS)
    told = records.status()
    assert "00000 pending 3 30 pass 002 ended without a ledger\n" in squeezed(told)
    assert "00001 failed 3 30 1 sample: SampleError: odd old\n" in squeezed(told)
    assert "even old" not in told


def test_what_one_stripe_met_is_shown_also_when_another_has_run_since(tmp_path: Path) -> None:
    records = two_stripes(tmp_path, "poison one", "poison two")
    records.ledger("002", 1, causes={"00001": "poison two again", "00003": ""}, stripes=2)
    told = records.status()
    assert "00000 failed 3 30 1 sample: SampleError: poison one\n" in squeezed(told)
    assert "00001 failed 3 30 1 sample: SampleError: poison two again\n" in squeezed(told)
    assert "  1 sample: SampleError: poison one\n  1 sample: SampleError: poison two again\n" in told


def test_what_a_batch_met_under_another_extraction_is_no_cause(records: Records) -> None:
    records.ledger("001", extraction_id=BEFORE, causes={"00000": "of other layers"})
    told = records.status("--extraction-id", NOW, command=COMMAND)
    assert "of other layers" not in told
    assert "  logs: logs/test\n" in told


def test_a_results_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    call = [sys.executable, str(SCRIPT), "--results", "results/typo"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "ERROR InputError: there is no directory results/typo" in done.stderr
    as_snakemake_calls = subprocess.run(
        [*call, "--extraction-id", ""], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "nothing is tokenized yet" in as_snakemake_calls.stdout, (
        "its configuration names the run, which no job may have begun"
    )
    (tmp_path / "logs/typo").mkdir(parents=True)
    assert (
        "nothing is tokenized yet"
        in subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    )


def test_a_healthy_running_pass_shows_no_hint_of_a_failure(records: Records) -> None:
    records.lease("001")
    told = records.status()
    assert "running: pass 001" in told
    for hint in ("After fixing", "still missing", "logs: logs/test\n", "--unlock"):
        assert hint not in told


def test_a_run_that_ended_well_ends_with_the_next_command(records: Records) -> None:
    options = ("--extraction-id", NOW, "--part", "summary", "--command", "snakemake TARGET --cores 2")
    write_json(records.results / "compatibility/report.json", {"verdict": "pass", "findings": []})
    checked = records.status(*options)
    assert "compatible: the check found no failures" in checked
    assert checked.endswith("next, to extract the hidden states:\n    snakemake extract --cores 2\n")
    for batch in records.fingerprints:
        records.gate(batch)
    extracted = records.status(*options)
    assert extracted.endswith("validate and assemble the training set:\n    snakemake all --cores 2\n")
    assert "After fixing" not in checked + extracted
