"""Samples in files: opening, sizing, reading and closing many files at little cost.

`opening` has the system calls, `samples` whole files, `spans` and `containers` ranges of open ones,
`mapped` maps of these. Backends open and close them. Imports contract/, linux/ and runtime/.
"""
