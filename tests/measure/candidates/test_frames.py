"""The loops that are timed make the right frames: ours those of the pipeline, upstream's with its own functions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fstrt_helpers.checkpoint import Checkpoint, find_checkpoint
from fstrt_helpers.errors import EnvironmentMissing, ParameterError, RuntimeInputError
from fstrt_helpers.measure.candidates.audio import open_codec, open_speaker
from fstrt_helpers.measure.candidates.frames import SETTINGS, RuntimeLoop
from fstrt_helpers.measure.candidates.names import Contender
from fstrt_helpers.measure.candidates.opening import OurModel, open_runtimes
from fstrt_helpers.measure.grid import SENTENCES, Point, make_codes, make_prompt
from fstrt_helpers.measure.tasks import TaskMaker
from fstrt_helpers.speech.generation import Generation, SamplingSettings

from ...checkpoints import write_random_checkpoint
from ...upstream import import_upstream_lib

TORCH = Contender("torch", "float32", "cpu")
EAGER = Contender("upstream-eager", "float32", "cpu")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return find_checkpoint(write_random_checkpoint(tmp_path_factory.mktemp("timed") / "random"))


def test_the_timed_loop_makes_the_frames_of_the_pipeline(checkpoint: Checkpoint) -> None:
    runtimes = open_runtimes(TORCH, checkpoint, ("prefill", "frame"))
    prompt = make_prompt(checkpoint.tokenizer(), 20, 1, seed=0)
    settings = SamplingSettings(**SETTINGS)
    generation = Generation(runtimes, checkpoint.config, prompt[0], settings, 12, 7, checkpoint.tokenizer().im_end_id)
    expected = list(generation)
    loop = RuntimeLoop(runtimes, checkpoint.config, batch=1, capacity=64)
    loop.prefill(torch.from_numpy(prompt[:, :, :-1]))
    loop.begin(torch.from_numpy(prompt[:, :, -1]), 19, tuple(SETTINGS.values()), 7)
    made = []
    for _ in expected:
        loop.launch()
        made.append(loop._column[0, :, 0].numpy())
    assert len(expected) >= 8
    np.testing.assert_array_equal(made, expected)


def test_rows_of_a_batch_are_independent(checkpoint: Checkpoint) -> None:
    prompts = make_prompt(checkpoint.tokenizer(), 20, 3, seed=0)
    runtimes = open_runtimes(TORCH, checkpoint, ("prefill", "frame"))
    hidden = []
    for rows in (prompts, prompts[1:2]):
        loop = RuntimeLoop(runtimes, checkpoint.config, batch=len(rows), capacity=64)
        loop.prefill(torch.from_numpy(rows[:, :, :-1]))
        hidden.append(loop._kv["k_1"][-2 if len(rows) > 1 else 0])
    torch.testing.assert_close(hidden[0], hidden[1])


def test_times_are_as_many_as_asked_for(checkpoint: Checkpoint) -> None:
    frames = OurModel(TORCH, checkpoint).frames(2, 64)
    frames.prefill(make_prompt(checkpoint.tokenizer(), 20, 2, seed=0))
    times = frames.time(5, pipelined=3)
    assert len(times.host) == 5 and min(times.host) > 0
    assert times.device is None and times.pipelined is None  # nothing runs ahead on a CPU
    assert frames.capacity == 64
    frames.prefill(make_prompt(checkpoint.tokenizer(), 60, 2, seed=0))
    with pytest.raises(RuntimeInputError, match="full"):
        frames.time(9)


def test_upstream_makes_frames_without_end(checkpoint: Checkpoint) -> None:
    import_upstream_lib()
    from fstrt_helpers.measure.candidates.theirs import UpstreamFrames

    theirs = UpstreamFrames(EAGER, checkpoint)
    assert theirs.capacity == checkpoint.config.max_seq_len
    prompt = make_prompt(checkpoint.tokenizer(), 20, 1, seed=0)
    theirs.prefill(prompt)
    assert len(theirs.time(9).host) == 9 and min(theirs.time(3).host) > 0
    assert int(theirs._position) == 20 + 12
    theirs.frames(1, 64).prefill(prompt)
    assert theirs.capacity == 64 and len(theirs.time(5).host) == 5
    for layer in theirs._model.layers:
        keys = layer.attention.kv_cache.k_cache
        assert keys.shape[2] == 64 and keys[:, :, 25:].abs().max() == 0 != keys[:, :, 24].abs().max()
    with pytest.raises(ParameterError, match="batch row 0"):
        theirs.frames(2, None)
    assert theirs.frames(1, None).capacity == checkpoint.config.max_seq_len
    with pytest.raises(EnvironmentMissing, match="CUDA only"):
        UpstreamFrames(Contender("upstream-compile", "float32", "cpu"), checkpoint)


def test_upstreams_end_token_is_never_drawn_while_timing(checkpoint: Checkpoint) -> None:
    lib = import_upstream_lib()
    from fstrt_helpers.measure.candidates.theirs import _endless

    end = checkpoint.tokenizer().im_end_id
    noise = _endless(lib, torch.device("cpu"), 0, end).exponential_parts(
        [(checkpoint.config.vocab_size,), (1024,)], device="cpu", dtype=torch.float32
    )
    p = torch.full((checkpoint.config.vocab_size,), 1e-4)
    p[end] = 1.0
    assert int(torch.argmax(p / noise[0])) != end and torch.isfinite(noise[1]).all()


def test_upstreams_codec_decodes_the_same_samples() -> None:
    import_upstream_lib()
    checkpoint = find_checkpoint("tiny")
    from fstrt_helpers.measure.candidates.theirs import UpstreamCodec

    codes = make_codes(12, 0)
    ours = open_runtimes(TORCH, checkpoint, ("codec_decode",))["codec_decode"].run({"codes": torch.from_numpy(codes)})
    theirs = UpstreamCodec(EAGER, checkpoint).decode(codes)
    assert theirs.std() > 1e-3 and (theirs - ours["waveform"]).abs().max() <= 1e-4
    open_codec(TORCH, checkpoint)(codes)


@pytest.mark.parametrize("contender", [TORCH, EAGER], ids=str)
def test_a_speaker_tells_where_the_time_went(contender: Contender) -> None:
    if contender is EAGER:
        import_upstream_lib()
    spoken = open_speaker(contender, find_checkpoint("tiny"), 0.25)(SENTENCES[0], 1)
    assert 0 < spoken["audio"] <= 0.3 and spoken["ends"] in (["length"], ["eos"])
    stages = sum(spoken.get(stage, 0) for stage in ("text", "prefill", "frames", "codec"))
    assert 0 < spoken["first_audio"] <= spoken["total"] and stages <= spoken["total"] * 1.01


def test_a_task_opens_once_for_points_of_one_shape(checkpoint: Checkpoint) -> None:
    maker = TaskMaker(TORCH, checkpoint, frames=4)
    points = [Point("frame", capacity=64, position=30), Point("frame", capacity=64, position=40)]
    tasks = [maker.make(point) for point in points]
    assert [set(task.stages) for task in tasks] == [{"open", "first"}, set()] and maker.openings == 2
    assert set(maker.make(Point("frame", batch=2, capacity=64, position=30)).stages) == {"first"}
    assert maker.openings == 3
    task = maker.make(Point("prefill", prompt=20, capacity=64))
    task.warm_up()
    rounds = [task.round(index) for index in range(2)]
    assert task.stages["first"] > 0 and task.capacity == 64
    hashes = [digest for answer in rounds for digest in answer["inputs"]]
    assert len(set(hashes)) == len(hashes) == 6 and len(rounds[0]["more"]["prefill_only"]) == 3
