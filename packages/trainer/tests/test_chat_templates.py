"""One rendering of messages for training, validation, tools and the exported model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from rl_trainer import run_ppo
from rl_trainer.config.loading import load_config
from rl_trainer.data.dataset import PromptDataset
from rl_trainer.data.tasks import write_jsonl
from rl_trainer.errors import ConfigError
from rl_trainer.models.tiny import CHARACTERS, make_tiny_model
from rl_trainer.plan.chat import written_in
from rl_trainer.plan.resolve import resolve
from rl_workers import load_tokenizer

TEMPLATE = (
    "{%- for message in messages %}\n"
    "{{- '[' + message['role'] + ']' + message['content'] }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{- '[assistant]' }}{%- if think is defined and think is false %}"
    "{{- '<none>' }}{%- endif %}{%- endif %}\n"
)
MESSAGES = [{"role": "user", "content": "ab"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("chat"), characters=CHARACTERS + "[]<>")


@pytest.fixture
def words(model: Path, tmp_path: Path) -> list[str]:
    rows = [{"prompt": MESSAGES, "reward_model": {"ground_truth": "ab"}}] * 4
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    data = write_jsonl(tmp_path / "rows.jsonl", rows)
    return [
        f"actor_rollout_ref.model.path={model}",
        f"data.train_files=[{data}]",
        f"data.val_files=[{data}]",
        f"trainer.default_local_dir={tmp_path / 'run'}",
        f"data.chat_template={tmp_path / 'chat.jinja'}",
        "data.max_prompt_length=64",
        "trainer.backend=local",
        "actor_rollout_ref.rollout.name=hf",
    ]


@pytest.mark.parametrize(
    ("keys", "rendered"),
    [
        ([], "[user]ab[assistant]"),
        (["data.chat_template_kwargs.think=false"], "[user]ab[assistant]<none>"),
        (["data.chat_template_kwargs.think=true"], "[user]ab[assistant]"),
        (["data.system_prompt=be brief"], "[system]be brief[user]ab[assistant]"),
        (["data.response_prefill=<a>"], "[user]ab[assistant]<a>"),
    ],
)
def test_a_key_changes_what_a_prompt_renders_to(words: list[str], keys: list[str], rendered: str) -> None:
    config = resolve(load_config("tiny_grpo", [*words, *keys]))
    tokenizer = load_tokenizer(config.actor_rollout_ref.model, config.actor_rollout_ref.chat_template)
    assert tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False) == rendered
    history = tokenizer.apply_chat_template(MESSAGES, tokenize=False)
    assert rendered.startswith(history) and not history.endswith("[assistant]")


def test_a_system_message_of_the_row_stays(words: list[str]) -> None:
    config = resolve(load_config("tiny_grpo", [*words, "data.system_prompt=be brief"]))
    tokenizer = load_tokenizer(config.actor_rollout_ref.model, config.actor_rollout_ref.chat_template)
    own = [{"role": "system", "content": "own"}, *MESSAGES]
    assert tokenizer.apply_chat_template(own, tokenize=False) == "[system]own[user]ab"


@pytest.mark.parametrize("value", [True, None, 3, 0.5, "a'b\"c\n{{ x }} ü 😀", ["a", None, {"k": False}]])
def test_an_argument_reads_in_the_template_as_it_was_given(model: Path, value: Any) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    plain = "{{ value }}|{% if value %}yes{% endif %}"
    expected = tokenizer.apply_chat_template(MESSAGES, chat_template=plain, tokenize=False, value=value)
    text = written_in(plain, {"value": value}, "", "")
    assert tokenizer.apply_chat_template(MESSAGES, chat_template=text, tokenize=False) == expected


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["data.chat_template=/no/such.jinja"], "there is no file"),
        (["data.chat_template_kwargs.thnik=false"], "thnik=False: the chat template does not read it"),
        (["data.chat_template=''", "data.system_prompt=be brief"], "no chat template: name a file"),
        (["data.response_prefill=a", "actor_rollout_ref.rollout.agent_loop=tool"], "tool loop renders whole"),
    ],
)
def test_what_can_not_be_rendered_is_refused_before_the_start(
    words: list[str], keys: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(load_config("tiny_grpo", [*words, *keys]))


def test_a_template_that_takes_no_system_message_says_so(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text(
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}x"
    )
    with pytest.raises(ConfigError, match="no system role"):
        resolve(load_config("tiny_grpo", [*words, "data.system_prompt=be brief"]))


def test_training_validation_and_the_export_render_alike(words: list[str]) -> None:
    steps = ["trainer.total_training_steps=1", "data.train_batch_size=4", "actor_rollout_ref.rollout.n=2"]
    keys = ["data.system_prompt=abc", "data.response_prefill=<a>", "data.chat_template_kwargs.think=false"]
    config = load_config(
        "tiny_grpo", [*words, *steps, *keys, "actor_rollout_ref.actor.ppo_mini_batch_size=4"]
    )
    result = run_ppo(config)
    exported = AutoTokenizer.from_pretrained(result.export)
    policy = config.actor_rollout_ref
    rows = PromptDataset(
        config.data.train_files, load_tokenizer(policy.model, policy.chat_template), config.data
    )
    text = exported.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    assert text == "[system]abc[user]ab[assistant]<none><a>"
    assert rows[0]["input_ids"] == exported(text, add_special_tokens=False)["input_ids"]
