"""The commands of `python -m dali_storage`, a module each.

`doctor` (which backends and devices work), `data` (how data would be read), `index` with
`index_samples` and `index_coco`, `check` (bad samples), `prove`,
`receipt`, and `replay` (the samples of a step). See `tests/docs/imports.txt`.
"""
