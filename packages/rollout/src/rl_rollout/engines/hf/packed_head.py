"""The output head's product, from a matrix that is laid out once for the processor.

With a few rows the plain product spends as long on laying out the largest matrix of the model as on
multiplying by it (float32, 16 rows, 49,152 tokens of 576: 44 ms against 26 on an AVX2 core).
"""

from __future__ import annotations

import logging
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

logger = logging.getLogger(__name__)


class PackedHead:
    """Stands for the forward of a linear head [V, D] where `rows` rows come and nobody asks for gradients.

    It holds a second copy of the head. Without oneDNN, in another precision than float32 and with a head that
    is no plain linear module it does nothing.
    """

    def __init__(self, head: Any, rows: int) -> None:
        self._head = head
        self._rows = rows
        self._packed: Tensor | None = None
        onednn: Any = torch.backends.mkldnn
        if type(head) is nn.Linear and onednn.is_available():
            self._own: Any = head.forward
            self._head.forward = self._forward
            self.repack()

    def repack(self) -> None:
        """Lay out the present weights: to be called after each change of them."""
        if type(self._head) is not nn.Linear or self._head.weight.dtype != torch.float32:
            return
        weight = self._head.weight.detach()
        if weight.device.type != "cpu":
            return
        try:
            first = self._packed is None
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, self._rows)
            if first and not self._agrees(weight):
                raise RuntimeError("it gives other products")
        except (RuntimeError, AttributeError, NotImplementedError) as error:
            logger.warning("the output head is not laid out for the processor: %s", error)
            self._packed = None

    def _agrees(self, weight: Tensor) -> bool:
        x = torch.randn(self._rows, weight.shape[1], generator=torch.Generator().manual_seed(0))
        return torch.allclose(self._product(x), F.linear(x, weight, self._head.bias), rtol=1e-4, atol=1e-4)

    def _product(self, x: Tensor) -> Tensor:
        kernels: Any = torch.ops.mkldnn
        return cast(Tensor, kernels._linear_pointwise(x, self._packed, self._head.bias, "none", [], ""))

    def _forward(self, x: Tensor) -> Tensor:
        """[..., D] to [..., V]. Other numbers of rows would have it laid out anew at each call."""
        if self._packed is None or torch.is_grad_enabled() or x.numel() != self._rows * x.shape[-1]:
            return cast(Tensor, self._own(x))
        return self._product(x)
