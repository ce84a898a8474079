"""A hook of MkDocs: the pages of the site that are not files in docs/.

* CONTRIBUTING.md, CHANGELOG.md and SECURITY.md;
* `api/`: a page for each public module, with the names in its `__all__`;
* `source/`: the files of the repository to which pages link, such as examples.
"""

import ast
import json
import posixpath
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
OTHERS = {f"{name}.md": f"{name.lower()}.md" for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY")}
"""The site's name of each page outside of docs/."""
API = {
    "dali_storage": "The contract of backends and formats, errors, and functions for all readers.",
    "dali_storage.readers": "The readers, as in `nvidia.dali.fn.readers`. Arguments that readers "
    "share, and their defaults (`...`), are described by `file`.",
    "dali_storage.loaders": "Pipelines for training, and the `Loader` that runs them. Options that "
    "loaders share, and their defaults (`...`), are described by `Settings`.",
    "dali_storage.loaders.transforms": "Transforms of images. Presets are made of them.",
    "dali_storage.ops.readers": "The readers as classes, as in `nvidia.dali.ops.readers`.",
    "dali_storage.dynamic.readers": "The readers of DALI's dynamic mode.",
    "dali_storage.ranks": "The rank of this process, and a comparison of all ranks.",
    "dali_storage.prometheus": "Metrics for Prometheus.",
    "dali_storage.testing": "The tests that a backend must pass.",
    "bmap_tools": "Extent maps.",
}
API = {it: about for it, about in API.items() if any(ROOT.glob(f"{it.replace('.', '/')}*"))}
MORE = {
    "dali_storage.dynamic.readers": ["dali_storage.dynamic.reader.DynamicReader"],
    "dali_storage.loaders": ["dali_storage.loaders.datasets.settings.Settings"],
    "dali_storage.ops.readers": ["dali_storage.ops.readers.ReaderOperator"],
}
"""Names that docstrings of a page refer to, shown last."""
FIRST = ("file", "webdataset")
"""The readers that most people look for."""
SHIM = "https://unpkg.com/iframe-worker/shim"
"""What the theme would load from a network for a search from the disk."""
ITEM = re.compile(r"<li class=\"doc-section-item.*?</li>", re.DOTALL)
UNEXPLAINED = re.compile(r"<div class=\"doc-md-description\">\s*</div>\s*</li>")
UNKNOWN = re.compile(r",\s*default:\s*<code>\.\.\.</code>")
NO_ITEMS = re.compile(r"<p><span class=\"doc-section-title\">[^<]*</span></p>\s*<ul>\s*</ul>")
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
FAMILIES = "<!-- families -->"
"""Where the page on the design shows the table of dali_storage/contract/families.md."""
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def on_config(config: Any) -> Any:
    """Say which version the site describes."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    config.copyright = f"dali_storage {version} · BSD-3-Clause"
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages."""
    texts = {name: (ROOT / name).read_text() for name in OTHERS}
    pages = {OTHERS[name]: text for name, text in texts.items()}
    pages |= {f"api/{module}.md": reference(module) for module in API}
    texts |= {f"docs/{it.src_uri}": short(it.content_string) for it in files.documentation_pages()}
    linked = {resolved(name, link) for name, text in texts.items() for link in LINK.findall(text)}
    linked |= {module_path(module).relative_to(ROOT).as_posix() for module in API}
    for name in sorted(linked - {*texts}):
        if (ROOT / name).is_file() and not name.startswith("docs/"):
            pages[f"source/{name}.md"] = source(name)
    for uri, content in pages.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links to files of the repository into links to pages; show the table of families."""
    uri = page.file.src_uri
    here = {new: old for old, new in OTHERS.items()}.get(uri, f"docs/{uri}")
    if uri.startswith("source/"):
        here = uri.removeprefix("source/").removesuffix(".md")

    if FAMILIES in markdown:
        table = (ROOT / "dali_storage/contract/families.md").read_text()
        markdown = markdown.replace(FAMILIES, table)

    def on_the_site(link: re.Match[str]) -> str:
        name = resolved(here, link[1])
        there = OTHERS.get(name) or f"source/{name}.md"
        if name.startswith("docs/"):
            there = name.removeprefix("docs/")
        return f"]({posixpath.relpath(there, posixpath.dirname(uri))}"

    return markdown if uri.startswith("api/") else LINK.sub(on_the_site, short(markdown))


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Drop parameters without a text: another entry of the page describes them."""
    if not page.file.src_uri.startswith("api/"):
        return html
    html = ITEM.sub(lambda it: "" if UNEXPLAINED.search(it[0]) else UNKNOWN.sub("", it[0]), html)
    return NO_ITEMS.sub("", html)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Search pages from the disk without a network."""
    ours = posixpath.relpath("assets/frame_worker.js", posixpath.dirname(page.file.dest_uri))
    return output.replace(SHIM, ours)


def on_post_template(output_content: str, template_name: str, **_: Any) -> str:
    """The same for the page of errors."""
    return output_content.replace(SHIM, "/assets/frame_worker.js")


def short(markdown: str) -> str:
    """Turn the paths of tests into short links to their files."""

    def link(it: re.Match[str]) -> str:
        folder = "tests" if (ROOT / "tests" / it[1]).exists() else "dali_storage"
        return f'[test](../{folder}/{it[1]} "{it[2]}")'

    return TEST.sub(link, markdown)


def resolved(page: str, link: str) -> str:
    """The path that a link on a page leads to, from the root of the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def module_path(module: str) -> Path:
    """The file of a module."""
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def reference(module: str) -> str:
    """A page of the reference: all public names, constants last."""
    path = module_path(module)
    nodes = [it for it in ast.parse(path.read_text()).body if isinstance(it, ast.Assign)]
    assigned = {ast.unparse(it.targets[0]): it.value for it in nodes}
    names = ast.literal_eval(assigned["__all__"])
    calls = {it: value for it, value in assigned.items() if isinstance(value, ast.Call)}
    made = [f"* `{it}`: `{ast.unparse(calls[it].args[1])}`" for it in names if it in calls]
    names = [it for it in names if it not in calls]
    names = [it for it in names if f"{module}.{it}" not in API]  # these have a page of their own
    # A function with the name of its module, as readers.lmdb.lmdb, would be taken for the module.
    paths = {it: f"{it}.{it}" if (path.parent / f"{it}.py").exists() else it for it in names}
    names.sort(key=lambda it: (it.isupper(), it not in FIRST, it))
    shown = [f"::: {module}.{paths[name]}\n" for name in names]
    shown += [f"::: {it}\n" for it in MORE.get(module, ())]
    code = f"[Source](../source/{path.relative_to(ROOT).as_posix()}.md)\n"
    return "\n".join([f"# {module}\n", f"{API[module]} {code}", *made, "", *shown])


def source(name: str) -> str:
    """A file as a page; of a notebook its cells and what they show."""
    text = (ROOT / name).read_text()
    hidden = "---\nsearch: {exclude: true}\n---\n\n"
    if name.endswith(".ipynb"):
        return hidden + "\n\n".join(part for it in json.loads(text)["cells"] for part in cell(it))
    return f"{hidden}# {name}\n\n```python\n{text}```\n"


def cell(it: Any) -> Iterator[str]:
    """A cell of a notebook as Markdown, followed by its outputs."""
    code = "".join(it["source"])
    yield f"```python\n{code}\n```" if it["cell_type"] == "code" else code
    for output in it.get("outputs", []):
        if "text" in output:
            yield f"```text\n{''.join(output['text'])}```"
        for kind in {*output.get("data", {})} & {"image/jpeg", "image/png"}:
            yield f'<img src="data:{kind};base64,{"".join(output["data"][kind])}">'
