"""The tables of docs/backend-options.md: `python -m tests.kit.option_tables` writes them."""

import inspect
import re

from dali_storage.contract import registry
from dali_storage.contract.options import Option
from dali_storage.contract.reader import Reader
from tests.kit.paths import ROOT

PAGE = ROOT / "docs" / "backend-options.md"


def options_of(backend: type[Reader]) -> dict[str, Option]:
    found: dict[str, Option] = getattr(backend.__init__, "options", {})  # type: ignore[misc]
    return found


def helps(backend: type[Reader]) -> dict[str, str]:
    """What the constructor's docstring says of each argument."""
    text = inspect.getdoc(backend.__init__) or ""  # type: ignore[misc]
    arguments = re.search(r"^Args:\n((    .*\n?)+)", text, re.MULTILINE)
    entries = re.split(r"^    (?=\w)", arguments[1] if arguments else "", flags=re.MULTILINE)[1:]
    split = [re.split(r"(?: \(.*?\))?: ", " ".join(entry.split()), maxsplit=1) for entry in entries]
    return {name: meaning[0].upper() + meaning[1:] for name, meaning in split}


def table(backend: str) -> str:
    """The table of a backend in Markdown; empty if it has no options."""
    reader = registry.load(backend)
    rows = []
    for name, option in options_of(reader).items():
        required = option.default is inspect.Parameter.empty
        default = "required" if required else f"`{option.default!r}`".replace("'", '"')
        values = re.sub(r"^an? (integer|number) from ", "", str(option))
        cells = f"`{name}`", default, values, helps(reader)[name]
        rows.append(f"| {' | '.join(cells)} |\n")
    if not rows:
        return ""
    text = "".join(["| option | default | values | meaning |\n", "|---|---|---|---|\n", *rows])
    text = re.sub(r"docs/([\w-]+\.md)", lambda it: f"[{_title(it[0])}]({it[1]})", text)
    return re.sub(r"(?<!`)\b(None|True|False)\b(?!`)", r"`\1`", text)


def _title(page: str) -> str:
    return (ROOT / page).read_text().partition("\n")[0].removeprefix("# ")


def page() -> str:
    """The page with all tables as they should be."""
    text = PAGE.read_text()
    for backend in registry.names():
        section = re.search(rf"^## {backend}\n.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        assert section, f"{PAGE} has no section {backend}"
        old = re.search(r"(^\|.*\n)+", section[0], re.MULTILINE)
        body = section[0].replace(old[0], table(backend)) if old else section[0]
        text = text.replace(section[0], body)
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
