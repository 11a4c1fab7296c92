"""The properties that every estimator and loss keeps, as checks for your own (needs the extra `test`).

    from rl_algos.testing import check_policy_loss

    def test_my_loss():
        check_policy_loss("my_loss")

The function is found through its registration, which says what it needs and which gradient it means.
"""

from rl_algos.testing.batches import INPUT_MAKERS, Batch, InputMaker, batches
from rl_algos.testing.estimators import ADV_EST_PROPERTIES, check_adv_estimator
from rl_algos.testing.losses import POLICY_LOSS_PROPERTIES, check_policy_loss

__all__ = [
    "ADV_EST_PROPERTIES",
    "INPUT_MAKERS",
    "POLICY_LOSS_PROPERTIES",
    "Batch",
    "InputMaker",
    "batches",
    "check_adv_estimator",
    "check_policy_loss",
]
