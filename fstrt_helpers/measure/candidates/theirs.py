"""Upstream's own model, generation functions and codec, driven as its own inference code drives them."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...checkpoint import Checkpoint
from ...errors import EnvironmentMissing, ParameterError
from ...text.tokenizer import IM_END, Tokenizer
from ..latency import LaunchTimes
from ..upstream import import_upstream_lib
from .frames import SETTINGS
from .names import Contender

__all__ = ["UpstreamCodec", "UpstreamFrames"]


class _TokenFacts:
    """The three facts upstream's model asks its tokenizer for; its own class reads tokens in an order of its own."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.semantic_begin_id = tokenizer.semantic_begin_id
        self._im_end = tokenizer.im_end_id

    def get_token_id(self, token: str) -> int:
        if token == IM_END:
            return self._im_end
        return self.semantic_begin_id + int(token.split(":")[1].removesuffix("|>"))


def _endless(lib: SimpleNamespace, device: torch.device, seed: int, im_end: int) -> Any:
    """Upstream's source of noise, but the end token draws infinity and is never chosen: timings must not stop early."""

    class Endless(lib.sampling.SamplingRng):  # type: ignore[misc]
        def exponential_parts(self, shapes: Any, *, device: Any, dtype: Any) -> tuple[Tensor, ...]:
            parts = super().exponential_parts(shapes, device=device, dtype=dtype)
            parts[0][im_end] = float("inf")
            return parts

    return Endless(device, seed)


class UpstreamFrames:
    """Upstream's frame loop, ``decode_n_tokens`` with its own ``decode_one_token``, in `fish-speech-lib`.

    Upstream samples the first frame in the same call that takes the prompt, so :meth:`prefill` makes it too. Its
    progress bar is switched off (``TQDM_DISABLE``), which can only help it.

    Args:
        contender: ``upstream-eager`` or ``upstream-compile``, precision and device.
        checkpoint: What to load.
        seed: Of the noise.

    Attributes:
        capacity: Columns of the KV cache.

    Raises:
        EnvironmentMissing: Upstream's package is not installed, or it does not compile here.
    """

    def __init__(self, contender: Contender, checkpoint: Checkpoint, *, seed: int = 0) -> None:
        if contender.name == "upstream-compile" and contender.device == "cpu":
            raise EnvironmentMissing("upstream compiles for CUDA only", fix="measure upstream-eager on a CPU")
        self._lib = lib = import_upstream_lib()
        self.device = torch.device(contender.device)
        tokenizer = checkpoint.tokenizer()
        self._model = _load_model(lib, checkpoint, tokenizer).to(
            device=self.device, dtype=getattr(torch, contender.precision)
        )
        self._semantic_ids = list(range(tokenizer.semantic_begin_id, tokenizer.semantic_end_id + 1))
        self._im_end = tokenizer.im_end_id
        self._rng = _endless(lib, self.device, seed, tokenizer.im_end_id)
        self._decode = lib.inference.decode_one_token_ar
        if contender.name == "upstream-compile":
            self._decode = _compiled(lib, self.device)
        self.capacity = 0
        self.frames(1, None)

    def frames(self, batch: int, capacity: int | None) -> UpstreamFrames:
        """Allocates a KV cache of that many columns; None is what upstream allocates, the model's longest sequence.

        Raises:
            ParameterError: More than one row.
        """
        if batch > 1:
            raise ParameterError("upstream's generate samples only batch row 0", fix="measure it with one row")
        wanted = capacity or self._model.config.max_seq_len
        if wanted != self.capacity:
            self._model.max_seq_len = self._model.max_batch_size = -1  # else it keeps a cache that is large enough
            with torch.device(self.device):
                self._model.setup_caches(1, wanted, dtype=next(self._model.parameters()).dtype)
            self.capacity = self._model.max_seq_len
        return self

    @torch.inference_mode()
    def prefill(self, prompt: np.ndarray) -> None:
        """Takes a prompt, int64 [1, 9, S], and makes the first frame."""
        columns = torch.from_numpy(prompt).to(self.device)
        positions = torch.arange(columns.shape[2], device=self.device)
        token = self._lib.inference.decode_one_token_ar(
            self._model, columns, positions, semantic_ids=self._semantic_ids, rng=self._rng, **SETTINGS
        )
        self._column = token.view(1, columns.shape[1], -1)
        self._position = torch.tensor([columns.shape[2]], device=self.device, dtype=torch.int)
        self._wait()

    first = prefill

    @torch.inference_mode()
    def time(self, count: int, pipelined: int = 0) -> LaunchTimes:
        """Lets upstream make `count` frames and notes when each begins; it waits for every end token by itself."""
        stamps: list[float] = []

        def stamped(**arguments: Any) -> Tensor:
            stamps.append(time.perf_counter())
            return self._decode(**arguments)

        self._wait()
        made = self._lib.inference.decode_n_tokens(
            self._model,
            self._column,
            self._position,
            count,
            self._semantic_ids,
            decode_one_token=stamped,
            rng=self._rng,
            **SETTINGS,
        )
        self._wait()
        stamps.append(time.perf_counter())
        self._column = made[None, :, -1:].clone()
        return LaunchTimes(tuple(1e3 * (b - a) for a, b in itertools.pairwise(stamps)))

    @torch.inference_mode()
    def speak(self, prompt: np.ndarray, frames: int, seed: int) -> np.ndarray:
        """Upstream's ``generate`` until the end token, at most `frames` frames; int [8, T]."""
        rng = self._lib.sampling.SamplingRng(self.device, seed)
        columns = self._lib.inference.generate(
            model=self._model,
            prompt=torch.from_numpy(prompt).to(self.device),
            max_new_tokens=frames,
            decode_one_token=self._decode,
            rng=rng,
            **SETTINGS,
        )[:, prompt.shape[1] :]
        if columns[0, -1] == self._im_end:
            columns = columns[:, :-1]
        return columns[1:].cpu().numpy()

    def close(self) -> None:
        """Drops the model."""
        self._model = None

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def _load_model(lib: SimpleNamespace, checkpoint: Checkpoint, tokenizer: Tokenizer) -> Any:
    """Upstream's DualARTransformer with a checkpoint's weights, float32 on the CPU."""
    arguments = lib.llama.BaseModelArgs.from_pretrained(str(checkpoint.folder / "config.json"))

    class Loaded(lib.llama.DualARTransformer):  # type: ignore[misc]
        def _init_weights(self, module: Any) -> None:
            """Nothing: every weight is replaced."""

    with _without_initialisation():
        model = Loaded(arguments, _TokenFacts(tokenizer))
    model.load_state_dict(checkpoint.load_dual_ar().state_dict(), strict=True, assign=True)
    return model.eval().requires_grad_(False)


