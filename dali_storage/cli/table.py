"""Tables that can be copied: no cell is cut or hyphenated, and lines fit in the terminal."""

import shutil
import textwrap

from bmap_tools import console


def print_table(headings: list[str], rows: list[list[str]]) -> None:
    """Print a line for each name in a first cell, and the last two columns in lines below."""
    lines = [(name, *cells) for names, *cells in [headings, *rows] for name in names.split(", ")]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for names, *cells, why_not, what_to_do in [[*headings[:-2], "", ""], *rows]:
        for name in names.split(", "):
            *first, last = name, *cells
            start = "".join(f"{it:<{width}}  " for it, width in zip(first, widths, strict=False))
            print_wrapped(start, last)
        for heading, text in zip(headings[-2:], (why_not, what_to_do), strict=True):
            if text:
                print_wrapped(f"    {heading}: ", text)
    print()


def print_wrapped(start: str, text: str) -> None:
    """Print a text after `start`, in its column, as far as words fit in a terminal's width."""
    room = max(shutil.get_terminal_size().columns - len(start), 20)
    wrapper = textwrap.TextWrapper(room, break_long_words=False, break_on_hyphens=False)
    for line in wrapper.wrap(text) or [""]:
        console.print_result((start + line).rstrip())
        start = " " * len(start)
