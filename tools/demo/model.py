"""The demo model in PyTorch: GLM-5's forward pass (MLA, DSA indexer, routed experts, MTP layer) at a small size, written
for training, and a dense Transformer of the same size to compare with. Tensors are named as in GGUF (architecture
`glm-dsa`), so that export is a matter of shapes only. What is trained how is train.py's business.

Shapes: B sequences, T positions, D hidden, H heads. Every MoE layer computes all its experts and weights those that were
not chosen by zero: at this size that is quicker than gathering, and gives the same numbers.
"""
import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn

NEVER = -1e9  # a score that a softmax turns into zero


@dataclasses.dataclass
class Config:
    vocabulary: int = 3584
    hidden: int = 256
    layers: int = 4  # without the MTP layer
    dense_layers: int = 1  # leading ones
    dense_width: int = 256
    heads: int = 4
    q_rank: int = 128
    kv_rank: int = 64
    nope: int = 32
    rope: int = 32
    value: int = 64
    rope_base: float = 10000.0
    index_heads: int = 4
    index_dim: int = 64
    index_top: int = 64
    experts: int = 8
    experts_used: int = 2
    expert_width: int = 128
    expert_scale: float = 1.5
    context: int = 1024
    eps: float = 1e-5
    index_eps: float = 1e-6
    dropout: float = 0.1


def linear(x, weight):
    return F.linear(x, weight)


def norm(x, weight, eps):
    """RMSNorm over the last dimension, in f32."""
    return F.rms_norm(x.float(), weight.shape, weight, eps)


def matrix(rows, columns, scale=1.0):
    return nn.Parameter(torch.randn(rows, columns) * (scale * columns**-0.5))


