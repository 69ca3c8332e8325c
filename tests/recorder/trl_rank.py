"""One process of a distributed TRL training; writes down what it trained with in the end.

torchrun --nproc-per-node 2 trl_rank.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from test_trl import train

from echoscope.recorder.trl import EchoscopeCallback

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    trainer = train(folder, 2000, EchoscopeCallback(folder / "run"), is_chat=False)
    ended = {
        "step": trainer.state.global_step,
        "temperature": trainer.temperature,
        "clip": [trainer.epsilon_low, trainer.epsilon_high],
        "base": trainer.lr_scheduler.base_lrs,
        "lr": [group["lr"] for group in trainer.optimizer.param_groups],
    }
    name = f"rank-{trainer.accelerator.process_index}-of-{trainer.accelerator.num_processes}.json"
    (folder / name).write_text(json.dumps(ended), encoding="utf-8")
