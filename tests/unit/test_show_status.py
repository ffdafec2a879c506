"""What the summary says where no pass has told it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from eagle3_data.records import write_json

SCRIPT = Path(__file__).parents[2] / "scripts/show_status.py"


def test_rejections_are_causes_also_of_batches_that_no_pass_had_to_extract(tmp_path: Path) -> None:
    results = tmp_path / "results/test"
    batch = {"samples": 3, "tokens": 30, "row_group": 0, "fingerprint": "b"}
    write_json(results / "tokens/batches.json", {"batches": {"00000": batch}, "samples": 3, "tokens": 30, "dropped": {}})
    reasons = {"a": "unreadable: a.safetensors is torn", "b": "checksum: b is not what was written", "c": "unreadable: c.safetensors is torn"}
    write_json(results / "validation/rejected/00000.json", {"rejected": reasons})
    told = subprocess.run([sys.executable, str(SCRIPT), "--results", "results/test"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "00000  rejected" in told
    assert "  2 samples: rejected by validation: unreadable: a.safetensors is torn\n  1 samples: rejected by validation: checksum" in told
    assert "logs/test/validate_batch" in told
    assert "no pass has ended" not in told
