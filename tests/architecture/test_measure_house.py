"""The measurements of the source, on small trees whose numbers are counted by hand."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from source_measures.functions import code_lines, complexity, init_fields, parameters
from source_measures.imports import circles
from source_measures.settings import Declarations
from source_measures.source import Source, read
from source_measures.vocabulary import identifiers, occurrences, replaced_terms, words

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/measure_house"


def tree(folder: Path, **files: str) -> list[Source]:
    """Write a source tree and read it: `pkg__module` is pkg/module.py, `pkg__init` is pkg/__init__.py."""
    for name, text in files.items():
        *folders, stem = name.split("__")
        path = folder.joinpath(*folders, f"{'__init__' if stem == 'init' else stem}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
    return read(folder, folder)


def function(text: str) -> ast.FunctionDef:
    node = ast.parse(dedent(text)).body[0]
    assert isinstance(node, ast.FunctionDef)
    return node


def measured(*arguments: Path | str) -> dict[str, Any]:
    command = [sys.executable, str(SCRIPT), "--json", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    columns: dict[str, Any] = json.loads(result.stdout)
    return columns


# --- lines and functions ---


def test_lines_of_code_are_neither_blank_nor_comment_nor_docstring() -> None:
    text = '''\
    """A module.

    Of two paragraphs.
    """

    # a comment
    LIMIT = 3  # counts
    """What follows an attribute."""

    def f(
        a: int,
    ) -> str:
        """A docstring."""
        return """

    counts"""
    '''
    assert code_lines(Source("m.py", "m", dedent(text), is_package=False)) == 1 + 3 + 2


@pytest.mark.parametrize(
    ("signature", "in_class", "expected"),
    [
        ("f()", False, 0),
        ("f(a, /, b, *c, d, **e)", False, 5),
        ("f(self, a, *, b=1)", True, 2),
        ("f(cls)", True, 0),
        ("f(self, a)", False, 2),
        ("f(a, b)", True, 2),  # a static method
    ],
)
def test_parameters_are_counted_without_self_and_cls(signature: str, in_class: bool, expected: int) -> None:
    assert parameters(function(f"def {signature}: ..."), in_class=in_class) == expected


def test_fields_are_the_parameters_of_the_generated_init() -> None:
    (node,) = ast.parse(
        dedent("""\
        class A:
            a: int
            b: ClassVar[int] = 1
            c: int = field(init=False)
            _: KW_ONLY
            d: int = field(default=2)
            e = 3
        """)
    ).body
    assert isinstance(node, ast.ClassDef)
    assert init_fields(node) == ["a", "d"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return a", 1),
        ("if a: pass\nelif b: pass\nelse: pass", 3),
        ("return a and b and (c or d)", 4),
        ("return a if b else c", 2),
        ("for x in a: pass\nelse: pass", 3),
        ("while a: break", 2),
        ("try: pass\nexcept A: pass\nexcept B: pass\nelse: pass\nfinally: pass", 4),
        ("return [x for x in a if x if b for y in x]", 5),
        ("assert a and b", 2),
        ("with a: pass", 1),
        ("match a:\n    case 1: pass\n    case 2 if b: pass\n    case _: pass", 3),
        ("def g():\n    if a: pass\nreturn lambda: a or b", 2),
    ],
)
def test_complexity_counts_each_branch(body: str, expected: int) -> None:
    indented = body.replace("\n", "\n    ")
    assert complexity(function(f"def f():\n    {indented}\n")) == expected


# --- imports ---


def test_a_cycle_consists_of_modules_that_reach_each_other(tmp_path: Path) -> None:
    sources = tree(
        tmp_path,
        pkg__init="",
        pkg__a="from pkg import b",
        pkg__b="import pkg.c",
        pkg__c="from pkg.a import name\nimport os",
        pkg__d="from pkg import a",  # reaches the cycle, and is not reached
    )
    assert circles(sources, deferred=False) == [("pkg.a", "pkg.b", "pkg.c")]


def test_imports_in_functions_and_for_type_checking_are_deferred(tmp_path: Path) -> None:
    sources = tree(
        tmp_path,
        pkg__init="from pkg.e import name",
        pkg__a="def f():\n    from pkg import b",
        pkg__b="from pkg import a",
        pkg__c="if typing.TYPE_CHECKING:\n    from pkg import d\nelse:\n    import os",
        pkg__d="import pkg.c",
        pkg__e="import pkg.a",  # the package imports it, but it takes no name from the package
    )
    assert circles(sources, deferred=False) == []
    assert circles(sources, deferred=True) == [("pkg.a", "pkg.b"), ("pkg.c", "pkg.d")]


def test_a_name_imported_from_its_own_package_closes_a_cycle(tmp_path: Path) -> None:
    sources = tree(tmp_path, pkg__init="from pkg.a import f", pkg__a="from pkg import f")
    assert circles(sources, deferred=False) == [("pkg", "pkg.a")]


# --- settings ---


def test_a_setting_is_declared_twice_where_two_places_give_it_bounds_or_a_default(tmp_path: Path) -> None:
    sources = tree(
        tmp_path,
        config__sections="""\
            class TrainingSettings(BaseModel):
                momentum: float = Field(0.0, ge=0)
                steps: int = 5
                mu: float = 1.0

            class PartitionSettings(BaseModel):
                alpha: float = 0.3
                name: Literal["iid", "dirichlet"]
            """,
        parts__base="class LocalTraining(BaseModel):\n    steps: int = Field(ge=1)",
        parts__sgd="from parts.base import LocalTraining\n\nclass Sgd(LocalTraining):\n    momentum: float = 0.5",
        parts__prox="from parts import base\n\nclass Prox(base.LocalTraining):\n    mu: float",
        wire__messages="""\
            Share = Annotated[float, Field(gt=0)]
            Name = Share

            class PartitionPlan(BaseModel):
                alpha: Share | None
                name: Name
                size: int
            """,
    )
    assert Declarations(sources).declared_twice() == {
        "partition.alpha": ["config/sections.py:7", "wire/messages.py:5"],
        "partition.name": ["config/sections.py:8", "wire/messages.py:6"],
        "training.momentum": ["config/sections.py:2", "parts/sgd.py:4"],
        "training.steps": ["config/sections.py:3", "parts/base.py:2"],
    }


def test_the_parts_of_a_section_count_as_one_place(tmp_path: Path) -> None:
    sources = tree(
        tmp_path,
        parts="""\
            class Partition(BaseModel, Generic[T]):
                seed: int = 0

            class Dirichlet(Partition[int]):
                alpha: float = 0.3

            class SlowClass(Partition[int]):
                alpha: float = 0.5
                seed: int = 1
            """,
    )
    assert Declarations(sources).declared_twice() == {}


def test_aliases_and_none_on_the_wire_are_formats_and_declare_nothing(tmp_path: Path) -> None:
    sources = tree(
        tmp_path,
        config="""\
            class Settings(BaseModel):
                lease_s: float = 10.0
                seed: int = 0
                clients: int = 20
                rounds: int = 200
            """,
        unstale_proto__messages="""\
            Count = Annotated[int, Field(ge=0)]

            class Welcome(BaseModel):
                seed: Count
                rounds: Count | None = None
                clients: Annotated[int, Field(ge=1)]
                lease_s: float = 10.0
            """,
    )
    assert list(Declarations(sources).declared_twice()) == ["clients", "lease_s"]


def test_a_dataclass_without_settings_in_its_name_is_not_a_section(tmp_path: Path) -> None:
    sources = tree(
        tmp_path,
        config="class ClientSettings(BaseModel):\n    count: int = 1",
        core="@dataclass\nclass Client:\n    count: int = 0",
    )
    assert Declarations(sources).declared_twice() == {}


def test_sections_constants_and_classes_of_other_kinds_declare_nothing(tmp_path: Path) -> None:
    sources = tree(
        tmp_path,
        config="""\
            @dataclass(frozen=True)
            class RunSettings:
                directory: str = "run"

            class Settings(BaseSettings):
                run: RunSettings = RunSettings()
                k: ClassVar[int] = 1

            class Coordinator(BaseModel):
                run: RunSettings = RunSettings()
                k: int = 1

            class Run:
                directory: str = "elsewhere"
            """,
    )
    assert Declarations(sources).declared_twice() == {}


# --- vocabulary ---


def test_names_are_split_into_words() -> None:
    assert words("say_later") == " say later "
    assert words("_HTTPServer2") == " HTTP Server 2 "
    assert words("AS_IT_IS") == " AS IT IS "


def test_only_identifiers_are_counted(tmp_path: Path) -> None:
    (source,) = tree(tmp_path, m='import gate.keys\ndef gate(a):\n    """gate"""\n    return a.gate(gate="gate")')
    assert identifiers(source) == {" gate ": 4, " keys ": 1, " a ": 2}


def test_a_term_matches_whole_words_paths_and_modules(tmp_path: Path) -> None:
    sources = tree(
        tmp_path,
        net__gate="class Gate: ...\ndef open_gate(): gate = aggregate = 1",
        net__keys="import net.gate\nin_place = place = 1",
    )
    assert occurrences(sources, ["Gate", "gate", "=place", "place", "net/gate", "keys:place", "gate:place"]) == {
        "Gate": 1 + 1,  # the class, and the module
        "gate": 3 + 1,  # a function, a variable and an import, and the module
        "=place": 1,
        "place": 2,
        "net/gate": 1,
        "keys:place": 2,
        "gate:place": 0,
    }


def test_every_replaced_term_has_a_replacement() -> None:
    terms = replaced_terms()
    assert terms["Exchange"] == "ServerProtocol"
    assert all(terms.values())


# --- the whole ---


def test_the_papers_are_counted_separately(tmp_path: Path) -> None:
    tree(
        tmp_path / "services",
        pkg__init='"""What it is."""',
        pkg__module="def f(a, b, c, d, e, f, g, h, i, j, k): ...",
        pkg__net__gate="class Gate:\n    def f(self):\n        # what\n        return 1",
        pkg__papers__table="import pkg\n\nwhatever = 1",
    )
    columns = measured(tmp_path / "services", "--papers", tmp_path / "services/pkg/papers")
    product, papers = columns["product"], columns["papers"]
    assert (product["files"], product["lines"], product["code_lines"]) == (3, 1 + 1 + 4, 0 + 1 + 3)
    assert product["lines_by_package"] == {"pkg": [2, 1], "pkg.net": [4, 3]}
    assert (product["module_lines_median"], product["module_lines_max"]) == (1, 4)
    assert (product["functions"], product["function_lines_median"], product["function_lines_max"]) == (2, 2, 3)
    assert product["parameters_max"] == 11
    assert product["many_parameters"] == [["services/pkg/module.py:1", "f", 11]]
    assert (product["complexity_max"], product["complex_functions"]) == (1, [])
    assert (product["what"], product["files_with_what"]) == (2, 2)
    assert product["terms"]["Gate"] == 2
    assert (papers["files"], papers["lines"], papers["code_lines"], papers["what"]) == (1, 3, 2, 0)
    assert papers["functions"] == 0


def test_tests_below_a_root_are_not_counted(tmp_path: Path) -> None:
    tree(tmp_path / "papers", pkg__a="x = 1", pkg__tests__b="y = 2", tests__test_a="def test_a(): ...")
    tree(tmp_path / "services", pkg__c="")
    columns = measured(tmp_path / "services", "--papers", tmp_path / "papers")
    assert (columns["product"]["files"], columns["papers"]["files"]) == (1, 2)


def test_the_table_lists_each_function_over_a_limit(tmp_path: Path) -> None:
    tree(
        tmp_path / "src",
        pkg__a="def f():\n" + "    if a: pass\n" * 10,  # 11
        pkg__b="def g():\n" + "    if a: pass\n" * 15 + "def h():\n" + "    if a: pass\n" * 9,  # 16 and 10
    )
    column = measured(tmp_path / "src")["product"]
    assert column["complex_functions"] == [["src/pkg/b.py:1", "g", 16], ["src/pkg/a.py:1", "f", 11]]
    assert (column["complexity_max"], column["very_complex_functions"]) == (16, 1)
    command = [sys.executable, str(SCRIPT), str(tmp_path / "src")]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "functions with complexity over 10" in table
    assert "      16  src/pkg/b.py:1 g\n      11  src/pkg/a.py:1 f\n" in table
