"""A tokenizer in Python over tiktoken, as some checkpoints (Kimi's) bring one as their own code. Copied into
a directory, it is that code."""

import base64
from pathlib import Path

import tiktoken
from transformers import PreTrainedTokenizer

PATTERN = r"""[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"""


class SlowTokenizer(PreTrainedTokenizer):
    vocab_files_names = {"vocab_file": "tiktoken.model"}  # noqa: RUF012 (a name of the base class)

    def __init__(self, vocab_file, special=(), **kwargs):
        lines = Path(vocab_file).read_text(encoding="ascii").splitlines()
        ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}
        self.special_ids = {token: len(ranks) + number for number, token in enumerate(special)}
        self.model = tiktoken.Encoding(
            "tiny", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=self.special_ids
        )
        self.names = {rank: token.decode("latin-1") for token, rank in ranks.items()} | {
            i: token for token, i in self.special_ids.items()
        }
        self.ids = {name: i for i, name in self.names.items()}
        super().__init__(special=list(special), additional_special_tokens=list(special), **kwargs)

    @property
    def vocab_size(self):
        return len(self.names)

    def apply_chat_template(self, conversation, tools=None, **kwargs):
        """As Kimi K2.5's does: tools are written in a notation of its own, which the template gets as a
        variable."""
        notation = "".join(f"type {tool['function']['name']};" for tool in tools or ())
        return super().apply_chat_template(conversation, tools=tools, tools_notation=notation, **kwargs)

    def get_vocab(self):
        return dict(self.ids)

    def _tokenize(self, text, **kwargs):
        return [self.names[i] for i in self.model.encode(text, disallowed_special=())]

    def _convert_token_to_id(self, token):
        return self.ids.get(token)

    def _convert_id_to_token(self, index):
        return self.names[index]

    def convert_tokens_to_string(self, tokens):
        data = b"".join(
            token.encode() if token in self.special_ids else token.encode("latin-1") for token in tokens
        )
        return data.decode(errors="replace")

    def save_vocabulary(self, save_directory, filename_prefix=None):
        return ()


def save_slow_tokenizer(directory: Path, chat_template: str, special: list[str]) -> None:
    """A checkpoint directory with this tokenizer: bytes, some merges, special tokens, and this file as its
    code."""
    import json

    merges = [b"He", b"ll", b"Hell", b"Hello", b" t", b" th", b"an", b"ss", "é".encode()]
    tokens = [bytes([i]) for i in range(256)] + merges
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tiktoken.model").write_text(
        "".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)),
        encoding="ascii",
    )
    (directory / "slow_tokenizer.py").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    settings = {
        "tokenizer_class": "SlowTokenizer",
        "auto_map": {"AutoTokenizer": ["slow_tokenizer.SlowTokenizer", None]},
        "special": special,
        "eos_token": special[0],
        "chat_template": chat_template,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (directory / "config.json").write_text(json.dumps({"model_type": "llama"}), encoding="utf-8")
