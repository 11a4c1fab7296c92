"""Tiny real models, batches and engines shared by this package's tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_TESTS = str(Path(__file__).parent)
if _TESTS not in sys.path:
    sys.path.insert(0, _TESTS)

import rollout_models  # noqa: E402

rollout_models.set_engine_environment()

import pytest  # noqa: E402
import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel  # noqa: E402

from rl_protocol import DataProto  # noqa: E402
from rl_rollout import vLLMRollout  # noqa: E402


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU; run with -m gpu")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="no GPU")
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(skip)


_built: list[vLLMRollout] = []


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Close the shared engines when this folder's tests are over: other packages' want their own groups."""
    if nextitem is None or not nextitem.path.is_relative_to(_TESTS):
        while _built:
            _built.pop().close()


@pytest.fixture(scope="session", params=["tied", "untied"])
def model_path(request: pytest.FixtureRequest, models: dict[str, str]) -> str:
    return models[request.param]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {
        name: rollout_models.make_tiny_model(folder / name, tied=name == "tied")
        for name in ("tied", "untied")
    }


@pytest.fixture(scope="session")
def tokenizer(models: dict[str, str]) -> Any:
    return AutoTokenizer.from_pretrained(models["tied"])


@pytest.fixture(scope="session")
def reference(models: dict[str, str]) -> dict[str, PreTrainedModel]:
    return {
        name: AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        for name, path in models.items()
    }


@pytest.fixture
def prompts() -> DataProto:
    return rollout_models.make_prompts([3, 11, 40, 41, 5, 33])


@pytest.fixture(scope="session")
def engines(models: dict[str, str]) -> dict[str, vLLMRollout]:
    """A float32 vLLM engine on each tiny model, with the checkpoint's weights."""
    pytest.importorskip("vllm")
    built = {
        name: vLLMRollout(
            rollout_models.engine_config(weight_transfer="shm"),
            path,
            torch.device("cpu"),
            AutoTokenizer.from_pretrained(path),
        )
        for name, path in models.items()
    }
    _built.extend(built.values())
    return built


@pytest.fixture(params=["tied", "untied"])
def engine(
    request: pytest.FixtureRequest, engines: dict[str, vLLMRollout], reference: dict[str, PreTrainedModel]
) -> Iterator[vLLMRollout]:
    """An engine holding the checkpoint's weights; whatever a test pushes is undone."""
    name = request.param
    yield engines[name]
    engines[name].wake()
    engines[name].update_weights(iter(reference[name].named_parameters()))


@pytest.fixture
def engine_model(engine: vLLMRollout, reference: dict[str, PreTrainedModel]) -> PreTrainedModel:
    """The transformers model with the weights `engine` starts from."""
    tied = engine.llm.model_config.hf_config.tie_word_embeddings
    return reference["tied" if tied else "untied"]
