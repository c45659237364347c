"""Looks through an exported graph for what is known to hurt on the way to TensorRT.

    findings = lint("outputs/graphs/tiny/float32/frame.onnx")
    assert not findings, findings

The rules are in :mod:`fstrt_helpers.graphs.lint_rules`.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..checkpoint import DualARConfig
from ..errors import ParameterError
from ..tables import html_table, text_table
from .lint_rules import RULES, Subject
from .manifest import read_manifest
from .spec import GraphSpec, graph_spec
from .view import GraphView

if TYPE_CHECKING:
    import onnx

__all__ = ["Finding", "Findings", "lint"]


@dataclass(frozen=True)
class Finding:
    """One place where a graph falls into a known trap.

    Attributes:
        severity: ``error`` (wrong or refused) or ``warning`` (slow or fragile).
        rule: Name of the trap.
        node: The node, input or constant.
        what: What is wrong there.
        why: Why it hurts.
        fix: What to do.
    """

    severity: str
    rule: str
    node: str
    what: str
    why: str
    fix: str


class Findings(tuple[Finding, ...]):
    """All findings of one graph, errors first; empty, and so false, for a clean one. Shows itself as a table."""

    __slots__ = ()

    @property
    def rows(self) -> list[dict[str, str]]:
        """A row per finding, for tables."""
        return [
            {"": f.severity, "rule": f.rule, "where": f.node, "what": f.what, "why it hurts": f.why, "fix": f.fix}
            for f in self
        ]

    def __repr__(self) -> str:
        return text_table(self.rows) if self else "no findings"

    def _repr_html_(self) -> str:
        return html_table(self.rows) if self else "<p>no findings</p>"


def lint(
    graph: onnx.ModelProto | str | os.PathLike[str] | GraphView,
    *,
    spec: GraphSpec | None = None,
    fixed: Collection[str] = (),
    islands: Collection[str] = (),
    skip: Collection[str] = (),
) -> Findings:
    """Applies every rule to a graph.

    Args:
        graph: A path, a model or a view. Weights are read only where a rule needs a small constant.
        spec: The inputs the graph was meant to have. For a path with a manifest beside it this is known.
        fixed: Free dimensions that were fixed on purpose, such as ``("C",)`` for one cache capacity.
        islands: Parts of node or weight names that may stay float32 in a half-precision graph. Sampling and norms need
            no entry: only matrix products, convolutions and attention count.
        skip: Rules to leave out.

    Raises:
        GraphError: The file is missing, damaged, or differs from its manifest.
        ParameterError: There is no rule of that name.
    """
    if unknown := sorted(set(skip) - RULES.keys()):
        raise ParameterError(f"there is no rule {unknown[0]!r}", fix=f"use some of: {', '.join(RULES)}")
    view = GraphView.of(graph)
    subject = Subject(view, spec or _spec_of(view), frozenset(fixed), frozenset(islands))
    found = [
        Finding(rule.severity, name, node or "(no name)", what, rule.why, rule.fix)
        for name, rule in RULES.items()
        if name not in skip
        for node, what in rule.find(subject)
    ]
    return Findings(sorted(found, key=lambda finding: finding.severity != "error"))


def _spec_of(view: GraphView) -> GraphSpec | None:
    """The specification a graph was exported with, from its manifest."""
    if view.path is None or not view.path.with_suffix(".onnx.json").is_file():
        return None
    import torch

    manifest = read_manifest(view.path)
    config = DualARConfig.from_dict(manifest.config)
    noise = config.codebook_size * config.num_codebooks + 1
    return graph_spec(manifest.graph, config, noise=noise, dtype=getattr(torch, manifest.activation_type))
