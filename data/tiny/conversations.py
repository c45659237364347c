"""Training batches for the two transformers: conversations of one voice in exactly the layout of the prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fstrt_helpers.text.prompt import SYSTEM_TEXT
from fstrt_helpers.text.tokenizer import IM_END, IM_START, VOICE, Tokenizer

__all__ = ["Turns", "batches"]

ROUND = 32  # lengths are rounded up to this, to keep the number of shapes small


class Turns:
    """Every utterance as a user turn with its text and an assistant turn with its codes, ready to be joined.

    Columns lie one after another in ``columns`` [9, total] int16; the system turn comes first. ``target`` marks the
    columns whose token is to be predicted: codes and the ``<|im_end|>`` after them.

    Args:
        tokenizer: Byte-level tokenizer of the checkpoint.
        device: Where the columns lie.
        capacity: Columns there is room for.
    """

    def __init__(self, tokenizer: Tokenizer, device: torch.device, capacity: int) -> None:
        self.tokenizer, self.device = tokenizer, device
        self.columns = torch.zeros(9, capacity, dtype=torch.int16, device=device)
        self.target = torch.zeros(capacity, dtype=torch.bool, device=device)
        self.end = tokenizer.special[IM_END]
        start, voice = tokenizer.special[IM_START], tokenizer.special[VOICE]
        self._before = np.array([start, *tokenizer.encode("user\n")], dtype=np.int16)
        self._between = np.array([self.end, start, *tokenizer.encode("assistant\n"), voice], dtype=np.int16)
        system = [start, *tokenizer.encode("system\n"), *tokenizer.encode(SYSTEM_TEXT), self.end]
        self.system = len(system)
        self.columns[0, : self.system] = torch.tensor(system, dtype=torch.int16)
        self.used = self.system
        self.starts: list[int] = []
        self.sizes: list[int] = []

    def add(self, texts: Sequence[str], codes: np.ndarray, frames: Sequence[int]) -> None:
        """Appends utterances: their texts, and their codes [sum(frames), 8] one after another."""
        rows: list[np.ndarray] = []
        marks: list[np.ndarray] = []
        at, free = 0, self.used
        for text, count in zip(texts, frames, strict=True):
            body = np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.int16)
            head = len(self._before) + len(body) + len(self._between)
            row = np.zeros((9, head + count + 1), dtype=np.int16)
            row[0, :head] = np.concatenate([self._before, body, self._between])
            row[1:, head:-1] = codes[at : at + count].T
            row[0, head:-1] = codes[at : at + count, 0] + self.tokenizer.semantic_begin_id
            row[0, -1] = self.end
            mark = np.zeros(row.shape[1], dtype=bool)
            mark[head:] = True
            if free + row.shape[1] > self.columns.shape[1]:
                break
            self.starts.append(free)
            self.sizes.append(row.shape[1])
            free += row.shape[1]
            rows.append(row)
            marks.append(mark)
            at += count
        if rows:
            joined, mark = np.concatenate(rows, axis=1), np.concatenate(marks)
            stop = self.used + joined.shape[1]
            self.columns[:, self.used : stop] = torch.from_numpy(joined).to(self.device)
            self.target[self.used : stop] = torch.from_numpy(mark).to(self.device)
            self.used = stop

    def gather(self, starts: Tensor, sizes: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Joins pieces: int64 [B, P] starts and sizes to columns [B, 9, length] and labels [B, length].

        Labels are the next column's token where that is a target, else -100. Rows end with padding: ``<|im_end|>``
        without a label.
        """
        position = torch.arange(length + 1, device=self.device)
        ends = sizes.cumsum(1)
        piece = torch.searchsorted(ends, position.expand(len(ends), -1).contiguous(), right=True)
        inside = piece < sizes.shape[1]
        piece = piece.clamp(max=sizes.shape[1] - 1)
        index = starts.gather(1, piece) + position - (ends - sizes).gather(1, piece)
        index = torch.where(inside, index, 0)
        columns = self.columns[:, index].transpose(0, 1).long()
        columns = torch.where(inside[:, None], columns, 0)
        columns[:, 0] = torch.where(inside, columns[:, 0], self.end)
        target = self.target[index] & inside
        labels = torch.where(target[:, 1:], columns[:, 0, 1:], -100)
        return columns[:, :, :-1], labels


def batches(
    turns: Turns, members: dict[str, np.ndarray], budget: int, rng: np.random.Generator, pool: int = 6000,
    longest: int = 1216,
) -> Iterator[tuple[Tensor, Tensor, int]]:  # fmt: skip
    """Yields ``(starts, sizes, length)`` for :meth:`Turns.gather`, for one pool of random conversations.

    A conversation stays with one voice. One turn alone (0.25) or two (0.15) stand without the system turn, as 1.5
    does without a reference; with a system turn there are two (0.48) or three (0.12).

    Args:
        turns: The utterances.
        members: Utterance numbers per voice.
        budget: Columns per batch.
        rng: Source of chance.
        pool: Conversations drawn at once; batches are of similar length, in random order.
        longest: Longest conversation in columns.
    """
    voices = [v for v in members if len(members[v])]
    starts, sizes = np.array(turns.starts), np.array(turns.sizes)
    chosen = np.stack([rng.choice(members[v], (pool, 3)) for v in rng.permutation(voices)])
    chosen = chosen[rng.integers(0, len(voices), pool), np.arange(pool)]  # [pool, 3]
    kind = rng.random(pool)
    system = kind >= 0.40
    count = np.select([kind < 0.25, kind < 0.88], [1, 2], 3)
    piece_starts = np.zeros((pool, 4), dtype=np.int64)
    piece_sizes = np.zeros((pool, 4), dtype=np.int64)
    piece_sizes[:, 0] = system * turns.system
    for k in range(3):
        piece_starts[:, k + 1] = starts[chosen[:, k]]
        piece_sizes[:, k + 1] = sizes[chosen[:, k]] * (k < count)
    total = piece_sizes.sum(1)
    order = np.argsort(total, kind="stable")
    order = order[total[order] <= longest]
    groups = []
    while len(order):
        length = -(-int(total[order[-1]]) // ROUND) * ROUND
        rows = max(1, budget // length // 8 * 8)
        groups.append((order[-rows:], length))
        order = order[:-rows]
    for g in rng.permutation(len(groups)):
        part, length = groups[g]
        if len(part) < max(1, budget // length // 8 * 8):
            continue
        yield torch.from_numpy(piece_starts[part]), torch.from_numpy(piece_sizes[part]), length
