"""Training of the slow and the fast transformer on encoded speech."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch._inductor.config
import torch.nn.functional as F
from torch import Tensor, nn

from fstrt_helpers.checkpoint import DualARConfig
from fstrt_helpers.model.dual_ar import DualAR

__all__ = ["TINY_DUAL_AR", "DualARTrainer", "Muon", "loss_of"]

TINY_DUAL_AR = DualARConfig(
    dim=256, n_layer=8, n_head=8, n_local_heads=2, intermediate_size=512, vocab_size=256 + 12 + 1024,
    max_seq_len=2048, codebook_size=1024, num_codebooks=8, n_fast_layer=3, rope_base=10_000.0, norm_eps=1e-6,
)  # fmt: skip
Z_WEIGHT = 2e-3
DROPOUT = 0.1  # on every residual branch


def _cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy, and the mean square of the logarithm of the normaliser, where a label is >= 0.

    Holding the normaliser near 1 makes logits log-probabilities. The sampler's repetition penalty multiplies and
    divides logits, so it depends on their offset, which cross-entropy alone leaves free.
    """
    logits = logits.float()
    valid = labels >= 0
    count = valid.sum().clamp(min=1)
    norm = torch.logsumexp(logits, dim=-1)
    chosen = logits.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return ((norm - chosen) * valid).sum() / count, (norm.square() * valid).sum() / count


def _blocks(x: Tensor, layers: Iterable[nn.Module], cos: Tensor, sin: Tensor, training: bool) -> Tensor:
    for block in layers:
        x = x + F.dropout(block.attention(block.attention_norm(x), cos, sin), DROPOUT, training)
        x = x + F.dropout(block.feed_forward(block.ffn_norm(x)), DROPOUT, training)
    return x


