"""Train on responses that came to an end: one that fills `data.max_response_length` teaches nothing.

python examples/skip_cut_off/train.py my.yaml key=value ...
"""

import sys

from rl_trainer import RayPPOTrainer, StepBatch, TaskRunner, load_config, run_ppo


class SkipCutOff(RayPPOTrainer):
    def compute_rewards(self, batch: StepBatch) -> StepBatch:
        batch = super().compute_rewards(batch)
        mask = batch["response_mask"]
        cut_off = mask[:, -1] == 1
        batch.put(response_mask=mask * ~cut_off[:, None])
        self.metrics["train/cut_off"] = cut_off.double().mean().item()
        return batch


class Runner(TaskRunner):
    trainer_class = SkipCutOff


if __name__ == "__main__":
    run_ppo(load_config(sys.argv[1], sys.argv[2:]), Runner)
