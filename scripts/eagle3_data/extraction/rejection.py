"""Taking samples out of the store that were rejected, by validation or by the replay: they are extracted
again."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from eagle3_data.errors import EngineError
from eagle3_data.identity import ExtractionIdentity
from eagle3_data.log import warn
from eagle3_data.passes.outcomes import Outcomes
from eagle3_data.passes.paths import PassPaths
from eagle3_data.records.batch_index import BatchEntry
from eagle3_data.records.failures import Failure, describe_situation
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.store import Store
from eagle3_data.text import counted
from eagle3_data.validation.differences import Difference
from eagle3_data.validation.verdict import BatchVerdict


@dataclass(frozen=True)
class Rejection:
    """Rejects what one pass has stored. A rejected batch is a record on the disk until its samples are in
    quarantine: whatever is killed in between, the next pass goes on there."""

    run: RunPaths
    store: Store
    identity: ExtractionIdentity
    batches: Mapping[str, BatchEntry]
    stop: threading.Event

    def reject_pass(self, outcomes: Outcomes, failed: str, difference: Difference) -> None:
        """Reject all that this pass has stored, since the replay of the sample `failed` came out
        differently."""
        for batch, keys in outcomes.stored_by_batch().items():
            entry = self.batches[batch]
            reasons = dict.fromkeys(
                keys, f"replay: stored by the pass whose sample {failed} came out differently alone"
            )
            if failed in reasons:
                reasons[failed] = f"replay: {difference}"
            BatchVerdict(
                batch=batch,
                fingerprint=self.identity.batch_fingerprint(entry.fingerprint),
                extraction_id=self.identity.extraction_id,
                samples=entry.samples,
                tokens=entry.tokens,
                size_bytes=0,
                rejected=reasons,
            ).write(self.run.rejected(batch))

    def take_back(self, outcomes: Outcomes, differences: Mapping[str, Difference], replayed: int) -> Failure:
        """Take all that this pass has stored out of the store and of its outcomes; returns what ends the
        pass. `differences` are those of the replayed samples that came out differently, by key."""
        lengths = outcomes.stored_lengths
        for batch in outcomes.stored_by_batch():
            if not self.stop.is_set():  # else the next pass does it
                self.quarantine_rejected(batch)
        outcomes.take_back()
        for key, difference in differences.items():
            message = f"replayed alone, the sample comes out differently than it was stored: {difference}"
            failure = replace(describe_situation(EngineError, message), remedy=difference.remedy)
            outcomes.failed(key, lengths[key], failure, own=False)
        likely = dict.fromkeys(difference.likely for difference in differences.values())
        remedies = dict.fromkeys(difference.remedy for difference in differences.values())
        message = (
            f"{len(differences)} of {counted(replayed, 'sample')} replayed alone came out differently, so the"
            f" {counted(len(lengths), 'sample')} that this pass stored are in quarantine; likely:"
            f" {'; and '.join(likely)}"
        )
        return replace(describe_situation(EngineError, message), remedy="; and ".join(remedies))

    def quarantine_rejected(self, batch: str) -> None:
        """Take the rejected samples of a batch out of the store; its record goes, too."""
        path = self.run.rejected(batch)
        verdict = BatchVerdict.find(path)
        if verdict is None:
            return
        for key, reason in verdict.rejected.items():
            self.store.quarantine(key, reason)
        for reason, number in Counter(verdict.rejected.values()).items():
            what = counted(number, "sample")
            warn(f"batch {batch}: {what} rejected ({reason}); quarantined, to be extracted again")
        path.unlink()
        PassPaths(self.run.extraction).record(batch).unlink(missing_ok=True)
