"""What the canary's states must be: each assertion is a finding id of its own, which says what kind of fault
was met.

canary-write               a states file is missing, torn, or could not be written
canary-wrong-shape, -wrong-dtype, -wrong-token-ids (swapped samples), -not-finite, -all-zero (a lost tail),
-constant
canary-post-norm           the last slot holds the states after the final norm
canary-layer               a slot holds the states of another layer
canary-chunk               part of a sample that is computed in several steps is wrong
canary-batch               a sample comes out right alone, and otherwise among others
canary-parity              anything else that differs from transformers; `unknown` where transformers in
                           bfloat16 differs from itself in float32 as much
canary-greedy-token        the last state is right, but does not give the engine's next token; `unknown` where
                           transformers' norm and head are not available
canary-reference           transformers cannot compute the small model: its states are compared with nothing
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

import torch

from eagle3_data.engines.base import EngineSettings, Request, error_path
from eagle3_data.engines.transformers import ReferenceModel
from eagle3_data.errors import InputError, SampleError, headline
from eagle3_data.findings import Finding
from eagle3_data.records.failures import Failure
from eagle3_data.store.states import number_problems, open_states, structure_problems
from eagle3_data.validation.head import Head, read_head
from eagle3_data.validation.layer_errors import relative_errors

MAX_BATCHED_TOKENS = 64
"""What the canary's engine computes in one step. A longer sample is computed in chunks."""
MAX_MEDIAN_ERROR = {"bfloat16": 0.1, "fp8": 0.1, "float32": 1e-3}
"""Of a layer's states over all tokens, relative to transformers in float32. A neighbouring layer is off by
0.5 and more."""
WRONG_TOKEN_ERROR = {"bfloat16": 0.4, "fp8": 0.4, "float32": 1e-2}
MAX_WRONG_TOKENS = 0.25
"""Part of a piece's tokens that may be off so far: in bfloat16 a close decision of a random router flips now
and then, for single tokens; a lost chunk, another sample or another layer is wrong everywhere."""
PIECE = 16
"""Tokens, at least, by which a sample is judged: the shortest lost chunk that differs from flips."""
LOST_PART = 0.5
"""Of a step's tokens, from which on the step is lost, and not some tokens in it."""
DIFFUSE = {"canary-parity", "canary-chunk"}
"""What rounding alone could be; another layer or states after the norm it is not."""
FEW_TOKENS = 4
"""A shorter sample is not judged by its part of wrong tokens."""
NOISE_REMEDY = "extract in float32 (extraction.dtype) if this must be proven"
REMEDY = (
    "this vLLM build captures wrong states for this architecture on these devices; use another vLLM version"
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
    faulty = [(answer, fault) for answer in answers for fault in structure(answer, settings, hidden_size)]
    broken = {answer.request.key for answer, _ in faulty}
    try:
        judge = _Judge(settings)
        whole = [judge.compare(answer) for answer in answers if answer.request.key not in broken]
    except Exception as error:  # noqa: BLE001  transformers raises whatever it likes
        return [*_findings(faulty), _no_reference(error)]
    ordered = sorted(whole, key=lambda one: one.answer.request.token_ids)
    for _, same in groupby(ordered, key=lambda one: one.answer.request.token_ids):
        faulty += judge.invariance(list(same))
    found = list(_findings(faulty, judge.is_noise)) if faulty else list(judge.medians(whole))
    return [*found, *judge.not_proven()]


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


def structure(answer: Answer, settings: EngineSettings, hidden_size: int) -> list[Fault]:
    """What is wrong with a states file by itself."""
    path = Path(answer.request.states_path)
    if error_path(path).exists():
        failure = Failure.from_json(json.loads(error_path(path).read_text(encoding="utf-8")))
        return [Fault("canary-write", f"the states could not be written: {failure.headline}")]
    try:
        states = open_states(path)
    except SampleError as error:
        cause = headline(error.__cause__ or error)
        return [Fault("canary-write", f"{headline(error)}, caused by {cause}")]
    problems = structure_problems(
        states, answer.request.token_ids, len(settings.layers), hidden_size, settings.stored_dtype
    )
    return [Fault(f"canary-{name}", message) for name, message in problems or number_problems(states)]


class _Judge:
    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._head, self._no_head = _head(settings)
        reference = ReferenceModel(settings.model_path, torch.float32, settings.trust_remote_code)
        layers = range(max(settings.layers) + 1)
        self._reference = cache(lambda ids: reference.states(ids, layers)[0])
        self._rounded = cache(
            lambda: ReferenceModel(
                settings.model_path, getattr(torch, settings.dtype), settings.trust_remote_code
            )
        )
        self._own_errors = cache(self._own_errors_of)

    def not_proven(self) -> list[Finding]:
        if not self._no_head:
            return []
        title = f"whether the last state gives the engine's next token was not checked: {self._no_head}"
        return [
            Finding("canary-greedy-token", "unknown", title, remedy=("none; validation will report the same"))
        ]

    def _own_errors_of(self, token_ids: tuple[int, ...]) -> torch.Tensor:
        """Errors [T, L + 1] of transformers in the engine's dtype against itself in float32."""
        layers = range(max(self._settings.layers) + 1)
        rounded = self._rounded().states(token_ids, layers)[0].float()
        return relative_errors(rounded, self._reference(token_ids))

    def is_noise(self, answer: Answer, fault: Fault) -> bool:
        """Whether transformers' own rounding, twice, would be called wrong at this place, too: a bound that
        cannot distinguish an engine fault from rounding."""
        if self._settings.dtype == "float32" or fault.id not in DIFFUSE:
            return False
        errors = self._own_errors(answer.request.token_ids)[:, fault.layer]
        return bool(is_wrong(2 * errors, self._settings.stored_dtype).any())

    def compare(self, answer: Answer) -> Compared:
        ours = torch.from_numpy(open_states(Path(answer.request.states_path)).values().copy())
        theirs = self._reference(answer.request.token_ids)
        faults = [
            fault
            for slot, layer in enumerate(self._settings.layers)
            if (fault := self._slot(ours[:, slot], theirs, layer))
        ]
        last_is_right = (
            relative_errors(ours[-1, -1], theirs[-1, -1]) <= WRONG_TOKEN_ERROR[self._settings.stored_dtype]
        )
        greedy = torch.tensor([answer.greedy_token])
        if (
            self._head
            and last_is_right
            and self._head.disagreements(ours[-1:, -1], greedy, self._settings.stored_dtype)
        ):
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
        wrong = is_wrong(errors, self._settings.stored_dtype)
        if not wrong.any():
            return None
        if not wrong.all():
            return _partial(wrong, errors > WRONG_TOKEN_ERROR[self._settings.stored_dtype], layer)
        last = max(self._settings.layers)
        if layer == last and self._head and self._are(ours, self._head.normalized(theirs[:, last])):
            return Fault(
                "canary-post-norm",
                "the states are those after the final norm; a draft model is trained on those before it",
                layer,
            )
        near = min(range(last + 1), key=lambda k: float((ours - theirs[:, k]).norm()))
        if near != layer and self._are(ours, theirs[:, near]):
            return Fault("canary-layer", f"the states are those after layer {near}", layer)
        nearest = f"; nearest are those after layer {near}" if near != layer else ""
        return Fault("canary-parity", f"the states are not those of transformers{nearest}", layer)

    def _are(self, ours: torch.Tensor, theirs: torch.Tensor) -> bool:
        return not is_wrong(relative_errors(ours, theirs), self._settings.stored_dtype).any()

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
        dtype = self._settings.stored_dtype
        return bool(errors.median() > MAX_MEDIAN_ERROR[dtype]) or any(
            is_wrong(errors[:, slot], dtype).any() for slot in range(errors.shape[1])
        )

    def medians(self, whole: list[Compared]) -> Iterator[Finding]:
        """Errors that no single sample shows."""
        bound = MAX_MEDIAN_ERROR[self._settings.stored_dtype]
        for slot, layer in enumerate(self._settings.layers):
            errors = [relative_errors(one.ours[:, slot], one.theirs[:, layer]) for one in whole]
            median = float(torch.cat(errors).median())
            if median <= bound:
                continue
            message = f"layer {layer}: median relative error {median:.3f} against transformers"
            own = 0.0
            if self._settings.dtype != "float32":
                rounded = [self._own_errors(one.answer.request.token_ids)[:, layer] for one in whole]
                own = float(torch.cat(rounded).median())
            yield _finding("canary-parity", message, noise=2 * own > bound)


def _head(settings: EngineSettings) -> tuple[Head | None, str]:
    """The end of the small model, or None and why not."""
    try:
        return read_head(Path(settings.model_path), settings.trust_remote_code), ""
    except InputError as error:
        return None, str(error)


def _partial(wrong: torch.Tensor, wrong_tokens: torch.Tensor, layer: int) -> Fault:
    """Some pieces [P] of a sample are wrong; `wrong_tokens` [T] says which tokens are."""
    judged = torch.cat([piece & is_so for piece, is_so in zip(_pieces(wrong_tokens), wrong, strict=True)])
    places = torch.nonzero(judged)[:, 0].tolist()
    where = f"only tokens {places[0]} to {places[-1]} are not those of transformers"
    if _are_lost_steps(judged):
        steps = f"{where}; the sample is computed in steps of {MAX_BATCHED_TOKENS} tokens"
        return Fault("canary-chunk", steps, layer)
    return Fault("canary-parity", where, layer)


def _are_lost_steps(wrong_tokens: torch.Tensor) -> bool:
    """Whether what is wrong among [T] are whole steps of a sample, next to others that are right."""
    steps = wrong_tokens.split(MAX_BATCHED_TOKENS)
    lost = [step for step in steps if step.float().mean() > LOST_PART]
    in_lost = sum(int(step.sum()) for step in lost)
    return 0 < len(lost) < len(steps) and in_lost >= (1 - MAX_WRONG_TOKENS) * int(wrong_tokens.sum())


def _findings(
    faulty: Iterable[tuple[Answer, Fault]], is_noise: Callable[[Answer, Fault], bool] = lambda *_: False
) -> Iterator[Finding]:
    """One finding for each id and message, with the samples and layers where it was met."""
    met: dict[tuple[str, str, int, bool], list[str]] = {}
    for answer, fault in faulty:
        noise = is_noise(answer, fault)
        met.setdefault((fault.id, fault.message, fault.layer, noise), []).append(answer.place)
    for (name, message, layer, noise), places in met.items():
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        title = f"{places[0]}{more}{f', layer {layer}' if layer else ''}: {message}"
        yield _finding(name, title, noise)


def _finding(name: str, title: str, noise: bool = False) -> Finding:
    if noise:
        explained = (
            f"{title}; but so are transformers' own in bfloat16, so this says nothing about the engine"
        )
        return Finding("canary-parity", "unknown", explained, remedy=NOISE_REMEDY)
    return Finding(id=name, level="fail", title=title, remedy=REMEDY)


def _no_reference(error: Exception) -> Finding:
    title = (
        "transformers cannot compute the small model, so the engine's states could not be compared:"
        f" {headline(error)}"
    )
    return Finding(
        "canary-reference", "unknown", title, remedy=("use a transformers version that can compute it")
    )
