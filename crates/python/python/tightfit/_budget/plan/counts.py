"""Counts of events in the passes of a plan."""

__all__ = ["Counts"]


class Counts:
    """The events since the plan was made.

    Attributes
    ----------
    packs, unplanned, unplanned_bytes
        Packed tensors; tensors with which the plan's decision could not be carried out, which stay on the device if they are small and are moved to
        the host otherwise; and the most bytes of such tensors in one pass.
    fetched, late, rebuilt
        Tensors copied back; tensors that were copied back only when they were needed, unplanned; and tensors rebuilt.
    calls, dropped, masked
        Calls that ran again; and how often a node ran without what it has saved and does not read, or with its signs.
    out_of_order
        Unpacks in another order than recorded.
    elsewhere
        Backward passes on another thread than the forward pass.
    fresh_bytes
        Host memory allocated because an earlier graph still used the arena.
    """

    def __init__(self) -> None:
        self.packs = self.unplanned = self.unplanned_bytes = self.fetched = self.late = self.rebuilt = self.calls = self.dropped = self.masked = 0
        self.out_of_order = self.elsewhere = self.fresh_bytes = 0
