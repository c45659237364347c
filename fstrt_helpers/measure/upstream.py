"""Imports `fish-speech-lib` (Fish Speech v1.5.1, repackaged) to compare results and speed with upstream's own.

The package's `__init__` pulls in torchaudio and PyAudio, which the parts compared here never use. So an empty module
of the same name, whose `__path__` points at the installed folder, is registered first; its submodules then import
normally.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from types import ModuleType, SimpleNamespace

from ..errors import EnvironmentMissing

__all__ = ["import_upstream_lib"]

_PACKAGE = "fish_speech_lib"
_MODULES = {
    "tokenizer": "fish_speech.tokenizer",
    "conversation": "fish_speech.conversation",
    "clean": "fish_speech.text.clean",
    "spliter": "fish_speech.text.spliter",
    "llama": "fish_speech.models.text2semantic.llama",
    "inference": "fish_speech.models.text2semantic.inference",
    "sampling": "fish_speech.models.text2semantic.sampling",
    "firefly": "fish_speech.models.vqgan.modules.firefly",
    "fsq": "fish_speech.models.vqgan.modules.fsq",
}


def import_upstream_lib() -> SimpleNamespace:
    """Imports the upstream modules that have a counterpart here.

    Returns:
        A namespace with the modules `tokenizer`, `conversation`, `clean`, `spliter`, `llama`, `inference`, `sampling`,
        `firefly` and `fsq`.

    Raises:
        EnvironmentMissing: `fish-speech-lib` is not installed, or something it imports is not.
    """
    if _PACKAGE not in sys.modules:
        spec = importlib.util.find_spec(_PACKAGE)
        if spec is None or spec.submodule_search_locations is None:
            raise EnvironmentMissing("fish-speech-lib is not installed", fix="make setup")
        shell = ModuleType(_PACKAGE)
        shell.__path__ = list(spec.submodule_search_locations)
        shell.__spec__ = spec  # else `find_spec` would call the package damaged
        sys.modules[_PACKAGE] = shell
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch.cuda.amp in vector-quantize-pytorch
        try:
            modules = {name: importlib.import_module(f"{_PACKAGE}.{path}") for name, path in _MODULES.items()}
        except ModuleNotFoundError as error:
            raise EnvironmentMissing(f"fish-speech-lib needs {error.name}", fix="make setup") from error
    return SimpleNamespace(**modules)
