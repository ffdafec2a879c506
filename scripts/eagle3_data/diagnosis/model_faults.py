"""Faults of the model and of what is asked of it. Standard library only."""

from __future__ import annotations

from eagle3_data.diagnosis.fault import fault

FAULTS = (
    fault(
        "not-eagle3",
        r"does not support EAGLE3 interface|does not support hidden state extraction|is only supported for"
        r" \[.*\] +models",
        "this vLLM cannot capture hidden states from this model class",
        "use a vLLM whose class implements SupportsEagle3 (`check_compatibility.py matrix` shows which), or"
        " the transformers engine",
    ),
    fault(
        "layer-not-captured",
        r"expanded size of the tensor \(\d+\) must match the existing size \(\d+\) at non-singleton"
        r" dimension 1"
        r"|values to unpack \(expected 2\)\nby hidden_states, aux_hidden_states = ",
        "vLLM captured fewer layers than were asked for: an id is given twice, or the model's forward does"
        " not capture it",
        "give distinct ids; the compatibility check names one that is never captured, and the vLLM that"
        " captures it",
    ),
    fault(
        "layer-zero",
        r"TypeError: unsupported operand type\(s\) for \+: 'Tensor' and 'NoneType'",
        "layer id 0 was asked of a model class that adds a residual before there is one",
        "leave layer id 0 out of extraction.layers",
    ),
    fault(
        "architecture-unregistered",
        r"Model architectures \[.*?\] (?:are not supported for now|failed to be inspected)|has no vLLM"
        r" implementation",
        "this vLLM does not know the model's architecture",
        "use a vLLM that has it (`check_compatibility.py matrix`)",
    ),
    fault(
        "checkpoint-gated",
        r"GatedRepoError|gated repo|Access to model \S+ is restricted|40[13] Client Error",
        "the checkpoint on the Hugging Face hub is not open to this user",
        "ask for access on the model's page and log in (`hf auth login`), download it, and give its folder as"
        " target.path",
    ),
    fault(
        "checkpoint-not-found",
        r"OfflineModeIsEnabled|LocalEntryNotFoundError|RepositoryNotFoundError|couldn't connect to"
        r" 'https://huggingface|outgoing traffic has been disabled|is not a local folder and is not a"
        r" valid model"
        r"|Repo id must (?:be|use)|Max retries exceeded with url: .*huggingface",
        "the checkpoint is not on this machine, and the Hugging Face hub does not give it",
        "download it where there is a network (`hf download NAME`), and give its folder as target.path",
    ),
    fault(
        "tokenizer-unusable",
        r"instantiate the backend tokenizer|did not match any variant of untagged enum|[Cc]an't load"
        r" tokenizer"
        r"|Tokenizer class \w+ does not exist|Converting from (?:SentencePiece and )?Tiktoken failed",
        "the checkpoint's tokenizer cannot be loaded",
        "compare the tokenizer's files with the checkpoint's origin; a newer transformers or tokenizers"
        " may be"
        " needed",
    ),
    fault(
        "remote-code-needed",
        r"trust_remote_code",
        "the checkpoint brings its own Python code, which runs only if you allow it",
        "read that code; if you trust it, set target.trust_remote_code: true",
    ),
    fault(
        "too-long",
        r"max_model_len \(\d+\) is greater than the derived max_model_len|is longer than the maximum model"
        r" length|maximum context length is",
        "samples are longer than the model's positions",
        "lower tokenization.max_length",
    ),
    fault(
        "token-beyond-vocabulary",
        r"Token id \d+ is out of vocabulary|index out of range in self",
        "a sample holds a token id that the model has no embedding for",
        "use the tokenizer that belongs to this model",
    ),
    fault(
        "checkpoint-torn",
        r"SafetensorError: Error while deserializing|MetadataIncompleteBuffer|InvalidHeader",
        "a weight file is cut short or damaged",
        "download the checkpoint again and compare sizes",
    ),
    fault(
        "checkpoint-misfit",
        r"There is no module or parameter named|KeyError: '(?:model\.)?layers\.\d+|Following weights were not"
        r" initialized",
        "the weight files and config.json do not describe the same model as vLLM's class",
        "compare config.json with the checkpoint's origin (DeepSeek-V3 wants topk_method: noaux_tc and"
        " scoring_func: sigmoid)",
    ),
)
