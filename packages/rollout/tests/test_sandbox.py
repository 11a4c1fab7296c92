"""Python programs with limits, in every way that this system offers."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_rollout import PythonTool, ToolError
from rl_rollout.agents import sandbox

WAYS = {way.name: way for way in sandbox.ways()}


@pytest.fixture(params=WAYS)
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Each way in turn, as what it holds."""
    found = sandbox.try_way(WAYS[request.param])
    if found is None:
        pytest.skip(f"programs can't be started by {request.param} here")
    monkeypatch.setattr(sandbox, "chosen_way", lambda: (WAYS[request.param], tuple(found)))
    yield found


def run(code: str, timeout_s: float = 5.0) -> str:
    return asyncio.run(PythonTool(timeout_s=timeout_s).call({"code": code}))


def need(held: list[str], name: str) -> None:
    if name not in held:
        pytest.skip(f"{name} is not held here: {held}")


def processes_named(mark: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "cmdline").read_bytes():
                found.append(folder.name)
        except OSError:
            continue
    return found


def test_something_starts_and_the_protections_are_told() -> None:
    assert sandbox.protections() or sys.platform != "linux"


@pytest.mark.skipif(sys.platform != "linux", reason="daemons are found by Linux's means")
@pytest.mark.parametrize("end", ["", "\ntime.sleep(60)"])
def test_daemons_end_with_the_call(held: list[str], end: str) -> None:
    mark = f"rl-rollout-daemon-{os.getpid()}"
    sleeper = f"[sys.executable, '-c', 'import time; time.sleep(60)', {mark!r}]"
    code = (
        "import os, sys, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        f"        os.execv(sys.executable, {sleeper})\n    os._exit(0)\ntime.sleep(0.3)\n"
        f"print('on', flush=True){end}"
    )
    assert run(code, timeout_s=2).startswith("on")
    assert not processes_named(mark)


def test_a_fifo_or_a_link_in_the_folder_changes_nothing(held: list[str], tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    started = time.monotonic()
    replace = f"import os\nprint('on', flush=True)\nos.mkfifo('output')\nos.symlink({str(secret)!r}, 'link')"
    assert run(replace) == "on\n"
    assert time.monotonic() - started < 5


def test_other_files_are_closed(held: list[str], tmp_path: Path) -> None:
    need(held, "files")
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    os.chmod(tmp_path, 0o777)
    for code in (f"print(open({str(secret)!r}).read())", f"open({str(tmp_path / 'new')!r}, 'w')"):
        assert "PermissionError" in run(code) or "No such file" in run(code)
    assert not (tmp_path / "new").exists()
    assert run("open('own', 'w').write('text')\nprint(open('own').read())") == "text\n"


def test_the_network_is_closed(held: list[str]) -> None:
    need(held, "sockets")
    code = "import socket\ntry:\n    socket.socket(socket.{})\nexcept OSError:\n    print('no')"
    assert [run(code.format(family)) for family in ("AF_INET", "AF_INET6", "AF_UNIX")] == ["no\n"] * 3
    assert run("import asyncio\nasyncio.run(asyncio.sleep(0))\nprint('on')") == "on\n"


def test_processes_outside_are_out_of_reach(held: list[str]) -> None:
    need(held, "signals")
    code = (
        f"import os\nfor p in ({os.getpid()}, os.getppid()):\n    try:\n        os.kill(p, 0)\n"
        "        print('reached')\n    except OSError:\n        pass"
    )
    assert run(code) == ""


def test_no_capability_is_left(held: list[str]) -> None:
    need(held, "capabilities")
    code = (
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "print(libc.mount(b'a', b'/', b'tmpfs', 0, None), libc.prctl(39, 0, 0, 0, 0))"
    )
    assert run(code) == "-1 1\n"


@pytest.mark.parametrize("code", ["print('\ud800')", "print(1)\0", "\udfff"])
def test_what_is_no_text_is_a_tool_error(code: str) -> None:
    with pytest.raises(ToolError):
        run(code)


def test_long_code_runs(held: list[str]) -> None:
    assert run("x = 1\n" * 100_000 + "print(x)", timeout_s=30) == "1\n"


def test_much_output_is_cut_and_the_rest_dropped(held: list[str]) -> None:
    assert run("for _ in range(200): print('x' * 100_000)", timeout_s=30) == "x" * 4000
    started = time.monotonic()
    assert run("while True: print('x' * 10_000)", timeout_s=1).endswith("stopped after 1 s")
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    "code",
    [
        "import os, shutil\nshutil.rmtree(os.getcwd(), ignore_errors=True)",
        "import os\nos.mkdir('a')\nos.chmod('a', 0)\nos.chmod('.', 0)",
        "import os\nfor _ in range(2000):\n    os.mkdir('d')\n    os.chdir('d')",
    ],
)
def test_whatever_becomes_of_the_folder_is_no_error(
    held: list[str], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tempfile.mkdtemp()
    monkeypatch.setattr(tempfile, "tempdir", folder)
    try:
        assert run(code + "\nprint('on')", timeout_s=20) in ("on\n", "")
        assert os.listdir(folder) == []
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_cancelled_call_leaves_nothing(held: list[str]) -> None:
    async def cancel() -> float:
        call = asyncio.create_task(PythonTool(timeout_s=60).call({"code": "import time; time.sleep(60)"}))
        await asyncio.sleep(1)
        started = time.monotonic()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return time.monotonic() - started

    assert asyncio.run(cancel()) < 10


def test_many_calls_run_side_by_side(held: list[str]) -> None:
    async def calls() -> list[str]:
        tool = PythonTool(timeout_s=60)
        return list(await asyncio.gather(*(tool.call({"code": f"print({n})"}) for n in range(16))))

    assert asyncio.run(calls()) == [f"{n}\n" for n in range(16)]
