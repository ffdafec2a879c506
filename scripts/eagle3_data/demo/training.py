"""Some seconds of training: enough that a proof by greedy tokens or by loss means something on a demo
target."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from eagle3_data.log import say

WINDOW = 64
WARM_UP_STEPS = 10
TABLE_STEPS = 150
REPORT_EVERY = 20
LAYER_UPDATE = 0.4
"""Norm of what an untrained layer adds to the residual stream, relative to the stream's."""


@torch.no_grad()
def make_states_distinct(model: PreTrainedModel, token_ids: list[int]) -> None:
    """Initialise `model` so that a hidden state taken at a wrong place is unmistakable.

    Norm weights have random signs and sizes of 0.5 ... 1.5: with weights of one, even with positive ones,
    states taken after the final norm often give the same greedy token as those taken before it. Every layer's
    output projections are scaled to its share of the stream, seen on `token_ids`: as usually initialised, the
    states after neighbouring layers are nearly the same.
    """
    for name, parameter in model.named_parameters():
        if "norm" in name:
            nn.init.uniform_(parameter, 0.5, 1.5).mul_(torch.randint(2, parameter.shape) * 2 - 1)
    nn.init.normal_(model.get_input_embeddings().weight)
    nn.init.zeros_(model.get_output_embeddings().weight)
    updates: list[float] = []

    def measure(_layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        updates.append(((output - inputs[0]).norm() / inputs[0].norm()).item())

    for layer in model.model.layers:
        handle = layer.register_forward_hook(measure)
        model.model(torch.tensor([token_ids]), use_cache=False)
        handle.remove()
        for name, parameter in layer.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                parameter.mul_(LAYER_UPDATE / updates[-1])


def train(model: PreTrainedModel, token_ids: list[int], steps: int) -> float:
    """Train in place on random windows of `token_ids`. Returns the mean loss of the last 20 steps, in nats
    per token.

    First the two token tables alone, past the layers, as a bigram model: cheap, and most of what so short a
    training can learn. Then `steps` steps of the whole model.
    """
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    tables = [embeddings.weight, head.weight]
    layers = [
        parameter for parameter in model.parameters() if all(parameter is not table for table in tables)
    ]

    def bigram_loss(batch: Tensor) -> Tensor:
        logits = head(model.model.norm(embeddings(batch[:, :-1])))
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def loss(batch: Tensor) -> Tensor:
        return model(input_ids=batch, labels=batch, use_cache=False).loss

    stream = torch.tensor(token_ids)
    _descend(
        "token tables", bigram_loss, stream, [{"params": tables, "lr": 3e-2}], batch_size=8, steps=TABLE_STEPS
    )
    return _descend(
        "whole model",
        loss,
        stream,
        [{"params": tables, "lr": 3e-3}, {"params": layers, "lr": 2e-4}],
        batch_size=4,
        steps=steps,
    )


def _descend(
    what: str,
    loss_of: Callable[[Tensor], Tensor],
    stream: Tensor,
    groups: list[dict[str, object]],
    *,
    batch_size: int,
    steps: int,
) -> float:
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARM_UP_STEPS) * (1 - step / steps)
    )
    losses: list[float] = []
    recent = float("nan")
    for step in range(1, steps + 1):
        starts = torch.randint(len(stream) - WINDOW, (batch_size, 1))
        loss = loss_of(stream[starts + torch.arange(WINDOW)])  # [batch, window]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses = [*losses, loss.item()][-REPORT_EVERY:]
        recent = sum(losses) / len(losses)
        if step % REPORT_EVERY == 0 or step == steps:
            say(f"{what}, step {step} of {steps}: loss {recent:.3f}")
    return recent
