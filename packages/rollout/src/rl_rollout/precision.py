"""In which precision a device computes best: one rule, for engines and trainers, on every node.

`auto` is bfloat16 where the device multiplies it natively and float32 elsewhere: emulated, a product takes
several to sixty times as long as in float32.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

C = TypeVar("C")

AUTO = "auto"
DTYPES = ("float32", "bfloat16", "float16")
COMPUTE_KEYS = ("dtype", "compute_dtype")
"""Names of the keys that say what is computed in: these may be `auto`."""

_CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # as /proc/cpuinfo names them: x86, x86 with tiles, ARM
_ISA_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_ISAS_WITH_BF16 = ("ALL", "DEFAULT", "AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX512_CORE_AMX", "AVX10")
_CUDA_CAPABILITY = (8, 0)


def native_dtype(device: str) -> str:
    """What `auto` means on this machine for "cpu" or "cuda": "bfloat16" or "float32".

    Imports torch for CUDA alone. A limit on oneDNN's instruction sets (`ONEDNN_MAX_CPU_ISA`) counts.
    """
    native = _cuda_has_bfloat16() if device.startswith("cuda") else _cpu_has_bfloat16()
    return "bfloat16" if native else "float32"


def common_dtype(dtypes: Iterable[str]) -> str:
    """What `auto` means for machines that each mean something: "float32" unless all have bfloat16."""
    return "bfloat16" if set(dtypes) == {"bfloat16"} else "float32"


def agreed_dtype(name: str, device: torch.device) -> str:
    """`name`, or for `auto` what all ranks of the process group have natively.

    Collective over the default process group where there is one and `name` is `auto`.
    """
    if name != AUTO:
        return name
    import torch.distributed as dist

    own = native_dtype(device.type)
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return own
    found: list[str] = [own] * dist.get_world_size()
    dist.all_gather_object(found, own)
    return common_dtype(found)


def with_dtype(config: C, device: torch.device) -> C:
    """A configuration with a field `dtype`, as it is or with what `auto` means; see `agreed_dtype`."""
    given: Any = config
    chosen = agreed_dtype(given.dtype, device)
    return config if chosen == given.dtype else replace(given, dtype=chosen)


def compute_keys(config: Any, prefix: str = "") -> Iterator[tuple[Any, str, str]]:
    """(owner, field, dotted key) of each key in a tree of dataclasses that says what is computed in."""
    for field in fields(config):
        value, key = getattr(config, field.name), f"{prefix}{field.name}"
        if is_dataclass(value):
            yield from compute_keys(value, f"{key}.")
        elif field.name in COMPUTE_KEYS:
            yield config, field.name, key


def fill_auto(config: Any, dtype: str) -> list[str]:
    """Put `dtype` where a tree of dataclasses says `auto`, in place; gives the keys that were filled."""
    chosen = [found for found in compute_keys(config) if getattr(found[0], found[1]) == AUTO]
    for owner, name, _ in chosen:
        setattr(owner, name, dtype)
    return [key for _, _, key in chosen]


def _cuda_has_bfloat16() -> bool:
    import torch

    devices = range(torch.cuda.device_count())
    return bool(devices) and all(torch.cuda.get_device_capability(i) >= _CUDA_CAPABILITY for i in devices)


def _cpu_has_bfloat16() -> bool:
    limit = next((os.environ[name].upper() for name in _ISA_VARIABLES if os.environ.get(name)), "ALL")
    return limit.startswith(_ISAS_WITH_BF16) and not _CPU_FLAGS.isdisjoint(_cpu_flags())


def _cpu_flags() -> set[str]:
    """The processor's instruction sets, without torch, which takes seconds to import."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
        names = ("flags", "Features")  # x86, ARM
        found = (line.partition(":")[2].split() for line in text.splitlines() if line.startswith(names))
        return set(next(found, []))
    if platform.system() == "Darwin":
        query = ["sysctl", "-n", "hw.optional.arm.FEAT_BF16"]
        answer = subprocess.run(query, capture_output=True, text=True).stdout
        return {"bf16"} if answer.strip() == "1" else set()
    return set()
