"""What training and inference of models of the transformers library take: `torch_footprints.py MODEL...`.

A line for each run: the peaks of PyTorch's allocator, and what the process has by NVML. Weights are random, as their
values need no other memory. It answers with `{"done": true}` at the end.
"""

import ctypes
import gc
import json
import os
import sys
import traceback

import torch

MIB = 1 << 20
TRAINING_STEPS = 4
NEW_TOKENS = 64

# The numbers of published models.
CONFIGS = {
    "gpt2": dict(model_type="gpt2"),
    "gpt2-medium": dict(model_type="gpt2", n_embd=1024, n_layer=24, n_head=16),
    "opt-350m-like": dict(model_type="opt", hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, ffn_dim=4096,
                          vocab_size=50272, max_position_embeddings=2048, word_embed_proj_dim=1024),
    "pythia-410m": dict(model_type="gpt_neox", hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
                        intermediate_size=4096, vocab_size=50304, max_position_embeddings=2048,
                        tie_word_embeddings=False),
    "qwen2.5-0.5b": dict(model_type="qwen2", hidden_size=896, num_hidden_layers=24, num_attention_heads=14,
                         num_key_value_heads=2, intermediate_size=4864, vocab_size=151936, tie_word_embeddings=True),
    "llama-3.2-1b": dict(model_type="llama", hidden_size=2048, num_hidden_layers=16, num_attention_heads=32,
                         num_key_value_heads=8, head_dim=64, intermediate_size=8192, vocab_size=128256,
                         tie_word_embeddings=True),
    "smollm2-360m": dict(model_type="llama", hidden_size=960, num_hidden_layers=32, num_attention_heads=15,
                         num_key_value_heads=5, intermediate_size=2560, vocab_size=49152, tie_word_embeddings=True),
    "bert-base": dict(model_type="bert"),
    "bert-large": dict(model_type="bert", hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
                       intermediate_size=4096),
    "roberta-base": dict(model_type="roberta", vocab_size=50265, max_position_embeddings=514),
    "distilbert": dict(model_type="distilbert"),
    "t5-base": dict(model_type="t5", d_model=768, d_ff=3072, num_layers=12, num_heads=12, d_kv=64, vocab_size=32128),
}
ENCODERS = ("bert", "roberta", "distilbert")

# Batch, tokens, format, optimizer, checkpointing. Inference generates.
DECODER_RUNS = (
    (2, 512, "float32", "sgd", False), (4, 512, "float32", "adamw", False), (4, 1024, "mixed", "adamw", False),
    (4, 1024, "mixed", "adamw", True), (4, 1024, "bfloat16", "adamw", False), (1, 256, "mixed", "adamw", False),
    (8, 512, "bfloat16", "adamw", True), (1, 512, "bfloat16", "none", False), (8, 960, "bfloat16", "none", False),
    (4, 512, "float32", "none", False),
)
ENCODER_RUNS = (
    (8, 128, "float32", "sgd", False), (16, 256, "float32", "adamw", False), (32, 128, "mixed", "adamw", False),
    (16, 512, "mixed", "adamw", False), (16, 512, "mixed", "adamw", True), (16, 512, "bfloat16", "adamw", False),
    (64, 512, "bfloat16", "none", False),
)


def process_bytes():
    """Returns what this process has by NVML, its context included; None if NVML does not state it."""

    class Process(ctypes.Structure):
        _fields_ = [
            ("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("instance", ctypes.c_uint), ("compute", ctypes.c_uint),
        ]

    library = ctypes.CDLL("libnvidia-ml.so.1")
    library.nvmlInit_v2()
    device, count, found = ctypes.c_void_p(), ctypes.c_uint(256), (Process * 256)()
    library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
    if library.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), found) != 0:
        return None
    of_process = [one.used for one in found[: count.value] if one.pid == os.getpid()]
    return of_process[0] if of_process and of_process[0] < 1 << 60 else None


def build(name, form):
    """Returns the model with random weights."""
    import transformers

    numbers = dict(CONFIGS[name])
    config = transformers.AutoConfig.for_model(numbers.pop("model_type"), **numbers)
    if config.model_type == "t5":
        config.decoder_start_token_id = 0
    kind = config.model_type
    if kind in ENCODERS:
        family = transformers.AutoModelForSequenceClassification
    elif kind == "t5":
        family = transformers.AutoModelForSeq2SeqLM
    else:
        family = transformers.AutoModelForCausalLM
    # Weights are made in their own format: in another they would need more first.
    with torch.device("cuda"):
        return family.from_config(config, dtype=torch.bfloat16 if form == "bfloat16" else torch.float32), config


def train(name, batch, length, form, optimizer, checkpointing):
    net, config = build(name, form)
    net.train()
    if checkpointing:
        net.gradient_checkpointing_enable()
        net.config.use_cache = False
    kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    optimizer = kinds[optimizer](net.parameters(), lr=1e-5)
    for _ in range(TRAINING_STEPS):
        tokens = torch.randint(0, config.vocab_size, (batch, length), device="cuda")
        labels = torch.zeros(batch, dtype=torch.long, device="cuda") if config.model_type in ENCODERS else tokens
        with torch.autocast("cuda", torch.bfloat16, enabled=form == "mixed"):
            loss = net(input_ids=tokens, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    return sum(weight.numel() for weight in net.parameters())


def infer(name, batch, length, form):
    net, config = build(name, form)
    net.eval()
    tokens = torch.randint(5, config.vocab_size, (batch, length), device="cuda")
    with torch.inference_mode():
        if config.model_type in ENCODERS:
            for _ in range(3):
                net(input_ids=tokens)
        else:
            net.generate(tokens, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0,
                         attention_mask=torch.ones_like(tokens))
    torch.cuda.synchronize()
    return sum(weight.numel() for weight in net.parameters())


def run(name, batch, length, form, optimizer, checkpointing):
    """Returns one run's figures."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    # What earlier runs left, which the allocator can't return.
    facts = {
        "left_mib": torch.cuda.memory_stats(0)["reserved_bytes.all.current"] // MIB if torch.cuda.is_initialized() else 0,
        "model": name, "batch": batch, "tokens": length, "format": form, "optimizer": optimizer,
        "checkpointing": checkpointing,
    }
    try:
        if optimizer == "none":
            facts["parameters"] = infer(name, batch, length, form)
        else:
            facts["parameters"] = train(name, batch, length, form, optimizer, checkpointing)
    except Exception as error:  # One that fails proves nothing about the others.
        return dict(facts, error="%s: %s" % (type(error).__name__, str(error)[:300]), trace=traceback.format_exc()[-800:])
    stats = torch.cuda.memory_stats(0)
    held = process_bytes()
    return dict(
        facts, allocated_mib=stats["allocated_bytes.all.peak"] // MIB, reserved_mib=stats["reserved_bytes.all.peak"] // MIB,
        context_mib=(held - stats["reserved_bytes.all.current"]) // MIB if held else None,
    )


def main():
    for name in sys.argv[1:]:
        runs = ENCODER_RUNS if CONFIGS[name]["model_type"] in ENCODERS else DECODER_RUNS
        for one in runs:
            print(json.dumps(run(name, *one)), flush=True)
    print(json.dumps({"done": True}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
