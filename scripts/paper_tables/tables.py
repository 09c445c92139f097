"""Tables whose numbers are what commands print: which commands, and how to read a number out of their answers."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
MIB, GIB, GB = 2**20, 2**30, 1e9


@dataclass(frozen=True)
class Row:
    """One row: what stands before the numbers, what fills in the table's commands, and what stands behind the numbers."""

    labels: Sequence[str]
    values: dict[str, str] = field(default_factory=dict)
    after: Sequence[str] = ()
    # Its own commands, in place of the table's.
    commands: Sequence[str] | None = None
    # Reads this row where it is not read like the others.
    read: Callable[..., list[str]] | None = None


@dataclass(frozen=True)
class Table:
    """A table between the markers of its name.

    Each row runs every one of `commands`, with `{word}` filled in from the row; `read` turns the answers into cells. `shown` is
    the command as the page prints it.
    """

    name: str
    head: Sequence[str]
    commands: Sequence[str]
    rows: Sequence[Row]
    read: Callable[..., list[str]]
    shown: str = ""
    # The last rows, computed from the answers of all others.
    last: Callable[[list[list[Any]]], list[list[str]]] | None = None


class Answers:
    """The answers of `tightfit`, each command run once."""

    def __init__(self, tightfit: str) -> None:
        self.tightfit = tightfit
        self.known: dict[str, dict[str, Any]] = {}

    def of(self, command: str) -> dict[str, Any]:
        """The JSON that a command prints; of a plan that does not fit, `{"needs_gib": number}`; of a command that draws a
        kernel's front (`--picture front`), `{"points": number}`."""
        return self.all([command])[0]

    def all(self, commands: Iterable[str]) -> list[dict[str, Any]]:
        """The answers of several commands, as many at a time as the machine has cores."""
        commands = list(commands)
        new = [command for command in dict.fromkeys(commands) if command not in self.known]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            self.known |= dict(zip(new, pool.map(self.run, new), strict=True))
        return [self.known[command] for command in commands]

    def run(self, command: str) -> dict[str, Any]:
        arguments = [self.tightfit, *shlex.split(command), "--format", "json"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TIGHTFIT_")}
        environment["TIGHTFIT_CACHE"] = "none"
        with tempfile.TemporaryDirectory() as folder:
            picture = pathlib.Path(folder) / "front.svg"
            if "--picture front" in command:
                arguments += ["--plot", str(picture)]
            done = subprocess.run(arguments, capture_output=True, text=True, env=environment, cwd=ROOT)
            if picture.exists():
                return {"points": picture.read_text().count("<circle")}
        if done.returncode == 0:
            return json.loads(done.stdout)
        needs = re.search(r"needs at least ([\d.]+) GiB", done.stderr)
        if needs:
            return {"needs_gib": float(needs.group(1))}
        raise SystemExit(f"tightfit {command}: {done.stderr.strip()}")


def markdown(table: Table, answers: Answers) -> str:
    """The table, below the command that prints its numbers."""
    lines = [f"| {' | '.join(table.head)} |", "|" + "---|" * len(table.head)]
    each = [
        [command.format(**row.values) for command in (table.commands if row.commands is None else row.commands)]
        for row in table.rows
    ]
    answers.all(command for commands in each for command in commands)
    collected = []
    for row, commands in zip(table.rows, each, strict=True):
        found = answers.all(commands)
        collected.append(found)
        lines.append(f"| {' | '.join([*row.labels, *(row.read or table.read)(*found), *row.after])} |")
    if table.last:
        lines += [f"| {' | '.join(row)} |" for row in table.last(collected)]
    shown = f"`tightfit {table.shown}`\n\n" if table.shown else ""
    return shown + "\n".join(lines) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of these cells."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def ms(microseconds: float) -> str:
    value = microseconds / 1e3
    return f"{value:.2f}" if value < 100 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"
