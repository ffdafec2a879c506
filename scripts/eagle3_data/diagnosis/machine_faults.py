"""Faults of devices, memory, files and processes. Standard library only."""

from __future__ import annotations

from eagle3_data.diagnosis.fault import fault

FAULTS = (
    # --- devices and memory
    fault(
        "heads-do-not-divide",
        r"attention heads \(\d+\) must be divisible by tensor parallel size|heads\b[^\n]* (?:is not|must be)"
        r" divisible by",
        "the model cannot be split over this number of devices",
        "set extraction.tensor_parallel to a divisor of the number of attention heads",
    ),
    fault(
        "quantization-unsupported",
        r"[Ff]ailed to find a kernel that can implement|quantization method \S+ is not supported for the"
        r" current"
        r" GPU|Minimum capability: \d+|(?:quantization|W4A16|WNA16|FP8|NVFP4|MXFP4)\b[^\n]* (?:is|are)"
        r" (?:not supported"
        r"|only supported|not (?:yet )?implemented)|Unknown quantization method",
        "this vLLM has no kernel for the checkpoint's quantization on this device, or not in these shapes",
        "read the reasons that vLLM gives for each kernel: a smaller extraction.tensor_parallel leaves larger"
        " blocks, another GPU has more kernels; or extract from a checkpoint that is quantized otherwise"
        " or not",
    ),
    fault(
        "blocks-do-not-divide",
        r"not divisible by (?:\S+ )*(?:min_thread\w*|group_?size|block_?size|quantization block|block_[nk]"
        r"|pack_?factor)|(?:input|output)_size(?:_per_partition)?\b[^\n]*(?:divisible|aligned)|group_size"
        r" == 0",
        "the quantized weights cannot be split over this number of devices: a block would be cut",
        "lower extraction.tensor_parallel until the blocks fit",
    ),
    fault(
        "shape-does-not-divide",
        r"(?:is not|must be) divisible by",
        "a size that must be a multiple of another is not: most often the model cannot be split over this"
        " number"
        " of devices",
        "read both numbers; lower extraction.tensor_parallel if one of them is its",
    ),
    fault(
        "compute-capability",
        r"only supported on GPUs with compute capability|compute capability\b[^\n]*(?:required|at least|or"
        r" higher|not"
        r" supported)|requires? (?:a )?(?:device with )?(?:compute capability|sm_?\d+)",
        "the GPU is too old for this",
        "use a newer GPU, or what the message offers instead (such as extraction.dtype: float16)",
    ),
    fault(
        "device-memory-short",
        r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|Free memory on device .* is less than"
        r" desired",
        "the devices do not hold the model with its activations and cache",
        "set extraction.tensor_parallel higher, lower engine_arguments.max_num_batched_tokens or"
        " gpu_memory_utilization, and see that the devices are free",
    ),
    fault(
        "cache-too-small",
        r"No available memory for the cache blocks|larger than the available KV cache memory|is needed, which"
        r" is larger than the available|larger than the maximum number of tokens that can be stored in KV"
        r" cache",
        "the cache, where the states lie until they are written, does not hold one sample of maximum length",
        "lower tokenization.max_length, raise gpu_memory_utilization, or on the CPU raise"
        " VLLM_CPU_KVCACHE_SPACE (GiB)",
    ),
    fault(
        "connector-needs-cuda",
        r"pin_memory=True requires a CUDA",
        "vLLM's own connector copies through pinned memory, which a CPU machine does not have",
        "use this workflow's connector (extraction.engine: eagle3_data.engines.vllm.engine:VllmEngine)",
    ),
    fault(
        "too-few-numa-nodes",
        r"Not enough allowed NUMA nodes",
        "vLLM wants one NUMA node for each worker on a CPU",
        "set VLLM_CPU_OMP_THREADS_BIND, such as '0|1' for two workers",
    ),
    fault(
        "head-size-unsupported",
        r"Unsupported CPU attention configuration|Head size \d+ is not supported|head_size .* not supported",
        "no attention kernel takes the model's head size on this device",
        "use another device, or another attention backend (engine_arguments.attention_backend)",
    ),
    fault(
        "mla-unsupported",
        r"MLA is not supported on CPU",
        "this vLLM has no MLA attention on CPUs",
        "use vLLM 0.26 or newer, or a GPU",
    ),
    fault(
        "driver-too-old",
        r"CUDA driver version is insufficient|NVIDIA driver on your system is too old|forward"
        r" compatibility was"
        r" attempted|unsupported display driver|Error 803\b",
        "the NVIDIA driver is older than the CUDA version of torch",
        "install a newer driver, or a torch for an older CUDA",
    ),
    fault(
        "no-device",
        r"Found no NVIDIA driver|Failed to infer device type|no CUDA-capable device|No CUDA GPUs are"
        r" available"
        r"|no kernel image is available|not compiled with CUDA enabled",
        "there is no device this build of torch or vLLM can use",
        "run on a machine with a fitting GPU driver, or install the CPU environment",
    ),
    fault(
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
    fault(
        "collective-timeout",
        r"Watchdog caught collective operation timeout",
        "the GPUs timed out waiting for one another: one died, hangs, or was never reached",
        "look in the log for the first rank that failed or fell silent: this line is an echo of that. If none"
        " did, the GPUs do not reach one another: NCCL_DEBUG=INFO shows over what they try,"
        " NCCL_P2P_DISABLE=1 shows whether their direct connection is at fault",
        in_lines=True,
    ),
    fault(
        "communication-lost",
        r"NCCL error|ncclSystemError|ncclUnhandledCudaError|\[Gloo\].*[Cc]onnection",
        "the devices or processes lost each other",
        "look for the first process that died; set NCCL_DEBUG=INFO to see more",
    ),
    fault(
        "address-in-use",
        r"Address already in use|EADDRINUSE",
        "a port vLLM wants is taken by another process",
        "see that no other engine runs, then run again",
    ),
    fault(
        "worker-hangs",
        r"RPC call to \w+ timed out|(?:execute_model|sample_tokens)\b[^\n]* timed out|Timed out waiting"
        r" for (?:engine|work)"
        r"|at .*(?:shm_broadcast|multiproc_executor)\.py.*\n?.*TimeoutError",
        "an engine worker did not answer in time: it hangs, or waits for another that died",
        "look in the log for the first rank that failed or fell silent; if none did, a kernel or the GPUs'"
        " connection hangs: try enforce_eager: true, then NCCL_P2P_DISABLE=1",
    ),
    # --- files and processes
    fault(
        "shared-memory-short",
        r"(?:No space left on device|ENOSPC|Errno 28)[^\n]*(?:/dev/shm|/psm_|/torch_\d|/nccl-|/sem\.)"
        r"|(?:/dev/shm|shared memory segment)[^\n]*(?:No space left|Error 28)|posix_fallocate failed"
        r"|[Ee]rror while creating shared memory segment|insufficient shared memory"
        r"|(?:No space left on device|Errno 28)(?s:.*)\nat [^\n]*(?:shared_memory|shm_broadcast"
        r"|synchronize)\.py",
        "the shared memory of this machine or container, /dev/shm, is full",
        "make it larger (docker: --shm-size=16g or --ipc=host; Kubernetes: an emptyDir of medium Memory at"
        " /dev/shm), and remove what dead processes left in it",
        in_lines=True,
    ),
    fault(
        "host-memory-short",
        r"^MemoryError|Cannot allocate memory|DefaultCPUAllocator: (?:can't|not enough)|std::bad_alloc",
        "the host has too little memory",
        "lower extraction.in_flight_tokens, or ask the scheduler for more memory",
    ),
    fault(
        "too-many-open-files",
        r"Too many open files|EMFILE",
        "a limit on open files was reached",
        "raise it before the run (`ulimit -n 65536`)",
    ),
    fault(
        "disk-full",
        r"No space left on device|ENOSPC|Disk quota exceeded|\(os error 28\)",
        "the disk is full",
        "free space or move extraction.store, then run the same command again",
        in_lines=True,
    ),
    fault(
        "write-error",
        r"Hidden-states write failed for req_id=",
        "the connector could not write a sample's states",
        "see that extraction.store exists and is writable",
        in_lines=True,
    ),
    fault(
        "permission-denied",
        r"PermissionError: .*",
        "a file or directory may not be read or written",
        "correct its permissions, then run the same command again",
    ),
    fault(
        "no-main-guard",
        r"start a new process before the\s+current process has finished its bootstrapping phase",
        "a script starts vLLM at its top level, and each child runs the script again",
        'put the start under `if __name__ == "__main__":`',
    ),
    fault(
        "cuda-in-fork",
        r"Cannot re-initialize CUDA in forked subprocess",
        "CUDA was used before vLLM forked its workers",
        "set VLLM_WORKER_MULTIPROC_METHOD=spawn",
    ),
    fault(
        "time-limit",
        r"DUE TO TIME LIMIT",
        "the scheduler ended the job at its time limit",
        "run the same command again to continue, or raise the limit",
        in_lines=True,
    ),
    fault(
        "killed-for-memory",
        r"oom[-_]kill|Out of memory: Killed process|OOM Killed",
        "the host ran out of memory and the kernel killed the process",
        "lower extraction.in_flight_tokens, or ask the scheduler for more memory",
        in_lines=True,
    ),
    fault(
        "preempted",
        r"slurmstepd: error: .*(?:CANCELLED|PREEMPT)",
        "the scheduler cancelled the job",
        "run the same command again to continue",
        in_lines=True,
    ),
    fault(
        "bus-error",
        r"\bBus error\b|\bSIGBUS\b",
        "a process was ended by a bus error: most often /dev/shm is full, which in a container is small by"
        " default",
        "see how full it is (`df -h /dev/shm`) and make it larger (docker: --shm-size=16g or --ipc=host);"
        " if it"
        " is not, a mapped file was cut short meanwhile: check the disk of the checkpoint",
        in_lines=True,
    ),
    fault(
        "native-crash",
        r"Fatal Python error: |Segmentation fault|SIGSEGV|Illegal instruction|^\s*what\(\):",
        "native code crashed the process",
        "run the same command again; if it crashes on the same sample, that one is set aside",
        in_lines=True,
    ),
)
