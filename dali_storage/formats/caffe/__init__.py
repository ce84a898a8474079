"""Records of Caffe and Caffe2: messages of protobuf in LMDB files."""
