"""Generated pages of the site hold every recipe key, method and command, and texts become what mkdocs can show."""

from __future__ import annotations

import re
from typing import Any

import pytest

from scripts.docs_site import api, commands, methods, recipe_keys
from scripts.docs_site.declarations import INTERNAL, RULES, SENTENCES, declared
from scripts.docs_site.marks import cell, plain, rendered, title_of
from vlmrl.cards import card
from vlmrl.config.schema import SECTIONS, Config
from vlmrl.methods import registries

PLACES = {"docs/plan.md": "plan.md", "docs/benchmarks": "benchmarks/index.md", "data/x/card.md": "data_sets/x.md", "README.md": "index.md"}
TITLES = {"plan.md": "Planning a run", "benchmarks/index.md": "Benchmarks", "data_sets/x.md": "X", "index.md": "README"}


def shown(text: str, source: str = "docs/a.md", page: str = "a.md") -> str:
    return rendered(text, source=source, page=page, places=PLACES, titles=TITLES).rstrip("\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see `docs/plan.md`.", "see [Planning a run](plan.md)."),
        ("all in `docs/benchmarks/`", "all in [Benchmarks](benchmarks/index.md)"),
        ("`vlmrl/extras/plan/shapes.json` and `docs/none.md`", "`vlmrl/extras/plan/shapes.json` and `docs/none.md`"),
        ("[`docs/plan.md`](plan.md#x)", "[`docs/plan.md`](plan.md#x)"),
        ("```yaml fragment=stages.rl\na: `docs/plan.md`\n```", "```yaml\na: `docs/plan.md`\n```"),
        ("```\n|--▶ x\n```", "```text\n|--▶ x\n```"),
        ("``` { .text .docstring }\na\n```", "``` { .text .docstring }\na\n```"),
        ("* one\n\n  ```bash\n  a\n    b\n  ```\n\n  two\n\nthree", "* one\n\n    ```bash\n    a\n      b\n    ```\n\n    two\n\nthree"),
        ("* one\n  more", "* one\n    more"),
    ],
)
def test_texts_for_the_site(text: str, expected: str) -> None:
    assert shown(text) == expected


def test_links_are_those_of_the_page_where_it_stands() -> None:
    assert shown("[x](x/card.md) `docs/plan.md`", "data/README.md", "data_sets/index.md") == "[x](x.md) [Planning a run](../plan.md)"
    assert shown("![p](docs/images/a.png)", "README.md", "index.md") == "![p](docs/images/a.png)"
    assert shown("`README.md`", "README.md", "index.md") == "`README.md`"
    assert shown("[a](https://example.org/x.md)") == "[a](https://example.org/x.md)"


def test_text_of_the_code_is_no_markup() -> None:
    assert plain("<root>/a_b * c [N]") == "&lt;root&gt;/a\\_b \\* c \\[N\\]"
    assert plain("`a_b|c` x_y") == "`a_b|c` x\\_y"
    assert cell("`a|b` or c|d") == "<code>a&#124;b</code> or c&#124;d"
    assert title_of("<!-- x -->\n# Look: `a`\n", "other") == "Look: a"
    assert title_of("no heading", "other") == "other"


# ---- recipe keys -------------------------------------------------------------------------------------------------------


def leaves(model: Any, prefix: str = "") -> set[str]:
    """Dotted paths of all fields, by pydantic's own JSON schema: another road to the same names."""
    schema = model.model_json_schema()
    found: set[str] = set()

    def walk(node: dict[str, Any], path: str) -> None:
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
        for name, inner in node.get("properties", {}).items():
            found.add(f"{path}{name}")
            items = inner.get("items", {})
            for one in (inner, items, *items.get("anyOf", ()), *inner.get("anyOf", ())):
                walk(one, f"{path}{name}.")

    walk(schema, prefix)
    return found


