"""DataProto: the batch that moves between the controller and its workers."""

__version__ = "0.1.0"
