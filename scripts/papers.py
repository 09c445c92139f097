#!/usr/bin/env python3
"""Writes the tables of docs/papers.md, each number from the command that prints it: no GPU needed.

usage: scripts/papers.py [--check] [--tightfit PATH] [--page FILE] [TABLE ..]

A table stands between `<!-- table NAME -->` and `<!-- end -->`. With --check, nothing is written; tables that are not what the
commands print are listed, and the exit status is 1.
"""

import argparse
import pathlib
import sys

import marked_tables
from paper_tables import convolutions, counts, measured, mucudnn, per_group, printed, summary, vdnn
from paper_tables.tables import Answers, markdown

PAGE = pathlib.Path(__file__).parents[1] / "docs/papers.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--tightfit", default="target/release/tightfit", help="from the repository's root")
    parser.add_argument("--page", type=pathlib.Path, default=PAGE)
    options = parser.parse_args()
    answers = Answers(options.tightfit)
    replayed = [*(table for module in (mucudnn, per_group, counts, vdnn, convolutions) for table in module.TABLES), summary.SUMMARY]
    tables = {table.name: lambda table=table: markdown(table, answers) for table in replayed}
    blocks = mucudnn.BLOCKS | counts.BLOCKS | convolutions.BLOCKS
    tables |= {name: lambda block=block: block(answers) for name, block in blocks.items()}
    tables |= {name: lambda script=script: printed.text(script, options.tightfit) for name, script in printed.SCRIPTS.items()}
    tables |= measured.TABLES
    return marked_tables.update(options.page, tables, options.tables, options.check)


if __name__ == "__main__":
    sys.exit(main())