def loss_of(
    model: DualAR, columns: Tensor, labels: Tensor, clean: Tensor, chosen: Tensor, training: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses of a batch.

    Args:
        model: The two transformers.
        columns: Input, int64 [B, 9, S]; some codes may be replaced at random.
        labels: Next token or -100, int64 [B, S].
        clean: Codes of the frame that each position predicts, int64 [B, 8, S].
        chosen: Positions (flat, of B · S) whose frames train the fast transformer, int64 [K].
        training: Whether to drop out.

    Returns:
        The loss to minimise, and the slow and fast cross-entropy (nats).
    """
    length = columns.shape[2]
    cos, sin = (table[:length] for table in model.rope)
    x = _blocks(model.embed(columns), model.layers, cos, sin, training)
    slow, slow_z = _cross_entropy(model.output(model.norm(x)), labels)

    hidden = x.flatten(0, 1)[chosen]  # [K, D]
    codes = clean.mT.flatten(0, 1)[chosen]  # [K, 8]
    frame = labels.flatten()[chosen] >= model.semantic_begin_id  # not <|im_end|>, not padding
    y = torch.cat([hidden[:, None], model.fast_embeddings(codes[:, :-1]).to(hidden.dtype)], dim=1)
    cos, sin = model.fast_rope
    y = _blocks(y, model.fast_layers, cos, sin, training)
    logits = model.fast_output(model.fast_norm(y[:, 1:]))  # codebooks 1-7: the token is codebook 0
    fast, fast_z = _cross_entropy(logits, torch.where(frame[:, None], codes[:, 1:], -100))
    return slow + fast + Z_WEIGHT * (slow_z + fast_z), slow.detach(), fast.detach()


class Muon:
    """Momentum orthogonalised by Newton-Schulz steps, for the matrices of the blocks.

    The scale follows AdamW's, so that one learning rate serves both (arXiv:2502.16982, section 2.2).

    Args:
        params: Matrices; those of one shape are treated in one batch.
        momentum: Decay of the running gradient (Nesterov).
        weight_decay: Decoupled decay.
    """

    def __init__(self, params: list[nn.Parameter], momentum: float = 0.95, weight_decay: float = 0.05) -> None:
        self.momentum, self.weight_decay = momentum, weight_decay
        groups: dict[tuple[int, int], list[nn.Parameter]] = {}
        for p in params:
            groups.setdefault((max(p.shape), min(p.shape)), []).append(p)
        self.groups = [(ps, torch.zeros(len(ps), *shape, device=ps[0].device)) for shape, ps in groups.items()]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for params, running in self.groups:
            tall = [p.shape[0] >= p.shape[1] for p in params]
            grad = torch.stack([p.grad if t else p.grad.mT for p, t in zip(params, tall, strict=True)])
            running.lerp_(grad, 1 - self.momentum)
            x = torch.lerp(grad, running, self.momentum).bfloat16()
            x = x / (x.float().square().sum((1, 2), keepdim=True).sqrt() + 1e-7).bfloat16()
            for _ in range(5):
                a = x.mT @ x
                b = torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315)
                x = torch.baddbmm(x, x, b, beta=3.4445)
            scale = 0.2 * math.sqrt(running.shape[1])
            torch._foreach_mul_(params, 1 - lr * self.weight_decay)
            updates = [u if t else u.mT for u, t in zip(x.float().unbind(), tall, strict=True)]
            torch._foreach_add_(params, updates, alpha=-lr * scale)


class DualARTrainer:
    """Holds model, optimisers and schedule.

    Args:
        model: Freshly made or resumed transformers, on their device.
        lr: Highest learning rate.
        compiled: Whether to compile the loss.
    """

    NOISE = 0.04  # share of input codes replaced at random

    def __init__(self, model: DualAR, lr: float = 2e-3, compiled: bool = True) -> None:
        self.model, self.lr, self.steps = model, lr, 0
        matrices = [p for part in (model.layers, model.fast_layers) for p in part.parameters() if p.ndim == 2]
        rest = [p for p in model.parameters() if all(p is not m for m in matrices)]
        self.device = model.embeddings.weight.device
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(
            rest, lr=lr, betas=(0.9, 0.95), weight_decay=0.01, fused=self.device.type == "cuda"
        )
        self.params = list(model.parameters())
        self.average = [p.detach().clone() for p in self.params]
        if compiled:
            # With symbolic shapes this analysis fails an assertion of its own (torch 2.11).
            torch._inductor.config.triton.coalesce_tiling_analysis = False
        self._loss = torch.compile(loss_of, dynamic=True) if compiled else loss_of

    @staticmethod
    def initialise(model: DualAR) -> None:
        """Normal weights of deviation 0.02; what adds to the residual stream is smaller."""
        depth = len(model.layers)
        for name, p in model.named_parameters():
            if p.ndim == 2:
                small = name.endswith(("wo.weight", "w2.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * depth) if small else 0.02)

    def _prepare(self, columns: Tensor, labels: Tensor, fast: int, noise: float) -> tuple[Tensor, ...]:
        codes = columns[:, 1:]
        clean = torch.cat([codes[:, :, 1:], codes[:, :, -1:]], dim=2)
        first, last = self.model.semantic_begin_id, self.model.semantic_end_id
        if noise:
            random = torch.randint(0, 1000, codes.shape, device=codes.device)
            replaced = torch.where(torch.rand(codes.shape, device=codes.device) < noise, random, codes)
            token = columns[:, 0]
            spoken = (token >= first) & (token <= last)
            token = torch.where(spoken, replaced[:, 0] + first, token)
            columns = torch.cat([token[:, None], replaced], dim=1)
        score = torch.rand(labels.shape, device=labels.device) + (labels >= first)
        chosen = score.flatten().topk(min(fast, labels.numel()), sorted=False).indices
        return columns, labels, clean, chosen

    def step(self, columns: Tensor, labels: Tensor, fast: int, progress: float) -> tuple[Tensor, Tensor]:
        """One step at `progress` (0-1); returns slow and fast cross-entropy on the device.

        Args:
            columns: int64 [B, 9, S].
            labels: int64 [B, S].
            fast: How many frames train the fast transformer.
            progress: Position on the cosine schedule.
        """
        self.steps += 1
        lr = (
            self.lr
            * min(1.0, self.steps / 300)
            * (0.005 + 0.995 * (0.5 + 0.5 * math.cos(math.pi * min(1.0, progress))))
        )
        parts = self._prepare(columns, labels, fast, self.NOISE)
        with torch.autocast("cuda", torch.bfloat16, self.device.type == "cuda"):
            loss, slow, fast_loss = self._loss(self.model, *parts, True)
        self.adam.zero_grad(set_to_none=True)
        for p in self.params:
            p.grad = None
        loss.backward()
        nn.utils.clip_grad_norm_(self.params, 1.0, foreach=True)
        for group in self.adam.param_groups:
            group["lr"] = lr
        self.adam.step()
        self.muon.step(lr)
        torch._foreach_lerp_(self.average, [p.detach() for p in self.params], 0.005)
        return slow, fast_loss

    @torch.no_grad()
    def validate(self, columns: Tensor, labels: Tensor, fast: int) -> tuple[Tensor, Tensor]:
        """Slow and fast cross-entropy without noise and dropout."""
        parts = self._prepare(columns, labels, fast, 0.0)
        with torch.autocast("cuda", torch.bfloat16, self.device.type == "cuda"):
            _, slow, fast_loss = loss_of(self.model, *parts, False)
        return slow, fast_loss

    @torch.no_grad()
    def swap_average(self) -> None:
        """Exchanges the weights with their running average."""
        for p, a in zip(self.params, self.average, strict=True):
            kept = p.detach().clone()
            p.copy_(a)
            a.copy_(kept)
