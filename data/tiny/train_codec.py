"""Training of the codec: first encoder, quantiser and decoder together, then the decoder alone on frozen codes.

Every step is captured as one CUDA graph where there is a GPU: the network is hundreds of small kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from fstrt_helpers.audio import log_mel
from fstrt_helpers.checkpoint import CodecConfig
from fstrt_helpers.model.firefly import Firefly
from fstrt_helpers.model.fsq import fsq_bound
from losses import SpectralLoss
from store import FRAME, SpeechStore

__all__ = ["TINY_CODEC", "CodecTrainer", "DecoderTrainer", "GraphedStep"]

TINY_CODEC = CodecConfig(encoder_dims=(64, 96, 128, 160), encoder_depths=(1, 1, 3, 1), head_channels=256)
SKIP = 2  # frames at the start of a crop whose left context is missing: no loss there


class GraphedStep:
    """Runs a training step; on a GPU captures it once and replays it.

    Args:
        step: Works on static tensors only and returns one static tensor of numbers to log.
        stream: Stream that replays; None is the current one.
    """

    def __init__(
        self, step: Callable[[], Tensor], device: torch.device, stream: torch.cuda.Stream | None = None
    ) -> None:
        self._step, self._graph = step, None
        if device.type != "cuda":
            return
        stream = stream or torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(4):
                step()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream):
            self._out = step()
        torch.cuda.synchronize()

    def __call__(self) -> Tensor:
        if self._graph is None:
            return self._step()
        self._graph.replay()
        return self._out


class _Averaged:
    """AdamW on some parameters with a running average of their values."""

    def __init__(self, params: list[nn.Parameter], lr: float, decay: float) -> None:
        self.params, self.decay = params, decay
        device = params[0].device
        cuda = device.type == "cuda"
        self.lr = torch.tensor(lr, device=device)
        self.optimizer = torch.optim.AdamW(
            params, lr=self.lr, betas=(0.9, 0.99), weight_decay=0.01, capturable=cuda, fused=cuda
        )
        self.average = [p.detach().clone() for p in params]

    def update(self, loss: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.params, 10.0, foreach=True)
        self.optimizer.step()
        torch._foreach_lerp_(self.average, [p.detach() for p in self.params], 1 - self.decay)

    @torch.no_grad()
    def load_average(self) -> None:
        torch._foreach_copy_(self.params, self.average)


def _init(codec: Firefly) -> None:
    for part in (codec.backbone, codec.quantizer):
        for module in part.modules():
            if isinstance(module, (nn.Conv1d, nn.Linear, nn.ConvTranspose1d)):
                std = max(0.02, (module.weight[0].numel()) ** -0.5 * 0.6)
                nn.init.trunc_normal_(module.weight, std=std)
                nn.init.zeros_(module.bias)
    for name, parameter in codec.named_parameters():
        if name.endswith("gamma"):
            nn.init.constant_(parameter, 0.1)


class CodecTrainer:
    """Encoder, quantiser and decoder together.

    No normalisation may stand before the quantiser in 1.5's layout, yet without any the codes collapse. So an
    affine-free batch norm works on the projected values while training; :meth:`freeze` folds it into ``project_in``.

    Args:
        store: Speech to train on.
        crops: Crops per step.
        frames: Frames per crop.
        lr: Highest learning rate.
    """

    MOMENTUM, GAIN = 0.02, 0.5

    def __init__(self, store: SpeechStore, crops: int = 16, frames: int = 24, lr: float = 8e-4) -> None:
        self.store, self.frames, self.lr = store, frames, lr
        device = store.device
        self.codec = Firefly(TINY_CODEC)
        _init(self.codec)
        self.codec.to(device)
        self.loss = SpectralLoss().to(device)
        self.levels = self.codec.quantizer.residual_fsq.levels.float()
        self.mean = torch.zeros(8, 4, device=device)
        self.var = torch.ones(8, 4, device=device)
        self.first = torch.zeros(crops, dtype=torch.int64, device=device)
        self.trained = _Averaged(list(self.codec.parameters()), lr, 0.999)
        self.first.copy_(store.pick(crops, frames))
        self._graphed = GraphedStep(self._step, device)

    def _autocast(self) -> torch.autocast:
        return torch.autocast("cuda", torch.bfloat16, self.store.device.type == "cuda", cache_enabled=False)

    def _projected(self, wave: Tensor) -> Tensor:  # [B, N] -> [B, T, 8, 4]
        mel = log_mel(wave)
        with self._autocast():
            return self.codec.quantizer.project_in(self.codec.features(mel)).float()

    def _step(self) -> Tensor:
        wave = self.store.crop_audio(self.first, self.frames)
        y = self._projected(wave)
        mean, var = y.mean((0, 1)), y.var((0, 1), unbiased=False)
        with torch.no_grad():
            self.mean.lerp_(mean.detach(), self.MOMENTUM)
            self.var.lerp_(var.detach(), self.MOMENTUM)
        y = (y - mean) * torch.rsqrt(var + 1e-5) * self.GAIN
        y = fsq_bound(fsq_bound(y, self.levels), self.levels)
        y = y + (y.round() - y).detach()
        with self._autocast():
            ours = self.codec.decode_levels(y / (self.levels // 2))[:, 0]
        loss, mel = self.loss(ours.float()[:, SKIP * FRAME :], wave[:, SKIP * FRAME :])
        self.trained.update(loss)
        return torch.stack([loss.detach(), mel.detach()])

    def step(self, progress: float, number: int) -> Tensor:
        """One step at `progress` (0-1) of the phase; returns loss and log-mel distance on the device."""
        rate = min(1.0, (number + 1) / 200) * (1.0 if progress < 0.7 else 1.0 - 0.85 * (progress - 0.7) / 0.3)
        self.trained.lr.fill_(self.lr * rate)
        self.first.copy_(self.store.pick(len(self.first), self.frames))
        return self._graphed()

    @torch.no_grad()
    def freeze(self, batches: int = 40) -> Firefly:
        """Takes the averaged weights, measures the projected values anew, folds the batch norm; returns the codec."""
        self.trained.load_average()
        count, frames = len(self.first), 2 * self.frames
        crops = (self.store.crop_audio(self.store.pick(count, frames), frames) for _ in range(batches))
        values = torch.cat([self._projected(wave)[:, frames // 4 :] for wave in crops])
        scale = self.GAIN * torch.rsqrt(values.var((0, 1)) + 1e-5)
        mean = values.mean((0, 1))
        for group, m, s in zip(self.codec.quantizer.residual_fsq.rvqs, mean, scale, strict=True):
            group.project_in.weight.mul_(s[:, None])
            group.project_in.bias.sub_(m).mul_(s)
        return self.codec


class DecoderTrainer:
    """The decoder alone, from codes that change no more.

    Args:
        codec: Frozen codec whose decoder goes on learning.
        store: Encoded speech.
        stream: Stream to work on, so that other work can go on beside it.
    """

    def __init__(
        self, codec: Firefly, store: SpeechStore, crops: int = 16, frames: int = 24, lr: float = 5e-4,
        stream: torch.cuda.Stream | None = None,
    ) -> None:  # fmt: skip
        self.codec, self.store, self.frames, self.lr = codec, store, frames, lr
        for parameter in codec.parameters():
            parameter.requires_grad_(False)
        parts = [*codec.quantizer.upsample.parameters(), *codec.head.parameters()]
        parts += [p for g in codec.quantizer.residual_fsq.rvqs for p in g.project_out.parameters()]
        for parameter in parts:
            parameter.requires_grad_(True)
        self.loss = SpectralLoss().to(store.device)
        self.trained = _Averaged(parts, lr, 0.999)
        self.first = store.pick(crops, frames)
        self.recent = torch.zeros(2, device=store.device)  # running loss and log-mel distance
        self.stream = stream
        self._graphed = GraphedStep(self._step, store.device, stream)
        self._done = torch.cuda.Event() if stream else None
        self.steps = 0

    def _step(self) -> Tensor:
        wave = self.store.crop_audio(self.first, self.frames)
        codes = self.store.crop_codes(self.first, self.frames)
        with torch.autocast("cuda", torch.bfloat16, self.store.device.type == "cuda", cache_enabled=False):
            ours = self.codec.decode(codes)[:, 0]
        loss, mel = self.loss(ours.float()[:, SKIP * FRAME :], wave[:, SKIP * FRAME :])
        self.trained.update(loss)
        # Memory of its own: what a graph returns may be overwritten while the graph runs again beside the reader.
        return self.recent.lerp_(torch.stack([loss.detach(), mel.detach()]), 0.02)

    def step(self, progress: float) -> None:
        """One step at `progress` (0-1), unless the last one still runs on the stream."""
        if self._done is not None and self.steps and not self._done.query():
            return
        rate = min(1.0, (self.steps + 1) / 200) * (1.0 - progress)
        with torch.cuda.stream(self.stream) if self.stream else nullcontext():
            self.trained.lr.fill_(self.lr * max(rate, 0.005))
            self.first.copy_(self.store.pick(len(self.first), self.frames))
            self._graphed()
            if self._done is not None:
                self._done.record(self.stream)
        self.steps += 1

    @torch.no_grad()
    def averaged_state(self) -> dict[str, Tensor]:
        """The codec's weights with the decoder's averaged ones, on the CPU."""
        if self.stream is not None:
            self.stream.synchronize()
        mine = {id(p): a for p, a in zip(self.trained.params, self.trained.average, strict=True)}
        return {name: mine.get(id(p), p).detach().float().cpu().clone() for name, p in self.codec.named_parameters()}
