"""LMDB files, whose values are byte ranges, for `readers.lmdb` and the family caffe.

Begin with `pages`, which finds the values by a walk over the tree; `index` makes and reads indexes,
and the catalog. A reader makes it once, when it opens, and closes each file; the pages that say
whether a database was changed are compared later by backends. Imports formats/ and contract/.
"""
