"""How a program is called, as the JSON of its graph section, and back."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from trt_core.files import typed
from trt_core.sizes.conditions import Condition, Relation
from trt_core.sizes.functions import RELATIONS
from trt_runtime.program import fields, literals, tables
from trt_runtime.program.fields import MAX_EXTENT, malformed
from trt_runtime.program.graph import Dimension, FixedInput, Leaf, NumberInput, Signature, TensorInput


def signature_to_json(signature: Signature) -> dict[str, Any]:
    """How a program is called, as JSON."""
    return {
        "names": list(signature.names),
        "positional": signature.positional,
        "structure": [literals.to_json(tree) for tree in signature.structure],
        "leaves": [_leaf_to_json(leaf) for leaf in signature.leaves],
        "conditions": [
            [[relation.left, relation.name, relation.right] for relation in condition]
            for condition in signature.conditions
        ],
    }


def _leaf_to_json(leaf: Leaf) -> dict[str, Any]:
    if isinstance(leaf, TensorInput):
        shape = [[dimension.extent, dimension.low, dimension.high] for dimension in leaf.shape]
        return {"tensor": fields.dtype_text(leaf.dtype), "shape": shape, "device": leaf.device}
    if isinstance(leaf, NumberInput):
        return {"number": leaf.kind.__name__, "symbol": leaf.symbol}
    return {"fixed": literals.to_json(leaf.value)}


def read_signature(value: Any, symbols: Collection[str]) -> Signature:
    """Reads how a program is called; it may name only these symbols.

    Raises:
        PlanError: It is no signature.
    """
    values = typed.fields(value, "the signature", tables.SIGNATURE)
    names = tuple(
        typed.text(name, "the names of inputs", fields.MAX_TEXT) for name in typed.items(values["names"], "names")
    )
    if len(set(names)) != len(names):
        raise malformed("the signature", "two inputs have one name")
    leaves = tuple(
        _read_leaf(leaf, f"input {index}", symbols)
        for index, leaf in enumerate(typed.items(values["leaves"], "the inputs"))
    )
    structure = tuple(
        literals.from_json(tree, "the structure of the inputs", len(leaves))
        for tree in typed.items(values["structure"], "the structure of the inputs", len(names))
    )
    found = literals.leaves(structure)
    if literals.values_in(structure) != list(range(len(leaves))) or len(found) != len(leaves):
        raise malformed("the structure of the inputs", "it must hold every input once and in order, and nothing else")
    positional = typed.integer(values["positional"], "the signature", 0, len(names))
    conditions = tuple(
        _read_condition(item, f"condition {index}", symbols)
        for index, item in enumerate(typed.items(values["conditions"], "the conditions"))
    )
    return Signature(names, positional, structure, leaves, conditions)


def _read_condition(value: Any, place: str, symbols: Collection[str]) -> Condition:
    relations = typed.items(value, place)
    if not relations:
        raise malformed(place, "it has no relation, so nothing would fit it")
    return tuple(_read_relation(item, place, symbols) for item in relations)


def _read_relation(value: Any, place: str, symbols: Collection[str]) -> Relation:
    left, name, right = typed.items(value, place, 3)
    for side in (left, right):
        if fields.extent(side, place, symbols, is_whole=False) is None:
            raise malformed(place, "it compares a size that depends on data")
    if typed.text(name, place, 8) not in RELATIONS:
        raise malformed(place, f"{name!r:.60} is no relation")
    return Relation(left, name, right)


def _read_leaf(value: Any, place: str, symbols: Collection[str]) -> Leaf:
    kind = next(iter(value), None) if isinstance(value, dict) else None
    if kind == "fixed":
        content = typed.fields(value, place, tables.FIXED_INPUT)["fixed"]
        return FixedInput(literals.from_json(content, place, 0))
    if kind == "number":
        values = typed.fields(value, place, tables.NUMBER_INPUT)
        if values["symbol"] is not None:
            fields.extent(typed.text(values["symbol"], place, fields.MAX_TEXT), place, symbols)
        return NumberInput(fields.number_kind(values["number"], place), values["symbol"])
    values = typed.fields(value, place, tables.TENSOR_INPUT)
    dimensions = typed.items(values["shape"], place)
    if len(dimensions) > fields.MAX_RANK:
        raise malformed(place, f"{len(dimensions)} dimensions are too many")
    shape = tuple(_read_dimension(item, place, symbols) for item in dimensions)
    return TensorInput(fields.dtype(values["tensor"], place), shape, fields.device(values["device"], place))


def _read_dimension(value: Any, place: str, symbols: Collection[str]) -> Dimension:
    extent, low, high = typed.items(value, place, 3)
    fields.extent(extent, place, symbols)
    low = typed.integer(low, place, 0, MAX_EXTENT)
    high = typed.integer(high, place, low, MAX_EXTENT)
    if isinstance(extent, int) and not low == extent == high:
        raise malformed(place, f"the extent {extent} has the range {low} to {high}")
    return Dimension(extent, low, high)
