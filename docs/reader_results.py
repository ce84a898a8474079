"""An extension of griffe: the reference shows the result of a reader, not `Prepared[result]`."""

from typing import Any

import griffe


class ReaderResults(griffe.Extension):
    """Changes the return annotations, as the decorator of readers does."""

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """See griffe."""
        made = func.returns
        if isinstance(made, griffe.ExprSubscript) and str(made.left) == "Prepared":
            func.returns = made.slice
