"""Training from a table: `pandas_index.py FOLDER`. A line on standard input begins an epoch.

Prints a line of JSON for each epoch: each path, its size in the table, and a digest of its content.
"""

import hashlib
import json
import sys
from pathlib import Path

import pandas

folder = Path(sys.argv[1])
for _ in sys.stdin:
    frame = pandas.read_csv(folder / ".growfs/index.csv")
    rows = [
        [path, size, hashlib.sha256((folder / path).read_bytes()).hexdigest()]
        for path, size in frame.sample(frac=1, random_state=0)[["path", "size"]].values.tolist()
    ]
    print(json.dumps(rows), flush=True)
