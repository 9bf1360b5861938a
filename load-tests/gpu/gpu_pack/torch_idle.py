"""A program that imports PyTorch and does nothing with a device."""

import json
import threading
import time

import torch


def main():
    # Longer than two looks of the companion.
    time.sleep(2.5)
    print(json.dumps({"initialised": torch.cuda.is_initialized(), "threads": threading.active_count()}), flush=True)


if __name__ == "__main__":
    main()
