"""The worker that scores responses with a sequence classifier."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rl_controller import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from rl_protocol import DataProto
from rl_rollout import encode_chat
from rl_workers.compute.micro_batches import plan_sequences
from rl_workers.compute.packing import PackedBatch, pack_sequences
from rl_workers.config import RewardModelConfig
from rl_workers.engine.base import Answer, TrainEngine
from rl_workers.errors import BatchError, CheckpointError, ModelSupportError
from rl_workers.model.heads import ScoreModel
from rl_workers.model.hub import local_folder, localized
from rl_workers.profiler import DistProfiler
from rl_workers.roles.base import EngineWorker
from rl_workers.roles.rows import columns, response_mask, result

_BUDGET_KEY = "reward.model.forward_max_token_len_per_gpu"
_reward = make_nd_compute_dataproto_dispatch_fn(mesh_name="reward")


class RewardModelWorker(EngineWorker):
    """A sequence classifier with one label, its own tokenizer and its own chat template.

    With ``input_tokenizer`` set, a response's text goes, behind the messages of ``raw_prompt``, through the
    classifier's chat template. Otherwise the two models share a vocabulary and token ids go over as they are.
    """

    def __init__(self, config: RewardModelConfig) -> None:
        super().__init__()
        config.validate()
        self.config = config
        self.engine: TrainEngine | None = None
        self.tokenizer: Any = None
        self.input_tokenizer: Any = None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Build the sharded classifier; collective over the group's ranks."""
        config = self.config = replace(self.config, model=localized(self.config.model))
        if not config.model.use_remove_padding:
            raise ModelSupportError(
                "the reward model runs packed: model.use_remove_padding=False has no effect"
            )
        self.setup_device(config.device, "reward", config.fsdp_config.fsdp_size)
        self.engine = self.build_engine(
            ScoreModel,
            AutoModelForSequenceClassification,
            config.model,
            config.fsdp_config,
            new=self._new_parameter,
            num_labels=1,
        )
        if config.input_tokenizer:
            trust = config.model.trust_remote_code
            self.tokenizer = AutoTokenizer.from_pretrained(config.model.path, trust_remote_code=trust)
            of_policy = local_folder(
                config.input_tokenizer, key="reward.model.input_tokenizer", weights=False
            )
            self.input_tokenizer = AutoTokenizer.from_pretrained(of_policy, trust_remote_code=trust)

    def _new_parameter(self, name: str, shape: torch.Size) -> Tensor:
        raise CheckpointError(
            f"{self.config.model.path} has no tensor for {name}: a reward model must be a trained classifier"
        )

    @register(dispatch_mode=_reward, read_only=True)
    @DistProfiler.annotate()
    def compute_rm_score(self, data: DataProto) -> DataProto:
        """``rm_scores`` ``[B, R]``: the row's score on its last trainable token, 0 elsewhere.

        A row without a trainable token has no place for a score, and none.
        """
        engine = self.need(self.engine, "reward model")
        mask = response_mask(data).bool()
        active = mask.any(1).nonzero()[:, 0].tolist()
        sequences = self._sequences(data, active)
        scores = torch.zeros(len(sequences))
        plan = plan_sequences(
            [ids.numel() for ids in sequences],
            self.config.forward_max_token_len_per_gpu,
            key=_BUDGET_KEY,
            agree=engine.layout.max_over_ranks,
        )
        batches = [pack_sequences(sequences, chosen).to(engine.layout.device) for chosen in plan]

        def read(batch: PackedBatch, answer: Answer) -> None:
            if not batch.is_dummy:
                scores[batch.rows] = answer[0].float().cpu()

        engine.evaluate(batches, read)
        out = torch.zeros(mask.shape, dtype=torch.float32)
        places = torch.arange(mask.shape[1]).expand_as(mask)
        last = torch.where(mask, places, -1).amax(1) if mask.numel() else torch.zeros(0, dtype=torch.long)
        out[torch.tensor(active, dtype=torch.long), last[active]] = scores
        return result({"rm_scores": out})

    def _sequences(self, data: DataProto, rows: list[int]) -> list[Tensor]:
        """Token ids of the classifier for each row, at most ``max_length`` of them, the last ones."""
        tensors = columns(data, ["input_ids", "attention_mask", "response_mask"])
        ids, real = tensors["input_ids"], tensors["attention_mask"].bool()
        if self.input_tokenizer is None:
            found = [ids[row][real[row]].clone() for row in rows]
        else:
            width = tensors["response_mask"].shape[1]
            found = [self._translate(data, row, ids[row, -width:][real[row, -width:]]) for row in rows]
        return [sequence[-self.config.max_length :] for sequence in found]

    def _translate(self, data: DataProto, row: int, response: Tensor) -> Tensor:
        if "raw_prompt" not in data.non_tensor_batch:
            raise BatchError(
                "a reward model with its own tokenizer needs the column raw_prompt (chat messages)"
            )
        raw = data.non_tensor_batch["raw_prompt"][row]
        messages = [{"role": "user", "content": raw}] if isinstance(raw, str) else list(raw)
        answer = self.input_tokenizer.decode(response, skip_special_tokens=True)
        messages.append({"role": "assistant", "content": answer})
        encoded = encode_chat(self.tokenizer, messages, add_generation_prompt=False)
        return torch.tensor(encoded, dtype=torch.long)
