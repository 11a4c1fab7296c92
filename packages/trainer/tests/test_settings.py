"""A setting works, is refused by name, or is named as one that nothing reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_trainer import PPOConfig, load_config
from rl_trainer.config.loading import Key, config_keys, to_yaml
from rl_trainer.config.steps import set_schedules
from rl_trainer.errors import ConfigError, RLTrainerError
from rl_trainer.plan.dry_run import describe_plan
from rl_trainer.plan.inert import inert_keys
from rl_trainer.plan.resolve import resolve
from rl_trainer.tiny import tiny_overrides

ACTOR, ROLLOUT, CORRECTION = (
    "actor_rollout_ref.actor",
    "actor_rollout_ref.rollout",
    "algorithm.rollout_correction",
)
WRONG = {
    "int": ["x", "-7", "1.5", "null", ".nan"],
    "float": ["x", "-7", ".nan", ".inf", "null"],
    "bool": ["maybe", "7", "null"],
    "str": ["no-such-thing", "null"],
}
# Names that are free, and one number of either sign.
FREE = {
    "data.train_split",
    "data.val_split",
    "data.prompt_key",
    f"{ROLLOUT}.weight_transfer",  # named as inert
    "trainer.ray_address",
    "trainer.project_name",
    "trainer.experiment_name",
    "trainer.default_local_dir",
}
SIGNED = {f"{ACTOR}.entropy_coeff"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides of a run that has every part: critic, reference, reward model, correction."""
    folder = tmp_path_factory.mktemp("run")
    return [
        *tiny_overrides(folder),
        f"{ACTOR}.use_kl_loss=true",
        "algorithm.use_kl_in_reward=true",
        "reward.model_enable=true",
        f"reward.model.model.path={folder / 'model'}",
        "trainer.n_workers_per_node=2",
        "trainer.device=cpu",
        f"{CORRECTION}.rollout_is=token",
        f"{CORRECTION}.rollout_rs=ratio",
    ]


def planned(name: str, *overrides: str) -> PPOConfig:
    return resolve(load_config(name, overrides))


def wrong_values() -> Iterator[tuple[str, str]]:
    """One kind for each key, in turn, so that each kind meets many keys."""
    for turn, (path, key) in enumerate(config_keys().items()):
        kinds = WRONG.get(key.type, ["7", "null"])
        for value in (kinds[turn % len(kinds)],):
            legal = (path in FREE and value != "null") or (path in SIGNED and value == "-7")
            if not legal:
                yield path, value


@pytest.mark.slow
def test_every_wrong_value_of_every_key_is_refused_by_name(whole: list[str], tmp_path: Path) -> None:
    file = tmp_path / "whole.yaml"
    file.write_text(to_yaml(planned("tiny_ppo", *whole)))
    silent = []
    for path, value in wrong_values():
        try:
            resolve(load_config(file, [f"{path}={value}"]))
        except RLTrainerError as error:
            if path.rpartition(".")[2] not in str(error):
                silent.append(f"{path}={value}: {error}")
        else:
            silent.append(f"{path}={value} is accepted")
    assert silent == []


@pytest.mark.parametrize(
    "override",
    [
        "algorithm.kl_penalty=k4",
        "algorithm.kl_penalty=full",
        f"{ACTOR}.kl_loss_type=abs",
        f"{ACTOR}.loss_agg_mode=token_mean",
        f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm",
        f"{ACTOR}.loss_scale_factor=8",
        f"{ACTOR}.policy_loss.options={{foo: 1}}",
        f"{ACTOR}.policy_loss.loss_mode=vanila",
        f"{ACTOR}.clip_ratio=-0.5",
        f"{ACTOR}.clip_ratio_c=0.5",
        f"{ACTOR}.optim.lr=.inf",
        f"{ACTOR}.ulysses_sequence_parallel_size=3",
        f"{ACTOR}.fsdp_config.fsdp_size=0",
        "critic.loss_agg_mode=seq-mean-token-sum-norm",
        f"{ROLLOUT}.name=sglang",
        f"{ROLLOUT}.temperature=0",
        f"{ROLLOUT}.do_sample=false",
        f"{ROLLOUT}.top_p=0.9",
        f"{ROLLOUT}.top_k=5",
        f"{ROLLOUT}.max_model_len=4",
        f"{ROLLOUT}.tensor_model_parallel_size=3",
        f"{ROLLOUT}.agent_loop=no_such.module:loop",
        f"{CORRECTION}.rollout_rs_lower=3",
        "algorithm.kl_ctrl.horizon=0",
        "algorithm.filter_groups.max_num_gen_batches=0",
        "algorithm.gdpo_reward_weights=[1,2]",
        "reward.overlong_buffer_len=100",
        "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=4",
        "reward.model.forward_max_token_len_per_gpu=100",
        "reward.model.model.lora_rank=4",
        "reward.model.input_tokenizer=/nowhere",
        "critic.model.path=/nowhere",
        "trainer.val_n=0",
        "trainer.seed=-1",
    ],
)
def test_what_used_to_fail_in_the_middle_of_a_run_is_refused_before_it(
    whole: list[str], override: str
) -> None:
    key = override.partition("=")[0].rpartition(".")[2]
    with pytest.raises(ConfigError, match=key):
        planned("tiny_ppo", *whole, override)