def test_every_key_of_the_schema_is_on_the_page() -> None:
    assert "`algorithm` of a stage" in recipe_keys.page()
    listed = set(re.findall(r"^\| `([^`]+)` \|", recipe_keys.page(), re.M))
    stages = {path for kind in ("sft", "preference", "grpo", "distill") for path in leaves(SECTIONS[kind])}
    tops = set(Config.model_fields) - {"plugins"}  # sections of the page, not rows
    config = {path for path in leaves(Config) if not path.startswith("stages")} - tops
    assert listed == stages | config
    assert len(listed) > 150


@pytest.mark.parametrize(
    ("path", "kind", "default", "bounds"),
    [
        ("rollout.top_p", "float", "`1.0`", "> 0, <= 1"),
        ("rollout.num_generations", "int", "`8`", "> 0"),
        ("advantage", "method", "`grpo`", ""),
        ("until", "section or none", "none", ""),
        ("until.score", "float", "required", ">= 0, <= 1"),
        ("checkpoint_every", "int or none", "none", "> 0"),
        ("freeze", "list of one of `vision`, `projector`, `language`", "`[]`", ""),
        ("kind", "one of `grpo`", "required", ""),
    ],
)
def test_a_key_as_it_is_shown(path: str, kind: str, default: str, bounds: str) -> None:
    key = next(key for key in recipe_keys.keys_of(SECTIONS["grpo"]) if key.path == path)
    assert (key.kind, key.default, key.bounds) == (kind, default, bounds)


def test_kinds_of_stage_that_have_a_key() -> None:
    found = recipe_keys.stage_kinds()
    assert found["optim.lr"][1] == ["sft", "preference", "grpo", "distill", "teacher_sft"]
    assert found["thought_dropout"][1] == ["sft"]
    assert found["advantage"][1] == ["grpo", "distill"]
    assert found["teacher.media.max_frames"][1] == ["distill", "teacher_sft"]


# ---- methods and commands ----------------------------------------------------------------------------------------------


def test_every_method_has_its_section() -> None:
    pages = methods.pages()
    for slot, registry in registries().items():
        text = pages[f"{methods.FOLDER}/{slot}.md"]
        shown = re.findall(r"^## (\w+)$", text, re.M)
        assert sorted(shown) == registry.names()
        assert shown == sorted(shown, key=lambda name: not card(slot, name).core), "the core stands first"
        for name in registry.names():
            for parameter in registry.get(name).parameters:
                assert f"| `{parameter}` |" in text.partition(f"## {name}\n")[2].partition("\n## ")[0], (name, parameter)


def test_every_declaration_is_said() -> None:
    keys = {key for registry in registries().values() for name in registry.names() for key in registry.get(name).extra}
    assert keys <= set(SENTENCES) | set(RULES) | INTERNAL
    assert set(SENTENCES) - keys == set(), "sentences on what no method declares"


def test_sentences_on_a_method() -> None:
    found = registries()
    assert declared(found["advantage"].get("grpo")) == ["Divides by a deviation."]
    assert any(
        one.startswith("Made for `reduce` `fixed_length` or") and "length bias" in one
        for one in declared(found["advantage"].get("dr_grpo"))
    )
    (least,) = [one for one in declared(found["strategy"].get("igrpo")) if "num_generations" in one]
    assert least.startswith("Needs `rollout.num_generations` of 4 or more, of which half are drafts")


def test_every_command_has_its_page() -> None:
    from typer.main import get_command

    from vlmrl.cli import app

    pages = commands.pages()
    program: Any = get_command(app)
    for name, command in commands.every(program):
        text = pages[commands.file_of(name)]
        assert text.startswith(f"# {name}\n")
        for parameter in command.params:
            if not parameter.hidden:
                assert all(option in text for option in parameter.opts if option.startswith("--")), (name, parameter.opts)
    assert {"vlmrl tools toy make", "vlmrl tools env check", "vlmrl train"} <= {name for name, _ in commands.every(program)}
    assert "vlmrl view runs/toy_video\n```" in pages["reference/cli/view.md"]


def test_the_api_page_names_all_that_the_package_offers() -> None:
    import vlmrl

    text = api.page()
    assert all(f"`vlmrl.{name}`" in text for name in vlmrl.__all__ if name != "__version__")
