"""Lines for the user."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from ..errors import Error

__all__ = ["detail", "say", "say_if_slow", "short"]

P = ParamSpec("P")
R = TypeVar("R")

# Seconds after which a line explains a wait.
_SLOW = 3.0


def say(line: str) -> None:
    """Writes one line for the user, unless told to be quiet."""
    if os.environ.get("TIGHTFIT_QUIET") != "1":
        print(f"tightfit: {line}", file=sys.stderr, flush=True)


def detail(line: str) -> None:
    """Writes one line for a user who asked for details: ``tightfit run -v``, or ``TIGHTFIT_VERBOSE=1``."""
    if os.environ.get("TIGHTFIT_VERBOSE") == "1":
        say(line)


def short(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose errors come without the frames that found them, which say nothing to a program; ``TIGHTFIT_VERBOSE=1`` shows them."""

    @wraps(function)
    def shortened(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Error as error:
            if os.environ.get("TIGHTFIT_VERBOSE") == "1":
                raise
            raise error.with_traceback(None) from None

    return shortened


@contextmanager
def say_if_slow(line: str) -> Iterator[None]:
    """Writes a line for the user if the `with` block takes long."""
    timer = threading.Timer(_SLOW, say, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
