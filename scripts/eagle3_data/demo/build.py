"""Build a demo target: tokenizer, model, some seconds of training, checkpoint."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from eagle3_data.demo.recipe import Recipe
from eagle3_data.demo.tokenizer import encode_conversations, train_tokenizer
from eagle3_data.demo.training import WINDOW, make_states_distinct, train
from eagle3_data.errors import InputError
from eagle3_data.records import JsonObject, find_json, write_json
from eagle3_data.system.modes import follow_umask

TARGETS = {"tiny-llama": "eagle3_data.demo.tiny_llama", "tiny-kimi": "eagle3_data.demo.tiny_kimi"}
RECORD = "demo_target.json"
SAMPLE_TOKENS = 256


def build_demo_target(target: str, conversations: str | Path, output: str | Path, *, seed: int = 0) -> None:
    """Build demo target `target`, trained on the JSONL file `conversations`, as checkpoint directory
    `output`.

    The directory appears complete or not at all; an earlier build there is replaced. The same seed gives the
    same weights on the same machine. Raises InputError.
    """
    recipe: Recipe = importlib.import_module(TARGETS[target]).RECIPE
    rows = read_conversations(conversations)
    with _appearing(Path(output)) as directory, _reproducible(seed):
        tokenizer = train_tokenizer(recipe, rows)
        token_ids = encode_conversations(tokenizer, rows)
        if len(token_ids) <= WINDOW:
            raise InputError(
                f"{conversations} gives {len(token_ids)} tokens; a demo target needs more than {WINDOW} to"
                " train on"
            )
        model = recipe.make_model(tokenizer)
        make_states_distinct(model, token_ids[:SAMPLE_TOKENS])
        loss = train(model, token_ids, recipe.steps)
        recipe.save(model, tokenizer, directory)
        write_json(
            directory / RECORD,
            {
                "target": target,
                "seed": seed,
                "steps": recipe.steps,
                "loss_nats": loss,
                "tokens": len(token_ids),
            },
        )


def read_conversations(path: str | Path) -> list[JsonObject]:
    """The conversations that have messages. Raises InputError naming the line that cannot be read."""
    rows = []
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} cannot be read as UTF-8 text; --conversations must be a JSONL file of conversations"
        ) from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            messages = row["messages"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}, line {number}: expected a JSON object with `messages`") from error
        if messages:
            rows.append(row)
    return rows


@contextmanager
def _appearing(output: Path) -> Iterator[Path]:
    """A temporary directory beside `output` that takes its place when the block succeeds."""
    is_free = not output.exists() or (output.is_dir() and not any(output.iterdir()))
    if not is_free and find_json(output / RECORD) is None:
        raise InputError(f"{output} exists and is not a demo target; delete it or choose another --output")
    output.parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=f".{output.name}.", suffix=".part", dir=output.parent))
    try:
        yield directory
        follow_umask(directory)
        if not is_free:
            shutil.rmtree(output)
        os.rename(directory, output)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _reproducible(seed: int) -> Iterator[None]:
    """Seed torch and use one thread: the rounding of sums depends on their number, and several are slow on a
    busy machine. Restores both."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)
