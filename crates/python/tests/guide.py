"""The Python blocks of the README and the guide, and the list of blocks that no test runs."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
NOT_RUN = ROOT / "crates/cli/tests/it/documents.tsv"


def blocks() -> list[tuple[str, str]]:
    """Page and code of each Python block, without those in the list."""
    rows = [line.split("\t") for line in NOT_RUN.read_text().splitlines() if not line.startswith("#")]
    left_out = {(page, first) for page, first, _ in rows}
    pages = [ROOT / "README.md", *sorted((ROOT / "docs/guide").glob("*.md"))]
    found = [(page.name, part.split("```")[0]) for page in pages for part in page.read_text().split("```python\n")[1:]]
    return [(page, code) for page, code in found if (page, code.splitlines()[0]) not in left_out]


def needs_torch(code: str) -> bool:
    return "torch" in code


def shown(code: str) -> list[str]:
    """The output that the code claims: comments in the form of an object."""
    comments = [line.split("  # ")[-1].strip() for line in code.splitlines() if "  # " in line]
    return [comment for comment in comments if comment.startswith("<")]
