"""Judges samples by those of the whole run: shared rows, token loss, shared prefixes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from eagle3_data.errors import SampleError
from eagle3_data.records.replay import Replay
from eagle3_data.store import Store
from eagle3_data.store.states import States, open_states
from eagle3_data.validation.coverage import (
    CHECKSUM,
    GREEDY_TOKEN,
    NUMBERS,
    SHARED_PREFIX,
    SHARED_ROWS,
    STRUCTURE,
    TOKEN_LOSS,
)
from eagle3_data.validation.head import Head, Unknown
from eagle3_data.validation.likeness import Tolerance
from eagle3_data.validation.measured import Measured
from eagle3_data.validation.shared_prefix import Partner, PrefixCheck, PrefixIndex, tolerances_of
from eagle3_data.validation.token_loss import FEWEST_ROWS, ROWS, RunLosses, best_place, token_losses
from eagle3_data.validation.verdict import AppliedProof

HEAD_ROWS = 256
NEARBY = 256
"""Samples in which the place is looked for that rows belong to: those around it in the order of the data."""
UNEXPLAINED = (
    "some samples have 32 tokens on end that their states do not tell, and no other sample's nearby either:"
    " unusual texts, or wrong numbers (the log of validate_pass names them)"
)


class Judge:
    """Of the samples `own`, given what is known of the run's `others`. `rejected` maps keys to reasons; also
    keys of others, where those turn out to be wrong."""

    def __init__(
        self,
        store: Store,
        head: Head | Unknown,
        dtype: str,
        own: Sequence[Measured],
        others: Sequence[Measured] = (),
        index: PrefixIndex | None = None,
        replay: Replay | None = None,
        threads: int = 1,
    ) -> None:
        self._store, self._head, self._threads = store, head, threads
        self._own, self._all = own, [*own, *others]
        self._own_keys = {one.key for one in own}
        self._dtype, self._replay = dtype, replay
        self.rejected = {one.key: one.rejected for one in own if one.rejected}
        self._losses = self._run_losses()
        self.unexplained: set[str] = set()
        """Keys of own samples whose tokens their states do not tell, for a reason that is not known."""
        self._closely: dict[str, int] = {}
        self._ids: dict[str, np.ndarray] = {}
        self._partners: dict[str, Partner] = {}
        self._token_loss()
        self._shared_rows()
        if index:
            self._shared_prefixes(index)

    # ---- what several samples have in common

    def _shared_rows(self) -> None:
        """The last state depends on all tokens of a sample, so of samples that have it in common at most one
        is right. Which is known where other proofs reject all others; else all are rejected. Of one token
        again and again the state is the same at every place, so such samples may have it in common."""
        groups: dict[int, dict[str, Measured]] = {}
        for one in self._all:
            if one.slots:
                groups.setdefault(one.last_row, {})[one.key] = one
        for group in groups.values():
            accepted = [key for key in group if key not in self.rejected]
            if len(group) < 2 or self._own_keys.isdisjoint(group):
                continue
            suspects = group.keys() if len(accepted) > 1 else group.keys() - accepted
            for key in [one for one in suspects if len(set(self._ids_of(one).tolist())) != 1]:
                twin = next(one for other, one in group.items() if other != key)
                self._reject(
                    key,
                    f"{SHARED_ROWS}: its last state equals that of sample {twin.sample_id}, whose tokens"
                    " before it differ",
                )

    def _shared_prefixes(self, index: PrefixIndex) -> None:
        slots = next((len(one.slots) for one in self._own if one.slots), 0)
        default = tolerances_of((), slots, self._dtype)
        measured = tolerances_of(self._replay.slots if self._replay else (), slots, self._dtype)

        def tolerances(key: str, other: str) -> Sequence[Tolerance]:
            """Another pass may have had other kernels than the one whose samples were replayed."""
            return measured if {key, other} <= self._own_keys else default

        check = PrefixCheck(index, self._find, tolerances)
        already = frozenset(self.rejected)
        keys = [one.key for one in self._own if one.key not in already]
        with ThreadPoolExecutor(self._threads, "compare") as pool:
            partners = pool.map(lambda key: check.partner(key, already), keys)
            self._partners = {pair.key: pair for pair in partners if pair}
        for pair in self._partners.values():
            if not pair.comparison.disagreeing or {pair.key, pair.other} & self.rejected.keys():
                continue
            wrong = check.wrong(pair, self.rejected.keys())
            for key in wrong:
                self._reject(key, _prefix_fault(key, pair, both=len(wrong) > 1))

    def _find(self, key: str) -> States | None:
        if not self._store.holds(key):
            return None
        try:
            return open_states(self._store.states_path(key))
        except SampleError:  # of another batch, damaged since: what reads it next says so
            return None

    # ---- token loss

    def _run_losses(self) -> RunLosses | None:
        if isinstance(self._head, Unknown):
            return None
        losses = [one.token_loss for one in self._all if one.token_loss]
        return RunLosses.of(losses, self._head.vocab_size)

    def _token_loss(self) -> None:
        if isinstance(self._head, Unknown) or not self._losses or self._losses.unknown:
            return
        for place, one in enumerate(self._own):
            if not one.token_loss or one.key in self.rejected or not self._losses.looks_weak(one.token_loss):
                continue
            rows = one.token_loss.close_look(one.tokens)
            self._closely[one.key] = rows.stop - rows.start
            if (states := self._find(one.key)) and (windows := self._weak_windows(states, rows)):
                if fault := self._where_they_belong(place, states, windows):
                    self._reject(one.key, fault)
                else:
                    self.unexplained.add(one.key)

    def _weak_windows(self, states: States, rows: slice) -> list[slice]:
        """Rows of the sample that do not tell their next tokens."""
        assert self._losses
        following = states.token_ids[rows.start + 1 : rows.stop + 1].copy()
        columns = torch.from_numpy(following)
        blocks = [
            self._told(states, slice(first, min(first + HEAD_ROWS, rows.stop)))[:, columns]
            for first in range(rows.start, rows.stop, HEAD_ROWS)
        ]
        found = self._losses.weak_windows(*token_losses(torch.cat(blocks), following))
        return [slice(rows.start + one.start, rows.start + one.stop) for one in found]

    def _where_they_belong(self, place: int, states: States, windows: Sequence[slice]) -> str:
        """What is wrong with a sample whose rows are another place's; empty if no such place is found, in the
        sample itself and those near it."""
        assert self._losses
        nearby = self._all[max(0, place - NEARBY // 2) :][:NEARBY]
        for window in windows:
            told = self._told(states, window)
            for other in (self._own[place], *nearby):
                token_ids = self._ids_of(other.key)
                at = best_place(told, token_ids)
                is_own_place = other is self._own[place] and at == window.start
                if at is None or is_own_place:
                    continue
                if self._losses.belong(told, token_ids[at + 1 : at + 1 + len(told)]):
                    whose = "this sample" if other is self._own[place] else f"sample {other.sample_id}"
                    return (
                        f"{TOKEN_LOSS}: rows {window.start} to {window.stop - 1} of the last slot do not tell"
                        f" their next tokens, but those of rows {at} to {at + len(told) - 1} of {whose}"
                    )
        return ""

    def _told(self, states: States, rows: slice) -> torch.Tensor:
        assert isinstance(self._head, Head)
        return self._head.log_probabilities(torch.from_numpy(states.values(rows, -1)))

    def _ids_of(self, key: str) -> np.ndarray:
        if key not in self._ids:
            if len(self._ids) >= 2 * NEARBY:
                self._ids.clear()
            states = self._find(key)
            self._ids[key] = states.token_ids.copy() if states else np.empty(0, np.int64)
        return self._ids[key]

    # ---- the result

    def _reject(self, key: str, reason: str) -> None:
        self.rejected[key] = f"{self.rejected[key]}; {reason}" if key in self.rejected else reason

    def proofs(self, samples: Collection[Measured]) -> list[AppliedProof]:
        """What was applied to some of the own samples."""
        count, rows = len(samples), sum(one.tokens for one in samples)
        return [
            *(
                AppliedProof(name, count, "every slot and token", rows=rows)
                for name in (STRUCTURE, NUMBERS, CHECKSUM)
            ),
            *self._last_slot_proofs(samples),
            AppliedProof(
                SHARED_ROWS, count, "last slot, last token, against all samples of the run", rows=count
            ),
            *self._prefix_proofs(samples),
        ]

    def _last_slot_proofs(self, samples: Collection[Measured]) -> list[AppliedProof]:
        greedy, loss = (
            "last slot, last token",
            f"last slot, {ROWS} tokens a sample, or all where those look weak",
        )
        if isinstance(self._head, Unknown):
            reason = self._head.reason
            return [
                AppliedProof(name, 0, covers, reason)
                for name, covers in ((GREEDY_TOKEN, greedy), (TOKEN_LOSS, loss))
            ]
        found = [AppliedProof(GREEDY_TOKEN, len(samples), greedy, rows=len(samples))]
        tested = [one for one in samples if one.token_loss]
        if not tested or not self._losses:
            short = f"no sample has {FEWEST_ROWS} tokens or more to predict"
            return [*found, AppliedProof(TOKEN_LOSS, 0, loss, short)]
        figures = {
            "median_loss": self._losses.loss,
            "median_contrast": self._losses.contrast,
            "largest_loss": max(one.token_loss.loss for one in tested if one.token_loss),
        }
        if self._losses.unknown:
            return [*found, AppliedProof(TOKEN_LOSS, 0, loss, self._losses.unknown, figures=figures)]
        closely = [self._closely[one.key] for one in tested if one.key in self._closely]
        rows = sum(one.token_loss.rows for one in tested if one.token_loss) + sum(closely)
        figures["number_looked_at_closely"] = len(closely)
        open_ones = sum(one.key in self.unexplained for one in tested)
        found.append(AppliedProof(TOKEN_LOSS, len(tested) - open_ones, loss, rows=rows, figures=figures))
        if open_ones:
            figures = {"number_unexplained": open_ones}
            found.append(AppliedProof(TOKEN_LOSS, 0, loss, UNEXPLAINED, figures=figures))
        return found

    def _prefix_proofs(self, samples: Collection[Measured]) -> list[AppliedProof]:
        pairs = [self._partners[one.key] for one in samples if one.key in self._partners]
        if not pairs:
            return []
        return [
            AppliedProof(
                SHARED_PREFIX,
                len(pairs),
                "every slot, some of the tokens with which another sample begins, too",
                rows=sum(pair.comparison.rows for pair in pairs),
                figures={"largest_relative_error": max(pair.comparison.largest_error for pair in pairs)},
            )
        ]


def _prefix_fault(key: str, pair: Partner, both: bool) -> str:
    other = pair.other if key == pair.key else pair.key
    slots = ", ".join(map(str, pair.comparison.disagreeing))
    return (
        f"{SHARED_PREFIX}: its first {pair.comparison.shared} tokens are those of {other}, but its states"
        f" there are not (slot {slots}); "
        + (
            "it is not known which is wrong, so both are rejected"
            if both
            else "other samples agree with that one"
        )
    )
