"""How the ranks of a group find each other, without a race for a port.

Rank 0 binds a socket before anyone is told the port and keeps it: nobody can be given that port in between.
The key-value store of `torch.distributed` is later served on the very same socket. A program that calls
`init_process_group("env://")` itself may bind the port too, because the reserved socket allows the address to
be reused and does not listen.
"""

from __future__ import annotations

import errno
import importlib
import logging
import socket
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rl_controller.errors import RendezvousError

if TYPE_CHECKING:
    from rl_controller.rank_info import RankInfo

logger = logging.getLogger(__name__)


class MasterSocket:
    """A reserved port that becomes the group's store when torch is first needed."""

    def __init__(self, host: str, ports: Iterable[int] = (0,)) -> None:
        """Bind to the first free port of `ports` (0: any the system gives)."""
        self.host = host
        self._socket: socket.socket | None = _bind_first_free(host, ports)
        self.port: int = self._socket.getsockname()[1]
        self._server: Any = None

    def serve(self) -> None:
        """Start the store on the socket; does nothing the second time."""
        if self._server is not None or self._socket is None:
            return
        dist: Any = importlib.import_module("torch.distributed")
        listening, self._socket = self._socket, None
        listening.listen(2048)
        self._server = dist.TCPStore(
            self.host,
            self.port,
            world_size=None,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )


def _bind_first_free(host: str, ports: Iterable[int]) -> socket.socket:
    tried = []
    for port in ports:
        listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            listening.bind(("", port))
            # only now: bound without it, the port was nobody else's, reserved or not
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        except OSError as error:
            listening.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            logger.info("port %d is taken, trying the next one", port)
            tried.append(port)
        else:
            return listening
    raise RendezvousError(
        f"none of the ports {tried} on {host} is free; give the group a wider master_ports."
    )


def connect(info: RankInfo, timeout_s: float) -> Any:
    """A client of the group's store; a world of one needs no network."""
    dist: Any = importlib.import_module("torch.distributed")
    if info.world_size == 1:
        return dist.HashStore()
    if not info.master_port:
        raise RendezvousError(f"rank {info.rank} of group {info.group!r} was not told where rank 0 is.")
    return dist.TCPStore(
        info.master_addr,
        info.master_port,
        world_size=info.world_size,
        is_master=False,
        timeout=timedelta(seconds=timeout_s),
    )
