"""PPO, GRPO and their relatives over Ray worker groups, end to end.

`__init__.pyi` lists the names; each is loaded on first use, so that help, a configuration error and the
processes of rewards do without torch, transformers and Ray.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
