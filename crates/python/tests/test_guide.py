"""The guide's Python without PyTorch; ``tests_torch/test_guide_torch.py`` runs the rest."""

import pytest

from guide import ROOT, blocks, needs_torch, shown

PLAIN = [(page, code) for page, code in blocks() if not needs_torch(code)]


@pytest.mark.parametrize(("page", "code"), PLAIN, ids=[f"{page}-{number}" for number, (page, _) in enumerate(PLAIN)])
def test_blocks_run_and_print_the_shown_output(page, code, monkeypatch, capsys) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(code, page, "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert printed
    for line in shown(code):
        assert line in printed.splitlines(), printed


def test_the_guide_has_python() -> None:
    assert len(PLAIN) >= 2 and any(shown(code) for _, code in PLAIN)
