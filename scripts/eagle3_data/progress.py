"""Progress of long work: a bar on a terminal, a plain line every some seconds in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from tqdm import tqdm

from eagle3_data.log import say

LINE_EVERY_S = 10.0


class Progress:
    """Counts `unit`s done out of `total` (0: unknown), with tokens and failures. Use as a context manager."""

    def __init__(self, what: str, unit: str, total: int) -> None:
        self._what, self._unit, self._total = what, unit, total
        self._done = self._tokens = self._failed = 0
        self._ended = False
        self._started = self._last_line = time.monotonic()
        self._bar = (
            tqdm(total=total or None, desc=what, unit=f" {unit}", dynamic_ncols=True)
            if sys.stderr.isatty()
            else None
        )

    def add(self, done: int = 1, *, tokens: int = 0, failed: int = 0) -> None:
        self._done += done
        self._tokens += tokens
        self._failed += failed
        if self._bar is not None:
            self._bar.set_postfix_str(self._rates(), refresh=False)
            self._bar.update(done)
        elif time.monotonic() - self._last_line >= LINE_EVERY_S:
            self._line()

    def _rates(self) -> str:
        elapsed_s = max(time.monotonic() - self._started, 1e-9)
        tokens = (
            f"{self._tokens / elapsed_s:,.0f} tokens/s"
            if self._tokens
            else f"{self._done / elapsed_s:,.0f} {self._unit}/s"
        )
        return tokens + (f", {self._failed} failed" if self._failed else "")

    def _line(self) -> None:
        self._last_line = time.monotonic()
        elapsed_s = self._last_line - self._started
        of = f"/{self._total}" if self._total else ""
        left = ""
        if self._total and 0 < self._done < self._total:
            left = f", {elapsed_s / self._done * (self._total - self._done):,.0f} s left"
        say(f"{self._what}: {self._done}{of} {self._unit}, {self._rates()}, {elapsed_s:,.0f} s{left}")

    def end(self) -> None:
        """Say the last line now: what follows is no part of the work."""
        if self._ended:
            return
        self._ended = True
        if self._bar is not None:
            self._bar.close()
        else:
            self._line()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
