"""Validation proves samples with the target's own head; every kind of wrong state is rejected for its own
reason."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import damages
from eagle3_data.engines.base import states_metadata
from eagle3_data.errors import InputError, StorageError
from eagle3_data.hashing import sample_key
from eagle3_data.identity import ExtractionIdentity
from eagle3_data.records.checksum import file_checksum
from eagle3_data.samples import Sample
from eagle3_data.store import Store
from eagle3_data.validation.coverage import not_proven_of_batch
from eagle3_data.validation.head import TIE_RELATIVE, Head, Unknown, find_head, read_head
from eagle3_data.validation.judging import Judge
from eagle3_data.validation.measuring import Measuring
from eagle3_data.validation.verdict import AppliedProof

HIDDEN, VOCAB, SAMPLES = 32, 50, 24
IDENTITY = ExtractionIdentity(
    fingerprint="f", layers=(1, 2), dtype="bfloat16", quantization="none", engine="e", engine_arguments={}
)


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}


@dataclass
class Verdict:
    rejected: dict[str, str]
    proofs: list[AppliedProof]


def validate(samples: list[Sample], store: Store, head: Head | Unknown) -> Verdict:
    measured = Measuring(store, IDENTITY, HIDDEN, head).measure(samples)
    judge = Judge(store, head, "bfloat16", measured)
    return Verdict(judge.rejected, judge.proofs(measured))


@dataclass
class Fixture:
    store: Store
    target: Path
    samples: list[Sample]

    def validate(self) -> Verdict:
        return validate(self.samples, self.store, read_head(self.target))

    def rewrite(self, change: Callable[[torch.Tensor], torch.Tensor], n: int = 1) -> None:
        """Change the states of sample n and commit them again, as an engine that is wrong would."""
        path = self.store.states_path(self.samples[n].key)
        tensors = load_file(path)
        tensors["hidden_states"] = change(tensors["hidden_states"].clone())
        greedy = self.store.read_sidecar(self.samples[n].key).greedy_token
        commit(self.store, self.samples[n], tensors["hidden_states"], greedy)


def commit(store: Store, sample: Sample, states: torch.Tensor, greedy: int) -> None:
    store.states_path(sample.key).unlink(missing_ok=True)  # the first writer of a key wins
    part = store.directory / "part"
    save_file(
        {"hidden_states": states.contiguous(), "token_ids": torch.tensor(sample.token_ids)},
        part,
        metadata=states_metadata({"extraction_id": IDENTITY.extraction_id}, sample.key),
    )
    store.commit(
        sample.key,
        part,
        {
            "greedy_token": greedy,
            "tokens": len(sample.token_ids),
            "size_bytes": part.stat().st_size,
            "xxh3_128": file_checksum(part),
        },
    )


@pytest.fixture
def batch(tmp_path: Path) -> Fixture:
    generator = torch.Generator().manual_seed(0)
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text(json.dumps(CONFIG))
    norm = torch.rand(HIDDEN, generator=generator) * 3 + 0.1
    weight = torch.randn(VOCAB, HIDDEN, generator=generator)
    save_file({"model.norm.weight": norm, "lm_head.weight": weight}, target / "model.safetensors")
    store = Store(tmp_path / "store", IDENTITY.extraction_id)
    store.directory.mkdir(parents=True)
    samples, head = [], read_head(target)
    for n in range(SAMPLES):
        ids = tuple(range(n, n + 9))
        samples.append(Sample(f"s:{n}", sample_key(ids), ids, (1,) * 9))
        states = torch.randn(9, 2, HIDDEN, generator=generator).to(torch.bfloat16)
        commit(store, samples[-1], states, int(head.logits(states[-1:, -1]).argmax()))
    return Fixture(store, target, samples)


def test_right_states_are_proven(batch: Fixture) -> None:
    verdict = batch.validate()
    assert verdict.rejected == {}
    assert all(proof.samples == SAMPLES for proof in verdict.proofs if proof.proof != "token-loss")
    assert [proof.rows for proof in verdict.proofs[:3]] == [9 * SAMPLES] * 3


def post_norm(fixture: Fixture) -> Callable[[torch.Tensor], torch.Tensor]:
    norm = load_file(fixture.target / "model.safetensors")["model.norm.weight"]

    def change(states: torch.Tensor) -> torch.Tensor:
        last = states[:, -1].float()
        states[:, -1] = (last * torch.rsqrt(last.pow(2).mean(-1, keepdim=True) + 1e-6) * norm).to(
            torch.bfloat16
        )
        return states

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda _: lambda states: states.flip(1), "greedy-token"),
        (lambda _: lambda states: states.roll(1, 0), "greedy-token"),
        (lambda _: lambda states: torch.cat([states[:6], torch.zeros_like(states[6:])]), "all-zero"),
        (lambda _: lambda states: states[:8], "wrong-shape"),
        (lambda _: lambda states: states.float(), "wrong-dtype"),
    ],
    ids=["layers-swapped", "shifted-by-a-token", "zeroed-tail", "short", "float32"],
)
def test_wrong_states_are_rejected(
    batch: Fixture, change: Callable[[Fixture], Callable[[torch.Tensor], torch.Tensor]], reason: str
) -> None:
    batch.rewrite(change(batch))
    rejected = batch.validate().rejected
    assert list(rejected) == [batch.samples[1].key]
    assert reason in rejected[batch.samples[1].key]


def test_states_after_the_final_norm_do_not_pass_a_batch(batch: Fixture) -> None:
    """A single sample's token may survive a second norm by chance; a batch's do not."""
    for n in range(len(batch.samples)):
        batch.rewrite(post_norm(batch), n)
    reasons = list(batch.validate().rejected.values())
    assert len(reasons) >= 3
    assert all("greedy-token" in reason for reason in reasons)


def test_another_samples_states_are_rejected(batch: Fixture) -> None:
    other = load_file(batch.store.states_path(batch.samples[0].key))["hidden_states"]
    batch.rewrite(lambda _: other)
    assert (
        "shared-rows: its last state equals that of sample s:0"
        in batch.validate().rejected[batch.samples[1].key]
    )


def test_states_that_are_rejected_twice_are_known_to_be_the_same(batch: Fixture) -> None:
    key, right = batch.samples[1].key, batch.store.states_path(batch.samples[1].key).read_bytes()
    greedy = batch.store.read_sidecar(key).greedy_token
    for again in (False, True):
        other = load_file(batch.store.states_path(batch.samples[0].key))["hidden_states"]
        commit(batch.store, batch.samples[1], other, greedy)
        assert batch.store.was_quarantined(key) is again
        batch.store.quarantine(key, "wrong")
    batch.store.states_path(key).write_bytes(right)
    commit(batch.store, batch.samples[1], load_file(batch.store.states_path(key))["hidden_states"], greedy)
    assert not batch.store.was_quarantined(key)


def test_a_flipped_bit_breaks_the_checksum(batch: Fixture) -> None:
    path = batch.store.states_path(batch.samples[2].key)
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    assert "checksum" in batch.validate().rejected[batch.samples[2].key]


def test_a_missing_sidecar_is_rejected_not_raised(batch: Fixture) -> None:
    batch.store.sidecar_path(batch.samples[3].key).unlink()
    assert "does not exist" in batch.validate().rejected[batch.samples[3].key]


def test_a_tie_within_rounding_is_no_disagreement(batch: Fixture) -> None:
    head = read_head(batch.target)
    state = torch.randn(1, HIDDEN, generator=torch.Generator().manual_seed(5))
    logits = head.logits(state)
    assert head.disagreements(state, logits.argmax(-1)) == []
    assert head.disagreements(state, logits.argmin(-1)) == [0]
    assert head.disagreements(state * (1 + 2**-9), logits.argmax(-1)) == []


@pytest.mark.parametrize("fast", [True, False])
def test_rounded_logits_decide_as_exact_ones_do(
    batch: Fixture, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every token of states whose largest logits are nearly alike."""
    monkeypatch.setattr("eagle3_data.validation.head.has_fast_bfloat16", lambda: fast)
    weights = load_file(batch.target / "model.safetensors")
    generator = torch.Generator().manual_seed(3)
    nearness = torch.linspace(0.96, 1, VOCAB)[:, None]
    weights["lm_head.weight"] = nearness * torch.randn(1, HIDDEN, generator=generator)
    save_file({name: one.bfloat16() for name, one in weights.items()}, batch.target / "model.safetensors")
    head = read_head(batch.target)
    states = torch.randn(20, HIDDEN, generator=generator)
    assert fast != torch.equal(head.log_probabilities(states), head.logits(states).log_softmax(-1))
    logits = head.logits(states)
    within = (
        logits.max(-1, keepdim=True).values - logits
        <= TIE_RELATIVE["bfloat16"] * logits.abs().max(-1, keepdim=True).values
    )
    assert within.float().mean() < 0.9
    for token in range(VOCAB):
        expected = torch.nonzero(~within[:, token])[:, 0].tolist()
        assert head.disagreements(states, torch.full((20,), token)) == expected


