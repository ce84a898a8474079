"""The pages: README, CONTRIBUTING, CHANGELOG and docs/, and their snippets."""

import re

from tests.kit.paths import ROOT

DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    ]
)


def text_of(document: str) -> str:
    return (ROOT / document).read_text()


def snippets(document: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text_of(document), re.DOTALL | re.MULTILINE)


def prose_of(document: str) -> str:
    """A document without its code blocks."""
    return re.sub(r"^```.*?^```", "", text_of(document), flags=re.DOTALL | re.MULTILINE)
