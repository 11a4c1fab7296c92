"""The worker of the page on writing one runs as it stands there, and scores what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

PAGE = Path(__file__).parents[3] / "docs" / "workers" / "write-a-worker.md"


@pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not part of an installed package")
def test_the_example_on_the_page(tiny_model: str, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    program = tmp_path / "judge.py"
    program.write_text(example)
    found = subprocess.run(
        [sys.executable, str(program), tiny_model], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    printed = [float(x) for x in re.findall(r"-\d+\.\d+", found.stdout)]
    model = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    for row, ids in enumerate(([5, 6, 7, 20, 21], [5, 6, 7, 30], [8, 9, 40, 41])):
        prompt = 3 if row < 2 else 2
        with torch.no_grad():
            log_p = torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1], -1)
        score = log_p.gather(1, torch.tensor(ids[1:])[:, None])[prompt - 1 :].mean()
        assert printed[row] == pytest.approx(float(score), abs=1e-3)
