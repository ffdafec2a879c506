"""Text and spans to ids and masks, with tokenizers of several kinds."""

from pathlib import Path

import pytest

from eagle3_data.tokenization import start_encoder
from eagle3_data.tokenization.backends import FastBackend, SlowBackend
from eagle3_data.tokenization.encoder import SpanEncoder
from eagle3_data.tokenization.pieces import Pieces
from slow_tokenizer import save_slow_tokenizer
from tiny_tokenizer import SPECIAL, TEMPLATES, Tiny, assistant, call, ids_of, save_tokenizer, talk, turn, user


def metaspace():
    """A tokenizer in the manner of SentencePiece: a space is part of the word behind it, and one is put
    before the text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    core = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.train_from_iterator(
        ["USER: Hi ASSISTANT: Hello! And you? Fine, thanks."] * 9,
        trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))],
            show_progress=False,
        ),
    )
    core.add_tokens([AddedToken("</s>", special=True, normalized=False)])
    return core


def core_of(tiny):
    return tiny.tokenizer.backend._backend._tokenizer


def spans_of(text, *parts):
    return [(text.index(part), text.index(part) + len(part)) for part in parts]


def trained(backend, encoded):
    return [backend.decode([token]) for token, flag in zip(encoded.ids, encoded.mask, strict=True) if flag]


def test_a_space_that_belongs_to_the_answer_s_first_token_is_its():
    backend = FastBackend(metaspace())
    text = "USER: Hi ASSISTANT: Hello!</s>USER: And you? ASSISTANT: Fine, thanks.</s>"
    encoded = SpanEncoder(backend).encode(text, spans_of(text, " Hello!</s>", " Fine, thanks.</s>"))
    assert "".join(trained(backend, encoded)).replace(" ", "") == "Hello!</s>Fine,thanks.</s>"
    assert encoded.ids == backend.encode(text, [])[0]


def test_characters_of_several_tokens_are_trained_whole():
    backend = FastBackend(metaspace())
    text = "USER: ü ASSISTANT: 😀é</s>"
    encoded = SpanEncoder(backend).encode(text, spans_of(text, " 😀é</s>"))
    assert (
        backend.decode([token for token, flag in zip(encoded.ids, encoded.mask, strict=True) if flag]).strip()
        == "😀é</s>"
    )


@pytest.mark.parametrize("start", ["H", "\n", "\n\n"])
def test_prompt_and_answer_are_encoded_apart_only_where_a_token_straddles_them(start):
    tiny = Tiny("chatml")
    text = f"<|im_start|>assistant\n{start}ello<|im_end|>"
    spans = [(len("<|im_start|>assistant\n"), len(text))]
    encoded = SpanEncoder(tiny.tokenizer.backend).encode(text, spans)
    prompt, answer = (
        tiny.tokenizer.backend.encode(part, [])[0] for part in (text[: spans[0][0]], text[spans[0][0] :])
    )
    assert encoded.ids == prompt + answer
    assert encoded.mask == bytes(len(prompt)) + b"\x01" * len(answer)


def test_a_token_that_swallows_the_space_behind_it_ends_the_turn():
    from tokenizers import AddedToken

    core = metaspace()
    core.add_tokens([AddedToken("<|end|>", special=True, normalized=False, rstrip=True)])
    backend = FastBackend(core)
    text = "USER: Hi ASSISTANT: Hello!<|end|>\nUSER: And you?"
    encoded = SpanEncoder(backend).encode(text, spans_of(text, " Hello!<|end|>"))
    assert trained(backend, encoded)[-1] == "<|end|>"
    assert encoded.ids == backend.encode(text, [])[0]


def test_a_normalizer_that_composes_characters_is_no_mismatch():
    from tokenizers import normalizers

    tiny = Tiny("chatml")
    core_of(tiny).normalizer = normalizers.NFC()
    decomposed = "Cafe\u0301!"
    sample = tiny.sample({"messages": talk("Hi", decomposed)})
    assert tiny.show(sample).endswith("⟦Caf\u00e9!<|im_end|>⟧\n")


def test_a_tokenizer_that_loses_characters_is_a_mismatch():
    from tokenizers import normalizers

    tiny = Tiny("chatml")
    core_of(tiny).normalizer = normalizers.Lowercase()
    assert tiny.fate({"messages": talk("Hi", "Hello")}) == "token-mismatch"


# Tokenizers without offsets


@pytest.fixture(scope="module")
def slow(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("slow")
    save_slow_tokenizer(directory, (TEMPLATES / "im_middle.jinja").read_text(encoding="utf-8"), list(SPECIAL))
    return directory


CONVERSATION = [
    user("Hi 😀"),
    assistant("Hello there, 日本!"),
    user("Weather?"),
    assistant(None, call("weather", {"city": "Romé"})),
    turn("tool", "rain", tool_call_id="weather:0"),
    assistant("\nRain é"),
]


def test_a_tokenizer_in_python_gives_the_same_masks(slow):
    tiny = Tiny(None, directory=slow)
    assert isinstance(tiny.tokenizer.backend._backend, SlowBackend)
    assert tiny.shown(*CONVERSATION) == Tiny("im_middle").shown(*CONVERSATION)


def test_its_ids_are_those_of_its_own_encoding(slow):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(slow, trust_remote_code=True)
    expected = tokenizer.apply_chat_template(CONVERSATION, tokenize=True, return_dict=False)
    assert ids_of(Tiny(None, directory=slow).sample({"messages": CONVERSATION})) == expected


def test_a_tokenizer_s_own_way_of_rendering_is_used(slow):
    tools = [{"type": "function", "function": {"name": "weather"}}]
    template = "{{ tools_notation }}" + (TEMPLATES / "chatml.jinja").read_text(encoding="utf-8")
    (slow / "own.jinja").write_text(template, encoding="utf-8")
    tiny = Tiny(None, directory=slow, chat_template=str(slow / "own.jinja"))
    assert (
        tiny.shown(*talk("Hi", "Hello"), tools=tools)
        == "type weather;<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n⟦Hello<|im_end|>⟧\n"
    )


def test_borders_inside_words_are_found_by_decoding(slow):
    backend = Tiny(None, directory=slow).tokenizer.backend._backend
    ids, cuts = backend.encode("HeHello 😀é!", [1, 2, 9, 10])
    assert cuts == [None, 1, 7, 8]  # "H|e" is one token; 😀 four tokens, é one
    assert backend.decode(ids[:7]) == "HeHello 😀"


def test_its_straddling_tokens_are_split_too(slow):
    encoder = SpanEncoder(Tiny(None, directory=slow).tokenizer.backend)
    encoded = encoder.encode("Hello", [(2, 5)])
    assert encoded.mask == b"\x00\x01\x01"  # He, ll, o


def test_remote_code_must_be_trusted(slow):
    from eagle3_data.config import Target, Tokenization
    from eagle3_data.errors import InputError
    from eagle3_data.tokenization.tokenizer import load_tokenizer
    from tiny_tokenizer import describe

    with pytest.raises(InputError, match=r"set target\.trust_remote_code: true"):
        load_tokenizer(describe(slow, 1000), Target(path=str(slow)), Tokenization())


def test_a_backend_that_miscounts_is_caught_by_decoding():
    class Shifted(FastBackend):
        def encode(self, text, borders):
            ids, cuts = super().encode(text, borders)
            return ids, [cut - 1 for cut in cuts]

    backend = Shifted(core_of(Tiny("chatml")))
    encoded = SpanEncoder(backend).encode("<|im_start|>assistant\nHello<|im_end|>\n", [(22, 37)])
    assert encoded.faults[0].reason == "token-mismatch"
    assert encoded.faults[0].detail == "the text is 'Hello<|im_end|>', its tokens read 'Hello'"
    assert 1 not in encoded.mask


# Shared heads


class Counting(FastBackend):
    characters = 0

    def encode_all(self, texts):
        self.characters += sum(map(len, texts))
        return super().encode_all(texts)


def test_a_shared_head_is_encoded_once_and_changes_nothing():
    counting = Counting(core_of(Tiny("chatml")))
    backend = Pieces(counting, ["<|im_end|>", "<|im_start|>"])
    head = "<|im_start|>system\n" + "Be very brief, please. " * 100 + "<|im_end|>"
    texts = [f"{head}\n<|im_start|>user\nHi {number}<|im_end|>" for number in range(50)]
    counting.characters = 0
    encoded = [backend.encode(text, [len(head), len(head) + 1, len(text)]) for text in texts]
    assert counting.characters < 2 * len(head) + 50 * 60
    assert encoded == [counting.encode(text, [len(head), len(head) + 1, len(text)]) for text in texts]


def test_a_text_that_is_asked_for_again_is_not_encoded_again():
    counting = Counting(core_of(Tiny("chatml")))
    pieces = Pieces(counting, ["<|im_end|>", "<|im_start|>"])
    text = "<|im_start|>user\n" + "Hello, how are you today? " * 20 + "<|im_end|>"
    counting.characters = 0
    ids, cuts = pieces.encode(text, [17])
    assert pieces.encode(text, [17, 18]) == (ids, [*cuts, None])
    assert pieces.encode(text + text, [])[0] == ids + ids
    assert counting.characters < len(text) + 100


def test_a_head_with_a_border_inside_is_encoded_with_the_rest():
    backend = Tiny("chatml").tokenizer.backend
    text = "<|im_start|>assistant\n" + "Long answer. " * 100 + "<|im_end|>\n"
    assert backend.encode(text, [22, len(text) - 1]) == backend._backend.encode(text, [22, len(text) - 1])


def test_a_separator_that_touches_its_neighbours_changes_no_ids():
    from tokenizers import AddedToken

    core = metaspace()
    core.add_tokens([AddedToken("<|end|>", special=True, normalized=False, rstrip=True)])
    assert Pieces(FastBackend(core), [""])._separator is None
    for separator in ("<|end|>", "</s>"):
        backend = Pieces(FastBackend(core), [separator])
        for behind in ("  \n Hi", "Hi", " Hi", "\nHi"):
            text = "USER: " + "Hello! And you? " * 70 + separator + behind
            assert backend.encode(text, []) == FastBackend(core).encode(text, [])


def test_bos_is_put_before_plain_text_once(tmp_path):
    save_tokenizer(tmp_path, None, bos="<|begin|>")
    tiny = Tiny(None, directory=tmp_path, source={"trained": "all"})
    for text in ("Hello, you", "<|begin|>Hello, you"):
        assert (
            tiny.show(tiny.sample({"text": text})).replace("⟦", "").replace("⟧", "") == "<|begin|>Hello, you"
        )
    assert tiny.show(tiny.sample({"text": "Hello, you"})) == "<|begin|>⟦Hello, you⟧"


# Very long texts


@pytest.mark.parametrize("text", ["Hello, world (é) 12 ", "a", " ", "日本😀", "word\n\n", "<|im_end|>x"])
@pytest.mark.parametrize("first", ["user", "assistant"])
def test_a_very_long_text_gives_the_tokens_it_gives_when_all_of_it_is_encoded(text, first, monkeypatch):
    monkeypatch.setattr(start_encoder, "LEAST_CHARACTERS", 512)
    answer = ["So be it.", text * (20_000 // len(text))]
    row = {"messages": talk("Hi", *answer) if first == "user" else talk(*reversed(answer), "More", "Ho")}
    cut = Tiny("chatml", max_length=64)
    samples, dropped = cut.outcome(row).samples, cut.outcome(row).dropped
    monkeypatch.setattr(start_encoder, "FAR", 10**9)
    whole = Tiny("chatml", max_length=64).outcome(row)
    assert samples == whole.samples
    assert [drop.reason for drop in dropped] == [drop.reason for drop in whole.dropped]


def test_only_the_beginning_of_a_very_long_text_is_encoded(monkeypatch):
    monkeypatch.setattr(start_encoder, "LEAST_CHARACTERS", 512)
    tiny = Tiny("chatml", max_length=64, too_long="drop")
    longest = 0
    encode = tiny.tokenizer.backend.encode

    def watched(text, borders):
        nonlocal longest
        longest = max(longest, len(text))
        return encode(text, borders)

    monkeypatch.setattr(tiny.tokenizer.backend, "encode", watched)
    outcome = tiny.outcome({"messages": talk("Hi", "Hello, world. " * 10_000)})
    assert [drop.reason for drop in outcome.dropped] == ["too-long"]
    assert outcome.dropped[0].detail.endswith(" tokens and more")
    assert longest <= 4 * 16 * 64


# Tokenizers that put a blank before the first word of a text


def blank_first():
    """As transformers makes of a LlamaTokenizer with legacy=false."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    core = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.train_from_iterator(
        ["The answer is four.\n\nHello, how are you?\n\nFine."] * 9,
        trainers.BpeTrainer(
            vocab_size=500,
            special_tokens=["<unk>", *(f"<0x{i:02X}>" for i in range(256))],
            show_progress=False,
        ),
    )
    core.add_tokens([AddedToken("</s>", special=True, normalized=False)])
    return core


