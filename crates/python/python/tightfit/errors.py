"""Exceptions: one base class, and one subclass for each way in which a caller can react."""


class Error(Exception):
    """Base class of all exceptions of this package."""


class BadInput(Error, ValueError):
    """An invalid name, size or option; the message lists the valid ones."""


class NotProfiled(Error):
    """The profile has no measurements for the request, or not at enough batch sizes: measure it first with ``tightfit profile``."""


class NotPreloaded(Error):
    """Tightfit's library is not preloaded, or changes nothing in this process: start it with ``tightfit run``."""


class BackendError(Error):
    """A device or a library failed, or a recording cannot do what was requested."""


class DoesNotFit(Error):
    """The request needs more memory than the limit allows.

    Attributes
    ----------
    needed_bytes : int
        The smallest limit that would work.
    limit_bytes : int
        The limit that was given.
    """

    def __init__(self, message: str, needed_bytes: int, limit_bytes: int) -> None:
        super().__init__(message, needed_bytes, limit_bytes)
        self.needed_bytes = needed_bytes
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        return str(self.args[0])


class BudgetTooSmall(DoesNotFit):
    """No plan fits the budget.

    Attributes
    ----------
    needed_bytes : int
        The least budget under this policy; of a PyTorch model, the least for which a plan was found.
    limit_bytes : int
        The budget that was given.
    least_bytes : int
        The least budget under any policy.
    layer : str
        The layer or module at which memory peaks.
    """

    def __init__(self, message: str, needed_bytes: int, limit_bytes: int, least_bytes: int, layer: str) -> None:
        super().__init__(message, needed_bytes, limit_bytes)
        # Copies are made from these arguments, for example in a worker process.
        self.args = (message, needed_bytes, limit_bytes, least_bytes, layer)
        self.least_bytes = least_bytes
        self.layer = layer


class FileError(Error):
    """A file cannot be read or written; it is left unchanged.

    Attributes
    ----------
    path : str
        The file.
    """

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message, path)
        self.path = path

    def __str__(self) -> str:
        return str(self.args[0])
