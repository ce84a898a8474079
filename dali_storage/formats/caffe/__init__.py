"""Records of Caffe and Caffe2 in LMDB files, for `readers.caffe` and `readers.caffe2`.

Begin with `records`, what both have in common; `datum` has the images and labels of Caffe,
`tensors` the outputs of Caffe2. Works on bytes in memory, in the lanes; the catalog is that of
formats/lmdb/. Imports formats/ and contract/.
"""
