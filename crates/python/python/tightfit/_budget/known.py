"""The sessions of models that ``tightfit run --budget`` fits, by model."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from .eager.session import Session

__all__ = ["launched"]

launched: weakref.WeakKeyDictionary[nn.Module, Session] = weakref.WeakKeyDictionary()
