"""FSDP2 workers: actor, rollout, reference, critic, reward model.

`__init__.pyi` lists the names; each is loaded on first use, so that a configuration is read without torch.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
