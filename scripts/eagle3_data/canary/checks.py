"""What the canary's states must be: each assertion is a finding id of its own, which says what kind of fault
was met.

canary-write               a states file is missing, torn, or could not be written
canary-wrong-shape, -wrong-dtype, -wrong-token-ids (swapped samples), -not-finite, -all-zero (a lost tail),
-constant
canary-post-norm           the last slot holds the states after the final norm
canary-layer               a slot holds the states of another layer
canary-chunk               part of a sample that is computed in several steps is wrong
canary-batch               a sample comes out right alone, and otherwise among others
canary-parity              anything else that differs from transformers
canary-greedy-token        the last state is right, but does not give the engine's next token
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

import torch

from eagle3_data.engines.base import EngineSettings, Request, error_path
from eagle3_data.engines.transformers import ReferenceModel
from eagle3_data.errors import SampleError, headline
from eagle3_data.failures import Failure
from eagle3_data.findings import Finding
from eagle3_data.states import number_problems, open_states, structure_problems
from eagle3_data.validation.head import Head, read_head

MAX_BATCHED_TOKENS = 64
"""What the canary's engine computes in one step. A longer sample is computed in chunks."""
MAX_MEDIAN_ERROR = {"bfloat16": 0.1, "float32": 1e-3}
"""Of a layer's states over all tokens, relative to transformers in float32. A neighbouring layer is off by
0.5 and more."""
WRONG_TOKEN_ERROR = {"bfloat16": 0.4, "float32": 1e-2}
MAX_WRONG_TOKENS = 0.25
"""Part of a piece's tokens that may be off so far: in bfloat16 a close decision of a random router flips now
and then, for single tokens; a lost chunk, another sample or another layer is wrong everywhere."""
PIECE = 16
"""Tokens, at least, by which a sample is judged: the shortest lost chunk that is told from flips."""
FEW_TOKENS = 4
"""A shorter sample is not judged by its part of wrong tokens."""
REMEDY = (
    "this vLLM build captures wrong states for this architecture on these devices; use another vLLM version,"
    " or the transformers engine"
)


@dataclass(frozen=True)
class Answer:
    """What the engine said of a request. `alone`: nothing else was in flight."""

    request: Request
    greedy_token: int
    alone: bool

    @property
    def place(self) -> str:
        return f"the sample of {len(self.request.token_ids)} tokens{' alone' if self.alone else ''}"


@dataclass(frozen=True)
class Fault:
    """One assertion that does not hold, at one slot (its layer) or for the whole sample (0)."""

    id: str
    message: str
    layer: int = 0


@dataclass(frozen=True)
class Compared:
    """A sample that is whole, beside the reference: `ours` [T, S, H], `theirs` [T, L + 1, H] by layer id,
    float32."""

    answer: Answer
    ours: torch.Tensor
    theirs: torch.Tensor
    faults: tuple[Fault, ...]


def check(settings: EngineSettings, answers: list[Answer], hidden_size: int) -> list[Finding]:
    """Every assertion about the states of `answers`; each sample may be there twice, among others and
    alone."""
    judge = _Judge(settings, hidden_size)
    faulty: list[tuple[Answer, Fault]] = []
    whole: list[Compared] = []
    for answer in answers:
        if faults := judge.structure(answer):
            faulty += [(answer, fault) for fault in faults]
        else:
            whole.append(judge.compare(answer))
    ordered = sorted(whole, key=lambda one: one.answer.request.token_ids)
    for _, same in groupby(ordered, key=lambda one: one.answer.request.token_ids):
        faulty += judge.invariance(list(same))
    if not faulty:
        return [_finding("canary-parity", message) for message in judge.medians(whole)]
    return list(_findings(faulty))


def is_wrong(errors: torch.Tensor, dtype: str) -> torch.Tensor:
    """Which pieces [P] of a sample are wrong in `errors` [T], its relative errors."""
    if len(errors) < FEW_TOKENS:
        return torch.zeros(1, dtype=torch.bool)
    return torch.stack(
        [piece.float().mean() > MAX_WRONG_TOKENS for piece in _pieces(errors > WRONG_TOKEN_ERROR[dtype])]
    )


