"""Our connector for clients that wait for a lock file, as speculators' do: the file is unlocked when the
states are written."""

from __future__ import annotations

import os
from typing import Any

from eagle3_data.engines.vllm.connector import HiddenStatesConnector


class LockingConnector(HiddenStatesConnector):
    def _submit_async_write(self, pending: Any) -> None:
        lock = self._lock_fds.pop(pending.req_id)  # else vLLM unlocks it as soon as the states are copied
        super()._submit_async_write(pending)
        writing = self._req_futures.get(pending.req_id)
        if writing is None:  # written already
            os.close(lock)
        else:
            writing.add_done_callback(lambda _: os.close(lock))
