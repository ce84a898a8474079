"""Manifests, a JSON object a line, for `readers.manifest` and `readers.nemo_asr`.

Begin with `lines`, the files of text; `segments` makes ranges of whole files and of pieces of
sound, by the headers of WAV that `sound` reads. The catalog is made once, when a reader opens; no
file stays open. Imports formats/, samples/ and contract/.
"""
