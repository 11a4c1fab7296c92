"""`rl-trainer watch`: the report of a run that goes on, on a local page and in the terminal."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ..errors import ConfigError, DataError
from .display import Display
from .report import content, shell
from .run_files import open_run

LOOPBACK = "127.0.0.1"
POLL_S = 1.0


class _Handler(BaseHTTPRequestHandler):
    folder: Path

    def do_GET(self) -> None:
        try:
            shown = content([open_run(self.folder)])
        except DataError as error:
            return self._answer(503, "text/plain", f"{error}\nNo step is finished yet: load this page again.")
        if self.path == "/content":
            return self._answer(200, "application/json", json.dumps(shown))
        if self.path == "/":
            return self._answer(200, "text/html", shell(shown, self.folder.name, live=True))
        return self._answer(404, "text/plain", "there is one page, /")

    def _answer(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal shows the run."""


@contextmanager
def served(folder: Path, port: int = 0) -> Iterator[str]:
    """Serve the live page of a run to this machine alone; gives its address.

    Args:
        folder: the run's; it may have no step yet.
        port: 0: any that is free.

    Raises:
        ConfigError: the port is taken.
    """
    try:
        server = ThreadingHTTPServer((LOOPBACK, port), type("Handler", (_Handler,), {"folder": folder}))
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--port {port} can't be used ({error}); leave it out for any free one") from error
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def follow(folder: Path, display: Display, once: bool = False) -> int:
    """Show each step of a run once it is written, to its last step.

    Args:
        folder: the run's.
        display: where steps are shown.
        once: stop at what is there now.

    Returns:
        The last step shown, -1 where there is none.
    """
    last = -1
    while True:
        try:
            run = open_run(folder)
        except DataError:
            if once:
                raise
            time.sleep(POLL_S)
            continue
        total = int(run.config.get("trainer.total_training_steps", -1))
        for line in run.lines:
            if line["step"] > last:
                last = line["step"]
                numbers = {key: value for key, value in line.items() if key != "step"}
                scores = {key: value for key, value in numbers.items() if key.startswith("val-core/")}
                if scores:
                    display.show({"kind": "validation", "step": last, "metrics": scores})
                if last:
                    display.show(
                        {"kind": "step", "step": last, "total": max(total, last), "metrics": numbers}
                    )
        if once or last >= total > 0:
            return last
        time.sleep(POLL_S)