def test_a_budget_that_is_too_small_is_named_by_its_own_key(whole: list[str]) -> None:
    for key in (f"{ACTOR}.ppo_max_token_len_per_gpu", "critic.ppo_max_token_len_per_gpu"):
        with pytest.raises(ConfigError, match=f"{key}=4 is less than the longest possible row"):
            planned("tiny_ppo", *whole, f"{key}=4")
    shared = [f"{ACTOR}.ulysses_sequence_parallel_size=2", f"{ACTOR}.ppo_max_token_len_per_gpu=7"]
    planned("tiny_ppo", *whole, *shared)  # 13 tokens over two ranks


def test_all_unknown_keys_are_told_at_once(whole: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("tiny_ppo", [*whole, "trainer.sede=1", "data.trian_files=[x]", "critic.optim.lr=1"])
    assert "trainer.sede" in str(caught.value) and "data.trian_files" in str(caught.value)


def test_a_falling_schedule_is_as_long_as_its_model_s_optimizer_steps(whole: list[str]) -> None:
    config = planned(
        "tiny_ppo",
        *whole,
        f"{ACTOR}.optim.lr_scheduler_type=cosine",
        "critic.optim.lr_scheduler_type=linear",
        "data.train_batch_size=16",
        f"{ACTOR}.ppo_mini_batch_size=16",
        f"{ACTOR}.ppo_epochs=1",
        "critic.ppo_mini_batch_size=4",
        "critic.ppo_epochs=3",
        "trainer.critic_warmup=2",
    )
    set_schedules(config, 10)
    assert config.actor_rollout_ref.actor.optim.total_training_steps == 8
    assert config.critic.optim.total_training_steps == 10 * 4 * 3


@pytest.mark.parametrize("form", ["override", "dotted", "file"])
def test_options_of_a_loss_are_read_in_every_form_and_written_so_that_they_read_back(
    whole: list[str], form: str, tmp_path: Path
) -> None:
    loss, options = f"{ACTOR}.policy_loss.loss_mode=sapo", f"{ACTOR}.policy_loss.options"
    given = {"override": [f"{options}={{tau_pos: 1.5}}"], "dotted": [f"{options}.tau_pos=1.5"], "file": []}
    source: str | Path = "tiny_ppo"
    if form == "file":
        source = tmp_path / "mine.yaml"
        source.write_text("actor_rollout_ref: {actor: {policy_loss: {options: {tau_pos: 1.5}}}}\n")
    config = load_config(source, [*whole, loss, *given[form]])
    assert config.actor_rollout_ref.actor.policy_loss.options == {"tau_pos": 1.5}
    kept = tmp_path / "config.yaml"
    kept.write_text(to_yaml(config))
    assert load_config(kept) == config


def right_values(key: Key) -> st.SearchStrategy[str]:
    numbers = {"int": st.integers(1, 50).map(str), "float": st.floats(0.1, 0.9).map(repr)}
    words = {"bool": st.sampled_from(["true", "false"]), "list[str]": st.just("['a: b', \"c'd\", ü]")}
    return (numbers | words).get(key.type, st.just(str(key.default)))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_every_configuration_that_is_written_reads_back_equal(tmp_path: Path, data: st.DataObject) -> None:
    free = {path: key for path, key in config_keys().items() if key.type != "str" and "dict" not in key.type}
    chosen = data.draw(st.lists(st.sampled_from(sorted(free)), max_size=6, unique=True))
    config = load_config(None, [f"{path}={data.draw(right_values(free[path]))}" for path in chosen])
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(config), encoding="utf-8")
    assert load_config(file) == config


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("critic.optim.lr=0.5", "has no critic"),
        ("trainer.critic_warmup=3", "has no critic"),
        ("algorithm.gamma=0.9", "does not read it"),
        ("algorithm.kl_ctrl.kl_coef=0.5", "use_kl_in_reward=false"),
        (f"{ACTOR}.kl_loss_coef=0.5", "use_kl_loss=false"),
        ("trainer.total_epochs=3", "decides"),
        (f"{ROLLOUT}.weight_transfer=shm", "weights itself"),
        (f"{ROLLOUT}.max_turns=2", "agent_loop is empty"),
        (f"{ROLLOUT}.block_size=16", "the engine is hf"),
        ("algorithm.clip_cov_ratio=0.5", "chooses no tokens"),
        (f"{CORRECTION}.rollout_is_upper=3", "rollout_is=none"),
        ("algorithm.filter_groups.max_num_gen_batches=2", "enable=false"),
        ("reward.model.max_length=10", "model_enable=false"),
        ("reward.overlong_penalty_factor=0.5", "overlong_buffer_len=0"),
        ("actor_rollout_ref.model.lora_alpha=3", "lora_rank=0"),
    ],
)
def test_a_changed_key_that_nothing_reads_is_named(tmp_path: Path, override: str, why: str) -> None:
    base = [*tiny_overrides(tmp_path), f"{ROLLOUT}.name=hf", "trainer.device=cpu"]
    before = inert_keys(planned("tiny_grpo", *base))
    config = planned("tiny_grpo", *base, override)
    (line,) = set(inert_keys(config)) - set(before)
    assert line.startswith(override.partition("=")[0]) and why in line
    assert line in describe_plan(config)
