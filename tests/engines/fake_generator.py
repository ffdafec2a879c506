"""A generator for plumbing and fault injection: instant, deterministic, no model. What it says depends on the
prompt alone. Faults as in `fake_engine`, by the key of the conversation: `start`, `refuse`, `kill`, `hang`,
`hold`, `sleep_s`; and:
{"cut": [key]}          the answer reaches generation.max_tokens
{"loop": [key]}         ... in the middle of repetitions
{"slow_s": {key: 20}}   it computes so long at the answer, and says that it lives
{"empty": [key]}        only the token that ends the answer
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator

from fake_engine import HOLD_LOOK_S, faults

from eagle3_data.errors import EngineError, SampleError
from eagle3_data.generation.engine import Generated, Generator, GeneratorSettings
from eagle3_data.hashing import sample_key

FIRST_ID, LAST_ID = 300, 400
"""Ordinary tokens of the demo's tokenizer."""


class FakeGenerator(Generator):
    def __init__(self, settings: GeneratorSettings) -> None:
        super().__init__(settings)
        self.versions = {"fake": "1"}
        if message := faults().get("start"):
            raise EngineError(message)
        self._waiting: list[tuple[str, list[int], int, int]] = []
        self._begun: dict[str, float] = {}

    def start(self, name: str, prompt: list[int], max_tokens: int, seed: int) -> None:
        if message := faults().get("refuse", {}).get(name.partition("/")[0]):
            raise SampleError(message)
        self._waiting.append((name, prompt, max_tokens, seed))

    def advance(self) -> Iterator[Generated]:
        now = faults()
        held = now.get("hold", ())
        free = [at for at, one in enumerate(self._waiting) if one[0].partition("/")[0] not in held]
        if not free:
            time.sleep(HOLD_LOOK_S)
            return
        name, prompt, max_tokens, seed = self._waiting[free[0]]
        key = name.partition("/")[0]
        print(f"answering {name}", flush=True)
        time.sleep(now.get("sleep_s", 0))
        slow_s = now.get("slow_s", {}).get(key, 0)
        begun = self._begun.setdefault(name, time.monotonic())
        if time.monotonic() < begun + slow_s:
            time.sleep(HOLD_LOOK_S)
            return
        del self._waiting[free[0]]
        if key in now.get("kill", ()):
            os.kill(os.getpid(), signal.SIGKILL)
        if key in now.get("hang", ()):
            time.sleep(1e6)
        sampled = seed if self._settings.temperature > 0 else 0
        dice = random.Random(f"{sample_key(prompt)} {sampled}")
        words = [dice.randrange(FIRST_ID, LAST_ID) for _ in range(max_tokens)]
        if key in now.get("cut", ()):
            yield Generated(name, tuple(words))
        elif key in now.get("loop", ()):
            yield Generated(name, tuple((words[:4] * max_tokens)[:max_tokens]))
        else:
            said = [] if key in now.get("empty", ()) else words[: dice.randrange(1, 12)]
            yield Generated(name, (*said[: max_tokens - 1], self._settings.stop_ids[0]))

    def close(self) -> None: ...
