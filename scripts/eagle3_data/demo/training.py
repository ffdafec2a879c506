"""Some seconds of training: enough that a proof by greedy tokens or by loss means something on a demo target."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from eagle3_data.cli import say

BATCH_SIZE = 4
WINDOW = 64
TOKEN_LEARNING_RATE = 1.5e-2
LAYER_LEARNING_RATE = 5e-4
WARM_UP_STEPS = 10
REPORT_EVERY = 20


@torch.no_grad()
def make_states_distinct(model: PreTrainedModel) -> None:
    """Initialise `model` so that a hidden state taken at a wrong place is unmistakable.

    Norm weights are drawn from 0.5 ... 1.5: with weights of one, states taken after the final norm pass for those taken
    before it. What a layer adds to the residual stream grows with depth, as the stream does: with the usual
    initialisation the states after neighbouring layers are nearly the same. Embeddings of unit variance learn fast.
    """
    for name, parameter in model.named_parameters():
        if "norm" in name:
            nn.init.uniform_(parameter, 0.5, 1.5)
    nn.init.normal_(model.get_input_embeddings().weight)
    for depth, layer in enumerate(model.model.layers):
        for name, parameter in layer.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                parameter.mul_(6 + 1.5 * depth)


def train(model: PreTrainedModel, token_ids: list[int], steps: int) -> float:
    """Train in place, all parameters, on random windows of `token_ids`. Returns the mean loss of the last 20 steps, in nats per token."""
    stream = torch.tensor(token_ids)
    tables = [model.get_input_embeddings().weight, model.get_output_embeddings().weight]
    layers = [parameter for parameter in model.parameters() if all(parameter is not table for table in tables)]
    optimizer = torch.optim.AdamW(
        [{"params": tables, "lr": TOKEN_LEARNING_RATE}, {"params": layers, "lr": LAYER_LEARNING_RATE}], betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM_UP_STEPS) * (1 - step / steps))
    losses: list[float] = []
    model.train()
    for step in range(1, steps + 1):
        starts = torch.randint(len(stream) - WINDOW, (BATCH_SIZE, 1))
        batch = stream[starts + torch.arange(WINDOW)]  # [batch, window]
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % REPORT_EVERY == 0 or step == steps:
            say(f"step {step} of {steps}: loss {_recent(losses):.3f}")
    model.eval()
    return _recent(losses)


def _recent(losses: list[float]) -> float:
    return sum(losses[-REPORT_EVERY:]) / len(losses[-REPORT_EVERY:])
