"""DataProto: the batch that moves between the controller and its workers."""

from rl_protocol.data_proto import DataProto
from rl_protocol.equality import values_equal
from rl_protocol.errors import (
    ColumnConflictError,
    ColumnTypeError,
    FormatError,
    FutureError,
    FutureTimeoutError,
    MetaConflictError,
    MissingColumnError,
    RLProtocolError,
    RowIndexError,
    ShapeError,
)
from rl_protocol.future import DataProtoFuture
from rl_protocol.item import DataProtoItem
from rl_protocol.meta import LISTED_META_KEYS
from rl_protocol.padding import pad_dataproto_to_divisor, unpad_dataproto
from rl_protocol.pieces import Piece, Recipe
from rl_protocol.rows import balanced_sizes
from rl_protocol.storage import FORMAT_VERSION
from rl_protocol.stores import Head, LocalRef, LocalStore, RayStore, Store, head_of
from rl_protocol.transfer import TransferCount, transfer_count

__version__ = "0.1.0"

__all__ = [
    "FORMAT_VERSION",
    "LISTED_META_KEYS",
    "ColumnConflictError",
    "ColumnTypeError",
    "DataProto",
    "DataProtoFuture",
    "DataProtoItem",
    "FormatError",
    "FutureError",
    "FutureTimeoutError",
    "Head",
    "LocalRef",
    "LocalStore",
    "MetaConflictError",
    "MissingColumnError",
    "Piece",
    "RLProtocolError",
    "RayStore",
    "Recipe",
    "RowIndexError",
    "ShapeError",
    "Store",
    "TransferCount",
    "balanced_sizes",
    "head_of",
    "pad_dataproto_to_divisor",
    "transfer_count",
    "unpad_dataproto",
    "values_equal",
]
