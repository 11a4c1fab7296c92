"""`auto` is one rule: bfloat16 where the device has it, the same for all that compute together."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

import rl_rollout.precision as precision
from rl_rollout import RolloutConfig, RolloutConfigError
from rl_rollout.precision import agreed_dtype, common_dtype, compute_keys, fill_auto, native_dtype, with_dtype

CPUS = {
    "avx2 fma sse4_2": "float32",
    "avx512f avx512bw avx512_vnni": "float32",  # Ice Lake: wide, without bfloat16
    "avx512f avx512_bf16": "bfloat16",
    "avx512f amx_bf16 amx_tile": "bfloat16",
    "fp asimd bf16 sve": "bfloat16",  # ARM
    "fp asimd": "float32",
}


@pytest.mark.parametrize(("flags", "wanted"), CPUS.items())
def test_a_processor_s_instruction_sets_decide(
    flags: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "_cpu_flags", lambda: set(flags.split()))
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    assert native_dtype("cpu") == wanted


@pytest.mark.parametrize(
    ("limit", "wanted"),
    [
        ("AVX2", "float32"),
        ("AVX512_CORE", "float32"),
        ("avx512_core_vnni", "float32"),
        ("AVX512_CORE_BF16", "bfloat16"),
        ("AVX512_CORE_AMX", "bfloat16"),
        ("ALL", "bfloat16"),
        ("", "bfloat16"),
    ],
)
def test_a_limit_on_the_library_counts(limit: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_cpu_flags", lambda: {"amx_bf16"})
    monkeypatch.delenv("DNNL_MAX_CPU_ISA", raising=False)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert native_dtype("cpu") == wanted


@pytest.mark.parametrize(
    ("capabilities", "wanted"),
    [([(9, 0)], "bfloat16"), ([(8, 0), (8, 6)], "bfloat16"), ([(8, 0), (7, 5)], "float32"), ([], "float32")],
)
def test_all_gpus_of_a_machine_have_to_have_it(
    capabilities: list[tuple[int, int]], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: capabilities[i])
    assert native_dtype("cuda") == wanted


def test_machines_that_differ_share_float32() -> None:
    assert common_dtype(["bfloat16", "bfloat16"]) == "bfloat16"
    assert common_dtype(["bfloat16", "float32"]) == common_dtype([]) == "float32"


@dataclass
class Inner:
    compute_dtype: str = "auto"
    reduce_dtype: str = "auto"  # not a key of computation


@dataclass
class Tree:
    dtype: str = "float16"
    inner: Inner = field(default_factory=Inner)


def test_only_what_is_auto_is_filled() -> None:
    tree = Tree()
    assert [key for _, _, key in compute_keys(tree)] == ["dtype", "inner.compute_dtype"]
    assert fill_auto(tree, "float32") == ["inner.compute_dtype"]
    assert (tree.dtype, tree.inner.compute_dtype, tree.inner.reduce_dtype) == ("float16", "float32", "auto")
    assert fill_auto(tree, "bfloat16") == []


def test_an_explicit_value_stays_and_auto_is_resolved_without_touching_the_caller_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(precision, "_cpu_flags", lambda: {"avx512_bf16"})
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    given, explicit = RolloutConfig(), RolloutConfig(dtype="float32")
    assert with_dtype(given, cpu).dtype == "bfloat16" and given.dtype == "auto"
    assert with_dtype(explicit, cpu) is explicit
    assert agreed_dtype("float16", cpu) == "float16"


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(RolloutConfigError, match="bf16"):
        RolloutConfig(dtype="bf16")


@pytest.mark.skipif(not Path("/proc/cpuinfo").is_file(), reason="Linux tells its processor there")
def test_the_rule_agrees_with_what_torch_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    found = torch.cpu.get_capabilities()
    has = any(found.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    assert native_dtype("cpu") == ("bfloat16" if has else "float32")
