"""Faults that are known, each with what it means and what to do, and noise that never is a cause. Standard
library only.

The entries go by logs of real runs (tests/data/logs), by the sources of vLLM, PyTorch, FlashInfer and Triton,
and by what users report. The ids are those of the compatibility check where it finds the same fault.
"""

from __future__ import annotations

import re

from eagle3_data.diagnosis import machine_faults, model_faults, software_faults
from eagle3_data.diagnosis.fault import Fault, fault

FAULTS: tuple[Fault, ...] = (*software_faults.FAULTS, *model_faults.FAULTS, *machine_faults.FAULTS)
"""In the order in which they are tried: the first that fits is named."""

ENGINE_DIED = fault(
    "engine-died",
    r"EngineDeadError|died unexpectedly|engine core exited unexpectedly|exit ?code:? -\d+|Failed core"
    r" proc\(s\): \{'.*': -\d+\}",
    "a process of the engine disappeared without an error: killed from outside, most often because the"
    " host ran out of memory",
    "look at the kernel's or the scheduler's log for an out-of-memory kill; then run the same command again",
)
BARE_ERROR = fault(
    "bare-error",
    r"",
    "an error without a message, so reports of the message alone are empty",
    "read the statement that raised it, and the traceback in the excerpt: it is the condition that did not"
    " hold",
)
EMPTY_MESSAGE = fault(
    "empty-message",
    r"",
    "the error's text is empty, and only the text was passed on (a bare assert in another process"
    " arrives so)",
    "look at the engine's own log for the traceback; run it with VLLM_LOGGING_LEVEL=DEBUG if there is none",
)

SECONDARY = re.compile(
    r"^\w*ExceptionGroup\b|^(?:EngineDeadError|EngineGenerateError|CancelledError|KeyboardInterrupt"
    r"|SystemExit|BrokenPipeError|ConnectionResetError|EOFError|IncompleteReadError)\b"
    r"|Engine core initialization failed|Worker failed with error|WorkerProc initialization failed|See"
    r" (?:stack trace|root cause)"
    r"|CalledProcessError|Ninja build failed|Error (?:building|compiling) (?:extension|objects)|Error"
    r" raised in"
    r" subprocess"
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
