"""The sweep over groups of weights, and keeping the worst until a gate passes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fstrt_helpers.errors import GraphError, ParameterError
from fstrt_helpers.graphs.inputs import seeded_inputs
from fstrt_helpers.graphs.manifest import read_manifest
from fstrt_helpers.graphs.precision import quantise_graphs
from fstrt_helpers.graphs.sensitivity import Sensitivity, forced_logits, keep_until, logit_divergence, sweep
from fstrt_helpers.runtimes.onnxruntime import OrtRuntime


@pytest.fixture(scope="module")
def judge(exported):
    """Mean error of the keys and values that prefill writes."""
    spec = exported.ort["prefill"].spec
    sizes = {"S": 9, "C": 9}

    def run(runtime) -> torch.Tensor:
        out = runtime.run(seeded_inputs(spec, sizes, semantic_begin_id=268))
        return torch.cat([t.flatten() for t in out.values()])

    reference = run(exported.ort["prefill"])
    return lambda paths: (run(OrtRuntime(paths["prefill"], threads=1).open()) - reference).abs().mean().item()


def test_sweep_ranks_groups(exported, judge):
    choices = {"precision": "int8", "form": "nbits", "folder": exported.root}
    some = ["layers.0", "layers.1", "fast_layers.0"]
    seen: list[str] = []
    found = sweep(
        exported.checkpoint, "frame", judge, only=some, progress=lambda *a: seen.append(f"{a[1]}/{a[2]}"), **choices
    )
    assert seen == ["0/3", "1/3", "2/3", "3/3"]
    assert found.costs["fast_layers.0"] == 0 < found.costs["layers.1"] < found.costs["layers.0"]
    assert found.ranked[0] == "layers.0" and "layers.0" in repr(found) and "share" in found._repr_html_()
    with pytest.raises(ParameterError, match="no group"):
        sweep(exported.checkpoint, "frame", judge, only=["layers.9"], **choices)
    with pytest.raises(GraphError, match="returned nan"):
        sweep(exported.checkpoint, "frame", lambda paths: float("nan"), only=["layers.0"], **choices)


def test_worst_groups_are_kept_until_the_gate_passes(exported, judge, tmp_path):
    ranked = ["layers.0", "codebook_embeddings", "embeddings", "layers.1"]

    def quantise(keep):
        return quantise_graphs(
            exported.checkpoint, form="nbits", graphs=["prefill"], keep=keep, folder=exported.root, into=tmp_path
        )

    everything, most_kept = judge(quantise(())), judge(quantise(tuple(ranked[:2])))
    assert most_kept < everything
    limit = (everything + most_kept) / 2
    found = keep_until(lambda paths: judge(paths) < limit, ranked, quantise)
    assert found and found.verdict is True and 0 < len(found.keep) <= 2
    assert [count for count, _ in found.tried] == list(range(len(found.keep) + 1))
    assert read_manifest(found.paths["prefill"]).kept[0].startswith(("layers.0", "codebook_embeddings"))
    never = keep_until(lambda paths: judge(paths) < 0, ranked, quantise, step=2, most=3)
    assert not never and [count for count, _ in never.tried] == [0, 2, 3]


def test_divergence_is_that_of_the_formula(exported):
    config = exported.checkpoint.config
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(5, 1025 + 7 * 1024, generator=generator) for _ in range(2))
    drawn = np.zeros((5, 8), np.int64)
    assert logit_divergence((a, drawn), (a, drawn), config) == 0
    heads = [1025] + [1024] * 7
    parts = zip(a.double().split(heads, 1), b.double().split(heads, 1), strict=True)
    expected = [(p.softmax(1) * (p.log_softmax(1) - q.log_softmax(1))).sum(1) for p, q in parts]
    assert logit_divergence((a, drawn), (b, drawn), config) == pytest.approx(torch.stack(expected).mean().item())
    other = drawn.copy()
    other[:, 0] = 1  # another token: the codes of these frames do not count
    assert logit_divergence((a, drawn), (b, other), config) == pytest.approx(expected[0].mean().item())


def test_logits_must_be_there(exported):
    columns = np.zeros((9, 2), np.int64)
    with pytest.raises(ParameterError, match="returns no logits"):
        forced_logits(exported.ort, exported.checkpoint.config, columns, columns, torch.ones(2, 8193))


def test_rows_are_rounded_and_sorted():
    rows = Sensitivity("frame", "int8", "nats", {"a": 0.00012345, "b": 0.5}).rows()
    assert rows[0] == {"group": "b", "nats": 0.5, "share": "100%"} and rows[1]["nats"] == 0.000123