def _pieces(tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """[T] in pieces of PIECE tokens; the last one takes the rest, too."""
    return torch.tensor_split(tokens, list(range(PIECE, len(tokens) - PIECE + 1, PIECE)))


def relative_errors(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """[..., H] and [..., H] to [...]."""
    return (ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)


class _Judge:
    def __init__(self, settings: EngineSettings, hidden_size: int) -> None:
        self._settings, self._hidden_size = settings, hidden_size
        self._head: Head = read_head(Path(settings.model_path))
        reference = ReferenceModel(settings.model_path, torch.float32, settings.trust_remote_code)
        layers = range(max(settings.layers) + 1)
        self._reference = cache(lambda ids: reference.states(ids, layers)[0])

    def structure(self, answer: Answer) -> list[Fault]:
        path = Path(answer.request.states_path)
        if error_path(path).exists():
            failure = Failure.from_json(json.loads(error_path(path).read_text(encoding="utf-8")))
            return [Fault("canary-write", f"the states could not be written: {failure.headline}")]
        try:
            states = open_states(path)
        except SampleError as error:
            return [
                Fault("canary-write", f"{headline(error)}, caused by {headline(error.__cause__ or error)}")
            ]
        problems = structure_problems(
            states,
            answer.request.token_ids,
            len(self._settings.layers),
            self._hidden_size,
            self._settings.dtype,
        )
        return [Fault(f"canary-{name}", message) for name, message in problems or number_problems(states)]

    def compare(self, answer: Answer) -> Compared:
        ours = torch.from_numpy(open_states(Path(answer.request.states_path)).values().copy())
        theirs = self._reference(answer.request.token_ids)
        faults = [
            fault
            for slot, layer in enumerate(self._settings.layers)
            if (fault := self._slot(ours[:, slot], theirs, layer))
        ]
        last_is_right = (
            relative_errors(ours[-1, -1], theirs[-1, -1]) <= WRONG_TOKEN_ERROR[self._settings.dtype]
        )
        if last_is_right and self._head.disagreements(ours[-1:, -1], torch.tensor([answer.greedy_token])):
            faults.append(
                Fault(
                    "canary-greedy-token",
                    f"the last state does not give the engine's greedy token {answer.greedy_token}",
                )
            )
        return Compared(answer, ours, theirs, tuple(faults))

    def _slot(self, ours: torch.Tensor, theirs: torch.Tensor, layer: int) -> Fault | None:
        """What is wrong with the states `ours` [T, H], which should be those after `layer` of `theirs` [T, L
        + 1, H]."""
        errors = relative_errors(ours, theirs[:, layer])
        wrong = is_wrong(errors, self._settings.dtype)
        if not wrong.any():
            return None
        if not wrong.all():
            return _partial(wrong, errors > WRONG_TOKEN_ERROR[self._settings.dtype], layer)
        last = max(self._settings.layers)
        if layer == last and self._are(ours, self._head.normalized(theirs[:, last])):
            return Fault(
                "canary-post-norm",
                "the states are those after the final norm; before it is what a draft model is trained on",
                layer,
            )
        near = min(range(last + 1), key=lambda k: float((ours - theirs[:, k]).norm()))
        if near != layer and self._are(ours, theirs[:, near]):
            return Fault("canary-layer", f"the states are those after layer {near}", layer)
        nearest = f"; nearest are those after layer {near}" if near != layer else ""
        return Fault("canary-parity", f"the states are not those of transformers{nearest}", layer)

    def _are(self, ours: torch.Tensor, theirs: torch.Tensor) -> bool:
        return not is_wrong(relative_errors(ours, theirs), self._settings.dtype).any()

    def invariance(self, same: list[Compared]) -> list[tuple[Answer, Fault]]:
        """The faults of one sample's answers. Where only some are right, what is wrong is the company, not
        the capture."""
        faults = [(one.answer, fault) for one in same for fault in one.faults]
        first, *others = same
        unlike = [other for other in others if self._differ(first.ours, other.ours)]
        if (
            unlike
            and {fault.id for _, fault in faults} <= {"canary-parity"}
            and not all(one.faults for one in same)
        ):
            return [
                (
                    other.answer,
                    Fault("canary-batch", "the states differ from those of the same sample among others"),
                )
                for other in unlike
            ]
        return faults

    def _differ(self, ours: torch.Tensor, other: torch.Tensor) -> bool:
        errors = relative_errors(ours, other)  # [T, S]
        dtype = self._settings.dtype
        return bool(errors.median() > MAX_MEDIAN_ERROR[dtype]) or any(
            is_wrong(errors[:, slot], dtype).any() for slot in range(errors.shape[1])
        )

    def medians(self, whole: list[Compared]) -> Iterator[str]:
        """Errors that no single sample shows."""
        for slot, layer in enumerate(self._settings.layers):
            median = float(
                torch.cat(
                    [relative_errors(one.ours[:, slot], one.theirs[:, layer]) for one in whole]
                ).median()
            )
            if median > MAX_MEDIAN_ERROR[self._settings.dtype]:
                yield f"layer {layer}: median relative error {median:.3f} against transformers"


def _partial(wrong: torch.Tensor, wrong_tokens: torch.Tensor, layer: int) -> Fault:
    """Some pieces [P] of a sample are wrong; `wrong_tokens` [T] says which tokens are."""
    places = torch.nonzero(
        torch.cat([piece & judged for piece, judged in zip(_pieces(wrong_tokens), wrong, strict=True)])
    )[:, 0].tolist()
    where = f"only tokens {places[0]} to {places[-1]} are not those of transformers"
    if len(wrong_tokens) > MAX_BATCHED_TOKENS:
        return Fault(
            "canary-chunk", f"{where}; the sample is computed in steps of {MAX_BATCHED_TOKENS} tokens", layer
        )
    return Fault("canary-parity", where, layer)


def _findings(faulty: Iterable[tuple[Answer, Fault]]) -> Iterator[Finding]:
    """One finding for each id and message, with the samples and layers where it was met."""
    met: dict[tuple[str, str, int], list[str]] = {}
    for answer, fault in faulty:
        met.setdefault((fault.id, fault.message, fault.layer), []).append(answer.place)
    for (name, message, layer), places in met.items():
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        yield _finding(name, f"{places[0]}{more}{f', layer {layer}' if layer else ''}: {message}")


def _finding(name: str, title: str) -> Finding:
    return Finding(id=name, level="fail", title=title, remedy=REMEDY)
