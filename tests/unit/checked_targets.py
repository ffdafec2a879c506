"""What the tests of the check share: the script, and what it judges."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_compatibility.py"
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 8,
    "hidden_size": 64,
    "vocab_size": 2048,
    "num_attention_heads": 4,
    "max_position_embeddings": 8192,
}
KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "text_config": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "num_attention_heads": 64,
        "n_routed_experts": 384,
        "moe_intermediate_size": 2048,
    },
}


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, check=False
    )


def write_llama(directory: Path) -> Path:
    """A config.json that has no fault."""
    path = directory / "config.json"
    path.write_text(json.dumps(LLAMA))
    return path
