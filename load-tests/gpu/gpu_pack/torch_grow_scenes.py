"""The scenes of `torch_grow.py` with the memory that each may have, in MiB: known without PyTorch."""

LIMITS = {
    "steps_alone": 1024, "longer_and_longer": 6144, "kept_losses": 2048, "replay": 1024, "cached_data": 4096, "steady": 4096,
    "evaluations": 8192, "random_lengths": 6144, "survived": 6144,
}
