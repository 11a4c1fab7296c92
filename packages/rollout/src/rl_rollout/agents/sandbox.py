"""Python programs with limits: what they print comes through a pipe, and nothing of them is left at the end.

`jail.py` confines the program; this module chooses how, starts it, reads it and ends it. What holds on which
system stands in docs/rollout/python-tool.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rl_rollout.errors import RLRolloutError

logger = logging.getLogger(__name__)

JAIL = Path(__file__).with_name("jail.py")
_SYSTEM_PATHS = (
    "/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/nix/store", "/etc/ld.so.cache", "/etc/ld.so.conf",
    "/etc/localtime", "/etc/mime.types", "/sys/devices/system/cpu",
)  # fmt: skip
_GRACE_S = 4.0  # for ending everything once the time is up


class SandboxError(RLRolloutError, RuntimeError):
    """No Python process can be started with limits here."""


@dataclass(frozen=True)
class Limits:
    """What a program may use. `output_bytes`: how much output is kept; the rest is read and dropped."""

    timeout_s: float = 5.0
    memory_bytes: int = 512 << 20
    output_bytes: int = 16_000
    file_bytes: int = 1 << 20
    processes: int = 256

    def resources(self, own_count: bool) -> dict[str, int]:
        """As resource limits by name. `own_count`: processes are counted apart from the user's others."""
        limits = {
            "RLIMIT_CPU": int(self.timeout_s) + 1,
            "RLIMIT_AS": self.memory_bytes,
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_CORE": 0,
        }
        return limits | ({"RLIMIT_NPROC": self.processes} if own_count else {})


@dataclass(frozen=True)
class Program:
    """A Python program.

    Attributes:
        stdin: what it reads; the program itself where the arguments end in "-".
        arguments: those of the interpreter.
        readable: paths it may read besides the interpreter's and the system's.
        fds: descriptors it gets under the same numbers.
    """

    stdin: bytes
    arguments: Sequence[str] = ("-I", "-")
    readable: Sequence[str] = ()
    fds: Sequence[int] = ()


@dataclass(frozen=True)
class Way:
    """One way to confine: a command in front, or namespaces that the jail enters, or neither."""

    name: str
    prefix: tuple[str, ...] = ()
    namespaces: bool = False
    mounted: tuple[str, ...] = ()

    def command(self, program: Program, limits: Limits, folder: str, report: bool = False) -> list[str]:
        """The command that runs a program in a folder this way."""
        spec: dict[str, Any] = {
            "limits": limits.resources(self.namespaces and _kernel() >= (5, 14)),
            "readable": [*_SYSTEM_PATHS, sys.prefix, sys.base_prefix, sys.exec_prefix, *program.readable],
            "namespaces": self.namespaces,
            "mounted": self.mounted,
            "report": report,
        }
        prefix = [part.replace("{folder}", folder) for part in self.prefix]
        python = [*prefix, sys.executable, "-I", "-S", str(JAIL), json.dumps(spec)]
        return [*python, sys.executable, *program.arguments]


@dataclass(frozen=True)
class Ran:
    """What a program printed, cut to the limit, and whether its time ran out."""

    output: bytes
    timed_out: bool


_BWRAP = (
    "--unshare-all", "--die-with-parent", "--dev-bind", "/", "/", "--proc", "/proc", "--tmpfs", "{folder}",
    "--tmpfs", "/dev/shm", "--chdir", "{folder}", "--",
)  # fmt: skip


def ways() -> list[Way]:
    """What can be tried on this system, the strongest first."""
    found = [Way("plain")]
    if sys.platform == "linux":
        if bwrap := shutil.which("bwrap"):
            found.insert(0, Way("bubblewrap", (bwrap, *_BWRAP), mounted=("/proc", "/dev/shm")))
        found.insert(0, Way("namespaces", namespaces=True))
    return found


