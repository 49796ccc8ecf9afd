"""`python -m growfs`: the `growfs` command, wherever the interpreter finds growfs."""

import growfs

growfs.main()
