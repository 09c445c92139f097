"""Predicts what a step takes under given decisions: bytes at every operation, and time.

It mirrors the runtime: a tensor is fetched or rebuilt when it is first needed again, unless a plan fetches it earlier, and
stays until it is last needed. Reruns count with all that they hold on the way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from .rebuild import Call, Impossible, Lives, calls, leaves

__all__ = ["Block", "Outcome", "RerunCall", "Span", "simulate"]


class Span(NamedTuple):
    """A block of a tensor: the first and the last operation at which it is on the device, and its bytes."""

    first: int
    last: int
    bytes: int
    tensor: int


class Block(NamedTuple):
    """What a rerun makes, by a number of its own, and its bytes."""

    number: int
    bytes: int


class RerunCall(NamedTuple):
    """An operation of a rerun: blocks that it copies, blocks that it makes, and numbers of those that go behind it."""

    operation: int
    copies: list[Block]
    makes: list[Block]
    drops: list[int]


@dataclass
class Outcome:
    """What carrying out the decisions takes.

    Attributes
    ----------
    peak
        Bytes on the device at most.
    at
        The operation at which that is.
    live
        Bytes on the device at each operation; at an operation with reruns, the most that these take.
    moved, host
        Bytes copied to the host, and held there.
    rebuilt_us, stalled_us, time_us
        Time of reruns, time spent waiting for copies, and time of the step with both.
    needed
        The operation that first needs each offloaded tensor again. Of those that are fetched at once, the first needed comes first.
    spans
        What is on the device, for longer than a rerun.
    reruns, stay
        By operation, what runs again before it, in order; and the tensors of those blocks that stay then, by number.
    """

    peak: int = 0
    at: int = 0
    live: list[int] = field(default_factory=list)
    moved: int = 0
    host: int = 0
    rebuilt_us: float = 0.0
    stalled_us: float = 0.0
    time_us: float = 0.0
    needed: dict[int, int] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    reruns: dict[int, list[RerunCall]] = field(default_factory=dict)
    stay: dict[int, int] = field(default_factory=dict)

    def wait(self, now: float, copies: Iterable[float]) -> None:
        """Waits until the last of these copies has ended, which counts as a stall if that is later than now."""
        self.stalled_us += max(0.0, max(copies, default=now) - now)


class _Simulator:
    def __init__(self, lives: Lives, decisions: dict[int, dict[str, Any]]) -> None:
        self.lives = lives
        self.decisions = decisions
        count = len(lives.operations)
        self.spans: list[Span] = []
        # By tensor, where its last span is.
        self.latest: dict[int, int] = {}
        self.calls: dict[int, list[RerunCall]] = {}
        self.stay: dict[int, int] = {}
        self.blocks = 0
        self.started = [0] * count  # bytes that reruns hold from this operation on
        self.extra = [0] * count  # the most that reruns take beside what lives there otherwise
        self.rerun_us = [0.0] * count
        # When each rebuilt or fetched tensor is on the device again, and until when.
        self.back: dict[int, int] = {}
        self.until: dict[int, int] = {}
        # Times each tensor was rebuilt.
        self.times: dict[int, int] = {}

    def lives_in(self, start: int, end: int, tensor: int, before: int | None = None) -> None:
        """Adds a span; where the last one of the tensor `before` ends right before it, that goes on instead."""
        if end < start:
            return
        size = self.lives.bytes[tensor]
        place = self.latest.get(before) if before is not None else None
        if place is not None and self.spans[place].last == start - 1 and self.spans[place].bytes == size:
            self.spans[place] = self.spans[place]._replace(last=end, tensor=tensor)
        else:
            place = len(self.spans)
            self.spans.append(Span(start, end, size, tensor))
        self.latest[tensor] = place

    def run(self) -> Outcome:
        lives = self.lives
        if not lives.operations:
            return Outcome()
        rebuilt = [tensor for tensor, decision in self.decisions.items() if decision["decision"] == "recompute"]
        rebuilt.sort(key=lambda tensor: lives.first_backward[tensor])
        self.reruns(rebuilt)
        for tensor in range(len(lives.bytes)):
            if lives.resident[tensor]:
                self.lives_in(0, len(lives.operations) - 1, tensor)
            elif lives.first[tensor] >= 0:
                self.one(tensor)
        changes = [0] * (len(lives.operations) + 1)
        for first, last, size, _ in self.spans:
            changes[first] += size
            changes[last + 1] -= size
        live = list(accumulate(changes[:-1]))
        for index, extra in enumerate(self.extra):
            if extra or self.started[index]:
                live[index] = max(live[index], live[index] - self.started[index] + extra)
        live = [size + scratch for size, scratch in zip(live, lives.scratch, strict=True)]
        peak = max(live)
        outcome = Outcome(peak, live.index(peak), live, spans=self.spans, reruns=self.calls, stay=self.stay)
        outcome.rebuilt_us = sum(self.rerun_us)
        self.time(outcome)
        return outcome

    def one(self, tensor: int) -> None:
        """The spans in which a tensor is on the device."""
        lives = self.lives
        first, last = lives.first[tensor], self.needed_until(tensor)
        before = lives.before[tensor]
        if before is not None and lives.last[before] == first:
            # In this operation the same bytes change their name.
            first += 1
        else:
            before = None
        decision = self.decisions.get(tensor)
        what = decision["decision"] if decision else "keep"
        if what == "keep" or decision is None:
            self.lives_in(first, last, tensor, before)
        elif what == "offload":
            self.lives_in(first, max(lives.last_forward[tensor], decision["release_after"]), tensor, before)
            self.lives_in(min(decision["prefetch_before"], self.needed_from(tensor)), last, tensor)
        else:
            release = max(lives.last_forward[tensor], decision.get("release_after") or 0)
            self.lives_in(first, release, tensor, before)

    def needed_from(self, tensor: int) -> int:
        first = self.lives.first_backward[tensor]
        return min(first, self.back.get(tensor, first))

    def needed_until(self, tensor: int) -> int:
        return max(self.lives.last[tensor], self.until.get(tensor, -1))

    def reruns(self, rebuilt: list[int]) -> None:
        """Carries out reruns in the order in which the backward pass needs them."""
        queue: list[tuple[int, int, int]] = []
        needs = self.needs()
        for tensor in rebuilt:
            entries = self.decisions[tensor]["rebuilt"]
            if not entries and self.lives.first_backward[tensor] >= 0:
                raise Impossible(f"tensor {tensor} is recomputed, but no rerun is given")
            queue.extend((needs.get(tensor, entry["before"]), order, tensor) for order, entry in enumerate(entries))
        self.alive: dict[int, tuple[int, int]] = {}
        self.at_once: dict[int, list[int]] = {}
        for before, order, tensor in sorted(queue):
            self.rerun(tensor, order, before)
        for index, (held, most) in ((index, (sum_, most)) for index, (sum_, most) in self.peaks().items()):
            self.started[index] = held
            self.extra[index] = most

    def needs(self) -> dict[int, int]:
        """Where tensors that are rebuilt once are first needed: there hooks rebuild them, however early that is planned."""
        lives = self.lives
        found: dict[int, int] = {}
        read_at: dict[int, int] = {}
        rebuilt = {tensor: decision["rebuilt"] for tensor, decision in self.decisions.items()}
        once = {tensor for tensor, entries in rebuilt.items() if len(entries) == 1 and lives.first_backward[tensor] >= 0}
        # Later tensors are rebuilt earlier; what their reruns read is needed then.
        for tensor in sorted(rebuilt, key=lambda tensor: lives.first[tensor], reverse=True):
            if tensor in once:
                first = lives.first_backward[tensor]
                found[tensor] = min(first, read_at.get(tensor, first))
            for entry in rebuilt[tensor]:
                now = found.get(tensor, entry["before"])
                for leaf in leaves(lives, entry["operations"]):
                    read_at[leaf] = min(now, read_at.get(leaf, now))
        return found

    def peaks(self) -> dict[int, tuple[int, int]]:
        return {index: (levels[0], levels[1]) for index, levels in self.at_once.items()}

    def window_end(self, tensor: int, order: int) -> int:
        """The last operation that needs a tensor before it is rebuilt again."""
        entries = self.decisions[tensor]["rebuilt"]
        if order + 1 < len(entries):
            limit = entries[order + 1]["before"]
            readers = [
                index
                for index in range(self.lives.turn, limit)
                if tensor in self.lives.operations[index]["reads"]
            ]
            return max(readers, default=entries[order]["before"])
        return self.lives.last[tensor]

    def rerun(self, tensor: int, order: int, now: int) -> None:
        lives = self.lives
        entries = self.decisions[tensor]["rebuilt"]
        order = min(order, len(entries) - 1)
        if tensor in self.alive and self.alive[tensor][1] >= now:
            return
        operations = entries[order]["operations"]
        made = {made for index in operations for made in lives.operations[index]["writes"]}
        held = {
            other
            for other in made
            if (decision := self.decisions.get(other)) is not None
            and decision["decision"] == "recompute"
            and (other == tensor or self.stays(other, entries[order]["before"], now))
        }
        for read in leaves(lives, operations):
            if not lives.resident[read]:
                self.leaf(read, now)
        level = self.at_once.setdefault(now, [0, 0])
        current = level[0]
        found = self.calls.setdefault(now, [])
        there: dict[int, int] = {}
        for call in calls(lives, operations, held):
            found.append(self.call(call, there))
            current += sum(lives.bytes[copied] for copied in call.copies)
            current += sum(lives.bytes[new] for new in call.makes)
            level[1] = max(level[1], current + lives.scratch[call.operation])
            current -= sum(lives.bytes[dropped] for dropped in call.drops)
            self.rerun_us[now] += lives.rerun_us[call.operation]
        for other in held:
            if other in self.alive and self.alive[other][1] >= now:
                # What is there stays, and what was made beside it goes.
                current -= lives.bytes[other]
                found.append(RerunCall(-1, [], [], [there[other]]))
                continue
            self.stay[there[other]] = other
            self.times[other] = self.times.get(other, 0) + 1
            end = max(self.window_end(other, self.times[other] - 1), now)
            self.alive[other] = (now, end)
            self.lives_in(now, end, other)
        level[0] = current

    def call(self, call: Call, there: dict[int, int]) -> RerunCall:
        """The blocks of a call; `there` has those that the rerun has by tensor."""
        sizes = self.lives.bytes

        def new(tensor: int) -> Block:
            self.blocks += 1
            there[tensor] = self.blocks
            return Block(self.blocks, sizes[tensor])

        copied = set(call.copies)
        copies = []
        for before, after in call.renames:
            if before in copied:
                copies.append(new(after))
            else:
                there[after] = there.pop(before)
        makes = [new(tensor) for tensor in call.makes]
        return RerunCall(call.operation, copies, makes, [there.pop(tensor) for tensor in call.drops])

    def stays(self, tensor: int, planned: int, now: int) -> bool:
        """Whether a tensor made on the way of a rerun that is planned there stays: if none of its own is planned later."""
        later = [entry["before"] for entry in self.decisions[tensor]["rebuilt"] if entry["before"] > planned]
        return not later and self.lives.last[tensor] >= now

    def leaf(self, tensor: int, now: int) -> None:
        """Makes sure that a rerun finds a tensor on the device."""
        decision = self.decisions.get(tensor)
        if decision is not None and decision["decision"] == "recompute":
            if tensor not in self.alive:
                self.rerun(tensor, self.times.get(tensor, 0), now)
            start, end = self.alive[tensor]
            if end < now:
                self.lives_in(end + 1, now, tensor, tensor)
                self.alive[tensor] = (start, now)
            return
        if self.lives.last[tensor] < now and not self.lives.saved[tensor]:
            raise Impossible(f"a rerun before operation {now} reads tensor {tensor}, which nothing holds")
        self.back[tensor] = min(self.back.get(tensor, now), now)
        self.until[tensor] = max(self.until.get(tensor, now), now)

    def time(self, outcome: Outcome) -> None:
        """One queue of copies each way, beside the operations."""
        lives, machine = self.lives, self.lives.data["machine"]
        out_rate, in_rate = machine["to_host_bytes_per_s"] / 1e6, machine["to_device_bytes_per_s"] / 1e6
        starts: dict[int, list[int]] = {}
        waits: dict[int, list[int]] = {}
        fetches: dict[int, list[int]] = {}
        needs: dict[int, list[int]] = {}
        for tensor, decision in self.decisions.items():
            if decision["decision"] != "offload":
                continue
            outcome.moved += lives.bytes[tensor]
            starts.setdefault(decision["offload_after"], []).append(tensor)
            waits.setdefault(decision["release_after"], []).append(tensor)
            needed = outcome.needed[tensor] = self.needed_from(tensor)
            fetches.setdefault(min(decision["prefetch_before"], needed), []).append(tensor)
            needs.setdefault(needed, []).append(tensor)
        outcome.host = outcome.moved
        # When each operation begins if nothing is waited for.
        begins = [0.0, *accumulate(rerun + each for rerun, each in zip(self.rerun_us, lives.time_us, strict=True))]
        out_free = in_free = 0.0
        done: dict[int, float] = {}
        there: dict[int, float] = {}
        for index in sorted({*fetches, *needs, *starts, *waits}):
            now = begins[index] + outcome.stalled_us
            for tensor in sorted(fetches.get(index, ()), key=outcome.needed.__getitem__):
                in_free = max(in_free, now) + lives.bytes[tensor] / in_rate
                there[tensor] = in_free
            outcome.wait(now, (there[tensor] for tensor in needs.get(index, ())))
            now = begins[index + 1] + outcome.stalled_us
            for tensor in starts.get(index, ()):
                out_free = max(out_free, now) + lives.bytes[tensor] / out_rate
                done[tensor] = out_free
            outcome.wait(now, (done[tensor] for tensor in waits.get(index, ()) if tensor in done))
        outcome.time_us = begins[-1] + outcome.stalled_us


def simulate(lives: Lives, decisions: dict[int, dict[str, Any]]) -> Outcome:
    """Predicts a step under decisions by tensor, in the form of a plan file; other tensors are kept.

    Raises
    ------
    Impossible
        If the decisions cannot be carried out.
    """
    return _Simulator(lives, decisions).run()
