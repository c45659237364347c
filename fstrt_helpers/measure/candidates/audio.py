"""The codec and the whole pipeline of a candidate, as the harness calls them."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from ...checkpoint import SAMPLE_RATE, Checkpoint
from ...errors import EnvironmentMissing
from ...graphs.spec import GRAPHS
from ...text.clean import clean_text
from ...text.prompt import build_prompt
from ..grid import code_frames
from .frames import SETTINGS
from .making import reference_name
from .names import Contender
from .opening import open_runtimes

__all__ = ["open_codec", "open_speaker"]

Spoken = dict[str, Any]
"""Milliseconds: ``total``, ``first_audio`` and those of the stages; ``audio`` in seconds; stop reasons in ``ends``."""


def open_codec(contender: Contender, checkpoint: Checkpoint, threads: int = 0) -> Callable[[np.ndarray], None]:
    """A function that decodes codes, int64 [1, 8, T], and returns when the samples are on the device.

    Raises:
        FstrtError: The candidate cannot run here.
    """
    if contender.name.startswith("upstream"):
        from .theirs import UpstreamCodec

        decode = UpstreamCodec(contender, checkpoint).decode
    else:
        runtime = _codec_runtime(contender, checkpoint, threads)

        def decode(codes: np.ndarray) -> Any:
            return runtime.run({"codes": torch.from_numpy(codes).to(runtime.device)})

    def run(codes: np.ndarray) -> None:
        decode(codes)
        if contender.device == "cuda":
            torch.cuda.synchronize()

    return run


def _codec_runtime(contender: Contender, checkpoint: Checkpoint, threads: int) -> Any:
    if contender.name.startswith("tensorrt"):
        from ...speech.backends import open_backend

        return open_backend(checkpoint, "tensorrt", contender.precision).runtimes["codec_decode"]
    return open_runtimes(contender, checkpoint, ("codec_decode",), threads)["codec_decode"]


def open_speaker(
    contender: Contender, checkpoint: Checkpoint, seconds: float, threads: int = 0
) -> Callable[[str, int], Spoken]:
    """A function that speaks a text with a seed and tells where the time went.

    Args:
        contender: Candidate, precision, device.
        checkpoint: What to load.
        seconds: Most seconds of audio per text.
        threads: CPU threads of one operator in ONNX Runtime; 0 means one per core.

    Raises:
        FstrtError: The candidate cannot run here.
    """
    if contender.name.startswith("upstream"):
        return _upstream_speaker(contender, checkpoint, seconds)
    from ...speech import FishSpeech
    from ...speech.backends import Backend

    if contender.device == "cpu":
        runtimes = open_runtimes(contender, checkpoint, GRAPHS, threads)
        fish = FishSpeech(checkpoint, Backend(contender.name, runtimes, "measured"))
    else:
        backend = {"ort-cuda-graph": "onnxruntime-cuda", "tensorrt-rtx": "tensorrt"}.get(contender.name, contender.name)
        name = reference_name(checkpoint)
        fish = FishSpeech.from_checkpoint(name, backend=backend, precision=contender.precision, strict=True)
        if fish.runtimes["frame"].device.type != "cuda":
            raise EnvironmentMissing(f"{contender.name} was opened on {fish.runtimes['frame'].device}", fix="use a GPU")

    def speak(text: str, seed: int) -> Spoken:
        speech = fish.synthesize(text, seed=seed, max_seconds=seconds, **SETTINGS)
        times = asdict(speech.timings)
        spoken = {stage: 1e3 * value for stage, value in times.items() if stage != "audio"}
        return {**spoken, "audio": speech.duration, "ends": list(speech.stop_reasons)}

    return speak


def _upstream_speaker(contender: Contender, checkpoint: Checkpoint, seconds: float) -> Callable[[str, int], Spoken]:
    """Upstream's ``generate`` and codec, one after the other: it has audio when all frames are there, never earlier.

    The prompt is made by our tokenizer, which gives the same ids as upstream's.
    """
    from .theirs import UpstreamCodec, UpstreamFrames

    frames = UpstreamFrames(contender, checkpoint)
    codec = UpstreamCodec(contender, checkpoint)
    tokenizer = checkpoint.tokenizer()

    def speak(text: str, seed: int) -> Spoken:
        began = time.perf_counter()
        prompt = build_prompt(tokenizer, clean_text(text).strip(), (), checkpoint.config.num_codebooks)
        written = time.perf_counter()
        codes = frames.speak(prompt, code_frames(seconds), seed)
        generated = time.perf_counter()
        samples = 0
        if codes.shape[1]:
            # Random weights draw ids that the codec has no entry for; upstream's codec stops there, ours does not.
            known = np.minimum(codes.astype(np.int64), math.prod(checkpoint.codec_config.levels) - 1)
            samples = codec.decode(known[None]).float().cpu().numpy().size
        ended = time.perf_counter()
        moments = (began, written, generated, ended)
        text_ms, frames_ms, codec_ms = (1e3 * (b - a) for a, b in itertools.pairwise(moments))
        return {
            "text": text_ms,
            "frames": frames_ms,
            "codec": codec_ms,
            "total": 1e3 * (ended - began),
            "first_audio": 1e3 * (ended - began),
            "audio": samples / SAMPLE_RATE,
            "ends": ["length" if codes.shape[1] >= code_frames(seconds) else "eos"],
        }

    return speak
