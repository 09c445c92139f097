"""Files of the repository that tools and readers rely on: workflows, issue forms, the citation, and paths in the design."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from conftest import ROOT

yaml = pytest.importorskip("yaml")

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def read(path: Path) -> dict:
    return yaml.safe_load(path.read_text())


def test_there_are_workflows_for_each_purpose() -> None:
    assert [path.stem for path in WORKFLOWS] == ["binaries", "ci", "crates", "wheels"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_jobs_of_known_steps(path: Path) -> None:
    workflow = read(path)
    # YAML 1.1 reads the key `on` as true.
    assert workflow["name"] and workflow[True] and workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job["runs-on"].startswith("ubuntu-"), name
        assert set(job.get("needs", "").split()) <= set(workflow["jobs"]), name
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step), f"{name}: {step}"
            assert "uses" not in step or "@" in step["uses"], f"{name}: an action without its version: {step}"
            for word in step.get("run", "").split():
                if word.startswith(("scripts/", "crates/", ".ci/", "profiles/")) and "*" not in word:
                    place = word.removeprefix("replay:")
                    assert (ROOT / place).exists(), f"{name}: {place} is missing"


def test_wheels_are_built_where_old_systems_can_run_them() -> None:
    wheels = read(ROOT / ".github/workflows/wheels.yml")["jobs"]["build"]
    assert wheels["container"].endswith("manylinux_2_28_x86_64")
    commands = " ".join(step.get("run", "") for step in wheels["steps"])
    assert "--compatibility manylinux_2_28" in commands
    assert "scripts/check-wheel.py --glibc 2.28 --megabytes 15" in commands


def test_the_package_names_the_pythons_that_its_wheel_is_tried_on() -> None:
    project = tomllib.loads((ROOT / "crates/python/pyproject.toml").read_text())["project"]
    tried = read(ROOT / ".github/workflows/wheels.yml")["jobs"]["try"]["strategy"]["matrix"]["python"]
    language = "Programming Language :: Python :: "
    named = [entry.removeprefix(language) for entry in project["classifiers"] if entry.startswith(language + "3.")]
    assert named == tried and project["requires-python"] == f">={tried[0]}"


def test_both_ways_to_set_up_are_tried() -> None:
    commands = {
        name: [step.get("run", "") for step in read(ROOT / f".github/workflows/{workflow}.yml")["jobs"][name]["steps"]]
        for workflow, name in (("wheels", "try"), ("ci", "clone"))
    }
    assert "scripts/try-set-up.sh wheel wheels/*.whl" in commands["try"] and "scripts/try-set-up.sh clone" in commands["clone"]
    script, readme = (ROOT / "scripts/try-set-up.sh").read_text(), (ROOT / "README.md").read_text()
    for command in ("tightfit doctor --preload", "cargo run --release -- train digits-net", "--costs 4090 --assume"):
        assert command in script and command in readme, command
    assert "pip install ./crates/python" in readme and " install --quiet --disable-pip-version-check ./crates/python" in script


def test_the_package_can_be_published() -> None:
    """`uvx tightfit` needs a command of the package's name; an index shows the rest."""
    project = tomllib.loads((ROOT / "crates/python/pyproject.toml").read_text())["project"]
    assert project["scripts"] == {project["name"]: "tightfit.__main__:main"}
    assert (ROOT / "crates/python" / project["readme"]).is_file() and project["description"] and project["keywords"]
    # A license as an expression goes with no license among the classifiers.
    assert project["license"] == "MIT OR Apache-2.0" and len(list((ROOT / "crates/python").glob("LICENSE-*"))) == 2
    assert not [entry for entry in project["classifiers"] if entry.startswith("License")]
    # Links of its page must lead somewhere from an index.
    assert not re.findall(r"\]\((?!https?:)", (ROOT / "crates/python" / project["readme"]).read_text())


def test_binaries_come_with_every_manual_page() -> None:
    steps = read(ROOT / ".github/workflows/binaries.yml")["jobs"]["build"]["steps"]
    assert '"$tightfit" man --out "$folder/man"' in " ".join(step.get("run", "") for step in steps)


def test_issue_forms_ask_for_something() -> None:
    forms = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
    questions = {form.stem: read(form).get("body") for form in forms if form.stem != "config"}
    assert set(questions) == {"bug", "idea", "slower"}
    for name, body in questions.items():
        assert body and all(part["attributes"]["label"] for part in body), name


