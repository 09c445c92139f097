"""Tables of a page between `<!-- table NAME -->` and `<!-- end -->`: written again, or compared with the page."""

import difflib
import pathlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence

MARKED = r"<!-- table {} -->\n(.*?)<!-- end -->\n"


def update(page: pathlib.Path, tables: Mapping[str, Callable[[], str]], wanted: Sequence[str], check: bool) -> int:
    """Writes the wanted tables, or all, into a page. With `check`, prints the differences instead. Returns the exit status."""
    text = page.read_text()
    found = re.findall(MARKED.format(r"(\S+)"), text, re.DOTALL)
    on_page = dict(found)
    if sorted(name for name, _ in found) != sorted(tables):
        print("twice on the page, or on the page or in the scripts alone:", *sorted(set(on_page) ^ set(tables)), file=sys.stderr)
        return 1
    unknown = [name for name in wanted if name not in tables]
    if unknown:
        print("no table", *unknown, "; there are", *tables, file=sys.stderr)
        return 2
    wrong = 0
    for name, table in tables.items():
        if wanted and name not in wanted:
            continue
        now, before = f"\n{table()}\n", on_page[name]
        if now == before:
            continue
        wrong += 1
        if check:
            print(name, *difflib.unified_diff(before.splitlines(), now.splitlines(), "the page", "the commands", lineterm="", n=0), sep="\n")
        text = re.sub(MARKED.format(name), lambda _: f"<!-- table {name} -->\n{now}<!-- end -->\n", text, flags=re.DOTALL)
    if not check:
        page.write_text(text)
    return 1 if check and wrong else 0
