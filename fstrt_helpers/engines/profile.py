"""Which sizes an engine accepts: least, likeliest and most, per input, checked before the builder starts.

TensorRT picks kernels for the likeliest sizes and allocates memory for the most. A size outside is refused when the
engine runs, so the profile is part of what an engine is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ParameterError, ProfileError
from ..graphs.capacity import CAPACITY, free_dimensions
from ..graphs.view import dimension
from ..tables import html_table, text_table

if TYPE_CHECKING:
    import onnx

__all__ = ["CAPACITY_DEFAULT", "SIZES", "Profile", "ShapeRange", "check_profile", "default_profile"]

CAPACITY_DEFAULT = 512
SIZES: Mapping[str, Mapping[str, tuple[int, int, int]]] = {
    # One request is prefilled when it comes; a longer prompt goes in pieces, each with its own `start`.
    "prefill": {"B": (1, 1, 1), "S": (1, 64, 1024)},
    "frame": {"B": (1, 1, 8)},
    # Frames of 46.4 ms. The pipeline decodes pieces with left context; 256 frames are 11.9 s.
    "codec_decode": {"B": (1, 1, 4), "T": (1, 32, 256)},
    # A reference recording of up to 30 s; M is 4 T.
    "codec_encode": {"B": (1, 1, 1), "T": (1, 160, 646)},
}
"""Least, likeliest and most of each free dimension, per graph. ``S`` is never more than the capacity."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ShapeRange:
    """Shapes of one input.

    Attributes:
        min: The smallest shape that the engine accepts.
        opt: The one it is tuned for.
        max: The largest.
    """

    min: Shape
    opt: Shape
    max: Shape

    def __iter__(self) -> Iterator[Shape]:
        return iter((self.min, self.opt, self.max))


