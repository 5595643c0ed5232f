"""What the README and the docs show runs, and what they claim is written down under results/."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from PIL import Image
from typer.main import get_command

import ffebm
from ffebm import UnsettledWarning
from ffebm.experiment import Run, command_line, train
from ffebm.experiment.benchmark.command import selected
from ffebm.experiment.benchmark.speed import Measurement
from ffebm.experiment.export import export
from ffebm.experiment.preset import preset_names, read_preset, read_preset_or_file
from ffebm.experiment.settings import documented
from ffebm.testing import EnergyConformance

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def trained() -> None:
    """What a page speaks of that shows what to do with it: a run, pictures, and a file of ONNX."""
    settings = read_preset("digits", ["model.channels=[4, 4]", "model.pooled=[]", "trainer.epochs=1", "trainer.batch=256"])
    train(settings, Run.create(Path("runs/mine"), ""), quiet=True)
    for name in ("cat.png", "dog.jpg"):
        Image.new("RGB", (20, 30), "white").save(name)
    export(ffebm.load("runs/mine"), Path("model.onnx"))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_code_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, in one namespace per page, as a reader would paste them."""
    monkeypatch.chdir(tmp_path)  # runs go below the folder where they are begun
    if page.name == "take-away.md":
        trained()
    namespace: dict[str, object] = {"__name__": "page"}
    for code in blocks(page):
        exec(compile(code, str(page), "exec"), namespace)
    assert len(namespace) > 3


def test_the_package_declares_the_pythons_that_the_readme_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert declared == ["3.11", "3.12", "3.13"]
    assert project["requires-python"] == f">={declared[0]}"
    for page in ("README.md", "docs/quickstart.md"):
        assert f"Python {declared[0]}–{declared[-1]}" in (ROOT / page).read_text(), page
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in declared


@pytest.mark.parametrize("name", ["data.md", "take-away.md"])
def test_code_fits_its_box_on_the_site(name: str) -> None:
    fences = re.findall(r"^```.*?^```", (ROOT / "docs" / name).read_text(), re.DOTALL | re.MULTILINE)
    assert max(len(line) for fence in fences for line in fence.splitlines()) <= 90


def test_a_fast_session_takes_under_40_lines_and_a_noisy_system_under_15() -> None:
    """And both do what the page says of them."""
    pages = blocks(ROOT / "docs" / "extending.md")
    (session,) = (code for code in pages if "class Springs" in code)
    (noisy,) = (code for code in pages if "class Noisy" in code)
    assert len(re.sub(r"\n+", "\n", session).splitlines()) < 40
    assert len(re.findall(r"class Noisy.*?(?=\n\n\n)", noisy, re.DOTALL)[0].splitlines()) < 15
    namespace: dict[str, Any] = {"__name__": "page"}
    exec(session, namespace)

    class TestSprings(EnergyConformance):
        def make_energy(self) -> ffebm.Energy:
            return namespace["Springs"](5)

        def make_input(self) -> torch.Tensor:
            return torch.randn(3, 5)

    for name in dir(TestSprings):
        if (
            name.startswith("test_") and name != "test_survives_copying_and_saving"
        ):  # code of a page has no module to pickle it by
            getattr(TestSprings(), name)()


def test_the_readme_example_learns_in_fifteen_lines() -> None:
    (code,) = blocks(ROOT / "README.md")
    assert len([line for line in code.splitlines() if line and not line.startswith(("import", "from"))]) <= 15
    namespace: dict[str, object] = {}
    exec(code, namespace)
    assert namespace["loss"].item() < 0.3  # ln 4 = 1.39 at the start
    assert namespace["block"].residual.max() <= 1e-4


def test_the_readme_begins_with_its_example_and_ends_with_links() -> None:
    """Title, a line, the example, a figure, why the gradients are trusted, how to install, links: all else is a page."""
    text = (ROOT / "README.md").read_text()
    begin = text[: text.index("```python")].split("\n\n")
    assert len([part for part in begin if part]) == 2, "a title and a line"
    assert re.findall(r"^## (.*)", text, re.MULTILINE) == [
        "Why trust the gradients",
        "Two commands",
        "Install it elsewhere",
        "Read on",
    ]
    links = text[text.index("## Read on") :]
    assert all(len(line) <= 128 for line in links.splitlines())
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert pages - set(re.findall(r"docs/([\w-]+\.md)", links)) == {"scaling.md", "security.md", "speed-grid.md"}


