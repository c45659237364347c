"""What the quality gate compares with: the prompts as the reference spoke, decoded and was heard to say them.

Each is made once, when it is first asked for, and kept: several candidates are judged against one reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import numpy as np
import torch

from ..audio import load_audio, log_mel
from ..checkpoint import FRAME_SAMPLES, Checkpoint
from ..errors import NonFiniteOutput, ParameterError
from ..runtimes.base import Runtime
from ..speech.decoding import left_context
from ..speech.generation import SamplingSettings, frame_budget
from ..speech.pipeline import FishSpeech
from ..speech.voice import Voice, encode_voice, shipped_voices
from ..text.clean import clean_text
from ..text.prompt import build_prompt
from .prompts import Prompt
from .recogniser import Listener
from .takes import Take, decode, lead, speak, with_logits

__all__ = ["Reference", "Side", "encode"]

_LEAST_FRAMES, _FRAMES_PER_LETTER = 64, 3  # room of a take: twice what slow speech needs, so that running on shows


@dataclass(frozen=True)
class Side:
    """One of the two that are compared.

    Attributes:
        name: Back end, precision and device in words.
        runtimes: By graph, open.
        checkpoint: Where the weights come from.
    """

    name: str
    runtimes: Mapping[str, Runtime]
    checkpoint: Checkpoint

    @classmethod
    def of(cls, given: FishSpeech | Mapping[str, Runtime], checkpoint: Checkpoint | None = None) -> Side:
        """From a pipeline, or from runtimes by graph and the checkpoint they were made of.

        Raises:
            ParameterError: Runtimes without their checkpoint, or none at all.
        """
        if isinstance(given, FishSpeech):
            runtimes, checkpoint = dict(given.runtimes), given.checkpoint
        else:
            runtimes = dict(given)
        if checkpoint is None:
            raise ParameterError("runtimes do not know their checkpoint", fix="pass checkpoint=find_checkpoint(...)")
        if not runtimes:
            raise ParameterError("there are no runtimes to judge", fix="give runtimes by graph, or a FishSpeech")
        if "frame" in runtimes:
            runtimes["frame"] = with_logits(runtimes["frame"])
        facts = {graph: runtime.describe() for graph, runtime in runtimes.items()}
        main = facts.get("frame") or next(iter(facts.values()))
        name = f"{main['backend']} {main['precision']} on {main['device']}"
        codec = facts.get("codec_decode", main)["precision"]
        return cls(name if codec == main["precision"] else f"{name}, codec {codec}", runtimes, checkpoint)

    def precision(self, *graphs: str) -> str | None:
        """Precision of the first of these graphs that is there."""
        found = [self.runtimes[graph].describe()["precision"] for graph in graphs if graph in self.runtimes]
        return found[0] if found else None

    def lacks(self, *graphs: str) -> str | None:
        """A sentence that names the graphs that are not there; None if all are."""
        missing = [graph for graph in graphs if graph not in self.runtimes]
        return f"{self.name} came without {', '.join(missing)}" if missing else None


class Reference:
    """The reference's own speech over the prompts, and the same prompts put to another side.

    Args:
        side: The reference.
        prompts: What is spoken.
        voices: Names of shipped voices, or None for the model's own choice; they take turns.
        seed: Of the noise; prompt i uses seed + i.
        settings: Sampling settings.
        listener: What listens.

    Attributes:
        texts: The prompts, cleaned.
        context: Frames of left context the codec needs.
    """

    def __init__(
        self,
        side: Side,
        prompts: Sequence[Prompt],
        voices: Sequence[str | None],
        seed: int,
        settings: SamplingSettings,
        listener: Listener,
    ) -> None:
        self.side, self.prompts, self.listener = side, tuple(prompts), listener
        self.context = left_context(side.checkpoint.codec_config)
        self._config, self._settings, self._seed = side.checkpoint.config, settings, seed
        self._tokenizer = side.checkpoint.tokenizer()
        self.texts = tuple(clean_text(prompt.text) for prompt in self.prompts)
        self._voices = list(islice(cycle(voices), len(self.prompts)))
        self._encoded: dict[str, Voice] = {}
        self._takes: dict[int, Take] = {}
        self._waves: dict[int, np.ndarray] = {}
        self._recalls: dict[int, float] = {}

    def take(self, index: int) -> Take:
        """What the reference says to a prompt.

        Raises:
            NonFiniteOutput: It computes values that are no numbers: nothing can be held against it.
        """
        if index not in self._takes:
            take = self.free(self.side, index, logits=True)
            self._check(take.finite)
            self._takes[index] = take
        return self._takes[index]

    def _check(self, finite: bool) -> None:
        if not finite:
            raise NonFiniteOutput(
                "the reference itself computes values that are no numbers",
                where=self.side.name,
                fix="compare with float32; check the checkpoint's weights",
            )

    def wave(self, index: int) -> np.ndarray:
        """How the reference's codec makes it sound, float32 [N]."""
        if index not in self._waves:
            wave = decode(self.side.runtimes["codec_decode"], self.take(index).codes, self.context)
            self._check(bool(np.isfinite(wave).all()))
            self._waves[index] = wave
        return self._waves[index]

    def recall(self, index: int) -> float:
        """Share of its words that are heard in it."""
        if index not in self._recalls:
            self._recalls[index] = self.heard(index, self.wave(index))
        return self._recalls[index]

    def heard(self, index: int, wave: np.ndarray) -> float:
        """Share of the words of a prompt that are heard in samples."""
        return self.listener.recall(self.texts[index], wave)

    def free(self, side: Side, index: int, *, logits: bool = False) -> Take:
        """Puts a prompt to a side and lets it speak."""
        prompt, seed = self._prompt(index), self._seed + index
        wanted = _LEAST_FRAMES + _FRAMES_PER_LETTER * len(self.texts[index])
        budget = min(wanted, frame_budget(prompt.shape[1], self._config.max_seq_len, None))
        end = self._tokenizer.im_end_id
        return speak(side.runtimes, self._config, prompt, self._settings, budget, seed, end, logits=logits)

    def led(self, side: Side, index: int) -> Take:
        """Leads a side along the reference's take with the noise of that take."""
        end, seed = self._tokenizer.im_end_id, self._seed + index
        return lead(side.runtimes, self._config, self._prompt(index), self._settings, self.take(index), seed, end)

    def _prompt(self, index: int) -> np.ndarray:
        references = []
        if (name := self._voices[index]) is not None:
            if name not in self._encoded:
                path, words = shipped_voices()[name]
                runtime = self.side.runtimes["codec_encode"]
                self._encoded[name] = encode_voice(runtime, path, words, sample_rate=None, longest=np.inf, name=name)
            references = [(self._encoded[name].text, self._encoded[name].codes)]
        return build_prompt(self._tokenizer, self.texts[index].strip(), references, self._config.num_codebooks)

    def recordings(self, indices: Sequence[int]) -> list[np.ndarray]:
        """Sounds to encode, float32 [2048 T] each: the shipped recordings, and the reference's own speech."""
        waves = [load_audio(path) for path, _ in shipped_voices().values()] + [self.wave(i) for i in indices]
        return [np.pad(wave, (0, -len(wave) % FRAME_SAMPLES)) for wave in waves]


def encode(runtime: Runtime, wave: np.ndarray) -> np.ndarray:
    """Codes int64 [8, T] of float32 [2048 T] by a ``codec_encode`` runtime."""
    mel = log_mel(torch.from_numpy(wave)[None]).to(runtime.device)
    return runtime.run({"log_mel": mel})["codes"][0].cpu().numpy()