@dataclass(frozen=True, repr=False)
class Profile:
    """Shape ranges of the inputs of one engine. Shows itself as a table.

    Attributes:
        graph: Name of the graph.
        inputs: Range by name of input; three shapes in a row may be given in place of a :class:`ShapeRange`. Inputs
            without a free dimension may be left out.
        capacity: Columns of the KV cache, where the graph has one.
    """

    graph: str
    inputs: Mapping[str, ShapeRange]
    capacity: int | None = None

    def __post_init__(self) -> None:
        ranges = {}
        for name, given in self.inputs.items():
            try:
                low, likely, high = (tuple(int(d) for d in shape) for shape in given)
            except (TypeError, ValueError) as error:
                raise ProfileError(
                    f"the range of {name!r} is {given!r}", where=self.graph, fix="give three shapes: min, opt, max"
                ) from error
            ranges[name] = ShapeRange(low, likely, high)
        object.__setattr__(self, "inputs", ranges)

    def to_dict(self) -> dict[str, Any]:
        """As JSON stores it."""
        ranges = {name: [list(shape) for shape in found] for name, found in sorted(self.inputs.items())}
        return {"graph": self.graph, "capacity": self.capacity, "inputs": ranges}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row per input; numbered inputs of one shape, such as keys and values, share one."""
        groups: dict[tuple[str, ShapeRange], list[str]] = {}
        for name, found in self.inputs.items():
            groups.setdefault((re.sub(r"\d+$", "*", name), found), []).append(name)
        return [
            {"input": pattern if len(names) > 1 else names[0]}
            | {"min": _text(found.min), "opt": _text(found.opt), "max": _text(found.max)}
            for (pattern, found), names in groups.items()
        ]

    def __repr__(self) -> str:
        return text_table(self.rows)

    def _repr_html_(self) -> str:
        return html_table(self.rows)


def default_profile(
    graph: onnx.ModelProto | str | os.PathLike[str],
    *,
    name: str | None = None,
    capacity: int | None = None,
    sizes: Mapping[str, Sequence[int]] | None = None,
) -> Profile:
    """A sensible profile for one of the four graphs, or for any graph whose free dimensions are all given.

    Args:
        graph: The ``.onnx`` file, or the model without its weights.
        name: Name of the graph; by default that of the file.
        capacity: Columns of the KV cache, for ``prefill`` and ``frame``; 512 by default.
        sizes: Least, likeliest and most of free dimensions, such as ``{"S": (1, 32, 256)}``, in place of the usual.

    Raises:
        ProfileError: A free dimension has no range, or a range is given for none.
        ParameterError: A range is not three ascending positive numbers.
    """
    model, name = _model(graph, name)
    free = free_dimensions(model)
    letters = {letter for axes in free.values() for dim in axes.values() for letter in re.findall(r"[A-Za-z_]\w*", dim)}
    if CAPACITY in letters:
        capacity = CAPACITY_DEFAULT if capacity is None else capacity
    known = {**SIZES.get(name, {}), **(sizes or {})}
    for letter, three in known.items():
        if len(three) != 3 or not 1 <= three[0] <= three[1] <= three[2]:
            raise ParameterError(f"the range of {letter} is {tuple(three)}", fix="give min <= opt <= max, all positive")
    if unknown := sorted(set(sizes or {}) - letters):
        raise ProfileError(
            f"{name} has no free dimension {', '.join(unknown)}", fix=f"it has {', '.join(sorted(letters)) or 'none'}"
        )
    if capacity is not None:
        known[CAPACITY] = (capacity,) * 3
        if "S" in known and not (sizes and "S" in sizes):
            known["S"] = tuple(min(size, capacity) for size in known["S"])
    if missing := sorted(letters - known.keys()):
        raise ProfileError(f"no range is given for {', '.join(missing)}", where=name, fix="pass it in sizes=")
    ranges = {}
    for value in model.graph.input:
        if value.name in free:
            dims = value.type.tensor_type.shape.dim
            ranges[value.name] = ShapeRange(
                *(
                    tuple(dimension(d.dim_param or d.dim_value, {k: v[i] for k, v in known.items()}) for d in dims)
                    for i in range(3)
                )
            )
    return Profile(name, ranges, capacity if CAPACITY in letters else None)


def check_profile(profile: Profile, model: onnx.ModelProto) -> Profile:
    """Compares a profile with the graph it is meant for, and completes it with the inputs of fixed shape.

    Args:
        profile: To check.
        model: The graph, without its weights; the capacity may still be free.

    Returns:
        A profile with a range for every input, in the order of the graph.

    Raises:
        ProfileError: Names everything that does not fit, not only the first.
    """
    problems: list[str] = []
    named = {axis for axes in free_dimensions(model).values() for axis in axes.values()}
    if CAPACITY in named and profile.capacity is None:
        problems.append("the capacity is missing: TensorRT wants a cache of fixed length")
    if CAPACITY not in named and profile.capacity is not None:
        problems.append(f"capacity {profile.capacity} is given, but the graph has no free capacity")
    known = {value.name for value in model.graph.input}
    problems += [f"{name}: the graph has no such input" for name in profile.inputs if name not in known]
    ranges: dict[str, ShapeRange] = {}
    seen: dict[str, tuple[str, Shape]] = {}
    for value in model.graph.input:
        dims = [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        found = profile.inputs.get(value.name)
        if found is None:
            if any(isinstance(d, str) for d in dims):
                problems.append(f"{value.name}: missing, and its shape {_text(dims)} has free dimensions")
            else:
                ranges[value.name] = ShapeRange(*[tuple(dims)] * 3)
            continue
        ranges[value.name] = found
        problems += _misfits(value.name, dims, found, profile.capacity, seen)
    if problems:
        raise ProfileError(
            "; ".join(problems),
            where=f"profile of {profile.graph}",
            fix=f"inputs of the graph: {_signature(model)}; default_profile() makes one that fits",
        )
    return Profile(profile.graph, ranges, profile.capacity)


def _misfits(
    name: str, dims: list[int | str], found: ShapeRange, capacity: int | None, seen: dict[str, tuple[str, Shape]]
) -> Iterator[str]:
    """Everything about one input that does not fit; notes the range of each named dimension in `seen`."""
    if wrong := [shape for shape in found if len(shape) != len(dims)]:
        yield f"{name}: {_text(wrong[0])} has {len(wrong[0])} axes, the input {_text(dims)} has {len(dims)}"
        return
    for axis, (dim, *three) in enumerate(zip(dims, *found, strict=True)):
        at = f"{name}, axis {axis}"
        if isinstance(dim, int):
            if set(three) != {dim}:
                yield f"{at}: is always {dim}, the profile says {'/'.join(map(str, three))}"
        elif not 1 <= three[0] <= three[1] <= three[2]:
            yield f"{at}: min {three[0]}, opt {three[1]}, max {three[2]} do not ascend from at least 1"
        elif dim == CAPACITY and capacity is not None:
            if set(three) != {capacity}:
                yield f"{at}: the capacity is {capacity}, the profile says {'/'.join(map(str, three))}"
        else:
            factor = re.match(r"(\d+)\*", dim)
            if factor and any(size % int(factor[1]) for size in three):
                yield f"{at}: {'/'.join(map(str, three))} are not all multiples of {factor[1]} ({dim})"
            other, known = seen.setdefault(dim, (name, tuple(three)))
            if known != tuple(three):
                yield f"{at}: {dim} is {'/'.join(map(str, three))} here and {'/'.join(map(str, known))} in {other}"


def _model(graph: onnx.ModelProto | str | os.PathLike[str], name: str | None) -> tuple[onnx.ModelProto, str]:
    if isinstance(graph, (str, os.PathLike)):
        from ..graphs.view import GraphView

        view = GraphView(graph)
        return view.model, name or Path(graph).stem
    return graph, name or graph.graph.name


def _text(shape: Sequence[int | str]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _signature(model: onnx.ModelProto) -> str:
    groups: dict[tuple[str, str], int] = {}
    for value in model.graph.input:
        dims = [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        key = (re.sub(r"\d+$", "*", value.name), _text(dims))
        groups[key] = groups.get(key, 0) + 1
    return ", ".join(f"{name} {shape}" for name, shape in groups)
