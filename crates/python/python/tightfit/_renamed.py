"""Parameters that were renamed and are still accepted."""

from __future__ import annotations

import warnings


def renamed(sizes: str, policy: str | None) -> str:
    """Returns the sizes; warns and returns the policy if the old name was used."""
    if policy is None:
        return sizes
    warnings.warn("policy= is now called sizes=", DeprecationWarning, stacklevel=3)
    return policy
