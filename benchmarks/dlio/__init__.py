"""DLIO, the engine of MLPerf Storage, with several loaders: docs/mlperf-storage.md.

`__main__` is the command, `rank` a process that it starts, `plugins` what DLIO loads there, and
`names` measures lists of files. Nothing here is a result of MLPerf.
"""
