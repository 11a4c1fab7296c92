"""Shared fixtures: tiny models on disk; this folder on the path, so that rank processes import programs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
_HERE = str(Path(__file__).parent)
sys.path.insert(0, _HERE)
os.environ["PYTHONPATH"] = os.pathsep.join(
    [_HERE, *filter(None, [os.environ.get("PYTHONPATH")])]
)  # for rank processes

import pytest  # noqa: E402
import torch  # noqa: E402
from workers_models import save_tiny_classifier, save_tiny_llama  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A two-layer random Llama with a character tokenizer."""
    return save_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tied_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same with tied embeddings and grouped key-value heads."""
    return save_tiny_llama(tmp_path_factory.mktemp("tied"), tied=True, kv_heads=2)


@pytest.fixture(scope="session")
def tiny_classifier(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A two-layer random sequence classifier with one label."""
    return save_tiny_classifier(tmp_path_factory.mktemp("classifier"))
