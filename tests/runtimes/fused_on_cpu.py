"""Runs the fused frame in Triton's interpreter beside the module it replaces, and prints a JSON line per case.

A program of its own, because Triton decides when it is imported whether it interprets:
``TRITON_INTERPRET=1 python -m tests.runtimes.fused_on_cpu FOLDER``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from fstrt_helpers.checkpoint import find_checkpoint
from fstrt_helpers.graphs.inputs import seeded_inputs
from fstrt_helpers.model.dual_ar import causal_mask
from fstrt_helpers.model.frame import legal_rows
from fstrt_helpers.runtimes.fused import FusedFrame
from fstrt_helpers.runtimes.state import FrameState
from fstrt_helpers.runtimes.torch import torch_runtimes

from ..checkpoints import write_random_checkpoint

CASES = {"mid-speech": (128, [70]), "three rows": (64, [0, 5, 63])}  # capacity, position of each row


@torch.inference_mode()
def main(folder: Path) -> None:
    """Heads of 16, the narrowest that the kernels take."""
    path = write_random_checkpoint(folder, dim=64, n_layer=2, intermediate_size=96)
    checkpoint = find_checkpoint(path)
    model = checkpoint.load_dual_ar()
    runtimes = torch_runtimes(model, checkpoint.load_codec(), legal_rows(model, checkpoint.tokenizer().im_end_id))
    frame = runtimes["frame"]
    for name, (capacity, starts) in CASES.items():
        sizes = {"B": len(starts), "C": capacity}
        inputs = seeded_inputs(frame.spec, sizes, seed=1, semantic_begin_id=model.semantic_begin_id)
        inputs["start"] = torch.tensor(starts)
        inputs["mask"] = causal_mask(inputs["start"], 1, capacity)
        state = FrameState(frame.spec, checkpoint.config, torch.device("cpu"), len(starts), capacity)
        for key, value in inputs.items():
            state.inputs[key].copy_(value)
        FusedFrame(frame.module, state, coarse=True).launch()
        written = max(float((state.kv[key] - inputs[key]).abs().max()) for key in state.kv)
        expected = frame.run(inputs)  # in place: `inputs` holds the new keys and values from here on
        found = {
            "case": name,
            "fused": state.next.tolist(),
            "plain": expected["next"].tolist(),
            "cache_error": max(float((state.kv[key] - inputs[key]).abs().max()) for key in state.kv),
            "cache_change": written,
            "doubt": float(state.doubt),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
