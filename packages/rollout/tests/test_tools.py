from __future__ import annotations

import asyncio
import time

import pytest

from rl_rollout import Calculator, PythonTool, ToolError


def calculate(expression: object) -> str:
    return asyncio.run(Calculator().call({"expression": expression}))


def run_python(code: str, **limits: float) -> str:
    return asyncio.run(PythonTool(**limits).call({"code": code}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("expression", "value"),
    [("1 + 2*3", "7"), ("-(2**3)", "-8"), ("7//2 + 7%2", "4"), ("1/4", "0.25"), (" 2.5*2 ", "5.0")],
)
def test_calculator_knows_arithmetic(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    ["9**9**9", "2**99999", "(-8)**0.5", "1/0", "__import__('os')", "x", "True", "1 if 1 else 2", 3],
)
def test_calculator_refuses_the_rest(expression: object) -> None:
    with pytest.raises(ToolError):
        calculate(expression)


def test_python_prints_and_shows_its_errors() -> None:
    assert run_python("print('hi')") == "hi\n"
    assert "ZeroDivisionError" in run_python("1/0")


def test_python_is_stopped_in_time_with_all_it_started() -> None:
    started = time.monotonic()
    code = (
        "import subprocess, sys; print('on', flush=True)\n"
        "subprocess.run([sys.executable, '-c', 'while 1: 0'])"
    )
    answer = run_python(code, timeout_s=3)
    assert time.monotonic() - started < 20
    assert answer.startswith("on")
    assert answer.endswith("error: stopped after 3 s")


def test_python_has_limits_and_no_environment() -> None:
    assert "MemoryError" in run_python("x = bytearray(1 << 30)")
    assert len(run_python("print('x' * 100_000)")) <= 4000
    assert "too large" in run_python("open('f', 'wb').write(bytes(4 << 20))")
    assert run_python("import os; print(set(os.environ) - {'LC_CTYPE'})") == "set()\n"
