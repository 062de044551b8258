"""Times in PyTorch the ops that `crates/cpu/benches/ops.rs` times, under the same names.

    python torch_ops.py [group] [name=PART] [dtype=NAME] [runs=N]

Groups: matmul, attention, head_loss, optimizer. Prints a line a row: name, tab, median in ms. `cargo xtask bench ops
--against-torchtune VENV` alternates this script with our bench. Attention is `scaled_dot_product_attention` on keys and
values that were repeated for the heads that share them; the head and its loss are torchtune's chunked output loss.
"""

import statistics
import sys
import time

import torch
import torch.nn.functional as F

TOKENS = 1024
LAYERS = [
    (576, 576), (576, 192), (576, 1536), (1536, 576),
    (2048, 2048), (2048, 512), (2048, 8192), (8192, 2048),
    (4096, 4096), (4096, 1024), (4096, 14336), (14336, 4096),
]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# After so many seconds a row has been measured enough, however few its runs.
ENOUGH_SECS = 8.0
CHUNKS = 8

options = dict(arg.split("=", 1) for arg in sys.argv[1:] if "=" in arg)
groups = [arg for arg in sys.argv[1:] if "=" not in arg]
part, runs = options.get("name", ""), int(options.get("runs", "5"))


def row(name, op, prepare=lambda: ()):
    """Times `op(*prepare())`, the op alone."""
    if part not in name:
        return
    op(*prepare())
    times, begin = [], time.perf_counter()
    while (
        not times
        or (len(times) < runs and time.perf_counter() - begin < ENOUGH_SECS)
        or time.perf_counter() - begin < 0.1
    ):
        prepared = prepare()
        start = time.perf_counter()
        op(*prepared)
        times.append(time.perf_counter() - start)
    print(f"{name}\t{statistics.median(times) * 1e3}", flush=True)


def normal(shape, dtype, grad=False):
    return (torch.randn(shape) * 0.5).to(dtype).requires_grad_(grad)


def matmul(name, dtype):
    for k, n in LAYERS:
        m = TOKENS
        names = [f"matmul_{layout} {name} {m}x{k}x{n}" for layout in ("nt", "nn", "tn")]
        if not any(part in row_name for row_name in names):
            continue
        x, w, dy = normal((m, k), dtype), normal((n, k), dtype), normal((m, n), dtype)
        y, dx, dw = torch.empty_like(dy), torch.empty_like(x), torch.empty_like(w)
        row(names[0], lambda: torch.mm(x, w.t(), out=y))
        row(names[1], lambda: torch.mm(dy, w, out=dx))
        row(names[2] + " accumulate", lambda: dw.add_(torch.mm(dy.t(), x)))


def attention(name, dtype):
    for (heads, kv_heads), dim in [((9, 3), 64), ((32, 8), 128)]:
        for tokens in (512, 2048, 8192):
            label = f"{name} 1x{tokens} {heads}/{kv_heads}x{dim}"
            if not any(part in f"attention_{way} {label}" for way in ("forward", "backward")):
                continue
            q = normal((1, heads, tokens, dim), dtype, grad=True)
            k, v = (normal((1, kv_heads, tokens, dim), dtype, grad=True) for _ in range(2))
            d_o = normal((1, heads, tokens, dim), dtype)

            def forward():
                wide = [t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v)]
                return F.scaled_dot_product_attention(q, *wide, is_causal=True)

            row(f"attention_forward {label}", forward)
            row(f"attention_backward {label}", lambda o: torch.autograd.grad(o, (q, k, v), d_o), lambda: (forward(),))


def head_loss(name, dtype):
    from torchtune.modules.loss import CEWithChunkedOutputLoss

    loss = CEWithChunkedOutputLoss(num_output_chunks=CHUNKS)
    for hidden, vocab in [(576, 49152), (2048, 128256)]:
        if part not in f"head_loss {name} {hidden}x{vocab} with gradients":
            continue
        h, w = normal((1, TOKENS, hidden), dtype, grad=True), normal((vocab, hidden), dtype, grad=True)
        labels = (torch.arange(TOKENS) * 31 % vocab).unsqueeze(0)

        def step():
            logits = [F.linear(chunk, w) for chunk in h.chunk(CHUNKS, dim=1)]
            return torch.autograd.grad(loss(logits, labels), (h, w))

        row(f"head_loss {name} {hidden}x{vocab} with gradients", step)


def optimizer(name, dtype):
    if part not in f"adamw_step {name} 135M":
        return
    weight = torch.nn.Parameter(normal((134_515_008,), dtype))
    weight.grad = normal((134_515_008,), dtype)
    adamw = torch.optim.AdamW([weight], lr=1e-4, fused=True)
    row(f"adamw_step {name} 135M", adamw.step)


for dtype_name in DTYPES:
    if options.get("dtype", dtype_name) != dtype_name:
        continue
    for group in (matmul, attention, head_loss, optimizer):
        if not groups or group.__name__ in groups:
            group(dtype_name, DTYPES[dtype_name])