def longest_step(namespace: dict[str, Any]) -> float:
    """The longest of 2,000 steps along a line between two inputs, as a part of the whole path of the logits."""
    model, x = namespace["model"].eval(), namespace["x"]
    with torch.no_grad():
        path = model(torch.lerp(x[0], x[1], torch.linspace(0, 1, 2001).unsqueeze(1)))
    steps = path.diff(dim=0).norm(dim=1)
    return (steps.max() / steps.sum()).item()


def test_the_block_of_the_readme_has_one_equilibrium_and_does_not_jump() -> None:
    """Without its limit it has several, which it warns of."""
    (code,) = blocks(ROOT / "README.md")
    torch.manual_seed(0)
    limited: dict[str, Any] = {}
    exec(code, limited)
    enter = limited["model"].eval()[:2]
    assert limited["block"].ambiguous(enter(limited["x"])) == (0, 256)
    assert longest_step(limited) < 0.01
    torch.manual_seed(0)
    free: dict[str, Any] = {}
    with pytest.warns(UnsettledWarning, match="more than one equilibrium"):
        exec(code.replace(", max_contraction=0.7", ""), free)
    elsewhere, looked = free["block"].ambiguous(free["model"].eval()[:2](free["x"]))
    assert elsewhere > looked / 50


def run(*command: str) -> str:
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_documentation_builds_strictly(tmp_path: Path) -> None:
    run(sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path))
    theory, api = ((tmp_path / page / "index.html").read_text() for page in ("theory", "api"))
    for page in (theory, api):
        formulas = re.findall(r"<math.*?</math>", page, re.DOTALL)
        assert len(formulas) > 20
        assert not any("\\" in formula for formula in formulas), "a command that latex2mathml does not know"
        assert "arithmatex" not in page
    for name in ffebm.__all__:
        assert f'id="ffebm.{name}"' in api or name == "State", f"{name} is not on the API page"


def test_modules_of_the_library_show_their_own_names_alone() -> None:
    """Completion in a notebook offers what a module is for, not what it imports."""
    folder = ROOT / "src" / "ffebm"
    inside = ("energy", "gradient", "interaction", "relaxation", "experiment/data")
    files = [*folder.glob("*.py"), *(path for name in inside for path in (folder / name).glob("*.py"))]
    files += [folder / "experiment" / f"{name}.py" for name in ("evaluation", "pictures")]
    names = {".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__") for path in files}
    names -= {"ffebm", "ffebm.__main__"}
    assert len(names) > 40
    for name in names:
        module = import_module(name)
        assert dir(module) == sorted(module.__all__), name
        public = {key for key, value in vars(module).items() if getattr(value, "__module__", "") == name and key[0] != "_"}
        types = {key for key in public if isinstance(vars(module)[key], type | FunctionType)}
        assert types <= set(module.__all__), name
        assert all(hasattr(module, key) for key in module.__all__)
    assert set(dir(ffebm)) == {*ffebm.__all__, "__version__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", ffebm.__version__)


def test_modules_of_the_tool_show_their_own_names_alone() -> None:
    """All but those of data, which the test above looks at."""
    folder = ROOT / "src" / "ffebm" / "experiment"
    files = {*folder.rglob("*.py")} - {*(folder / "data").glob("*.py"), folder / "evaluation.py", folder / "pictures.py"}
    names = {".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__") for path in files}
    assert len(names) > 60
    for name in names:
        module = import_module(name)
        assert dir(module) == sorted(module.__all__), name
        assert all(hasattr(module, key) for key in module.__all__), name
        public = {key for key, value in vars(module).items() if getattr(value, "__module__", "") == name and key[0] != "_"}
        assert {key for key in public if isinstance(vars(module)[key], type | FunctionType)} <= set(module.__all__), name


def test_three_estimators() -> None:
    out = run(sys.executable, "examples/three_estimators.py", "--epochs", "1")
    for name in ("EP, centered", "EP, positive", "ID", "recurrent backprop", "BPTT"):
        (row,) = re.findall(rf"│ {name} +│ ([\d.]+) │ \d+ +│ ([\d.]+)% ", out)
        assert float(row[0]) > 0.99
        assert float(row[1]) > 60


def test_custom_energy_is_thirty_lines_and_learns() -> None:
    source = (ROOT / "examples" / "custom_energy.py").read_text()
    code = [line for line in source.splitlines() if line.strip() and not line.startswith(("import", "from", '"""'))]
    assert len(code) <= 30
    accuracies = re.findall(r"([\d.]+)%", run(sys.executable, "examples/custom_energy.py"))
    assert float(accuracies[-1]) > 85


