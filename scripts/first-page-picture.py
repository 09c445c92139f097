"""Draws time against memory of ResNet-50's training step, for the first page: plain, checkpoints, torch.compile, and ours.

usage: scripts/first-page-picture.py docs/measured OUTPUT.svg
"""

import json
import sys
from pathlib import Path

from dark_pages import DARK

GIB = 1 << 30
LEFT, TOP, WIDTH, HEIGHT = 70, 50, 560, 300
MOST_GIB, MOST_MS = 12, 90
EAGER, COMPILED, OURS = "#777777", "#E69F00", "#0072B2"


def rows(folder, name):
    return [json.loads(line) for line in (Path(folder) / f"{name}.jsonl").read_text().splitlines()]


def points(folder):
    """Name, GiB, ms and color of each way; ways that belong together follow each other."""
    mine = [row for row in rows(folder, "recompute") if row.get("case") == "resnet50:256" and row.get("recompute", True) and "step_ms" in row]
    # The last build that was measured; its rows follow its plain ones.
    plain = [row for row in mine if row["variant"] == "plain"][-1]
    ours = [[row for row in mine if row.get("share") == share][-1] for share in (60, 40)]
    peer = next(row for row in rows(folder, "budget") if row.get("case") == "resnet50:256" and row.get("variant") == "checkpoint" and "step_ms" in row)
    compiled = [row for row in rows(folder, "compiled") if row.get("model") == "resnet50" and "time_ms" in row]
    whole = next(row for row in compiled if row["way"] == "compile")
    half = next(row for row in compiled if row["way"] == "b" and row["asked"] == 0.5)
    least = min((row for row in compiled if row["way"] == "ours"), key=lambda row: row["peak_bytes"])
    return [
        ("plain", plain["peak_bytes"] / GIB, plain["step_ms"], EAGER),
        ("a checkpoint for each block", peer["peak_bytes"] / GIB, peer["step_ms"], EAGER),
        *((f"tightfit, {row['share']}% of plain", row["peak_bytes"] / GIB, row["step_ms"], OURS) for row in ours),
        ("torch.compile", whole["peak_bytes"] / GIB, whole["time_ms"], COMPILED),
        ("torch.compile, activation_memory_budget 0.5", half["peak_bytes"] / GIB, half["time_ms"], COMPILED),
        ("torch.compile in tightfit's budget", least["peak_bytes"] / GIB, least["time_ms"], OURS),
    ]


def draw(found):
    right, bottom = LEFT + WIDTH, TOP + HEIGHT
    x, y = (lambda gib: LEFT + WIDTH * gib / MOST_GIB), (lambda ms: bottom - HEIGHT * ms / MOST_MS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + 180} {bottom + 50}" font-family="sans-serif" font-size="12">', DARK,
        f'<rect class="paper" width="{right + 180}" height="{bottom + 50}" fill="#ffffff"/>',
        '<text x="16" y="24" font-size="15">A training step of ResNet-50 (256, bf16) on an NVIDIA H200</text>',
    ]  # fmt: skip
    for ms in range(0, MOST_MS + 1, 15):
        parts.append(f'<line x1="{LEFT}" y1="{y(ms):.1f}" x2="{right}" y2="{y(ms):.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(ms) + 4:.1f}" text-anchor="end">{ms} ms</text>')
    for gib in range(0, MOST_GIB + 1, 2):
        parts.append(f'<text x="{x(gib):.1f}" y="{bottom + 18}" text-anchor="middle">{gib}</text>')
    parts.append(f'<text x="{(LEFT + right) / 2}" y="{bottom + 40}" text-anchor="middle">peak memory, GiB</text>')
    for name, gib, ms, color in found:
        below = name in ("torch.compile", "torch.compile in tightfit's budget")
        parts.append(f'<circle cx="{x(gib):.1f}" cy="{y(ms):.1f}" r="5" fill="{color}"/>')
        # Two points are one on the picture.
        side, anchor = (-9, ' text-anchor="end"') if name.endswith("tightfit's budget") else (9, "")
        parts.append(f'<text x="{x(gib) + side:.1f}" y="{y(ms) + (20 if below else -6):.1f}"{anchor}>{name}: {ms:.1f} ms, {gib:.1f} GiB</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(draw(points(sys.argv[1])))
