#!/usr/bin/env python3
"""Set up this clone, then run one command in it. Needs Python 3.11 to 3.13 and nothing else.

    python3 dev.py quickstart [key=value ...]    train a small model; options go to rl_trainer.quickstart
    python3 dev.py check [pytest options]        every linter, type check, import rule and test
    python3 dev.py test [pytest options, paths]  the tests only
    python3 dev.py release-check [package ...]   build, install and test each package from its wheel
    python3 dev.py upstream [--engine]           what reaches into other libraries, on their newest versions
    python3 dev.py python ...                    the Python of the environment

The first run installs (minutes; 3 GB, or 7 where pip finds a CUDA build of torch) into .venv and .hatch, or
HATCH_DATA_DIR if that is set; later runs start at once. To begin anew, delete the two folders.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
LOG = VENV / "setup.log"
READY = VENV / "ready.txt"  # a fingerprint of what was installed, and where
HATCH = [str(VENV / "bin" / "python"), "-m", "hatch"]
COMMANDS = {
    "quickstart": ["-m", "rl_trainer.quickstart"],
    "check": ["tools/check.py"],
    "test": ["tools/run_tests.py"],
    "release-check": ["tools/release_check.py"],
    "upstream": ["tools/upstream.py"],
    "python": [],
}


def use_supported_python() -> None:
    """Go on under a Python from 3.11 to 3.13: this one, or one on the PATH."""
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return
    for name in ("python3.13", "python3.12", "python3.11"):
        if shutil.which(name):
            os.execvp(name, [name, *sys.argv])
    sys.exit(
        f"Python 3.11, 3.12 or 3.13 is needed; this is {sys.version.split()[0]} and the PATH has none of them"
    )


def fingerprint(environment: dict[str, str]) -> str:
    """Changes whenever something must be installed again."""
    digest = hashlib.sha256(repr((sys.version_info[:2], environment["HATCH_DATA_DIR"])).encode())
    digest.update(str(shutil.which("nvidia-smi")).encode())
    inputs = [
        "pyproject.toml",
        "packages/*/pyproject.toml",
        "constraints.txt",
        "requirements/*",
        "tools/engine.py",
    ]
    for path in sorted(path for pattern in inputs for path in ROOT.glob(pattern)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def stage(title: str, command: list[str], environment: dict[str, str]) -> bool:
    """Run one step: its output goes to the log, the seconds it takes to the terminal. False if it fails."""
    begin, shown, live = time.monotonic(), 0.0, sys.stdout.isatty()
    print(f"  {title} ...", end="" if live else "\n", flush=True)
    with LOG.open("ab") as log:
        log.write(f"\n$ {' '.join(command)}\n".encode())
        log.flush()
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        while True:
            try:
                code = process.wait(timeout=1)
                break
            except subprocess.TimeoutExpired:
                elapsed = time.monotonic() - begin
                if live or elapsed - shown >= 30:
                    shown = elapsed
                    print(
                        f"\r  {title} ... {elapsed:.0f} s" if live else f"    {elapsed:.0f} s",
                        end="" if live else "\n",
                    )
                    sys.stdout.flush()
    verdict = f"{'done' if code == 0 else 'FAILED'} in {time.monotonic() - begin:.0f} s"
    print(f"\r  {title} ... {verdict}" if live else f"    {verdict}", flush=True)
    return code == 0


def log_tail(lines: int = 30) -> str:
    """The end of the log."""
    text = LOG.read_text(encoding="utf-8", errors="replace") if LOG.exists() else ""
    return "\n".join(text.splitlines()[-lines:])


def give_up(what: str) -> None:
    """End with the log's tail and one line that says what failed."""
    sys.exit(f"{log_tail()}\n\n{what} (whole log: {LOG})\nRunning the same command again goes on from here.")


def set_up(environment: dict[str, str], engine_needed: bool) -> Path:
    """Install what is missing and return the environment's Python."""
    wanted = fingerprint(environment)
    if READY.exists():
        known, _, place = READY.read_text(encoding="utf-8").partition("\n")
        if known == wanted and Path(place).exists():
            return Path(place)
    print(f"Setting up (minutes the first time). Log: {LOG}", flush=True)
    VENV.mkdir(exist_ok=True)
    install_hatch = [HATCH[0], "-m", "pip", "install", "-c", str(ROOT / "constraints.txt"), "hatch"]
    if not stage("1/4  an environment for the tools", [sys.executable, "-m", "venv", str(VENV)], environment):
        give_up("`python -m venv` failed; on Debian and Ubuntu, `apt install python3-venv` adds it")
    if not stage("2/4  hatch", install_hatch, environment):
        give_up("hatch could not be installed")
    if not stage("3/4  six packages, torch, test tools", [*HATCH, "run", "python", "--version"], environment):
        give_up("the packages could not be installed")
    found = subprocess.run([*HATCH, "env", "find"], cwd=ROOT, env=environment, capture_output=True, text=True)
    python = Path(found.stdout.strip()) / "bin" / "python"
    if stage("4/4  generation engine and model", [str(python), "tools/engine.py"], environment):
        print(f"  {log_tail(1)}")
        READY.write_text(f"{wanted}\n{python}", encoding="utf-8")
    elif engine_needed:
        give_up("the generation engine could not be installed")
    else:
        print(f"{log_tail()}\nThe engine could not be installed: HFRollout (transformers, slower) generates.")
    return python


def main() -> None:
    """Set up, then become the command."""
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        print(__doc__)
        sys.exit(0 if sys.argv[1:] in ([], ["-h"], ["--help"]) else f"unknown command {sys.argv[1]!r}")
    use_supported_python()
    command, arguments = sys.argv[1], sys.argv[2:]
    environment = dict(os.environ)
    environment.setdefault("HATCH_DATA_DIR", str(ROOT / ".hatch"))
    begin = time.monotonic()
    try:
        python = set_up(environment, engine_needed=command != "quickstart")
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; running the same command again goes on from here")
    if time.monotonic() - begin > 5:
        print(f"Set up in {time.monotonic() - begin:.0f} s.\n", flush=True)
    environment["VIRTUAL_ENV"] = str(python.parents[1])
    environment["PATH"] = f"{python.parent}{os.pathsep}{environment.get('PATH', '')}"
    if command != "python":
        os.chdir(ROOT)
    os.execve(python, [str(python), *COMMANDS[command], *arguments], environment)


if __name__ == "__main__":
    main()
