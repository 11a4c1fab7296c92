"""Commands that answer at once import no library that takes seconds; names of packages are loaded on use."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl_trainer.view.doctor import cuda_devices, device_lines

PROGRAM = """
import sys
from rl_trainer.cli import main
try:
    status = main(sys.argv[1:])
except SystemExit as stop:
    status = stop.code
loaded = {"ray", "torch", "transformers", "vllm"} & set(sys.modules)
print("status", status, "loaded", sorted(loaded))
"""


def run(*words: str, **environment: str) -> str:
    """Everything that a Python process shows, errors too."""
    done = subprocess.run(
        [sys.executable, *words],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.stdout


@pytest.mark.parametrize(
    ("words", "status", "shown"),
    [
        (["--help"], 0, "doctor"),
        (["train", "--help"], 0, "--dry-run"),
        (["keys"], 0, "trainer.seed: int"),
        (["doctor"], 0, "model cache"),
        (["train", "tiny_grpo", "trainer.sed=1"], 2, "Did you mean 'trainer.seed'?"),
        (["train", "tiny_grpo", "trainer.seed=soon"], 2, "trainer.seed"),
        (["train", "no_such_file.yaml"], 2, "no_such_file.yaml"),
    ],
)
def test_help_listings_and_errors_of_reading_load_nothing_heavy(
    words: list[str], status: int, shown: str
) -> None:
    text = run("-c", PROGRAM, *words)
    assert shown in text
    assert f"status {status} loaded []" in text


@pytest.mark.parametrize("program", ["quickstart", "tiny", "main_ppo"])
def test_programs_start_without_heavy_imports(program: str) -> None:
    code = f"import sys, rl_trainer.{program}; print({{'ray', 'torch', 'transformers'}} & set(sys.modules))"
    assert run("-c", code).strip() == "set()"


def test_training_says_its_first_line_before_torch_is_there(tmp_path: Path) -> None:
    """The configuration has no data: it is refused once torch is loaded."""
    lines = run("-X", "importtime", "-m", "rl_trainer.cli", "train", "tiny_grpo").splitlines()
    (said,) = (number for number, line in enumerate(lines) if "loading torch" in line)
    torch = next(number for number, line in enumerate(lines) if line.rpartition("|")[2].strip() == "torch")
    assert said < torch
    assert any(line.startswith("error: ") for line in lines[torch:])


@pytest.mark.parametrize("package", ["rl_rollout", "rl_workers", "rl_trainer"])
def test_every_name_in_a_packages_list_is_there(package: str) -> None:
    module = importlib.import_module(package)
    assert len(module.__all__) > 20
    assert [name for name in module.__all__ if getattr(module, name).__name__ != name] == []
    assert isinstance(module.__version__, str)


def test_a_function_is_not_hidden_by_the_module_of_its_name() -> None:
    code = "import rl_rollout.engine_env; from rl_rollout import engine_env; print(len(engine_env('cuda')))"
    assert int(run("-c", code)) > 2


def test_engines_of_our_own_are_found_though_nothing_imported_them() -> None:
    code = (
        "import sys, rl_rollout as r\n"
        "print(r.registered_rollouts(), 'rl_rollout.engines' in sys.modules)\n"
        "try: r.build_rollout(r.RolloutConfig(name='hf', tensor_model_parallel_size=2), 'no/checkpoint')\n"
        "except r.RolloutConfigError as error: print(error)\n"
    )
    listed, refused = run("-c", code).splitlines()
    assert listed == "['hf', 'vllm'] False"
    assert "tensor_model_parallel_size" in refused  # by the engine itself


def test_the_doctor_asks_nvidias_own_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert cuda_devices() == []
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho NVIDIA H200\necho NVIDIA H200\n")
    program.chmod(0o755)
    assert device_lines(cuda_devices(), cpu_build=False) == ["devices        NVIDIA H200, NVIDIA H200"]
    unused = "\n".join(device_lines(cuda_devices(), cpu_build=True))
    assert "NVIDIA H200 unused: torch is a CPU build" in unused and "precision" in unused
    program.write_text("#!/bin/sh\necho No devices were found\nexit 6\n")
    assert cuda_devices() == []