def rotate(x, base):
    """RoPE over pairs (2j, 2j+1) of the last dimension; x is [B, T, ..., d], position = index in T."""
    d, t = x.shape[-1], x.shape[1]
    angles = torch.arange(t, device=x.device, dtype=torch.float32)[:, None] * base ** (
        torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / -d)
    shape = (1, t) + (1,) * (x.dim() - 3) + (d // 2,)
    cos, sin = angles.cos().view(shape), angles.sin().view(shape)
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class Indexer(nn.Module):
    """Scores every earlier position for every position: which of them attention should read."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_b = matrix(c.index_heads * c.index_dim, c.q_rank)
        self.k = matrix(c.index_dim, c.hidden)
        self.k_norm_weight = nn.Parameter(torch.ones(c.index_dim))
        self.k_norm_bias = nn.Parameter(torch.zeros(c.index_dim))
        self.proj = matrix(c.index_heads, c.hidden)

    def forward(self, x, q_latent):
        """[B, T, D], [B, T, q_rank] -> scores [B, T, T] in f32, not masked."""
        c = self.c
        q = linear(q_latent, self.q_b).unflatten(-1, (c.index_heads, c.index_dim))
        k = F.layer_norm(linear(x, self.k).float(), (c.index_dim,), self.k_norm_weight, self.k_norm_bias, c.index_eps)
        q = torch.cat((rotate(q[..., :c.rope], c.rope_base).to(q.dtype), q[..., c.rope:]), -1)
        k = torch.cat((rotate(k[..., :c.rope], c.rope_base), k[..., c.rope:]), -1).to(q.dtype)
        w = linear(x, self.proj).float() * (c.index_dim * c.index_heads) ** -0.5
        scores = 0
        for head in range(c.index_heads):
            scores = scores + w[..., head, None] * torch.relu(q[:, :, head] @ k.transpose(1, 2)).float()
        return scores


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_a = matrix(c.q_rank, c.hidden)
        self.q_a_norm = nn.Parameter(torch.ones(c.q_rank))
        self.q_b = matrix(c.heads * (c.nope + c.rope), c.q_rank)
        self.kv_a_mqa = matrix(c.kv_rank + c.rope, c.hidden)
        self.kv_a_norm = nn.Parameter(torch.ones(c.kv_rank))
        self.k_b = matrix(c.heads * c.nope, c.kv_rank)
        self.v_b = matrix(c.heads * c.value, c.kv_rank)
        self.output = matrix(c.hidden, c.heads * c.value, 0.0)
        self.indexer = Indexer(c)

    def forward(self, x, mode):
        """`mode`: "dense" attends to all earlier positions; "warm" too, and trains the indexer; "sparse" attends to what the
        indexer chose and trains it; "sparse-eval" and "dense-eval" train nothing. Returns the output and the indexer's loss.

        The indexer learns from the attention that it should find (cross-entropy to the mean over heads), and its inputs
        are cut off, so that nothing else learns from that loss: choosing has no gradient. After DeepSeek-V3.2's report.
        """
        c = self.c
        b, t, _ = x.shape
        q_latent = norm(linear(x, self.q_a), self.q_a_norm, c.eps)
        q = linear(q_latent, self.q_b).unflatten(-1, (c.heads, -1))
        q = torch.cat((q[..., :c.nope], rotate(q[..., c.nope:], c.rope_base).to(q.dtype)), -1).transpose(1, 2)
        kv = linear(x, self.kv_a_mqa)
        latent = norm(kv[..., :c.kv_rank], self.kv_a_norm, c.eps)
        k_rope = rotate(kv[..., c.kv_rank:], c.rope_base).to(q.dtype)[:, None].expand(-1, c.heads, -1, -1)
        k = linear(latent, self.k_b).unflatten(-1, (c.heads, -1)).transpose(1, 2)
        k = torch.cat((k, k_rope.to(k.dtype)), -1).to(q.dtype)
        v = linear(latent, self.v_b).unflatten(-1, (c.heads, -1)).transpose(1, 2)
        loss = None
        if mode in ("dense", "dense-eval"):
            out = F.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True)
        else:
            seen = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()[None]
            index = self.indexer(x.detach(), q_latent.detach()).masked_fill(~seen, NEVER)
            if mode != "warm" and t > c.index_top:
                chosen = torch.zeros_like(index, dtype=torch.bool)
                chosen.scatter_(-1, index.detach().topk(c.index_top, -1).indices, True)
                seen = seen & chosen
            scores = (q @ k.transpose(2, 3)).float() * (c.nope + c.rope) ** -0.5
            attention = scores.masked_fill(~seen[:, None], NEVER).softmax(-1)
            if mode in ("warm", "sparse"):
                target = attention.detach().mean(1)
                loss = -(target * index.masked_fill(~seen, NEVER).log_softmax(-1)).sum(-1).mean()
            out = attention.to(v.dtype) @ v
        return linear(out.transpose(1, 2).flatten(2).to(x.dtype), self.output), loss


class Dense(nn.Module):
    def __init__(self, c, width):
        super().__init__()
        self.gate = matrix(width, c.hidden)
        self.up = matrix(width, c.hidden)
        self.down = matrix(c.hidden, width, 0.0)

    def forward(self, x):
        return linear(F.silu(linear(x, self.gate)) * linear(x, self.up), self.down)


class Experts(nn.Module):
    """Routed experts and a shared one. `bias` takes part in the choice only and learns by counting (train.py)."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.gate_inp = matrix(c.experts, c.hidden)
        self.register_buffer("bias", torch.zeros(c.experts))
        self.register_buffer("load", torch.zeros(c.experts))
        self.gate = nn.Parameter(torch.randn(c.experts, c.expert_width, c.hidden) * c.hidden**-0.5)
        self.up = nn.Parameter(torch.randn(c.experts, c.expert_width, c.hidden) * c.hidden**-0.5)
        self.down = nn.Parameter(torch.zeros(c.experts, c.hidden, c.expert_width))
        self.shared = Dense(c, c.expert_width)

    def forward(self, x):
        c = self.c
        with torch.autocast(x.device.type, enabled=False):
            p = torch.sigmoid(F.linear(x.float(), self.gate_inp.float()))
        choice = (p.detach() + self.bias).topk(c.experts_used, -1).indices
        chosen = torch.zeros_like(p).scatter_(-1, choice, 1.0)
        if self.training:
            self.load += chosen.sum(tuple(range(chosen.dim() - 1))).detach()
        weight = p * chosen
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * c.expert_scale
        inner = F.silu(linear(x, self.gate.flatten(0, 1))) * linear(x, self.up.flatten(0, 1))
        inner = inner.unflatten(-1, (c.experts, -1)) * weight.to(inner.dtype)[..., None]
        return linear(inner.flatten(-2), self.down.transpose(0, 1).flatten(1)) + self.shared(x)


class Block(nn.Module):
    def __init__(self, c, attention, ffn):
        super().__init__()
        self.c = c
        self.attn_norm = nn.Parameter(torch.ones(c.hidden))
        self.attn = attention
        self.ffn_norm = nn.Parameter(torch.ones(c.hidden))
        self.ffn = ffn

    def forward(self, h, mode):
        c = self.c
        a, loss = self.attn(norm(h, self.attn_norm, c.eps), mode)
        h = h + F.dropout(a, c.dropout, self.training)
        return h + F.dropout(self.ffn(norm(h, self.ffn_norm, c.eps)), c.dropout, self.training), loss


class Glm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.token_embd = nn.Parameter(torch.randn(c.vocabulary, c.hidden) * 0.02)
        self.output_norm = nn.Parameter(torch.ones(c.hidden))

        def ffn(layer):
            return Dense(c, c.dense_width) if layer < c.dense_layers else Experts(c)
        self.blk = nn.ModuleList(Block(c, Attention(c), ffn(i)) for i in range(c.layers + 1))  # the last is the MTP layer
        self.eh_proj = matrix(c.hidden, 2 * c.hidden)
        self.enorm = nn.Parameter(torch.ones(c.hidden))
        self.hnorm = nn.Parameter(torch.ones(c.hidden))
        self.shared_head_norm = nn.Parameter(torch.ones(c.hidden))

    def trunk(self, ids, mode):
        """ids [B, T] -> what the output matrix reads, [B, T, D], and the indexers' losses."""
        c = self.c
        h = F.dropout(F.embedding(ids, self.token_embd), c.dropout, self.training)
        losses = []
        for block in self.blk[:c.layers]:
            h, loss = block(h, mode)
            losses.append(loss)
        return norm(h, self.output_norm, c.eps), losses

    def mtp(self, h, ids, mode):
        """h of positions 0..T-2 and the tokens that follow them -> what the output matrix reads for the tokens after those."""
        c = self.c
        e = norm(F.embedding(ids, self.token_embd), self.enorm, c.eps)
        u = linear(torch.cat((e, norm(h, self.hnorm, c.eps)), -1), self.eh_proj)
        g, loss = self.blk[c.layers](u.to(h.dtype), mode)
        return norm(g, self.shared_head_norm, c.eps), loss

    def logits(self, h):
        return linear(h, self.token_embd)


class Plain(nn.Module):
    """Multi-head attention, for the dense model to compare with."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.qkv = matrix(3 * c.hidden, c.hidden)
        self.output = matrix(c.hidden, c.hidden, 0.0)

    def forward(self, x, mode):
        q, k, v = linear(x, self.qkv).unflatten(-1, (3, self.c.heads, -1)).unbind(2)
        q, k = (rotate(y, self.c.rope_base).to(v.dtype).transpose(1, 2) for y in (q, k))
        out = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True)
        return linear(out.transpose(1, 2).flatten(2), self.output), None


class DenseModel(nn.Module):
    def __init__(self, c, layers, width):
        super().__init__()
        self.c = c
        self.token_embd = nn.Parameter(torch.randn(c.vocabulary, c.hidden) * 0.02)
        self.output_norm = nn.Parameter(torch.ones(c.hidden))
        self.blk = nn.ModuleList(Block(c, Plain(c), Dense(c, width)) for _ in range(layers))

    trunk = Glm.trunk
    logits = Glm.logits


def dense_like(glm):
    """A dense model with as many parameters as the GLM has without its MTP layer, to within a row."""
    c = dataclasses.replace(glm.c, layers=glm.c.layers)
    mtp = sum(p.numel() for n, p in glm.named_parameters()
              if n.startswith(f"blk.{c.layers}.") or n in ("eh_proj", "enorm", "hnorm", "shared_head_norm"))
    goal = sum(p.numel() for p in glm.parameters()) - mtp
    fixed = c.vocabulary * c.hidden + c.hidden + c.layers * (4 * c.hidden**2 + 2 * c.hidden)
    width = math.floor((goal - fixed) / (3 * c.hidden * c.layers))
    return DenseModel(c, c.layers, width)
