from integration.fixtures import (
    demo_run,
    fast,
    finished,
    finished_template,
    small_disk,
    tiny_llama,
    tokenized_template,
)

__all__ = [
    "demo_run",
    "fast",
    "finished",
    "finished_template",
    "small_disk",
    "tiny_llama",
    "tokenized_template",
]