def test_the_citation_names_both_papers_and_this_version() -> None:
    citation = read(ROOT / "CITATION.cff")
    titles = [reference["title"] for reference in citation["references"]]
    assert ["Micro-batches" in titles[0], "vDNN" in titles[1]] == [True, True]
    assert f'version = "{citation["version"]}"' in (ROOT / "Cargo.toml").read_text()


def test_the_picture_of_the_first_page_shows_measured_numbers(tmp_path: Path) -> None:
    output = tmp_path / "first-page.svg"
    subprocess.run([sys.executable, ROOT / "scripts/first-page-picture.py", ROOT / "docs/measured", output], check=True)
    drawn = output.read_text()
    assert drawn == (ROOT / "docs/pictures/first-page.svg").read_text()
    assert "plain: 54.6 ms, 11.1 GiB" in drawn


def test_the_picture_of_tuned_convolutions_shows_the_results(tmp_path: Path) -> None:
    output = tmp_path / "steps.svg"
    script = [sys.executable, ROOT / "scripts/pytorch-steps.py", "--output", output]
    lines = subprocess.run(script, check=True, capture_output=True, text=True).stdout.splitlines()
    assert output.read_text() == (ROOT / "docs/pictures/pytorch-steps.svg").read_text()
    rows = [line.split("\t") for line in lines]
    assert ["VGG-16 b256, 512 MiB", "fp32", "424.0", "302.0", "354.0", "424.0"] in rows
    # Each row has PyTorch's own benchmark and the plain time.
    assert all(len(row) == 6 for row in rows)
    assert {row[1] for row in rows} == {"fp32", "tf32", "bf16"}


def test_python_of_the_pages_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    ran = 0
    for page in [ROOT / "crates/python/README.md", *sorted((ROOT / "docs/guide").glob("*.md"))]:
        for block in page.read_text().split("```python\n")[1:]:
            code = block.split("```")[0]
            # Blocks that need PyTorch run in tests_torch/test_guide_torch.py.
            if code.startswith("import tightfit\n"):
                exec(compile(code, str(page), "exec"), {})
                ran += 1
    assert ran >= 2


