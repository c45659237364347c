"""The quality gate: may this precision, on this back end, speak in place of float32?

Three stages, which can be run apart. ``draws`` leads both along the reference's own speech with the same noise and
counts equal draws; ``codec`` decodes the same codes and encodes the same sounds; ``speech`` lets the candidate speak
freely and looks at whether it ends, how long it speaks, and how well it is understood.

The limits mean something for trained weights. Random ones have almost even odds, which any rounding reorders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..checkpoint import Checkpoint
from ..errors import ParameterError
from ..runtimes.base import Runtime
from ..speech.generation import SamplingSettings
from ..speech.voice import shipped_voices
from .draws import DRAWS, judge_draws
from .gate import STAGES, Criterion, Gate, QualityReport
from .prompts import PROMPTS, Prompt
from .recogniser import Listener, Recogniser
from .reference import Reference, Side
from .sound import judge_sound
from .speaking import SPEAKING, judge_speaking

if TYPE_CHECKING:
    from ..speech import FishSpeech

__all__ = ["PASSAGES", "QualityJudge", "judge"]

PASSAGES = 6
"""Prompts that ``draws`` and ``codec`` use by default: one of each kind and one more short one."""


class QualityJudge:
    """Judges candidates against one reference, whose own speech is made once.

    Both are run frame by frame through :meth:`Runtime.run`; open graphs for a GPU without capturing them.

    Args:
        reference: A pipeline, or runtimes by graph.
        checkpoint: Of runtimes given by graph.
        prompts: Sentences of at most 200 bytes; fewer are faster and tell less.
        passages: How many of them, from the first on, ``draws`` and ``codec`` use; None means up to six.
        voices: Names of shipped voices that take turns, None among them for the model's own choice. By default all
            shipped voices and None, or None alone where the reference cannot encode a voice.
        seed: Prompt i is spoken with the noise of seed + i by both.
        settings: Sampling settings.
        recogniser: One that is loaded, None to load one if it is installed, False to listen to nothing.
        progress: Called with a stage, pieces done and pieces in all.

    Raises:
        ParameterError: No prompts, a number of passages that is not there, or runtimes without a checkpoint.
        TextError: A prompt has nothing that can be spoken.
    """

    def __init__(
        self,
        reference: FishSpeech | Mapping[str, Runtime],
        *,
        checkpoint: Checkpoint | None = None,
        prompts: Sequence[Prompt | str] = PROMPTS,
        passages: int | None = None,
        voices: Sequence[str | None] | None = None,
        seed: int = 0,
        settings: SamplingSettings | None = None,
        recogniser: Recogniser | bool | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        side = Side.of(reference, checkpoint)
        asked = [Prompt(p) if isinstance(p, str) else p for p in prompts]
        if not asked:
            raise ParameterError("there are no prompts", fix="give at least one sentence")
        self.passages = min(PASSAGES, len(asked)) if passages is None else passages
        if not 1 <= self.passages <= len(asked):
            raise ParameterError(f"passages is {passages!r}", fix=f"give a number from 1 to {len(asked)}")
        if voices is None:
            voices = (None,) if side.lacks("codec_encode") else (*sorted(shipped_voices()), None)
        if unknown := set(voices) - {None, *shipped_voices()}:
            known = ", ".join(sorted(shipped_voices()))
            raise ParameterError(f"there is no voice named {min(unknown)!r}", fix=f"use None or one of: {known}")
        self._reference = Reference(side, asked, voices, seed, settings or SamplingSettings(), Listener(recogniser))
        self._progress = progress or (lambda stage, done, total: None)

    def judge(
        self,
        candidate: FishSpeech | Mapping[str, Runtime],
        *,
        only: str | Sequence[str] | None = None,
        gate: Gate | None = None,
    ) -> QualityReport:
        """Compares a candidate with the reference.

        Args:
            candidate: A pipeline of the same checkpoint, or runtimes by graph; what needs a graph that is not there is
                reported as not measured.
            only: A stage, or several; None means all.
            gate: The limits; by default those of the candidate's precision.

        Raises:
            ParameterError: An unknown stage, another checkpoint, or a precision without default limits.
            NonFiniteOutput: The reference computes values that are no numbers. (A candidate that does is refused.)
        """
        side = Side.of(candidate, self._reference.side.checkpoint)
        if side.checkpoint.fingerprint != self._reference.side.checkpoint.fingerprint:
            raise ParameterError(
                f"the candidate is of another checkpoint ({side.checkpoint.name})",
                fix="compare two precisions or back ends of one checkpoint",
            )
        stages = STAGES if only is None else (only,) if isinstance(only, str) else tuple(only)
        if unknown := [stage for stage in stages if stage not in STAGES]:
            raise ParameterError(f"there is no stage {unknown[0]!r}", fix=f"use one of: {', '.join(STAGES)}")
        if gate is None:
            own, codec = side.precision("frame", "prefill"), side.precision("codec_decode", "codec_encode")
            gate = Gate.of(own or str(codec), codec)
        criteria: list[Criterion] = []
        codebooks: list[dict[str, Any]] = []
        speeches: list[dict[str, Any]] = []
        common = (self._reference, side, gate)
        without = self._reference.side.lacks("prefill", "frame") or side.lacks("prefill", "frame")
        if "draws" in stages and without:
            criteria += [Criterion.skipped(name, "draws", without) for name in DRAWS]
        elif "draws" in stages:
            found, codebooks = judge_draws(*common, self.passages, self._progress)
            criteria += found
        if "codec" in stages:
            criteria += judge_sound(*common, self.passages, self._progress)
        if "speech" in stages and without:
            criteria += [Criterion.skipped(name, "speech", without) for name in SPEAKING]
        elif "speech" in stages:
            found, speeches = judge_speaking(*common, self._progress)
            criteria += found
        name = self._reference.side.name
        return QualityReport(side.name, name, gate, tuple(criteria), tuple(codebooks), tuple(speeches))


def judge(
    reference: FishSpeech | Mapping[str, Runtime],
    candidate: FishSpeech | Mapping[str, Runtime],
    *,
    only: str | Sequence[str] | None = None,
    gate: Gate | None = None,
    **options: Any,
) -> QualityReport:
    """Judges one candidate. For several, make one :class:`QualityJudge`: it speaks for the reference only once.

    Args:
        reference: See :class:`QualityJudge`.
        candidate: See :meth:`QualityJudge.judge`.
        only: See :meth:`QualityJudge.judge`.
        gate: See :meth:`QualityJudge.judge`.
        **options: Further arguments of :class:`QualityJudge`.
    """
    return QualityJudge(reference, **options).judge(candidate, only=only, gate=gate)
