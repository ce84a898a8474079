"""What is shown, on the standard error output, while it runs."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from .work import Tick

_REFRESH_SECONDS = 0.25


class Display:
    """A live bar on a terminal; elsewhere a line for each step.

    It draws only when it is told of progress, never from a thread of its own, and seldom: it shares
    the interpreter with what is measured.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}% {task.fields[speed]}"),
            TimeRemainingColumn(),
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,  # the table goes where the user sends it
            redirect_stderr=False,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Show a line that stays."""
        self._console.print(text, soft_wrap=True)

    def start(self, step: str, total: int) -> Tick:
        """Begin a step of `total` samples; tell the result how many are done."""
        if not self._console.is_terminal:
            return lambda done: None
        if self._task is not None:
            self._bar.remove_task(self._task)
        task = self._task = self._bar.add_task(step, total=total, speed="")
        self._bar.refresh()
        first_done, began, drawn = 0, 0.0, 0.0

        def tick(done: int) -> None:
            nonlocal first_done, began, drawn
            now = time.perf_counter()
            if not began:  # with the first sample, lest the speed be that of opening the data set
                first_done, began, drawn = done, now, now
            elif now - drawn >= _REFRESH_SECONDS:
                drawn = now
                speed = f"{(done - first_done) / (now - began):,.0f} img/s"
                self._bar.update(task, completed=done, speed=speed, refresh=True)

        return tick
