"""An evaluation harness on rl-controller and rl-protocol."""

from eval_harness.harness import Harness, Report
from eval_harness.worker import ScoreFn, Scorer

__version__ = "0.1.0"

__all__ = ["Harness", "Report", "ScoreFn", "Scorer"]