def test_a_circuit_learns_the_same_wherever_it_settles() -> None:
    out = run(sys.executable, "examples/physical_training.py", "--quick", "--without-ngspice")
    assert len(re.findall(r"^in (?:torch|another process) +loss 0\.\d+, test accuracy", out, re.MULTILINE)) == 2
    (apart,) = re.findall(r"differ by (\S+) at most", out)
    assert float(apart) < 1e-5


@pytest.mark.ngspice
def test_a_circuit_learns_the_same_in_ngspice(tmp_path: Path) -> None:
    out = run(sys.executable, "examples/physical_training.py", "--quick", "--output", str(tmp_path / "moons.png"))
    assert "in ngspice" in out
    (apart,) = re.findall(r"differ by (\S+) at most", out)
    assert float(apart) < 1e-5
    with Image.open(tmp_path / "moons.png") as picture:
        assert picture.width > 500


def test_the_netlist_on_the_page_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    page = ROOT / "docs" / "circuits.md"
    exec("\n".join(blocks(page)[:2]), {})
    printed = capsys.readouterr().out
    (shown,) = re.findall(r"^```\n(\* -+\n.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert shown in printed


@pytest.mark.ngspice
def test_what_the_page_on_circuits_does_with_programs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "circuits.md"
    through_ngspice, device, process = re.findall(r"^```py\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    Path("device.py").write_text(device)
    exec("\n".join([blocks(page)[0], through_ngspice, process]), {})


def test_the_page_on_circuits_says_what_was_measured() -> None:
    page = (ROOT / "docs" / "circuits.md").read_text()
    rows = re.findall(r"^\| ([\d.]+)(?:, silicon)? \| ([\d.]+) (m?)V(?: of ([\d.]+) V)? \| ([\d.]+) \|$", page, re.MULTILINE)
    assert len(rows) == 3
    for ideality, off, milli, size, cosine in rows:
        name = {"0.0001": "1e-4", "0.01": "1e-2", "1": "1"}[ideality]
        (found,) = json.loads((ROOT / "results" / "circuits" / f"ideality-{name}.json").read_text())["blocks"]
        agreed = found["agreement"]
        largest = max(agreed["free"], agreed["nudged"]) * (1000 if milli else 1)
        assert float(off) == pytest.approx(largest, rel=0.05)
        assert float(cosine) == round(agreed["cosine"], 4)
        assert not size or float(size) == pytest.approx(agreed["size"], rel=0.01)


def test_residual_blocks_have_the_right_gradient_and_learn() -> None:
    out = run(sys.executable, "examples/residual_block.py", "--epochs", "1")
    cosines = re.findall(r"interactions\.\d\.\w+ +([\d.]+)\n", out)
    assert len(cosines) == 5
    assert min(map(float, cosines)) > 0.99
    (accuracy,) = re.findall(r"test accuracy ([\d.]+)%", out)
    assert float(accuracy) > 60


def test_numbers_in_the_docs_are_those_of_the_results() -> None:
    measured = set(re.findall(r"-?\d\.\d{4}", (ROOT / "results" / "gradient_quality.md").read_text()))
    quoted = set(re.findall(r"-?\d\.\d{4}", (ROOT / "docs" / "theory.md").read_text()))
    assert len(quoted) >= 4
    assert quoted <= measured


def test_accuracies_in_the_readme_are_those_of_the_results() -> None:
    """And they are what the results promise: the default limit loses nothing against none."""
    rows = re.findall(
        r"^\| (\S+) \| (\d\d\.\d\d) % ± (\d\.\d\d) \|", (ROOT / "results" / "cifar10_small.md").read_text(), re.MULTILINE
    )
    two, five = ({limit: float(accuracy) for limit, accuracy, _ in part} for part in (rows[:5], rows[5:7]))
    assert list(two) == ["0.2", "0.35", "0.5", "0.7", "none"]
    assert two["0.5"] > two["none"]
    assert list(five) == ["0.5", "none"]
    assert five["0.5"] > five["none"]
    quoted = re.findall(r"(\d\d\.\d\d) %", (ROOT / "README.md").read_text())
    assert list(map(float, quoted)) == [five["0.5"], five["none"]]


def test_speed_on_the_first_page_is_that_of_the_results() -> None:
    """At equal cosines, with the paper's sweeps at both nudges beside it."""
    known = [Measurement(**row) for row in json.loads((ROOT / "results/speed/trained/speed.json").read_text())["rows"]]
    nets = {row.net: {each.method: each for each in selected([r for r in known if r.net == row.net])} for row in known}
    limited, tight = (nets[f"bs2-limit-{limit}-2-epochs-seed0"] for limit in ("0.5", "0.2"))
    text = " ".join((ROOT / "docs" / "index.md").read_text().split())
    assert f"[{limited['small-signal ep, ≥ 0.999'].ratio:.1f} times as long](speed.md)" in text
    assert f"with a limit of 0.2 {tight['small-signal ep, ≥ 0.999'].ratio:.1f} times" in text
    paper, small = (limited[name] for name in ("ep, paper", "ep, paper, β 0.02"))
    assert f"take {paper.ratio:.1f} times, for a smallest cosine of {paper.cosine:.3f} at its β of 0.2" in text
    assert f"and {small.cosine:.4f} at 0.02" in text


def commands() -> list[list[str]]:
    """Every `ffebm …` that a page shows in a code fence."""
    found = []
    for page in PAGES:
        for language, fence in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            lines = [] if language else fence.replace("\\\n", " ").splitlines()
            found += [shlex.split(match[1], comments=True) for line in lines if (match := re.search(r"\bffebm ([^;]*)", line))]
    return found


def test_commands_in_the_docs_are_ones_that_exist() -> None:
    """Their settings are valid, their presets there, their options known."""
    shown = [command for command in commands() if command and command[0] == "train" and "[PRESET" not in command]
    assert len(shown) > 15
    whole = get_command(command_line.app)
    known = {
        option for command in (whole, whole.commands["train"]) for parameter in command.params for option in parameter.opts
    }
    for _, *arguments in shown:
        options = [argument for argument in arguments if argument.startswith("--")]
        assert set(options) <= known, arguments
        values = {value for option, value in pairwise(arguments) if option in ("--data", "--output", "--resume")}
        rest = [argument for argument in arguments if argument not in values and argument not in options]
        source = rest[0] if rest and "=" not in rest[0] else None
        overrides = rest[1:] if source else rest
        if source is None or not source.endswith(".toml"):
            read_preset_or_file(source, overrides)


def test_settings_in_the_docs_are_ones_that_exist() -> None:
    known = set(re.findall(r"^#? ?(\w+) = ", documented(), re.MULTILINE))
    pages = [ROOT / "docs" / f"{name}.md" for name in ("training", "data", "presets", "resume", "scale-out", "faq")]
    sections = "data|model|relaxation|gradient|optimiser|trainer"
    cited = {name for page in pages for name in re.findall(rf"`(?:{sections})\.(\w+)", page.read_text())} - {"json"}  # a file
    assert len(cited) > 12
    assert cited <= known


def test_the_presets_page_prints_what_the_presets_hold() -> None:
    text = (ROOT / "docs" / "presets.md").read_text()
    for name in preset_names():
        paper = read_preset(name).paper
        if paper is not None:
            assert str(paper.ep.top1) in text
            assert str(paper.id.top1) in text


def test_the_library_imports_torch_alone() -> None:
    """What the command line stands on is not needed by those who only want the blocks."""
    code = (
        "import sys, pkgutil, importlib\n"
        "for name in ('lightning', 'pydantic', 'typer', 'rich', 'matplotlib', 'sklearn', 'safetensors', 'tomli_w', 'PIL'):\n"
        "    sys.modules[name] = None\n"
        "import ffebm\n"
        "for module in pkgutil.walk_packages(ffebm.__path__, 'ffebm.'):\n"
        "    if not module.name.startswith(('ffebm.experiment', 'ffebm.__main__')):\n"
        "        importlib.import_module(module.name)\n"
        "print(len([getattr(ffebm, name) for name in ffebm.__all__]))\n"
    )
    assert run(sys.executable, "-c", code) == f"{len(ffebm.__all__)}\n"


def test_every_public_name_has_a_home() -> None:
    assert set(ffebm.__all__) == set(ffebm._HOME_OF)
    assert set(ffebm.__all__) <= set(dir(ffebm))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ffebm.nothing


def test_labels_are_those_of_the_paper() -> None:
    """Every label cited in a docstring's last line or in the paper map stands in the paper's LaTeX source."""
    labels = set((ROOT / "tests" / "paper_labels.txt").read_text().split())
    cited = set(re.findall(r"`((?:\w+:)+[\w-]+)`", (ROOT / "docs" / "paper-map.md").read_text()))
    for path in (ROOT / "src" / "ffebm").rglob("*.py"):
        for line in re.findall(r"Paper: (.*(?:\n    .*)?)", path.read_text()):
            cited |= set(re.findall(r"\[([\w:-]+)\]", line))
    assert len(cited) > 30
    assert cited <= labels
