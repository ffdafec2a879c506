"""Answers to samples: what the target saw and said, token by token. Nothing is encoded here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from eagle3_data.config import Data, Generation, Tokenization
from eagle3_data.errors import InputError
from eagle3_data.generation.answers import STOP, Answers, Turn
from eagle3_data.generation.prompts import UnitReader
from eagle3_data.generation.store import GenerationStore
from eagle3_data.tokenization.dataset import MakeReader, TokenizationJob
from eagle3_data.tokenization.encoder import Encoded
from eagle3_data.tokenization.reading.rows import Content, Drop, DropError, Notice
from eagle3_data.tokenization.samples import Made, make_sample
from eagle3_data.tokenization.tokenizer import TargetTokenizer

Find = Callable[[str], Answers | None]


def answer_reader(
    job: TokenizationJob, generation: Generation, generation_id: str, left_out: Collection[str] = ()
) -> MakeReader:
    """Makes samples of the rows' answers in the store. Those of `left_out` may be missing there."""
    store = GenerationStore(generation.store, generation_id)
    find = store.reader().find
    described = {**generation.model_dump(mode="json"), "id": generation_id, **store.identity()}

    def make(tokenizer: TargetTokenizer) -> AnswerTokenizer:
        reader = AnswerTokenizer(tokenizer, job.data, job.tokenization, generation, find, left_out)
        reader.generation = described
        return reader

    return make


class AnswerTokenizer(UnitReader):
    """Turns rows into samples of the target's own answers, which `find` gives by their key, but for those of
    `left_out`. Raises InputError where another one is missing."""

    def __init__(
        self,
        tokenizer: TargetTokenizer,
        data: Data,
        settings: Tokenization,
        generation: Generation,
        find: Find,
        left_out: Collection[str] = (),
    ) -> None:
        super().__init__(tokenizer, data, settings, generation)
        self._find, self._left_out = find, left_out

    def samples_of(self, content: Content, trained: str) -> Made:
        units, notices = self.units_of(content)
        made = Made(notices=list(notices))
        for unit in units:
            answers = self._find(unit.key)
            if answers is None and unit.key not in self._left_out:
                raise InputError(
                    f"the target has not answered {unit.key}, though it was to; run the same command again"
                )
            if answers is None:
                made.dropped.append(Drop(unit.suffix, "not-answered"))
            else:
                self._add(made, unit.suffix, answers)
        return made

    def _add(self, made: Made, suffix: str, answers: Answers) -> None:
        pieces = []
        for number, encoded, last in self._pieces(answers):
            pieces.append((number, encoded))
            if last is not None and (fate := self._fate(last)):
                made.dropped.append(Drop(f"{suffix}:{number}", fate))
        if answers.ending:
            made.notices.append(Notice(answers.ending))
        kept = answers.turns[-1] if answers.turns else None
        if kept and kept.is_cut and not self._fate(kept):
            made.notices.append(Notice("looping-answer" if kept.loops else "cut-answer"))
        trained = [(number, encoded) for number, encoded in pieces if 1 in encoded.mask]
        if len(trained) > 1:
            made.notices.append(Notice("changed-history"))
        for number, encoded in trained:
            name = suffix if len(trained) == 1 else f"{suffix}:{number}"
            try:
                made.samples.append(make_sample(name, encoded, self._settings, self._tokenizer.vocab_size))
            except DropError as drop:
                made.dropped.append(Drop(name, drop.reason, drop.detail))

    def _pieces(self, answers: Answers) -> Iterator[tuple[int, Encoded, Turn | None]]:
        """Samples with the number of their last turn, counted from 1, and that turn if it is the last of all.
        A turn whose prompt continues all that was seen before continues the sample; another one begins its
        own."""
        ids: list[int] = []
        mask = bytearray()
        number = 0
        for number, (turn, prompt) in enumerate(answers.prompts(), start=1):
            if ids and turn.kept < len(ids):
                yield number - 1, Encoded(ids, bytes(mask)), None
                ids, mask = [], bytearray()
            mask += bytes(len(prompt) - len(ids))
            ids = [*prompt]
            if not self._fate(turn):
                ids += turn.answer
                mask += b"\x01" * len(turn.answer)
                if turn.finish == STOP and not self._settings.train_end_of_turn:
                    mask[-1] = 0
        if number:
            yield number, Encoded(ids, bytes(mask)), turn

    def _fate(self, turn: Turn) -> str:
        """Why an answer is not trained, empty if it is. Such an answer is the last of its conversation."""
        if self._asker.says_nothing(turn):
            return "empty-answer"
        if turn.loops and self._generation.looping_answers == "drop":
            return "looping-answer"
        if turn.is_cut and self._generation.cut_answers == "drop":
            return "cut-answer"
        return ""
