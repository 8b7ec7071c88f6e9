import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
torch.set_num_threads(1)  # small tensors, and the same bits as a process with OMP_NUM_THREADS=1