def missing_paths(page: str) -> list[str]:
    """The paths in a page that the repository lacks, and paths whose file lacks the function or type after `::`. A path begins at the root, or is the
    end of one that does."""
    folders = (".ci", ".github", "crates", "docs", "scripts")
    paths = [*ROOT.glob("*.*"), *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    listed = {f"/{path.relative_to(ROOT)}/": path for path in paths}
    missing = []
    for name, item in set(re.findall(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:rs|py|sh|md))(?:::(\w+))?`", page)):
        found = [path for end, path in listed.items() if end.endswith(f"/{name.rstrip('/')}/")]
        defined = re.compile(rf"\b(?:def|fn|class|struct|enum|trait) {item}\b")
        if not found or item and not any(path.is_file() and defined.search(path.read_text()) for path in found):
            missing.append(f"{name}::{item}" if item else name)
    return sorted(missing)


def test_paths_that_the_design_names_exist() -> None:
    for page in ("docs/design.md", "CONTRIBUTING.md"):
        assert missing_paths((ROOT / page).read_text()) == [], page
    assert missing_paths("`plan/decide.py::decide`, `plan/decide.py::gone`, `plan/gone.py` and `gone.rs`") == [
        "gone.rs",
        "plan/decide.py::gone",
        "plan/gone.py",
    ]


def imports(file: Path, text: str, files: dict[Path, str]) -> set[Path]:
    """The files that a file imports, also inside functions and for annotations alone."""
    found: set[Path] = set()
    # A program finds the files of its folder; a file of a package does not.
    folders = [ROOT / "crates/python/python"] + [file.parent] * (file.parent / "__init__.py" not in files)

    def add(folders: list[Path], *names: str) -> None:
        ends = (".py", ".pyi", "/__init__.py")
        places = (Path(f"{folder}/{name.replace('.', '/')}{end}") for name in names for folder in folders for end in ends)
        found.update([place for place in places if place in files][:1])

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for name in node.names:
                add(folders, name.name)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            for name in node.names:
                add([file.parents[node.level - 1]] if node.level else folders, f"{module}.{name.name}".strip("."), module)
    return found - {file}


def circle(files: dict[Path, str], design: str) -> list[str]:
    """A circle of files that import each other; none if the only ones are pairs of which the design says that they are one idea."""
    pairs = re.findall(r"`([\w./]+\.py)` and `([\w./]+\.py)`\s+are one idea", design)
    arrows = {file: imports(file, text, files) for file, text in files.items()}
    for pair in pairs:
        one, other = (next(file for file in files if file.as_posix().endswith(f"/{name}")) for name in pair)
        assert other in arrows[one] and one in arrows[other], f"{pair} import each other no more"
        arrows[one].remove(other)
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return [file.relative_to(ROOT).as_posix() for file in error.args[1]]
    return []


def test_python_files_import_each_other_one_way() -> None:
    paths = (path for folder in ("crates", "scripts", "examples") for path in (ROOT / folder).rglob("*.py*") if path.suffix in (".py", ".pyi"))
    files, design = {path: path.read_text() for path in paths}, (ROOT / "docs/design.md").read_text()
    found = circle(files, design)
    assert found == []
    order = re.search(r"one direction: ([^.]*)\.", " ".join(design.split()))
    assert order
    # Folders, and names of files of the folder above them.
    stages = [stage.split(", ") for stage in order[1].split(" <- ")]
    stage_of = {name: at for at, stage in enumerate(stages) for name in stage}
    budget = ROOT / "crates/python/python/tightfit/_budget"

    def part(file: Path) -> str:
        return file.relative_to(budget).parts[0].removesuffix(".py")

    arrows = {
        (part(file), part(other))
        for file, text in files.items() if file.is_relative_to(budget)
        for other in imports(file, text, files) if other.is_relative_to(budget)
    }  # fmt: skip
    known = {(one, other) for one, other in arrows if one != other and {one, other} <= stage_of.keys()}
    assert len(known) > 8 and [arrow for arrow in known if stage_of[arrow[0]] <= stage_of[arrow[1]]] == []
    one, other = (ROOT / f"crates/python/python/tightfit/_budget/{name}.py" for name in ("memory/sizes", "eager/passes"))
    assert one in files and other in files
    for line in ("from ..eager import passes", "if 0:\n    from ..eager.passes import Pass", "def later():\n    import tightfit._budget.eager.passes"):
        broken = files | {one: f"{files[one]}\n{line}\n"}
        assert "crates/python/python/tightfit/_budget/memory/sizes.py" in circle(broken, design), line
    pair = {one: "from ..eager import passes", other: "from ..memory.sizes import text"}
    assert circle(pair, "") and circle(pair, "`memory/sizes.py` and `eager/passes.py` are one idea: a reason") == []


def test_no_merge_left_its_marks() -> None:
    marks = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)
    texts = (".rs", ".py", ".sh", ".md", ".toml", ".yml", ".jsonl")
    folders = (".ci", ".github", "crates", "docs", "examples", "networks", "scripts")
    paths = [*ROOT.glob("*.*"), *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    assert marks.search("x\n<<<<<<< HEAD\n")
    assert [path for path in paths if path.suffix in texts and path.is_file() and marks.search(path.read_text(errors="ignore"))] == []


def published() -> list[Path]:
    """The folders of the crates to publish."""
    manifests = sorted((ROOT / "crates").glob("*/Cargo.toml"))
    return [path.parent for path in manifests if "publish = false" not in path.read_text()]


def test_crates_to_publish_contain_their_includes() -> None:
    included = 0
    assert {"cli", "conv", "embed", "network", "onnx", "plan", "preload", "preload-plain", "profile", "report", "units"} <= {crate.name for crate in published()}
    for crate in published():
        for source in crate.glob("src/**/*.rs"):
            for target in re.findall(r'include(?:_str|_bytes)?!\(\s*"([^"]+)"', source.read_text()):
                # Without resolving links: the target of a link is packaged in its place.
                path = Path(os.path.normpath(source.parent / target))
                assert path.exists() and path.is_relative_to(crate), f"{source}: {target} is not in the package"
                included += 1
        for name in ("build.rs", "src/lib.rs"):
            outside = re.search(rf'"\.\./[^"]*{name}"', (crate / "Cargo.toml").read_text())
            assert not outside, f"{crate.name}: {outside[0] if outside else ''} is not in the package"
        assert (crate / "LICENSE-MIT").read_text() == (ROOT / "LICENSE-MIT").read_text(), crate.name
    assert included >= 5


def test_crates_to_publish_name_versions_of_each_other() -> None:
    names = {crate.name if crate.name != "cli" else "" for crate in published()}
    workspace = (ROOT / "Cargo.toml").read_text()
    version = re.search(r'^version = "([^"]+)"', workspace, re.MULTILINE)
    assert version
    for name in names:
        line = f"tightfit{'-' if name else ''}{name} = {{ path"
        found = [text for text in workspace.splitlines() if text.startswith(line)]
        assert len(found) == 1 and f'version = "{version[1]}"' in found[0], line
