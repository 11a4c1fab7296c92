"""Starts one program so that it can reach little: `python -I -S jail.py SPEC COMMAND...`, for `sandbox.py`.

A script that needs the standard library alone: it runs in a process of its own, before the program. Each
protection is taken where the system offers it. SPEC is JSON: `limits` (names of resources, numbers),
`readable` (paths), `namespaces` (whether to enter new ones), `mounted` (paths that are the program's own
already) and `report` (whether to print first what holds).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import resource
import signal
import struct
import sys
import time
from collections.abc import Iterable
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)
_LINUX = sys.platform == "linux"

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_CHILD_SUBREAPER, _PR_SET_SECCOMP = 1, 38, 36, 22
_NEW_USER, _NEW_OTHERS = 0x10000000, 0x20000000 | 0x40000000 | 0x00020000 | 0x08000000  # pid, net, mount, ipc
_MS_PRIVATE_ALL, _MS_NOSUID_NODEV = 0x4000 | 1 << 18, 2 | 4
_TMPFS_SIZE = b"size=64m"
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
# Per machine: the audit number of its system calls, and the number of socket().
_SOCKET_CALL = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
_IO_URING_SETUP = 425


def _call(name: str, *arguments: Any) -> bool:
    """Call a function of the C library, integers as machine words; whether it succeeded."""
    words = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return bool(getattr(_LIBC, name)(*words) == 0)


def enter_namespaces() -> bool:
    """New user, process, network, mount and IPC namespaces for the next child; False where not allowed."""
    uid, gid = os.getuid(), os.getgid()
    if not _call("unshare", _NEW_USER | _NEW_OTHERS):
        return False
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    return True


def mount_own(folder: str) -> list[str]:
    """A /proc of the new processes alone, folder and /dev/shm in memory. The paths where that succeeded."""
    _call("mount", None, b"/", None, _MS_PRIVATE_ALL, None)
    mounted = []
    in_memory = ((path, b"tmpfs", _TMPFS_SIZE) for path in (folder, "/dev/shm"))
    for path, kind, options in (("/proc", b"proc", None), *in_memory):
        if _call("mount", kind, path.encode(), kind, _MS_NOSUID_NODEV, options):
            mounted.append(path)
    os.chdir(folder)  # the new folder of that name, not the one below it
    return mounted


def restrict_files(readable: Iterable[str], writable: Iterable[str]) -> int:
    """Landlock: no file but these can be opened, no process outside traced. Its version, 0 where none is."""
    version = _LIBC.syscall(444, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return 0
    everything = (1 << (16 if version >= 5 else 15 if version >= 3 else 14 if version >= 2 else 13)) - 1
    of_files = everything & (1 | 2 | 4 | 1 << 14)  # execute, write, read, truncate
    read = 1 | 4 | 8  # execute, read files, list folders
    scoped = 3 if version >= 6 else 0  # neither signals nor abstract sockets to processes outside
    ruleset = _LIBC.syscall(444, struct.pack("QQQ", everything, 0, scoped), ctypes.c_size_t(24), 0)
    rules = [(path, read) for path in readable] + [(path, everything) for path in (*writable, *_DEVICES)]
    for path, access in rules:
        with contextlib.suppress(OSError):  # not every system has every path
            file = os.open(path, os.O_PATH | os.O_CLOEXEC)
            allowed = access if os.path.isdir(path) else access & of_files
            _LIBC.syscall(445, ruleset, 1, struct.pack("=Qi", allowed, file), 0)
            os.close(file)
    held = _LIBC.syscall(446, ruleset, 0) == 0
    os.close(ruleset)
    return version if held else 0


def deny_sockets() -> bool:
    """Seccomp: socket() is refused, and so is io_uring, which could do it instead."""
    if platform.machine() not in _SOCKET_CALL:
        return False
    audit, socket_call = _SOCKET_CALL[platform.machine()]
    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000 | 13  # EACCES
    # (code, jump if true, jump if false, operand); at 4 stands the architecture, at 0 the call.
    program = [
        (load, 0, 0, 4), (equal, 0, 5, audit), (load, 0, 0, 0),
        (at_least, 3, 0, 0x40000000), (equal, 2, 0, socket_call), (equal, 1, 0, _IO_URING_SETUP),
        (answer, 0, 0, allow), (answer, 0, 0, refuse),
    ]  # fmt: skip
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    return _call("prctl", _PR_SET_SECCOMP, 2, header, 0, 0)


def confine(spec: dict[str, Any], mounted: list[str]) -> list[str]:
    """Give up, for good, what the program shall not have. The names of what holds."""
    held: list[str] = []
    for name, value in spec["limits"].items():
        # Some systems know a limit and refuse to set it: macOS that of the address space.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(getattr(resource, name), (value, value))
    if not _LINUX:
        return held
    if _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        held.append("no_new_privs")
    shared_memory = [path for path in mounted if path == "/dev/shm"]
    version = restrict_files([*spec["readable"], *mounted], [os.getcwd(), *shared_memory])
    held += ["files"] * (version >= 1) + ["signals"] * (version >= 6)
    if _call("capset", struct.pack("Ii", 0x20080522, 0), bytes(24)):
        held.append("capabilities")
    if deny_sockets():
        held.append("sockets")
    return held


def supervise(program: int) -> int:
    """Wait until the program ends, or SIGTERM comes, and end all that it started. Its exit status."""
    status = 1
    while signal.sigwait({signal.SIGCHLD, signal.SIGTERM}) == signal.SIGCHLD:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                if ended[0] == program:
                    end_descendants(program)
                    return os.waitstatus_to_exitcode(ended[1]) & 0xFF
    end_descendants(program)
    return status


def end_descendants(group: int) -> None:
    """Kill the program's group, then every child until none is left: orphans become children here."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    give_up = time.monotonic() + 3
    while time.monotonic() < give_up:
        for child in children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.002)
        except ChildProcessError:
            return


def children() -> list[int]:
    """Ids of this process's children; none where there is no /proc."""
    found = []
    for name in os.listdir("/proc") if _LINUX else ():
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{int(name)}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            if int(fields[1]) == os.getpid():
                found.append(int(name))
    return found


def start(spec: dict[str, Any], command: list[str], mounted: list[str], held: list[str]) -> int:
    """Run the confined program in a child of this process, which watches over it; its exit status."""
    # Blocked, not handled: supervise() fetches them. SIGTERM may come at any time before.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM})
    program = os.fork()
    if not program:
        os.setsid()
        held = held + confine(spec, mounted)
        if spec["report"]:
            os.write(1, (json.dumps(held) + "\n").encode())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD, signal.SIGTERM})
        os.execv(command[0], command)
    let_go()
    return supervise(program)


def let_go() -> None:
    """Close what the program holds too: else who waits for its end would wait for this process."""
    null = os.open(os.devnull, os.O_RDWR)
    for own in (0, 1, 2):
        os.dup2(null, own)
    os.closerange(3, 4096)


def main(spec: dict[str, Any], command: list[str]) -> int:
    """See the module; the program's exit status."""
    if not _LINUX:
        return start(spec, command, [], [])
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if not spec["namespaces"]:
        subreaper = _call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        return start(spec, command, spec["mounted"], ["subreaper"] * subreaper)
    if not enter_namespaces():
        return 1
    # The first process of the namespace; whatever it leaves behind the kernel ends with it.
    first = os.fork()
    if not first:
        _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os._exit(start(spec, command, mount_own(os.getcwd()), ["namespaces"]))
    let_go()
    return os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) & 0xFF


if __name__ == "__main__":
    os._exit(main(json.loads(sys.argv[1]), sys.argv[2:]))
