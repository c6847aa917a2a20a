"""Functions and classes that a generated file holds if its network needs them, as source code of PyTorch."""

from __future__ import annotations

from typing import Dict, Iterable, List

_FROZEN = '''
class FrozenBatchNorm{count}d(nn.BatchNorm{count}d):
    """Batch normalisation with the moving statistics, also in training."""

    def train(self, mode=True):
        return super().train(False)
'''

HELPERS: Dict[str, str] = {
    **{f"FrozenBatchNorm{count}d": _FROZEN.format(count=count) for count in (1, 2, 3)},
    "GroupNorm": '''
class GroupNorm(nn.Module):
    """Group normalisation with one weight and one bias per group, as in MXNet; PyTorch's has them per channel."""

    def __init__(self, num_groups, eps):
        super().__init__()
        self.num_groups, self.eps = num_groups, eps
        self.weight = nn.Parameter(torch.ones(num_groups))
        self.bias = nn.Parameter(torch.zeros(num_groups))

    def forward(self, x):
        normal = F.group_norm(x, self.num_groups, eps=self.eps).reshape(x.shape[0], self.num_groups, -1)
        return (normal * self.weight[:, None] + self.bias[:, None]).reshape(x.shape)
''',
    "mean_pool": '''
def mean_pool(x, kernel, stride, padding, rest, count_padding):
    """Means over windows, of which some may hold nothing but padding: MXNet has more windows than PyTorch.

    `padding` is on both sides; `rest` is behind it, and never counted.
    """
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(kernel) - 1]
    sides = [side for pad in reversed(padding) for side in (pad, pad)]
    behind = [side for end in reversed(rest) for side in (0, end)]
    ones = F.pad(torch.ones_like(x[:1, :1]), sides, value=float(count_padding))
    share = pool(F.pad(ones, behind), kernel, stride)
    if len(kernel) < 3:  # an empty mean is 0, and NaN in three dimensions
        share = share.clamp(min=1 / math.prod(kernel))
    return pool(F.pad(F.pad(x, sides), behind), kernel, stride) / share
''',
    "cross_entropy_of_tokens": '''
def cross_entropy_of_tokens(score, label):
    """Returns -log p of each label, and its mean over all classes; 0 for negative labels."""
    log_p, label = torch.log_softmax(score, dim=-1), label.long()
    counted = (label >= 0).to(score.dtype)
    own = log_p.gather(-1, label.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return -own * counted, -log_p.mean(dim=-1) * counted
''',
    "depth_to_space": '''
def depth_to_space(x, block):
    """Moves channels into blocks of pixels; the position in a block comes before the channel, unlike pixel_shuffle."""
    batch, channels, height, width = x.shape
    x = x.reshape(batch, block, block, channels // block**2, height, width)
    return x.permute(0, 3, 4, 1, 5, 2).reshape(batch, channels // block**2, height * block, width * block)
''',
    "space_to_depth": '''
def space_to_depth(x, block):
    """Moves blocks of pixels into channels; the position in a block comes before the channel."""
    batch, channels, height, width = x.shape
    x = x.reshape(batch, channels, height // block, block, width // block, block)
    return x.permute(0, 3, 5, 1, 2, 4).reshape(batch, channels * block**2, height // block, width // block)
''',
    "reverse_sequence": '''
def reverse_sequence(x, length):
    """Reverses the first `length` steps of each sequence of x (time, batch, ...)."""
    step = torch.arange(x.shape[0], device=x.device)[:, None]
    source = torch.where(step < length, length - 1 - step, step)
    return x[source, torch.arange(x.shape[1], device=x.device)]
''',
    "hidden_keys": '''
def hidden_keys(count, lengths):
    """Returns what is added to scores of attention, (batch, 1, 1, count): -1e9 behind the end of each sequence."""
    hidden = torch.arange(count, device=lengths.device) >= lengths.reshape(-1, 1)
    return (hidden.to(torch.float32) * -1e9)[:, None, None]
''',
    "split_heads": '''
def split_heads(x, parts, num_heads):
    """Splits (time, batch, parts * units) into tensors (batch, heads, time, units of a head)."""
    time, batch, width = x.shape
    x = x.reshape(time, batch, parts, num_heads, width // parts // num_heads)
    return x.permute(2, 1, 3, 0, 4).unbind(0)
''',
    "self_attention": '''
def self_attention(x, lengths, num_heads, causal):
    """Self-attention of queries, keys and values side by side: (time, batch, 3 * units) -> (time, batch, units)."""
    query, key, value = split_heads(x, 3, num_heads)
    score = query * query.shape[-1] ** -0.5 @ key.transpose(2, 3)
    if lengths is not None:
        score = score + hidden_keys(x.shape[0], lengths)
    if causal:
        step = torch.arange(x.shape[0], device=x.device)
        score = score + (step > step[:, None]).to(score.dtype) * -1e9
    context = torch.softmax(score, dim=-1) @ value
    return context.permute(2, 0, 1, 3).reshape(x.shape[0], x.shape[1], -1)
''',
    "cross_attention": '''
def cross_attention(query, source, lengths, num_heads):
    """Attention of queries (time, batch, units) to keys and values side by side (source time, batch, 2 * units)."""
    time, batch, units = query.shape
    (query,), (key, value) = split_heads(query, 1, num_heads), split_heads(source, 2, num_heads)
    score = query * query.shape[-1] ** -0.5 @ key.transpose(2, 3) + hidden_keys(source.shape[0], lengths)
    context = torch.softmax(score, dim=-1) @ value
    return context.permute(2, 0, 1, 3).reshape(time, batch, units)
''',
    "interleaved_heads": '''
def interleaved_heads(x, num_heads):
    """Splits (time, batch, 3 * units), with query, key and value side by side per head, into (batch * heads, ...)."""
    time, batch, width = x.shape
    x = x.reshape(time, batch * num_heads, 3, width // 3 // num_heads)
    return x.permute(2, 1, 0, 3).unbind(0)
''',
    "interleaved_scores": '''
def interleaved_scores(x, num_heads):
    """Returns the scores of attention, (batch * heads, time, time)."""
    query, key, _ = interleaved_heads(x, num_heads)
    return query * query.shape[-1] ** -0.5 @ key.transpose(1, 2)
''',
    "interleaved_context": '''
def interleaved_context(x, weight, num_heads):
    """Returns the values weighted by attention, (time, batch, units)."""
    _, _, value = interleaved_heads(x, num_heads)
    context = (weight @ value).transpose(0, 1)
    return context.reshape(x.shape[0], x.shape[1], -1)
''',
}
NEEDS = {
    "self_attention": ("split_heads", "hidden_keys"),
    "cross_attention": ("split_heads", "hidden_keys"),
    "interleaved_scores": ("interleaved_heads",),
    "interleaved_context": ("interleaved_heads",),
}


def helper_sources(names: Iterable[str]) -> List[str]:
    """Returns the source code of the named helpers and of every helper they call, in the order of `HELPERS`."""
    wanted = {*names}
    wanted.update(needed for name in names for needed in NEEDS.get(name, ()))
    return [text.strip("\n") for name, text in HELPERS.items() if name in wanted]
