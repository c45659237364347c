"""All spoken utterances on one device: samples at 44.1 kHz, cut into frames of 2048, and later their codes."""

from __future__ import annotations

import queue
import threading
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fstrt_helpers.audio import log_mel
from fstrt_helpers.model.firefly import Firefly
from losses import Resampler, normalise_rms

__all__ = ["FRAME", "ShardReader", "SpeechStore"]

FRAME = 2048  # samples of one code column


class ShardReader(threading.Thread):
    """Reads shards as they appear, and removes them: batches of similar length wait in ``ready``.

    Each item is int16 [n, N] at 16 kHz padded with zeros, the sizes in samples, and the lines of the corpus.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self.ready: queue.Queue[tuple[Tensor, np.ndarray, np.ndarray]] = queue.Queue(maxsize=400)
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.wait(0.3):
            for path in sorted(self.folder.glob("shard-*.npz"), key=lambda p: p.stem.split("-")[2]):
                with np.load(path) as shard:
                    audio, sizes, ids = shard["audio"], shard["sizes"], shard["ids"]
                path.unlink()
                offsets = np.concatenate([[0], np.cumsum(sizes)])
                order = np.argsort(sizes, kind="stable")
                for part in np.array_split(order, max(1, len(order) // 48)):
                    batch = np.zeros((len(part), int(sizes[part].max())), dtype=np.int16)
                    for row, u in enumerate(part):
                        batch[row, : sizes[u]] = audio[offsets[u] : offsets[u + 1]]
                    self.ready.put((torch.from_numpy(batch), sizes[part], ids[part]))


class SpeechStore:
    """Utterances one after another in one row of frames.

    Args:
        device: Where everything lies.
        audio_frames: Frames for which there is room for samples (4 KB each); later utterances keep only codes.
        code_frames: Frames for which there is room for codes.
    """

    def __init__(self, device: torch.device, audio_frames: int, code_frames: int) -> None:
        self.device = device
        self.audio = torch.zeros(audio_frames, FRAME, dtype=torch.int16, device=device)
        self.codes = torch.zeros(code_frames, 8, dtype=torch.int16, device=device)
        self.utterance_of = torch.zeros(audio_frames, dtype=torch.int32, device=device)
        self.starts: list[int] = []  # first frame of each utterance
        self.sizes: list[int] = []  # frames of each utterance
        self.lines: list[int] = []  # line of the corpus it speaks
        self.used = 0
        self.with_audio = 0  # frames that have samples: a prefix of all
        self.encoded = 0  # utterances that have codes: a prefix of all
        self._resample = Resampler().to(device)
        self._spans = torch.zeros(2, code_frames // 8, dtype=torch.int64, device=device)

    @torch.no_grad()
    def take(self, reader: ShardReader, limit: int, codec: Firefly | None = None) -> int:
        """Appends up to `limit` batches that `reader` has ready; with a `codec`, encodes them too. Returns how many."""
        for count in range(limit):
            try:
                batch, sizes, ids = reader.ready.get_nowait()
            except queue.Empty:
                return count
            wave = self._resample(batch.to(self.device).float() / 32768)
            size44 = torch.from_numpy(sizes).to(self.device) * 441 / 160
            frames = -(-(sizes * 441) // (160 * FRAME))
            top = int(frames.max())
            wave = torch.nn.functional.pad(wave, (0, max(0, top * FRAME - wave.shape[1])))[:, : top * FRAME]
            self._append(normalise_rms(wave, size44), frames, ids, codec)
        return limit

    def _append(self, wave: Tensor, frames: np.ndarray, ids: np.ndarray, codec: Firefly | None) -> None:
        count = int(frames.sum())
        first = len(self.starts)
        if self.used + count > len(self.codes) or first + len(frames) > self._spans.shape[1]:
            return
        valid = torch.from_numpy(np.arange(frames.max()) < frames[:, None]).to(self.device)  # [n, T]
        self.starts += (self.used + np.cumsum(frames) - frames).tolist()
        self.sizes += frames.tolist()
        self.lines += ids.tolist()
        span = torch.tensor([self.starts[first:], self.sizes[first:]], device=self.device)
        self._spans[:, first : first + len(frames)] = span
        if self.used == self.with_audio and self.used + count <= len(self.audio):
            row = slice(self.used, self.used + count)
            self.audio[row] = (wave.view(*valid.shape, FRAME)[valid] * 32767).round().short()
            number = torch.arange(first, first + len(frames), device=self.device, dtype=torch.int32)
            self.utterance_of[row] = number[:, None].expand(valid.shape)[valid]
            self.with_audio += count
        if codec is not None:
            codes = codec.encode(log_mel(wave))  # [n, 8, T]
            self.codes[self.used : self.used + count] = codes.mT[valid].short()
            self.encoded = len(self.starts)
        self.used += count

    @torch.no_grad()
    def encode_all(self, codec: Firefly, batch_frames: int = 32_000) -> None:
        """Encodes every utterance that has samples and no codes yet."""
        todo = np.arange(self.encoded, len(self.starts))
        sizes, starts = np.array(self.sizes), np.array(self.starts)
        todo = todo[np.argsort(sizes[todo], kind="stable")]
        while len(todo):
            top = int(sizes[todo[0]])
            count = 1
            while count < len(todo) and (count + 1) * sizes[todo[count]] <= batch_frames:
                count += 1
                top = int(sizes[todo[count - 1]])
            part, todo = todo[:count], todo[count:]
            offset = torch.arange(top, device=self.device)
            size = torch.from_numpy(sizes[part]).to(self.device)[:, None]
            index = torch.from_numpy(starts[part]).to(self.device)[:, None] + offset
            valid = offset < size
            wave = self.audio[index.clamp(max=len(self.audio) - 1)] * valid[..., None]
            codes = codec.encode(log_mel(wave.flatten(1).float() / 32767))
            self.codes[index[valid]] = codes.mT[valid].short()
        self.encoded = len(self.starts)

    def pick(self, count: int, frames: int) -> Tensor:
        """Random first frames of crops, int64 [count], inside one utterance where it is long enough."""
        at = torch.randint(0, max(1, self.with_audio - frames), (count,), device=self.device)
        start, size = self._spans[:, self.utterance_of[at].long()]
        return torch.maximum(torch.minimum(at, start + size - frames), start)

    def crop_audio(self, first: Tensor, frames: int) -> Tensor:
        """Samples of crops: float32 [count, frames · 2048]."""
        index = first[:, None] + torch.arange(frames, device=self.device)
        return self.audio[index].flatten(1).float() / 32767

    def crop_codes(self, first: Tensor, frames: int) -> Tensor:
        """Codes of crops: int64 [count, 8, frames]."""
        index = first[:, None] + torch.arange(frames, device=self.device)
        return self.codes[index].long().mT