def try_way(way: Way) -> list[str] | None:
    """What holds for a program run this way; None where it can't be started so."""
    limits = Limits(timeout_s=20)
    with tempfile.TemporaryDirectory(prefix="rl-rollout-tool-") as folder:
        command = way.command(Program(b"", ("-I", "-c", "print('runs')")), limits, folder, report=True)
        try:
            done = subprocess.run(
                command, cwd=folder, env={}, stdin=subprocess.DEVNULL, capture_output=True, timeout=20
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
    lines = done.stdout.decode(errors="replace").splitlines()
    if lines[1:] != ["runs"]:
        return None
    return [*(["namespaces"] if way.prefix else []), *json.loads(lines[0])]


@functools.cache
def chosen_way() -> tuple[Way, tuple[str, ...]]:
    """The strongest way in which a program starts here, and the names of what holds then.

    Raises:
        SandboxError: none does.
    """
    for way in ways():
        held = try_way(way)
        if held is not None:
            log = logger.info if way.name != "plain" else logger.warning
            log("Python programs are confined by: %s (docs/rollout/python-tool.md)", ", ".join(held))
            return way, tuple(held)
    raise SandboxError(f"{sys.executable} can't be started with limits: see `python -I -S {JAIL}`")


def protections() -> frozenset[str]:
    """Names of what holds for programs here: `namespaces`, `files`, `sockets` and so on; see the page."""
    return frozenset(chosen_way()[1])


@dataclass
class Sandbox:
    """A program that runs; `start` it, then `finish` it."""

    process: asyncio.subprocess.Process
    output: asyncio.StreamReader
    pipe: asyncio.BaseTransport
    folder: str
    limits: Limits
    _kept: bytearray = field(default_factory=bytearray)

    @classmethod
    async def start(cls, program: Program, limits: Limits) -> Sandbox:
        """Start a program in an empty folder, without environment.

        Raises:
            SandboxError: no program can be started with limits here.
        """
        folder, process = "", None
        read_end, write_end = os.pipe()
        try:
            way, _ = await asyncio.to_thread(chosen_way)
            folder = tempfile.mkdtemp(prefix="rl-rollout-tool-")
            with _unnamed_file(program.stdin) as stdin:
                process = await asyncio.create_subprocess_exec(
                    *way.command(program, limits, folder), cwd=folder, env={}, pass_fds=program.fds,
                    stdin=stdin, stdout=write_end, stderr=write_end, start_new_session=True,
                )  # fmt: skip
        finally:
            os.close(write_end)
            if process is None:
                os.close(read_end)
                _remove(folder)
        output = asyncio.StreamReader()
        # A pipe of our own: asyncio's would keep wait() from returning while any process holds its other end.
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), os.fdopen(read_end, "rb", 0)
        )
        return cls(process, output, pipe, folder, limits)

    async def finish(self) -> Ran:
        """Wait until the program ends or its time is up; end all that it started, whatever happens here."""
        reader = asyncio.create_task(self._read())
        try:
            done, _ = await asyncio.wait({reader}, timeout=self.limits.timeout_s)
            return Ran(bytes(self._kept), not done)
        finally:
            await asyncio.shield(self._end(reader))

    async def _read(self) -> None:
        """Read to the end: when the program has ended and no process is left that could write."""
        while chunk := await self.output.read(1 << 16):
            self._kept += chunk[: max(0, self.limits.output_bytes - len(self._kept))]
        await self.process.wait()

    async def _end(self, reader: asyncio.Task[None]) -> None:
        # The jail ends all on SIGTERM; SIGKILL is for one that its program has stopped.
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        await asyncio.wait({reader}, timeout=_GRACE_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()
        reader.cancel()
        self.pipe.close()
        await asyncio.to_thread(_remove, self.folder)


async def run_program(program: Program, limits: Limits) -> Ran:
    """Run a program to its end."""
    sandbox = await Sandbox.start(program, limits)
    return await sandbox.finish()


def _unnamed_file(content: bytes) -> IO[bytes]:
    """Opened at its start. Not a pipe: a program may leave it unread, and nobody then waits to write."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.write(content)
    file.seek(0)
    return file


def _remove(folder: str) -> None:
    """Remove what a program without a file system of its own has left: any modes, any depth."""
    if os.path.isdir(folder) and not os.path.islink(folder):
        subprocess.run(["chmod", "-R", "u+rwx", "--", folder], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["rm", "-rf", "--", folder], stderr=subprocess.DEVNULL, check=False)


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2] if part.isdigit())
