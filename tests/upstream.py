"""Upstream's `fish-speech-lib` for tests; a test that needs it is skipped where it is not installed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fstrt_helpers.errors import EnvironmentMissing
from fstrt_helpers.measure import upstream

__all__ = ["import_upstream_lib"]


def import_upstream_lib() -> SimpleNamespace:
    """See :func:`fstrt_helpers.measure.upstream.import_upstream_lib`.

    Raises:
        pytest.skip.Exception: If `fish-speech-lib` is not installed; the reason says how to install it.
    """
    try:
        return upstream.import_upstream_lib()
    except EnvironmentMissing as error:
        pytest.skip(f"{error.what}: run `{error.fix}`")
