"""The networks that are trained: an EAGLE-3 head and a small Llama, over texts laid one behind the other.

No row is padded. Matrices run over the rows of all texts at once, attention text by text and in chunks of rows, each
over the keys that its last row sees. The loss is a cross entropy against the target's law over the draft vocabulary,
computed together with its gradients in chunks, so that a batch's logits are never all in memory.

A head is rolled out as it is used. In step 0 row f reads token f + 1 beside the target's hidden states of token f; in
step k it reads token f + 1 + k beside its own hidden state of the step before. It sees what it would see then: the
rows of step 0 up to its own, whose keys come from the target's hidden states, and behind them its own keys of the steps
1 to k. Left out: everything that is not arithmetic.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

CHUNK, LOSS_CHUNK = 128, 512


class Norm(nn.Module):
    """RMS norm."""

    def __init__(self, width, epsilon):
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(width)), epsilon

    def forward(self, x):
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.epsilon)


class SoftCrossEntropy(torch.autograd.Function):
    """The weighted sum of cross entropies of softmax(hidden @ matrix.T + bias) against `laws[of]`, row by row. Products
    and probabilities are of the laws' type; weights scale the narrow rows, not the wide ones."""

    @staticmethod
    def forward(ctx, hidden, matrix, bias, laws, of, weights):
        loss, kind = torch.zeros(()), laws.dtype
        rows, columns, weights = hidden.to(kind), matrix.to(kind), weights[:, None]
        weighted = (hidden * weights).to(kind)
        grad_hidden, grad_matrix = torch.empty_like(hidden), torch.zeros_like(matrix)
        for at in range(0, len(rows), LOSS_CHUNK):
            part = slice(at, at + LOSS_CHUNK)
            law, logits = laws[of[part]], rows[part] @ columns.T
            if bias is not None:
                logits = logits + bias.to(kind)
            expected = (law[:, None] @ logits[..., None])[:, 0].float()
            most = logits.amax(-1, keepdim=True).float()
            said = logits.softmax(-1)
            # The logarithm of the sum of exponentials, by the likeliest token.
            total = most - said.amax(-1, keepdim=True).float().log()
            loss += ((total - expected) * weights[part]).sum()
            said -= law
            grad_hidden[part] = (said @ columns).float() * weights[part]
            grad_matrix += said.T @ weighted[part]
        ctx.save_for_backward(grad_hidden, grad_matrix)
        return loss

    @staticmethod
    def backward(ctx, grad):
        grad_hidden, grad_matrix = ctx.saved_tensors
        return grad_hidden * grad, grad_matrix * grad, None, None, None, None


class Rotation:
    """Tables of rotary positions; pairs are an element and the one half a head behind it."""

    def __init__(self, head_dim, theta, positions):
        frequencies = theta ** -(torch.arange(0, head_dim, 2).float() / head_dim)
        angles = torch.outer(torch.arange(positions).float(), frequencies)
        self.cos, self.sin = angles.cos(), angles.sin()

    def __call__(self, x, positions):
        """`x` [rows, heads, head_dim], turned."""
        cos, sin = self.cos[positions, None], self.sin[positions, None]
        low, high = x.float().chunk(2, -1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1).to(x.dtype)