@pytest.mark.parametrize("behind", ["\n<|user|>\nHi", "Hello", " Hello", "\n\nThe answer"])
def test_no_blank_is_put_behind_a_shared_prefix(behind):
    whole = FastBackend(blank_first())
    prefixes = Pieces(FastBackend(blank_first()), ["</s>"])
    text = "Be very brief, please. " * 60 + "</s>" + behind
    assert prefixes._separator is not None
    assert prefixes.encode(text, [len(text)]) == whole.encode(text, [len(text)])


@pytest.mark.parametrize("answer", ["\nThe answer", "\n\nFine.", "Hello"])
def test_no_blank_is_put_before_an_answer_that_is_encoded_apart(answer):
    backend = FastBackend(blank_first())
    text = f"Hello, how are you?</s>\n{answer}</s>"
    start = len("Hello, how are you?</s>\n")
    encoded = SpanEncoder(backend, ["</s>"]).encode(text, [(start, len(text))])
    assert not encoded.faults
    ids = [token for token, flag in zip(encoded.ids, encoded.mask, strict=True) if flag]
    assert backend.decode(ids) == f"{answer}</s>"
    assert [backend._tokenizer.id_to_token(token) for token in ids].count("▁") == 0


# Texts in pieces

SEPARATORS = ("<|im_start|>", "<|im_end|>", "</s>")
PIECES_OF_TEXT = (
    *(
        "Hello",
        " how",
        "\n",
        "\n\n",
        " ",
        "assistant\n",
        "é",
        "e\u0301",
        "\u0338",
        "日本",
        "😀",
        "<|im_",
        "end|>",
    ),
    *("Hello</", "s>", "<", ">", "12", "\t", "\r\n"),
)


