"""Which rows form a micro-batch: by token budget, even in cost, equal in number on every rank."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rl_protocol import balanced_sizes
from rl_workers.compute.packing import RowTable
from rl_workers.errors import TokenBudgetError

_HIDDEN = 1024  # the width for which attention's share of the cost is estimated


@dataclass(frozen=True)
class _Item:
    """Rows that stay together, the tokens they put into a micro-batch and what they cost."""

    rows: tuple[int, ...]
    tokens: int
    cost: float


def row_cost(prompt: int, response: int, hidden: int = _HIDDEN) -> float:
    """Relative cost of a row's response: its tokens, plus its attention in tokens (pairs / (6 hidden))."""
    prompt, response = (
        int(prompt),
        int(response),
    )  # squares of numpy's or torch's 32-bit lengths would overflow
    length = prompt + response
    return response + (length * length - prompt * prompt) / (12 * hidden)


def prompt_cost(prompt: int, hidden: int = _HIDDEN) -> float:
    """Relative cost of a prompt that goes through the model once."""
    return int(prompt) + int(prompt) ** 2 / (12 * hidden)


def check_longest_row(prompt_length: int, response_length: int, budget: int, key: str) -> None:
    """Check before training that the longest possible row fits a micro-batch.

    Raises:
        TokenBudgetError: it does not; the message names the lengths and the key to raise.
    """
    longest = prompt_length + response_length
    if longest > budget:
        raise TokenBudgetError(
            f"a row of {prompt_length} prompt and {response_length} response tokens has {longest} tokens, "
            f"more than the {budget} of {key}: raise {key} to at least {longest} or shorten the rows"
        )


def plan_micro_batches(
    table: RowTable,
    budget: int,
    *,
    key: str = "ppo_max_token_len_per_gpu",
    share_prompts: bool = True,
    padded: bool = False,
    agree: Callable[[int], int] = lambda count: count,
) -> list[list[int]]:
    """Cut the rows into micro-batches of at most ``budget`` tokens.

    Args:
        table: the rows; those without a trainable token go nowhere.
        key: the configuration key to name in an error.
        share_prompts: count the tokens of a shared prompt once, and keep its rows together where they fit.
        padded: count every row as the table's full width, and share nothing.
        agree: turns this rank's number of micro-batches into the number for all (a maximum over ranks).

    Returns:
        Lists of row numbers, some of them empty where other ranks need more micro-batches.

    Raises:
        TokenBudgetError: a row alone is over the budget.
    """
    active = [row for row in range(len(table)) if table.is_active(row)]
    width = table.input_ids.shape[1]
    for row in active:
        prompt = table.prompts[row].numel()
        check_longest_row(prompt, (width if padded else table.lengths[row]) - prompt, budget, key)
    if padded:
        items = [_Item((row,), width, float(width)) for row in active]
    else:
        items = _units(table, active, budget, share_prompts)
    return _assign(items, budget, agree)


def plan_sequences(
    lengths: Sequence[int], budget: int, *, key: str, agree: Callable[[int], int] = lambda count: count
) -> list[list[int]]:
    """The same for plain sequences of the given lengths (a reward model's inputs)."""
    for length in lengths:
        check_longest_row(length, 0, budget, key)
    items = [_Item((row,), length, prompt_cost(length)) for row, length in enumerate(lengths)]
    return _assign(items, budget, agree)


def _assign(items: Sequence[_Item], budget: int, agree: Callable[[int], int]) -> list[list[int]]:
    bins = _first_fit(items, budget)
    count = agree(max(len(bins), 1))
    even = _spread(items, budget, count)
    chosen = even if even is not None else bins + [[] for _ in range(count - len(bins))]
    return [[row for item in held for row in item.rows] for held in chosen]


def _units(table: RowTable, rows: Sequence[int], budget: int, share: bool) -> list[_Item]:
    groups: dict[object, list[int]] = {}
    for row in rows:
        groups.setdefault(table.key[row] if share else row, []).append(row)
    items = []
    for members in groups.values():
        prompt = table.prompts[members[0]].numel()
        for part in _within_budget(table, members, prompt, budget):
            bodies = [table.lengths[row] - prompt for row in part]
            cost = prompt_cost(prompt) + sum(row_cost(prompt, body) for body in bodies)
            items.append(_Item(tuple(part), prompt + sum(bodies), cost))
    return items


def _within_budget(table: RowTable, rows: Sequence[int], prompt: int, budget: int) -> list[list[int]]:
    """Cut the rows of one prompt where prompt and responses would go over the budget."""
    parts: list[list[int]] = []
    room = 0
    for row in rows:
        body = table.lengths[row] - prompt
        if not parts or body > room:
            parts.append([])
            room = budget - prompt
        parts[-1].append(row)
        room -= body
    return parts


def _first_fit(items: Sequence[_Item], budget: int) -> list[list[_Item]]:
    """First-fit decreasing: few micro-batches, none over the budget."""
    bins: list[list[_Item]] = []
    used: list[int] = []
    for item in sorted(items, key=lambda item: -item.tokens):
        slot = next((i for i, tokens in enumerate(used) if tokens + item.tokens <= budget), None)
        if slot is None:
            bins.append([])
            used.append(0)
            slot = len(bins) - 1
        bins[slot].append(item)
        used[slot] += item.tokens
    return bins


def _spread(items: Sequence[_Item], budget: int, count: int) -> list[list[_Item]] | None:
    """The cheapest bin takes the next dearest item; None where that breaks the budget."""
    bins: list[list[_Item]] = [[] for _ in range(count)]
    used = [0] * count
    heap = [(0.0, index) for index in range(count)]
    for item in sorted(items, key=lambda item: -item.cost):
        cost, index = heapq.heappop(heap)
        if used[index] + item.tokens > budget:
            return None
        bins[index].append(item)
        used[index] += item.tokens
        heapq.heappush(heap, (cost + item.cost, index))
    return bins


def balanced_order(
    prompt_lengths: Sequence[int],
    response_lengths: Sequence[int],
    parts: int,
    groups: Sequence[object] | None = None,
) -> list[int]:
    """An order of rows whose ``parts`` contiguous chunks (sizes as ``DataProto.chunk``) cost about the same.

    Rows of one group (one prompt) stay in one chunk where there is room, and then count their prompt once.
    """
    total = len(prompt_lengths)
    keys = list(range(total)) if groups is None else list(groups)
    members: dict[object, list[int]] = {}
    for row, group in enumerate(keys):
        members.setdefault(group, []).append(row)
    costs = {
        group: prompt_cost(prompt_lengths[rows[0]])
        + sum(row_cost(prompt_lengths[row], response_lengths[row]) for row in rows)
        for group, rows in members.items()
    }
    room = balanced_sizes(total, parts)
    load = [0.0] * parts
    chunks: list[list[int]] = [[] for _ in range(parts)]
    for group in sorted(members, key=lambda group: -costs[group]):
        rows = members[group]
        while rows:
            fitting = [i for i in range(parts) if room[i] >= len(rows)]
            target = min(fitting or [i for i in range(parts) if room[i]], key=lambda i: (load[i], i))
            taken, rows = rows[: room[target]], rows[room[target] :]
            chunks[target] += taken
            room[target] -= len(taken)
            load[target] += costs[group] * len(taken) / len(members[group])
    return [row for chunk in chunks for row in chunk]