def attend(q, keys, values, at, own):
    """Attention of one text's rows: `q` [rows, heads, d] over the first `at + 1` of `keys` and `values` [n, kv, d] and
    over further keys and values of the rows' own, `own`: pairs of [rows, kv, d]. `at` ascends."""
    rows, heads, d = q.shape
    kv = keys.shape[1]
    keys, values = keys.transpose(0, 1), values.transpose(0, 1)
    said = []
    for start in range(0, rows, CHUNK):
        part = slice(start, start + CHUNK)
        seen = int(at[part][-1]) + 1
        asked = q[part].view(-1, kv, heads // kv, d)
        some = len(asked)
        grouped = asked.transpose(0, 1).reshape(kv, -1, d)
        scores = (grouped @ keys[:, :seen].transpose(1, 2)).float().view(kv, some, -1, seen)
        scores = scores.masked_fill((torch.arange(seen) > at[part, None])[:, None], -math.inf)
        further = [(asked * k[part, :, None]).sum(-1, keepdim=True).transpose(0, 1).float() for k, _ in own]
        weights = F.softmax(torch.cat([scores, *further], -1) * d ** -0.5, -1).to(values.dtype)
        mixed = (weights[..., :seen].reshape(kv, -1, seen) @ values[:, :seen]).view(kv, some, -1, d)
        for i, (_, v) in enumerate(own):
            mixed = mixed + weights[..., seen + i, None] * v[part, :, None].transpose(0, 1)
        said.append(mixed.transpose(0, 1).reshape(some, -1))
    return torch.cat(said)


class Layer(nn.Module):
    """A layer of Llama; that of a head reads twice the width (`inputs`: an embedding and a hidden row)."""

    def __init__(self, shape, inputs, rotation):
        super().__init__()
        self.shape, self.rotation = shape, rotation
        width, queries, kv = shape.width, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

        def matrix(i, o):
            linear = nn.Linear(i, o, bias=False)
            nn.init.normal_(linear.weight, std=0.5 * i ** -0.5)
            return linear
        self.self_attn = nn.ModuleDict(dict(q_proj=matrix(inputs, queries), k_proj=matrix(inputs, kv),
                                            v_proj=matrix(inputs, kv), o_proj=matrix(queries, width)))
        self.mlp = nn.ModuleDict(dict(gate_proj=matrix(width, shape.ffn), up_proj=matrix(width, shape.ffn),
                                      down_proj=matrix(shape.ffn, width)))
        self.input_layernorm = Norm(width, shape.epsilon)
        self.post_attention_layernorm = Norm(width, shape.epsilon)
        if inputs == 2 * width:
            self.hidden_norm = Norm(width, shape.epsilon)

    def queries(self, x, positions):
        return self.rotation(self.self_attn.q_proj(x).view(len(x), -1, self.shape.head_dim), positions)

    def keys_values(self, x, positions):
        k, v = (self.self_attn[name](x).view(len(x), -1, self.shape.head_dim) for name in ("k_proj", "v_proj"))
        return self.rotation(k, positions), v

    def behind(self, residual, attended):
        """What follows attention."""
        x = residual + self.self_attn.o_proj(attended)
        y = self.post_attention_layernorm(x)
        return x + self.mlp.down_proj(F.silu(self.mlp.gate_proj(y)) * self.mlp.up_proj(y))


def attend_texts(q, keys, values, live, starts, own):
    """Attention of the rows `live` (ascending, of all texts) of texts that begin at `starts`, whose last is the end."""
    borders = torch.searchsorted(live, starts).tolist()
    said = []
    for i, (first, last) in enumerate(zip(borders[:-1], borders[1:])):
        if first < last:
            text = slice(int(starts[i]), int(starts[i + 1]))
            of = [(k[first:last], v[first:last]) for k, v in own]
            said.append(attend(q[first:last], keys[text], values[text], live[first:last] - starts[i], of))
    return torch.cat(said)


class Batch:
    """Texts one behind the other; `reach` says in how many steps each row takes part."""

    def __init__(self, texts, reach):
        self.starts = torch.tensor([0] + [len(text.tokens) for text in texts]).cumsum(0)
        self.tokens = torch.cat([*(text.tokens for text in texts), torch.zeros(16, dtype=torch.long)])
        self.hidden = torch.cat([text.hidden for text in texts])
        self.positions = torch.cat([torch.arange(len(text.tokens)) for text in texts])
        self.reach = reach

    def live(self, step):
        return (self.reach > step).nonzero()[:, 0]


class Head(nn.Module):
    """An EAGLE-3 head of one layer. Its output has a row for each of `ids`, tokens of the target in ascending order."""

    def __init__(self, shape, ids, target, rows_layers=3):
        super().__init__()
        self.shape, self.ids, width = shape, ids, target.shape.width
        self.register_buffer("embeddings", target.embeddings.to(torch.bfloat16), persistent=False)
        self.fc = nn.Linear(rows_layers * width, width, bias=False)
        self.layers = nn.ModuleList([Layer(shape, 2 * width, Rotation(shape.head_dim, shape.rope_theta,
                                                                      shape.context + 16))])
        self.norm = Norm(width, shape.epsilon)
        self.lm_head = nn.Linear(width, len(ids), bias=False)
        with torch.no_grad():
            nn.init.normal_(self.fc.weight, std=(rows_layers * width) ** -0.5)
            self.lm_head.weight.copy_(target.output[ids])

    def steps(self, batch):
        """For each step its live rows and their own hidden states, before the last norm."""
        layer, width = self.layers[0], self.shape.width
        positions = batch.positions
        hidden = self.fc(batch.hidden[:, :3 * width].float())
        own, live = [], torch.arange(len(positions))
        for step in range(int(batch.reach.max())):
            left = (batch.reach[live] > step).nonzero()[:, 0]
            if step > 0:  # what guesses read is asked of live rows alone, step 0 fills the cache with all rows
                live, hidden, own = live[left], hidden[left], [(k[left], v[left]) for k, v in own]
            residual = layer.hidden_norm(hidden)
            x = torch.cat([layer.input_layernorm(self.embeddings[batch.tokens[live + 1 + step]]), residual], -1)
            k, v = layer.keys_values(x, positions[live] + step)
            if step > 0:
                own.append((k, v))
            else:
                keys, values, live, x, residual = k, v, live[left], x[left], residual[left]
            q = layer.queries(x, positions[live] + step)
            hidden = layer.behind(residual, attend_texts(q, keys, values, live, batch.starts, own))
            yield live, hidden

    def said(self, batch):
        """Logits of the live rows of each step."""
        for live, hidden in self.steps(batch):
            yield live, self.norm(hidden) @ self.lm_head.weight.float().T

    def loss(self, batch, weights, laws, of):
        """The mean cross entropy; `weights` by step, `laws[of[f]]` the target's at row f of all texts."""
        rows, labels, weight = [], [], []
        for step, (live, hidden) in enumerate(self.steps(batch)):
            rows.append(self.norm(hidden))
            labels.append(of[live + 1 + step])
            weight.append(torch.full((len(live),), weights[step]))
        weight = torch.cat(weight)
        total = SoftCrossEntropy.apply(torch.cat(rows), self.lm_head.weight, None, laws, torch.cat(labels), weight)
        return total / weight.sum()


class Draft(nn.Module):
    """A small Llama with the target's vocabulary. Formats of plain Llamas know no smaller vocabulary of outputs, so all
    tokens that are not among `ids` have one row of the output in common, which stands for each of them: training sees
    it as one more class with the logarithm of their number added, and says exactly what the written file says."""

    def __init__(self, shape, ids, target):
        super().__init__()
        self.shape, self.ids = shape, ids
        rotation = Rotation(shape.head_dim, shape.rope_theta, shape.context + 16)
        self.layers = nn.ModuleList(Layer(shape, shape.width, rotation) for _ in range(shape.layers))
        self.norm = Norm(shape.width, shape.epsilon)
        # Both matrices begin as the target's, in the directions in which its embeddings vary most.
        centred = target.embeddings - target.embeddings.mean(0)
        basis = torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -shape.width:]
        drawn, others = target.embeddings @ basis, torch.ones(len(target.embeddings), dtype=torch.bool)
        others[ids] = False
        rows = target.output @ basis
        rows = torch.cat([rows[ids], rows[others].mean(0, keepdim=True) if others.any() else rows[:1] * 0])
        self.embed_tokens = nn.Parameter(drawn / drawn.std())
        self.lm_head = nn.Parameter(rows * (shape.width ** -0.5 / rows.std()))
        self.bias = torch.zeros(len(ids) + 1)
        self.bias[-1] = math.log(int(others.sum())) if others.any() else -1e9

    def hidden(self, batch):
        """Hidden states of all rows behind the last norm."""
        live = torch.arange(len(batch.positions))
        x = F.embedding(batch.tokens[live], self.embed_tokens)
        for layer in self.layers:
            read = layer.input_layernorm(x)
            k, v = layer.keys_values(read, batch.positions)
            q = layer.queries(read, batch.positions)
            x = layer.behind(x, attend_texts(q, k, v, live, batch.starts, []))
        return self.norm(x)

    def said(self, batch):
        """Logits of the live rows of each step, as a head says them."""
        logits = self.hidden(batch) @ self.lm_head.float().T + self.bias
        for step in range(int(batch.reach.max())):
            live = batch.live(step)
            yield live, logits[live + 1 + step]

    def loss(self, batch, _weights, laws, of):
        live = batch.live(0)
        weight = torch.ones(len(live))
        rows = self.hidden(batch)[live + 1]
        return SoftCrossEntropy.apply(rows, self.lm_head, self.bias, laws, of[live + 1], weight) / weight.sum()