@contextlib.contextmanager
def _without_initialisation() -> Iterator[None]:
    """Layers are made without drawing their first weights, which takes longer than loading the real ones."""
    kinds = (torch.nn.Linear, torch.nn.Embedding)
    before = [kind.reset_parameters for kind in kinds]
    for kind in kinds:
        kind.reset_parameters = lambda self: None
    try:
        yield
    finally:
        for kind, method in zip(kinds, before, strict=True):
            kind.reset_parameters = method


def _compiled(lib: SimpleNamespace, device: torch.device) -> Any:
    """What upstream's ``load_model(compile=True)`` makes of the decode function; it compiles at the first call."""
    inference = lib.inference
    gpu = device.type == "cuda"
    implementation = inference.compile_on_device(
        inference._decode_one_token_ar_impl,
        device,
        fullgraph=True,
        backend="inductor" if gpu else "aot_eager",
        mode="reduce-overhead" if gpu else None,
    )
    return inference._make_decode_callable(implementation, inference._sampling_noise_ar)


class UpstreamCodec:
    """Upstream's FireflyArchitecture with a checkpoint's weights.

    Args:
        contender: Precision and device.
        checkpoint: What to load.
    """

    def __init__(self, contender: Contender, checkpoint: Checkpoint) -> None:
        lib, c = import_upstream_lib(), checkpoint.codec_config
        self.device = torch.device(contender.device)
        self._model = lib.firefly.FireflyArchitecture(
            backbone=lib.firefly.ConvNeXtEncoder(
                c.mel_bins, list(c.encoder_depths), list(c.encoder_dims), kernel_size=7
            ),
            head=lib.firefly.HiFiGANGenerator(
                hop_length=512,
                upsample_rates=list(c.upsample_rates),
                upsample_kernel_sizes=list(c.upsample_kernels),
                resblock_kernel_sizes=list(c.resblock_kernels),
                resblock_dilation_sizes=[list(c.resblock_dilations)] * len(c.resblock_kernels),
                num_mels=c.latent_dim,
                upsample_initial_channel=c.head_channels,
                pre_conv_kernel_size=c.pre_kernel,
                post_conv_kernel_size=c.post_kernel,
            ),
            quantizer=lib.fsq.DownsampleFiniteScalarQuantize(
                c.latent_dim, n_codebooks=1, n_groups=c.groups, levels=list(c.levels), downsample_factor=[*c.downsample]
            ),
            spec_transform=torch.nn.Identity(),
        ).eval()
        self._model.remove_parametrizations()  # weight norm folded in, as in the checkpoint's file; faster than without
        self._model.load_state_dict(checkpoint.load_codec().state_dict(), strict=True)
        self._model.to(device=self.device, dtype=getattr(torch, contender.precision)).requires_grad_(False)

    @torch.inference_mode()
    def decode(self, codes: np.ndarray) -> Tensor:
        """Waveform float [1, 1, 2048 T] of codes int64 [1, 8, T]."""
        return self._model.head(self._model.quantizer.decode(torch.from_numpy(codes).to(self.device)))
