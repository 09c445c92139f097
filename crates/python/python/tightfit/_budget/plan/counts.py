"""Counts of events in the passes of a plan."""

__all__ = ["Counts"]


class Counts:
    """What happened, since the plan was made.

    Attributes
    ----------
    packs, strangers, strange_bytes
        Tensors packed; those with which the plan's decision could not be carried out, which stay on the device if they are small, and are
        moved to the host otherwise; and the bytes of these in one pass at most.
    fetched, late, rebuilt
        Tensors copied back; those that were copied back only when they were needed, unplanned; and tensors rebuilt.
    calls, dropped, masked
        Calls that ran again; and how often a node ran without what it has saved and does not read, or with its signs.
    out_of_order
        Unpacks in another order than recorded.
    elsewhere
        Backward passes on another thread than that of the forward pass.
    fresh_bytes
        Host memory allocated because an earlier graph still used the arena.
    """

    def __init__(self) -> None:
        self.packs = self.strangers = self.strange_bytes = self.fetched = self.late = self.rebuilt = self.calls = self.dropped = self.masked = 0
        self.out_of_order = self.elsewhere = self.fresh_bytes = 0
