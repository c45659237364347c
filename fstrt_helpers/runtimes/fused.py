"""One frame in about 280 Triton launches, in place of some 2000 of PyTorch's: for batches up to 16."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import torch
from torch import Tensor

from ..checkpoint import DualARConfig
from ..errors import EnvironmentMissing, ParameterError
from ..model.dual_ar import Block
from ..model.frame import Frame
from ..model.sampling import PENALTY_WINDOW
from .state import FrameState

__all__ = ["MOST_ROWS", "FusedFrame", "fused_missing"]

MOST_ROWS = 16
_BLOCK = 64  # cache slots an attention program reads at once


def fused_missing(config: DualARConfig) -> str | None:
    """Why the fused frame cannot run here or with this model, or None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; PyTorch's CUDA builds for Linux bring it"
    for width in (config.head_dim, config.fast_head_dim):
        if width < 16 or _power(width) != width:
            return f"heads are {width} wide, not a power of two from 16 on"
    return None


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()


class FusedFrame:
    """Enqueues one frame on the current stream: reads a state's inputs, writes its ``next`` and its KV cache.

    The weights are the module's own tensors, nothing is packed or copied. Same arithmetic as :class:`Frame` but for the
    order of sums, and norms that are not rounded before the product.

    Args:
        frame: The module, in the precision to run in.
        state: Tensors at fixed addresses.
        coarse: Few, large programs: what Triton's interpreter needs to run this on a CPU in reasonable time.

    Raises:
        EnvironmentMissing: Triton is not there, or the heads have a width it cannot take.
        ParameterError: More than :data:`MOST_ROWS` rows.
    """

    def __init__(self, frame: Frame, state: FrameState, *, coarse: bool = False) -> None:
        self.capture = "all"
        self._coarse = coarse
        # Reading weights before the kernel in front is done pays as long as few programs fill the GPU.
        overlap = state.batch == 1 and state.device.type == "cuda"
        overlap = overlap and torch.cuda.get_device_capability(state.device) >= (9, 0)
        self._overlap = {"PDL": True, "launch_pdl": True} if overlap else {"PDL": False}
        if missing := fused_missing(frame.model.config):
            raise EnvironmentMissing(f"no fused frame: {missing}", fix="use the plain CUDA graph")
        if state.batch > MOST_ROWS:
            raise ParameterError(f"{state.batch} rows", fix=f"the fused frame takes at most {MOST_ROWS}")
        model, config = frame.model, frame.model.config
        self._frame, self._model, self._state = frame, model, state
        device, dtype, b = state.device, frame.head.dtype, state.batch
        books = config.num_codebooks

        def make(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        group = config.n_head // config.n_local_heads
        pairs = b * config.n_local_heads
        blocks = -(-state.capacity // _BLOCK)
        splits = max(1, min(blocks, 32, 256 // pairs))
        wide = max(16, _power(group))
        self._slow = SimpleNamespace(
            rows=b,
            dim=config.dim,
            x=make(b, config.dim),
            qkv=make(b, (config.n_head + 2 * config.n_local_heads) * config.head_dim),
            y=make(b, config.n_head * config.head_dim),
            hidden=make(b, config.intermediate_size),
            kv_heads=config.n_local_heads,
            group=group,
            head_dim=config.head_dim,
            wide=wide,
            splits=splits,
            part=make(pairs, splits, wide, config.head_dim + 2, dtype=torch.float32),
            arrived=make(pairs, dtype=torch.int32),
        )
        self._fast = SimpleNamespace(
            dim=config.fast_dim,
            x=make(2 * b, config.fast_dim),
            qkv=make(2 * b, (config.fast_n_head + 2 * config.fast_n_local_heads) * config.fast_head_dim),
            y=make(2 * b, config.fast_n_head * config.fast_head_dim),
            hidden=make(2 * b, config.fast_intermediate_size),
            kv_heads=config.fast_n_local_heads,
            group=config.fast_n_head // config.fast_n_local_heads,
            head_dim=config.fast_head_dim,
        )
        self._fast_kv = [
            tuple(make(b, config.fast_n_local_heads, books, config.fast_head_dim) for _ in "kv")
            for _ in model.fast_layers
        ]
        self._logits = make(b, max(len(frame.rows), len(frame.codes)), dtype=torch.float32)
        self._best = make(b, dtype=torch.int64)
        self._arrived = make(b, dtype=torch.int32)

    def launch(self) -> None:
        """Enqueues the frame."""
        model, config, state, slow, fast = self._model, self._model.config, self._state, self._slow, self._fast
        from . import kernels

        b = state.batch
        block = min(256, _power(config.dim))
        kernels.embed[(b, -(-config.dim // block))](
            state.inputs["column"],
            model.embeddings.weight,
            model.codebook_embeddings.weight,
            slow.x,
            model.semantic_begin_id,
            model.semantic_end_id,
            DIM=config.dim,
            BOOKS=config.num_codebooks,
            ENTRIES=config.codebook_size,
            BLOCK=block,
        )
        kv = list(state.kv.values())
        for index, layer in enumerate(model.layers):
            self._block(layer, slow, b, lambda i=index: self._attend_slow(kv[2 * i], kv[2 * i + 1]))
        self._linear(slow.x, self._frame.head, self._logits, b, norm=model.norm)
        if isinstance(model.fast_project_in, torch.nn.Identity):
            project = slow.x
        else:
            project = fast.qkv.view(-1)[: b * config.fast_dim].view(b, config.fast_dim)
            self._linear(slow.x, model.fast_project_in.weight, project, b, bias=model.fast_project_in.bias)
        fast.x.view(b, 2, config.fast_dim)[:, 0].copy_(project)
        self._draw(self._frame.rows, 0, 0, model.semantic_begin_id, 2, token=True)
        noise_from, first = len(self._frame.rows), 0
        for k in range(1, config.num_codebooks):
            columns = 2 if k == 1 else 1
            for index, layer in enumerate(model.fast_layers):
                self._block(
                    layer,
                    fast,
                    b * columns,
                    lambda i=index, f=first, c=columns: self._attend_fast(*self._fast_kv[i], f, c),
                )
            last = fast.x.view(b, 2, -1)[:, 1].contiguous() if columns == 2 else fast.x[:b]
            self._linear(last, model.fast_output.weight, self._logits, b, norm=model.fast_norm)
            self._draw(self._frame.codes, k + 1, noise_from, 0, 1, token=False)
            noise_from, first = noise_from + len(self._frame.codes), first + columns

    def _block(self, layer: Block, part: SimpleNamespace, rows: int, attend) -> None:
        attention, ffn = layer.attention, layer.feed_forward
        wqkv = attention.wqkv
        self._linear(part.x, wqkv.weight, part.qkv, rows, norm=layer.attention_norm, bias=wqkv.bias)
        attend()
        self._linear(part.y, attention.wo.weight, part.x, rows, residual=part.x)
        self._linear(part.x, ffn.w1.weight, part.hidden, rows, norm=layer.ffn_norm, gate=ffn.w3.weight)
        self._linear(part.hidden, ffn.w2.weight, part.x, rows, residual=part.x)

    def _linear(
        self,
        x: Tensor,
        weight: Tensor,
        out: Tensor,
        rows: int,
        *,
        norm: torch.nn.Module | None = None,
        gate: Tensor | None = None,
        bias: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> None:
        from . import kernels

        n, k = weight.shape
        dot = rows > 2
        bn, bk, warps = (_power(n), _power(k), 4) if self._coarse else _tiles(n, k, dot)
        kernels.linear[(-(-n // bn),)](
            x,
            weight,
            gate if gate is not None else weight,
            bias if bias is not None else weight,
            norm.weight if norm is not None else weight,
            residual if residual is not None else weight,
            out,
            n,
            norm.eps if norm is not None else 0.0,
            K=k,
            KP=_power(k),
            ROWS=rows,
            RP=max(16, _power(rows)),
            BN=bn,
            BK=bk,
            NORM=norm is not None,
            GATE=gate is not None,
            BIAS=bias is not None,
            RESIDUAL=residual is not None,
            DOT=dot,
            num_warps=warps,
            **self._overlap,
        )

    def _attend_slow(self, k: Tensor, v: Tensor) -> None:
        from . import kernels

        s, state = self._slow, self._state
        kernels.attend_slow[(state.batch * s.kv_heads, s.splits)](
            s.qkv,
            *self._model.rope,
            state.inputs["start"],
            k,
            v,
            s.part,
            s.arrived,
            s.y,
            state.capacity,
            s.head_dim**-0.5,
            HKV=s.kv_heads,
            G=s.group,
            GP=s.wide,
            D=s.head_dim,
            BLOCK=_BLOCK,
            SPLITS=s.splits,
            **self._overlap,
        )

    def _attend_fast(self, k: Tensor, v: Tensor, first: int, columns: int) -> None:
        from . import kernels

        f, books = self._fast, self._model.config.num_codebooks
        kernels.attend_fast[(self._state.batch * f.kv_heads,)](
            f.qkv,
            *self._model.fast_rope,
            k,
            v,
            f.y,
            first,
            f.head_dim**-0.5,
            HKV=f.kv_heads,
            G=f.group,
            D=f.head_dim,
            COLUMNS=columns,
            POSITIONS=books,
            QP=max(16, _power(columns * f.group)),
            PP=max(16, _power(books)),
            **self._overlap,
        )

    def _draw(self, ids: Tensor, row: int, noise_from: int, begin: int, stride: int, *, token: bool) -> None:
        from . import kernels

        state, i, model = self._state, self._state.inputs, self._model
        v = len(ids)
        ids_each, warps = (512, 4) if self._coarse else (8, 4) if state.batch == 1 else (16, 8)
        programs = -(-v // ids_each)
        kernels.draw[(state.batch, programs)](
            self._logits,
            ids,
            i["window"],
            i["noise"],
            i["temperature"],
            i["top_p"],
            i["penalty"],
            self._best,
            self._arrived,
            state.next,
            model.fast_embeddings.weight,
            self._fast.x,
            state.doubt,
            v,
            row,
            noise_from,
            begin,
            ROWS=state.next.shape[1],
            NOISE=i["noise"].shape[1],
            WINDOW=PENALTY_WINDOW,
            VP=_power(v),
            BV=ids_each,
            PROGRAMS=programs,
            DIM=model.config.fast_dim,
            DP=_power(model.config.fast_dim),
            STRIDE=stride,
            TOKEN=token,
            num_warps=warps,
            **self._overlap,
        )


def _tiles(n: int, k: int, dot: bool) -> tuple[int, int, int]:
    """Rows and columns of the weight tile one program reads at once, and its warps."""
    if dot:
        return (32 if n > 2048 else 16), min(256, max(16, _power(k))), 4
    if k > 2048:
        return 2, min(4096, _power(k)), 8
    return (4 if n > 2048 else 2), min(1024, _power(k)), 4
