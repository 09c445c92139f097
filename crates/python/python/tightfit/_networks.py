"""Networks and their layers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from . import _native
from ._profile import PathLike
from ._table import Table
from .errors import BadInput


@dataclass(frozen=True)
class NetworkLayer:
    """A layer: the ``channels`` and ``extents`` of its output for one sample, its learned parameters, and its convolution.

    ``convolution`` is the shape in words, as commands take it in a layer list. Other kinds of layers have None.
    """

    layer: str
    kind: str
    channels: int
    extents: tuple[int, ...]
    parameters: int
    convolution: str | None

    @property
    def output(self) -> str:
        """The shape of its output, such as ``"64 x 56 x 56"``."""
        return " x ".join(str(extent) for extent in (self.channels, *self.extents))

    def __repr__(self) -> str:
        return f"<{self.layer}: {self.kind}, {self.output}, {self.parameters} parameters>"


@dataclass(frozen=True)
class BuiltInNetwork:
    """A built-in network. ``multiply_adds`` counts one sample's forward pass."""

    network: str
    convolutions: int
    parameters: int
    multiply_adds: float
    description: str

    def __repr__(self) -> str:
        return f"<{self.network}: {self.description}>"


class Network(Table, list[NetworkLayer]):
    """The layers of a network, as a list. Functions that take a network's name take it as well.

    Attributes
    ----------
    name : str
        The name or the path that it was opened by.
    """

    def __init__(self, name: str, layers: Iterable[NetworkLayer]) -> None:
        super().__init__(layers)
        self.name = name

    def _rows(self) -> list[dict[str, Any]]:
        return [asdict(layer) for layer in self]

    def _shown(self) -> list[dict[str, str]]:
        return [
            {
                "layer": layer.layer,
                "kind": layer.kind,
                "output": layer.output,
                "parameters": str(layer.parameters),
                "convolution": layer.convolution or "",
            }
            for layer in self
        ]

    def __repr__(self) -> str:
        convolutions = sum(layer.kind == "convolution" for layer in self)
        parameters = sum(layer.parameters for layer in self) / 1e6
        return f"<Network {self.name}: {len(self)} layers, {convolutions} convolutions, {parameters:.1f} M parameters>"


class Networks(Table, list[BuiltInNetwork]):
    """The built-in networks, as a list."""

    def _rows(self) -> list[dict[str, Any]]:
        return [asdict(network) for network in self]

    def _shown(self) -> list[dict[str, str]]:
        return [
            {
                "network": network.network,
                "convolutions": str(network.convolutions),
                "parameters": f"{network.parameters / 1e6:.1f} M",
                "multiply-adds": f"{network.multiply_adds / 1e9:.2f} G",
                "description": network.description,
            }
            for network in self
        ]

    def __repr__(self) -> str:
        names = [network.network for network in self]
        more = f", {names[1]}, .. and {names[-1]}" if len(names) > 2 else ""
        return f"<{len(names)} networks: {names[0] if names else ''}{more}>"


NetworkLike = PathLike | Network
"""A network by name or by path, or as :func:`network` returns it."""


def name_of(network: NetworkLike) -> str:
    """The name or the path of a network."""
    if isinstance(network, Network):
        return network.name
    if not isinstance(network, str | os.PathLike):
        raise BadInput(
            f"network={type(network).__name__}: this takes files and the names of built-in networks; for a model of PyTorch, use "
            "tightfit.torch.plan(model, inputs)"
        )
    return os.fspath(network)


def networks() -> Networks:
    """The built-in networks, with the columns of ``tightfit networks``.

    >>> networks()[0]
    <lenet: LeNet for 28x28 digits, Caffe's form>
    """
    return Networks(BuiltInNetwork(**network) for network in json.loads(_native.networks()))


def network(name: NetworkLike) -> Network:
    """The layers of a built-in network, an ONNX model (``.onnx``), a network file or a layer list.

    >>> network("lenet")
    <Network lenet: 10 layers, 2 convolutions, 0.4 M parameters>
    >>> network("lenet")[1]
    <conv1: convolution, 20 x 24 x 24, 520 parameters>

    Raises
    ------
    BadInput
        If the name is unknown; the message lists the nearest ones.
    """
    name = name_of(name)
    layers = json.loads(_native.network(name))
    return Network(name, (NetworkLayer(**{**layer, "extents": tuple(layer["extents"])}) for layer in layers))
