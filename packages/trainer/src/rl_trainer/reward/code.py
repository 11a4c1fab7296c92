"""Whether code passes tests, by a verdict that the code can't reach.

Code and assertions run in two limited processes (see `exam`): the one with the assertions calls the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import RewardError

if TYPE_CHECKING:
    from rl_rollout.agents.sandbox import Program

EXAM = Path(__file__).with_name("exam")
TIMEOUT_S = 5.0
_BLOCK = re.compile(r"```[ \t]*(?:python3?|py)?[ \t]*\r?\n(.*?)```", re.DOTALL | re.IGNORECASE)
# The folder as a package of another name, so that nothing of it shadows a module that a program imports.
_START = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("rl_exam", {init!r}, submodule_search_locations=[{folder!r}])
sys.modules["rl_exam"] = importlib.util.module_from_spec(spec)
import rl_exam.{part}
rl_exam.{part}.main(*map(int, sys.argv[1:]))
"""


def last_block(text: str) -> str:
    """The last Python block of a text, or else the whole."""
    blocks: list[str] = _BLOCK.findall(text)
    return blocks[-1] if blocks else text


async def passes(code: str, tests: str) -> bool:
    """Whether a program of assertions that uses the code's names runs to its end.

    Raises:
        RewardError: the tests are no program, or can't be judged.
    """
    try:
        program, assertions = code.encode(), tests.encode()
    except UnicodeEncodeError:
        return False  # half a character: no program
    from rl_rollout.agents.sandbox import Limits, Sandbox

    limits = Limits(timeout_s=TIMEOUT_S)
    with contextlib.ExitStack() as stack:
        graded_end, judge_end = map(stack.enter_context, socket.socketpair())
        read_end, write_end = os.pipe()
        verdict = stack.enter_context(open(read_end, "rb", 0))
        verdict_end = stack.enter_context(open(write_end, "wb", 0))
        # Each end is closed here once its process has it: a process then learns when the other has gone.
        graded = await Sandbox.start(_program("graded", program, graded_end), limits)
        graded_end.close()
        graded_run = asyncio.create_task(graded.finish())
        try:
            judge = await Sandbox.start(_program("judge", assertions, judge_end, verdict_end), limits)
            judge_end.close()
            verdict_end.close()
            await judge.finish()
        finally:
            graded_run.cancel()
            await asyncio.wait({graded_run})
        os.set_blocking(verdict.fileno(), False)
        said = (verdict.read(4000) or b"").decode(errors="replace")
    if said.startswith("broken"):
        raise RewardError(f"code_tests: the row's ground truth can't be used as tests: {said[8:]}")
    return said == "passed"


def _program(part: str, stdin: bytes, *ends: Any) -> Program:
    """One of the two processes of an exam."""
    from rl_rollout.agents.sandbox import Program

    fds = [end.fileno() for end in ends]
    start = _START.format(init=str(EXAM / "__init__.py"), folder=str(EXAM), part=part)
    return Program(stdin, ("-I", "-c", start, *map(str, fds)), readable=[str(EXAM)], fds=fds)