def test_the_greedy_tokens_of_several_batches_are_looked_at_together(
    batch: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch.rewrite(torch.neg, 9)
    measuring = Measuring(batch.store, IDENTITY, HIDDEN, read_head(batch.target))
    monkeypatch.setattr("eagle3_data.validation.measuring.GREEDY_AT_ONCE", 10)
    groups = [batch.samples[:4], batch.samples[4:4], batch.samples[4:]]
    finished = measuring.finish([measuring.begin(group) for group in groups])
    assert [[one.key for one in group] for group in finished] == [
        [one.key for one in group] for group in groups
    ]
    assert [one.key for group in finished for one in group if one.rejected] == [batch.samples[9].key]


@pytest.mark.parametrize("token", [-1, VOCAB, 10**9])
def test_a_greedy_token_outside_the_vocabulary_is_a_disagreement(batch: Fixture, token: int) -> None:
    assert read_head(batch.target).disagreements(torch.ones(1, HIDDEN), torch.tensor([token])) == [0]


@pytest.mark.parametrize(
    "number", [1e3, 65504.0, 1e18, 1.8e19, 1e30, 3e38, float("inf"), float("nan"), -1.8e19]
)
def test_one_large_number_in_the_last_state_is_rejected(batch: Fixture, number: float) -> None:
    """From 1.8e19 on the square overflows, and the norm gives zeros: all tokens tie."""

    def change(states: torch.Tensor) -> torch.Tensor:
        states[-1, -1, 7] = number
        return states

    for n in range(SAMPLES):
        batch.rewrite(change, n)
    rejected = batch.validate().rejected
    assert len(rejected) >= SAMPLES - 2  # one number in 50 gives the same token by chance
    if abs(number) >= 1e18 or number != number:
        assert len(rejected) == SAMPLES


@pytest.mark.parametrize("left", [0, 1, 3])
@pytest.mark.parametrize("slot", [0, 1])
def test_a_row_of_which_next_to_nothing_is_left_is_rejected(batch: Fixture, left: int, slot: int) -> None:
    def change(states: torch.Tensor) -> torch.Tensor:
        states[6:, slot, left:] = 0
        return states

    batch.rewrite(change)
    reason = batch.validate().rejected[batch.samples[1].key]
    assert ("degenerate: 3 state rows" if left else "all-zero: 3 state rows") in reason


def test_the_verdict_says_what_was_proven_and_what_was_not(batch: Fixture) -> None:
    verdict = batch.validate()
    names = ("structure", "numbers", "checksum", "greedy-token", "token-loss", "shared-rows")
    assert [proof.proof for proof in verdict.proofs] == list(names)
    not_proven = not_proven_of_batch(verdict.proofs)
    assert any("any slot but the last" in text for text in not_proven)
    assert any("no sample has 16 tokens or more" in text for text in not_proven)


def test_a_target_without_a_known_head_is_not_proven_and_nothing_is_rejected_for_it(batch: Fixture) -> None:
    save_file({"something": torch.zeros(1)}, batch.target / "model.safetensors")
    with pytest.raises(InputError, match="holds no weights for") as caught:
        read_head(batch.target)
    batch.rewrite(lambda states: states.flip(1))
    verdict = validate(batch.samples, batch.store, Unknown(str(caught.value)))
    assert verdict.rejected == {}
    greedy = next(proof for proof in verdict.proofs if proof.proof == "greedy-token")
    assert greedy.samples == 0 and greedy.unknown and "holds no weights for" in greedy.unknown
    last = not_proven_of_batch(verdict.proofs)[0]
    assert "a sample's last state: " in last and "holds no weights" in last


@pytest.mark.parametrize(
    ("half", "kind"),
    [*(("sidecar", kind) for kind in damages.SIDECAR), *(("states", kind) for kind in damages.STATES)],
)
def test_every_damage_to_a_sample_rejects_it_alone_and_it_can_be_quarantined_and_committed_again(
    batch: Fixture, half: str, kind: str
) -> None:
    sample = batch.samples[2]
    states, sidecar = batch.store.states_path(sample.key), batch.store.sidecar_path(sample.key)
    whole = states.read_bytes()
    facts = json.loads(sidecar.read_text())
    if half == "sidecar":
        damages.SIDECAR[kind](sidecar)
    else:
        damages.STATES[kind](states)
    rejected = batch.validate().rejected
    assert list(rejected) == [sample.key] and "\n" not in rejected[sample.key]
    batch.store.quarantine(sample.key, rejected[sample.key])
    assert batch.store.keys().isdisjoint({sample.key}) and not os.path.lexists(states)
    part = batch.store.directory / "part"
    part.write_bytes(whole)
    assert batch.store.commit(sample.key, part, facts)
    assert batch.validate().rejected == {}


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_a_sample_that_may_not_be_read_is_not_rejected(batch: Fixture, suffix: str) -> None:
    path = batch.store.states_path(batch.samples[2].key).with_suffix(suffix)
    with damages.forbidden(path), pytest.raises(StorageError, match="permission denied"):
        validate([batch.samples[2]], batch.store, Unknown("none"))
    assert batch.validate().rejected == {}


def test_where_there_is_no_head_the_reason_is_taken(batch: Fixture) -> None:
    assert isinstance(find_head(batch.target), Head)
    (batch.target / "config.json").write_text(
        json.dumps({**CONFIG, "architectures": ["No"], "model_type": "no"})
    )
    found = find_head(batch.target)
    assert isinstance(found, Unknown) and "`no`" in found.reason
