"""Training with TFRecordDataset: `tfrecord_epochs.py FOLDER`. A line on standard input begins an epoch.

Prints a line of JSON for each epoch: the shards in the order of their names, and a digest of the records of each.
"""

import hashlib
import json
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import tensorflow as tf

folder = sys.argv[1]
for _ in sys.stdin:
    shards = sorted(tf.io.gfile.glob(f"{folder}/train-*.tfrecord"))
    together = tf.data.TFRecordDataset(shards, num_parallel_reads=4).map(tf.strings.length).as_numpy_iterator()
    records = {}
    for shard in shards:
        digest = hashlib.sha256()
        for record in tf.data.TFRecordDataset(shard).as_numpy_iterator():
            digest.update(len(record).to_bytes(8, "big") + record)
        records[os.path.basename(shard)] = digest.hexdigest()
    print(json.dumps({"records": records, "bytes": int(sum(together))}), flush=True)
