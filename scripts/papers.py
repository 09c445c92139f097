#!/usr/bin/env python3
"""Writes the tables of docs/papers.md, each number from the command that prints it: no GPU needed.

usage: scripts/papers.py [--check] [--tightfit PATH] [--page FILE] [TABLE ..]

A table stands between `<!-- table NAME -->` and `<!-- end -->`. With --check, nothing is written; tables that are not what the
commands print are listed, and the exit status is 1.
"""

import argparse
import difflib
import pathlib
import re
import sys

from paper_tables import convolutions, counts, measured, mucudnn, per_group, printed, summary, vdnn
from paper_tables.tables import Answers, markdown

PAGE = pathlib.Path(__file__).parents[1] / "docs/papers.md"
MARKED = r"<!-- table {} -->\n(.*?)<!-- end -->\n"


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
    page = options.page.read_text()
    on_page = re.findall(MARKED.format(r"(\S+)"), page, re.DOTALL)
    names = [name for name, _ in on_page]
    if sorted(names) != sorted(tables):
        print("on the page or in the scripts alone:", *sorted(set(names) ^ set(tables)), file=sys.stderr)
        return 1
    unknown = [name for name in options.tables if name not in tables]
    if unknown:
        print("no table", *unknown, "; there are", *tables, file=sys.stderr)
        return 2
    wrong = 0
    for name, text in tables.items():
        if options.tables and name not in options.tables:
            continue
        now = f"\n{text()}\n"
        before = dict(on_page)[name]
        if now == before:
            continue
        wrong += 1
        if options.check:
            differences = difflib.unified_diff(before.splitlines(), now.splitlines(), "the page", "the commands", lineterm="", n=0)
            print(name, *differences, sep="\n")
        page = re.sub(MARKED.format(name), lambda _: f"<!-- table {name} -->\n{now}<!-- end -->\n", page, flags=re.DOTALL)
    if not options.check:
        options.page.write_text(page)
    return 1 if options.check and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
