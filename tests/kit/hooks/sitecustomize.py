"""Makes torchvision importable beside a torch for CPUs.

The wheel of torchvision on PyPI is built for CUDA. Beside a torch without CUDA its library of
operators does not load, and `import torchvision` ends in "operator torchvision::nms does not
exist". Nothing that is tested here needs these operators, but they must be declared.

Python imports this module at its start where its folder is in PYTHONPATH; conftest.py sees to that
for pytest itself, its subprocesses and the kernels of notebooks.
"""

import sys


class _Declarations:
    """Finds no module. Declares the operators before torchvision uses them, unless it has them."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname == "torchvision._meta_registrations":
            import torch

            if torch.version.cuda is None and not sys.modules["torchvision.extension"]._has_ops():
                self.library = torch.library.Library("torchvision", "DEF")
                for name in ("nms", "qnms"):
                    self.library.define(f"{name}(Tensor dets, Tensor scores, float iou) -> Tensor")


# A process of pytest-xdist imports this at its start, and conftest.py once more.
if "_Declarations" not in {type(finder).__name__ for finder in sys.meta_path}:
    sys.meta_path.insert(0, _Declarations())
