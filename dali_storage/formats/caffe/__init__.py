"""Records of Caffe and Caffe2, which are messages of protobuf in LMDB files."""
