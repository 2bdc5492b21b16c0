"""Every block of the documentation is checked: recipes load, commands parse, code compiles and its imports are there.

A block says how it is checked behind its language: `yaml recipe`, `yaml fragment=stages.rl` (merged into a minimal recipe there,
with `plugin=MODULE` if it needs one, and `needs=PACKAGE` or `needs=browser` where it is skipped without), `yaml suite`, `yaml study`,
`yaml wordings`, `python quote=FILE` and `html quote=FILE` (its lines stand in that file),
`python imports` (they are there; with `needs=PACKAGE` likewise),
`python run`. A block that no rule knows fails.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.test_errands import errands
from tests.support.documents import DEEPER, GENERATED, PAGES, ROOT, Block, blocks, check_recipe, commands, merged, parse_vlmrl
from tests.support.samples import load_dataset
from vlmrl.config.load import load
from vlmrl.data.row import parse_row
from vlmrl.errors import ConfigError
from vlmrl.evals.ask.suite import DEFINITIONS, load_suite, suite_path
from vlmrl.extras.agents.browser.process import find_browser
from vlmrl.extras.study.plan import Plan
from vlmrl.extras.study.read import read_study
from vlmrl.extras.wording.wordings import read_wordings
from vlmrl.paths import find

ALLOWED = {
    ("docs/architecture.md", " recipe.yaml ──▶"): "a diagram",
    (
        "docs/architecture.md",
        " extras                                        optional parts",
    ): "a table of parts; tests/test_architecture.py checks it",
    ("docs/design/004-turns.md", "columns "): "a diagram",
    ("docs/judges.md", '{"model": "m", "inputs"'): "the form of a request; tests/unit/rewards checks what is sent",
}
"""(page, how the block begins) -> why nothing can be executed or loaded. Rows of docs/data.md:
tests/unit/extras/importers/test_data_containers.py."""
PROGRAMS = {
    "vllm": "another program, whose options are those of its version; tests/support/vllm_server.py starts one",
    "apt-get": "would change the machine",
    "playwright": "would download a browser",
    "venv": "would make an environment",
    "source": "takes the environment",
    "for": "goes over files of another repository",
    "pip": "would change the environment; the extras that it names are checked",
    "export": "sets a variable",
    "pre-commit": "would change the checkout",
    "curl": "asks a server",
    "convert_hf_to_gguf.py": "a script of llama.cpp",
    "llama-quantize": "a program of llama.cpp",
    "docker": "would build and start images; tests/unit/test_docker.py reads the files",
    "git": "would download a repository",
    "kubectl": "would ask a cluster",
    "head": "cuts rows that were downloaded",
    "mv": "renames rows that were downloaded",
}
"""First word of a command that is not ours -> why it is not run."""
BLOCKS = [block for page in (*PAGES, *DEEPER) if page != GENERATED for block in blocks(page)]


def of_the_errands(block: Block) -> bool:
    """Blocks that tests/e2e/test_errands.py writes and runs."""
    parts = [text for errand in errands() for text in (*errand.files().values(), *errand.commands())]
    return block.page == "CONTRIBUTING.md" and block.text in parts


def yaml_block(block: Block, folder: Path) -> None:
    how = dict(word.partition("=")[::2] for word in block.how.split())
    kind = next(iter(how), "")
    if kind == "recipe":
        check_recipe(block.text, folder)
    elif kind == "fragment":
        if how.get("needs") == "browser" and find_browser() is None:
            pytest.skip("there is no browser")
        if how.get("needs", "browser") != "browser" and importlib.util.find_spec(how["needs"]) is None:
            pytest.skip(f"the package {how['needs']} is not installed")
        recipe = merged(yaml.safe_load(block.text), how[kind]) | ({"plugins": [how["plugin"]]} if "plugin" in how else {})
        check_recipe(yaml.safe_dump(recipe, sort_keys=False), folder)
    elif kind == "suite":
        (folder / "suite.yaml").write_text(block.text, encoding="utf-8")
        load_suite(folder / "suite.yaml")
    elif kind == "study":
        (folder / "study.yaml").write_text(block.text, encoding="utf-8")
        Plan(read_study(folder / "study.yaml"), folder).recipes()
    elif kind == "wordings":
        (folder / "wordings.yaml").write_text(block.text, encoding="utf-8")
        read_wordings(folder / "wordings.yaml")
    elif kind == "protocol":
        (folder / "theirs.yaml").write_text(block.text, encoding="utf-8")
        tasks = ", ".join(yaml.safe_load(block.text)["tasks"])
        (folder / "suite.yaml").write_text(f"id: s\nversion: 1\nprotocol: theirs\ntasks: [{tasks}]\n", encoding="utf-8")
        load_suite(folder / "suite.yaml")
    else:
        raise AssertionError(f"{block}: say behind 'yaml' how it is checked: recipe, fragment=PATH, suite, study, wordings or protocol")


def quoted(block: Block, file: str) -> None:
    """The lines of the block stand in that file."""
    source = [line.strip() for line in (ROOT / file).read_text(encoding="utf-8").splitlines()]
    lines = [line.split("  #")[0].strip() for line in block.text.splitlines()]
    lines = [line.removesuffix(" ...").removesuffix('"""').strip() for line in lines if line not in ("", "...", '"""')]
    missing = [line for line in lines if not any(known.startswith(line) for known in source)]
    assert not missing, f"{block}: these lines are not in {file}: {missing}"


def html_block(block: Block, folder: Path) -> None:
    kind, _, file = block.how.partition("=")
    assert kind == "quote", f"{block}: say behind 'html' which file it quotes: quote=FILE"
    quoted(block, file)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # what it would lie in is no package
        return False


def python_block(block: Block, folder: Path) -> None:
    how = dict(word.partition("=")[::2] for word in block.how.split())
    kind, file = next(iter(how.items()), ("", ""))
    if "needs" in how and importlib.util.find_spec(how["needs"]) is None:
        pytest.skip(f"the package {how['needs']} is not installed")
    if kind == "quote":
        quoted(block, file)
        return
    tree = ast.parse(block.text, filename=str(block))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            module = importlib.import_module(node.module)
            absent = [one.name for one in node.names if not hasattr(module, one.name) and not _is_module(f"{node.module}.{one.name}")]
            assert absent == [], f"{block}: {node.module}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
    if kind == "run":
        exec(compile(tree, str(block), "exec"), {"__name__": f"docs_{block.line}"})
    else:
        assert kind == "imports", f"{block}: say behind 'python' how it is checked: run, imports or quote=FILE"
        assert any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(tree)), f"{block}: it imports nothing"


def json_block(block: Block, folder: Path) -> None:
    if block.page == "docs/data.md":
        return  # tests/unit/extras/importers/test_data_containers.py converts each and compares
    parse_row(json.loads(block.text), source=str(block), media_root=".")


def shell_block(block: Block, folder: Path) -> None:
    for words in commands(re.sub(r" > \S+$", "", block.text, flags=re.M)):
        command(block, [word for word in words if not re.fullmatch(r"[A-Z][A-Z0-9_]*=.*", word)])


def command(block: Block, words: list[str]) -> None:
    """One command line."""
    program, rest = words[0], words[1:]
    if program in ("torchrun", "accelerate"):  # their own options: tests/unit/extras/scale/test_launch.py
        rest = rest[rest.index("-m") :]
    if program == "uv":
        program, rest = rest[0], rest[1:]
    if program in ("python", "python3", "torchrun", "accelerate") and rest[:1] == ["-m"]:
        program, rest = rest[1].removesuffix(".cli"), rest[2:]
    if program == "vlmrl":
        vlmrl(block, rest)
    elif program == "python":
        assert (ROOT / rest[0]).is_file(), f"{block}: {rest[0]}"
        known = {*re.findall(r"--[a-z-]+", PREPARE), *(f"--{name}" for name in load_dataset((ROOT / rest[0]).parent).options)}
        assert set(re.findall(r"--[a-z-]+", " ".join(rest))) <= known, f"{block}: {rest}"
    elif program == "bash":
        script = (ROOT / rest[0]).read_text(encoding="utf-8")
        for option in [word for word in rest[1:] if word.startswith("--")]:
            assert option in script, f"{block}: {rest[0]} knows no {option}"
        if "=value" not in " ".join(rest):
            overrides(block, [word for word in rest[1:] if "=" in word])
    elif program == "lmms_eval":
        lmms(block, rest)
    elif program == "pytest":
        for word in rest:
            assert not word.startswith("tests/") or (ROOT / word).exists(), f"{block}: {word}"
    elif program == "pip":
        known = re.search(r"^\[project\.optional-dependencies\]\n(.*?)^\[", (ROOT / "pyproject.toml").read_text(), re.M | re.S)
        assert known is not None
        for extra in ",".join(re.findall(r"vlmrl\[([\w,]+)\]", " ".join(rest))).split(","):
            assert not extra or re.search(rf"^{extra} =", known[1], re.M), f"{block}: no extra '{extra}'"
    elif program.startswith("benchmarks."):
        place = ROOT / program.replace(".", "/")
        files = [place / "__main__.py"] if place.is_dir() else [place.with_suffix(".py"), ROOT / "benchmarks" / "common.py"]
        script = "".join(file.read_text(encoding="utf-8") for file in files)
        for option in [word for word in rest if word.startswith("--")]:
            assert f'"{option}"' in script, f"{block}: {program} knows no {option}"
    elif program == "vlmrl.extras.install.pins":
        assert set(rest) <= {"--cpu", "--gpu", "--trackers"}, f"{block}: {rest}"
    else:
        assert program in PROGRAMS, f"{block}: '{program}': say in {Path(__file__).name} how it is checked"


PREPARE = (ROOT / "vlmrl" / "extras" / "importers" / "prepare" / "prepare.py").read_text(encoding="utf-8")


def vlmrl(block: Block, words: list[str]) -> None:
    """The command parses, and the recipes, suites and methods that it names are there."""
    optional = [word[1:] if word.startswith("[") else word.removesuffix("]") if "[" not in word else word for word in words]
    found = parse_vlmrl([word.removesuffix("]") if word.isupper() else word for word in optional])
    recipe = found.get("recipe") or (found["what"] if words[0] == "check" and not found["rows"] and is_recipe(found["what"]) else None)
    if recipe is not None and find("recipe", str(recipe)) is not None:
        from vlmrl.methods import method_problems

        load(str(recipe), list(found.get("overrides") or []), also=method_problems)
    elif recipe is not None:
        assert str(recipe) in ("recipe.yaml", "RECIPE", "mine.yaml"), f"{block}: no recipe {recipe}"
        overrides(block, list(found.get("overrides") or []))
    suite = found.get("suite") or (found.get("name") if words[:2] == ["list", "suites"] else None)
    if suite is not None and not str(suite).endswith(".yaml") and not str(suite).isupper():
        suite_path(suite)
    for task in (found.get("task") or []) if words[0] == "eval" else []:
        assert (DEFINITIONS / "tasks" / f"{task}.yaml").is_file(), f"{block}: no task {task}"


def is_recipe(what: str | None) -> bool:
    """Whether `vlmrl check` takes it for a recipe, and not for rows, a model or this machine."""
    return what is not None and (what.endswith(".yaml") or find("recipe", what) is not None)


def overrides(block: Block, given: list[str]) -> None:
    """Overrides of no particular recipe: each key is one of the schema."""
    if given:
        from tests.test_glossary import is_key
        from vlmrl.config.schema import Config, GrpoSection

        for text in given:
            key = text.partition("=")[0]
            inner = re.sub(r"^stages\.\w+\.", "", key)
            assert is_key(key, Config) or is_key(inner, GrpoSection), f"{block}: {text}"


def lmms(block: Block, words: list[str]) -> None:
    """Model arguments of lmms-eval are those of the bridge."""
    from vlmrl.config.schema import MediaSection
    from vlmrl.extras.bridge.model import VlmrlBridge

    arguments = words[words.index("--model_args") + 1] if "--model_args" in words else ""
    known = {*inspect.signature(VlmrlBridge.create_from_arg_string).parameters, *inspect.signature(VlmrlBridge.__init__).parameters}
    known |= {*MediaSection.model_fields, "pretrained", "raw", "answer_format", "view", "choice_tasks", "seed"}
    known |= {"device", "dtype", "attention", "max_prompt_tokens"}
    assert {one.partition("=")[0] for one in arguments.split(",") if one} <= known, f"{block}: {arguments}"


RULES: dict[str, Callable[[Block, Path], None]] = {
    "yaml": yaml_block,
    "python": python_block,
    "json": json_block,
    "html": html_block,
    "bash": shell_block,
    "sh": shell_block,
    "indented": shell_block,
}


@pytest.fixture
def _registries() -> Iterator[None]:
    """What a block registers is gone after it."""
    from vlmrl.methods import registries

    yield
    for registry in registries().values():
        for name in [name for name in registry.names() if registry.get(name).function.__module__.startswith("docs_")]:
            del registry._entries[name]


@pytest.mark.usefixtures("_registries")
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_block(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if of_the_errands(block) or any(block.page == page and block.text.startswith(begin) for page, begin in ALLOWED):
        return
    assert block.language in RULES, f"{block}: say behind ``` how it is checked: {', '.join(RULES)}"
    monkeypatch.chdir(ROOT)
    RULES[block.language](block, tmp_path)


def test_nothing_is_allowed_that_is_not_there() -> None:
    for page, begin in ALLOWED:
        assert any(block.page == page and block.text.startswith(begin) for block in BLOCKS), (page, begin)


@pytest.mark.parametrize(
    ("block", "error"),
    [
        (Block("x.md", 1, "yaml fragment=stages.rl", "advantage: {name: grop}\n"), ConfigError),
        (Block("x.md", 1, "yaml", "advantage: {name: grpo}\n"), AssertionError),
        (Block("x.md", 1, "python run", "from vlmrl.protocols import rewards\n"), AssertionError),
        (Block("x.md", 1, "python quote=examples/my_method.py", "def another() -> None:\n"), AssertionError),
        (Block("x.md", 1, "python imports", "engine = Engine()\n"), AssertionError),
        (Block("x.md", 1, "bash", "vlmrl eval x --suit canary\n"), Exception),
        (Block("x.md", 1, "bash", "vlmrl eval x --suite canery\n"), ConfigError),
        (Block("x.md", 1, "bash", "vlmrl evaluate x\n"), ValueError),
        (Block("x.md", 1, "bash", "vlmrl check configs/recipes/toy_video.yaml stages.rl.advantage={name: x}\n"), ConfigError),
        (Block("x.md", 1, "bash", "bash scripts/eval.sh x\nbash scripts/no.sh\n"), OSError),
        (Block("x.md", 1, "bash", "bash scripts/train_video.sh --modle x\n"), AssertionError),
        (Block("x.md", 1, "bash", "make all\n"), AssertionError),
        (Block("x.md", 1, "bash", "pip install 'vlmrl[lorra]'\n"), AssertionError),
        (Block("x.md", 1, "bash", "uv pip install 'vlmrl[lora,viw]'\n"), AssertionError),
        (Block("x.md", 1, "bash", "python -m vlmrl.extras.install.pins --tpu\n"), AssertionError),
        (Block("x.md", 1, "json", '{"id": "a"}\n'), Exception),
    ],
    ids=lambda value: value.text.strip() if isinstance(value, Block) else "",
)
def test_a_wrong_block_would_be_found(block: Block, error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error):
        RULES[block.language](block, tmp_path)


def test_shell_words_are_those_of_a_shell() -> None:
    assert shutil.which("bash")
    assert commands("a 'b c' \\\n  d  # e\n\n# f\ng\n") == [["a", "b c", "d"], ["g"]]
