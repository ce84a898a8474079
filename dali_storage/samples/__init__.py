"""The samples of a data set: DALI's rules for directories, lists, URLs and indexes.

Read `discovery` first; `finding` adds `listed`: indexes (`index_file`) and stores (`listing`).
`locations` and `patterns` check arguments; `walk`, `templates` and `frames` find samples of several
files, `joining` mixes data sets, `hub` finds the files of a hub's. All is found before a reader
reads. Imports contract/, bmap_tools/.
"""