def byte_level(**options):
    from tokenizers import normalizers

    core = core_of(Tiny("chatml"))
    core.normalizer = normalizers.NFC() if options.get("composes") else None
    return core


@pytest.mark.parametrize("make", [byte_level, lambda: byte_level(composes=True), metaspace, blank_first])
@pytest.mark.parametrize(
    "options",
    [{}, {"rstrip": True}, {"lstrip": True}, {"single_word": True}, {"normalized": True}, {"more": True}],
    ids=str,
)
def test_a_text_in_pieces_has_the_ids_and_cuts_of_the_whole(make, options):
    from random import Random

    from tokenizers import AddedToken

    core, random = make(), Random(0)
    own = {name: value for name, value in options.items() if name != "more"}
    tokens = [*SEPARATORS, *(["<|im_end|>12", "Hello</"] if "more" in options else [])]
    core.add_tokens([AddedToken(token, **{"normalized": False, **own}) for token in tokens])
    whole, pieces = FastBackend(core), Pieces(FastBackend(core), SEPARATORS, tokens)
    for _ in range(150):
        parts = random.choices((*SEPARATORS, *PIECES_OF_TEXT), k=random.randint(1, 20))
        places = [len("".join(parts[:count])) for count in range(len(parts) + 1)]
        borders = sorted(random.choices(places, k=5))
        text = "".join(parts)
        expected = whole._encode_with_offsets(text, borders)
        assert pieces.encode(text, borders) == whole.encode(text, borders) == expected, parts


def test_a_token_that_may_begin_before_a_separator_keeps_texts_whole():
    from tokenizers import AddedToken

    core = core_of(Tiny("chatml"))
    core.add_tokens([AddedToken(token, normalized=False) for token in ("</s>", "Hello</")])
    assert Pieces(FastBackend(core), ["</s>"], [])._separator is not None
    pieces = Pieces(FastBackend(core), ["</s>"], ["</s>", "Hello</"])
    assert pieces._separator is None
    assert pieces.encode("Hello</s>", []) == FastBackend(core).encode("Hello</s>", [])


def test_bytes_of_tokens_tell_whether_they_read_as_a_text(monkeypatch):
    backend = FastBackend(core_of(Tiny("chatml")))
    text = "Hello 日本 é\n<|im_end|>"
    ids = backend.encode(text, [])[0]
    assert not backend.reads(ids, text + " ")
    monkeypatch.setattr(backend, "decode", None)
    assert backend.reads(ids, text)
    assert FastBackend(metaspace())._bytes is None
