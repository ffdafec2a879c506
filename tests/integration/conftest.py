from integration.fixtures import (
    demo_run,
    demo_run_float32,
    fast,
    finished,
    finished_template,
    small_disk,
    tiny_llama,
    tokenized_template,
)

__all__ = [
    "demo_run",
    "demo_run_float32",
    "fast",
    "finished",
    "finished_template",
    "small_disk",
    "tiny_llama",
    "tokenized_template",
]
