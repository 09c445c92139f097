"""Everything that can go wrong: one base, one subclass for each thing a caller can do about it."""


class Error(Exception):
    """Base of all exceptions of this package."""


class BadInput(Error, ValueError):
    """A name, a size or an option that cannot be; the message lists what can."""


class NotProfiled(Error):
    """Nothing is recorded of what was asked for, or not at enough batch sizes: profile it first."""


class BackendError(Error):
    """A device or a library failed, or a recording cannot do what was asked."""


class DoesNotFit(Error):
    """More memory is needed than was allowed.

    Attributes
    ----------
    needed_bytes : int
        The least that would do.
    limit_bytes : int
        What was allowed.
    """

    def __init__(self, message: str, needed_bytes: int, limit_bytes: int) -> None:
        super().__init__(message, needed_bytes, limit_bytes)
        self.needed_bytes = needed_bytes
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        return str(self.args[0])


class FileError(Error):
    """A file that cannot be read or written; it is left as it was.

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
