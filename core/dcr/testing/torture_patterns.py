"""The torture patterns; see ``dcr.testing.torture``."""

from typing import Any

import torch

from dcr.model import PathClass
from dcr.receiver.rank import Method
from dcr.testing import torture_loads as loads
from dcr.testing.torture import BF16, ORDER, Pattern, TortureRuntime, named, zeros

_UNLISTED = torch.zeros(8, 8, dtype=BF16)


def _chunked(r: TortureRuntime, w: torch.Tensor) -> None:
    for i, chunk in enumerate(w.chunk(4)):
        r["target"][2 * i : 2 * i + 2].copy_(chunk)


def _twice(r: TortureRuntime, w: torch.Tensor) -> None:
    r["target"][:6].copy_(w[:6])
    r["target"][4:].copy_(w[4:])


def _last_wins(r: TortureRuntime, w: torch.Tensor) -> None:
    r["target"].copy_(w)
    r["target"][:4].copy_(w[4:])


def _repeated_twice(r: TortureRuntime, w: torch.Tensor) -> None:
    r["wide"].copy_(w[0].expand(300, 8))
    r["wide"].copy_(w[1].expand(300, 8))


def _padded(r: TortureRuntime, w: torch.Tensor) -> None:
    r["wide"][:8].copy_(w)
    r["wide"][8:].fill_(0.25)


def _cleared(r: TortureRuntime, w: torch.Tensor) -> None:
    r["wide"].zero_()
    r["wide"][2:10].copy_(w)


def _clobbered(r: TortureRuntime, w: torch.Tensor) -> None:
    r["target"].copy_(w)
    r["target"][3].zero_()


def _clears_neighbour(r: TortureRuntime, w: torch.Tensor) -> None:
    r["neighbour"].zero_()
    r["target"].copy_(w)


def _constant_table(r: TortureRuntime, w: torch.Tensor) -> None:
    r["target"].copy_(w)
    r["row"].copy_(torch.arange(8))


def _composed(r: TortureRuntime, w: torch.Tensor) -> None:
    r["full"].copy_(w)
    r["full"].copy_(-torch.exp(r["full"]))


def _composed_in_place(r: TortureRuntime, w: torch.Tensor) -> None:
    r["target"].copy_(w)
    r["target"].exp_()


def _accumulates(r: TortureRuntime, w: torch.Tensor) -> None:
    r["target"].add_(w)


def _in_place(r: TortureRuntime, w: torch.Tensor) -> None:
    w.mul_(2)
    r["target"].copy_(w)


def _spends_input(r: TortureRuntime, w: torch.Tensor) -> None:
    r["target"].copy_(w)
    w.zero_()


def _looks_at_layout(r: TortureRuntime, w: torch.Tensor) -> None:
    clone = w.t().contiguous()
    r["target"].copy_(clone if clone.is_contiguous() else clone.t())


def _conditional(r: TortureRuntime, w: torch.Tensor) -> None:
    if bool((w > 0).any()):
        r["target"].copy_(w)


def _chooses_layout(r: TortureRuntime, w: torch.Tensor) -> None:
    r["target"].copy_(w.t() if bool((w > 1).any()) else w)


def _asks_for_the_device(r: TortureRuntime, w: torch.Tensor) -> None:
    r["target"].copy_(w)
    if not w.is_meta:
        r["second"].copy_(w)


def _lays_out_by_device(r: TortureRuntime, w: torch.Tensor) -> None:
    r["target"].copy_(w if w.is_meta else w.t())


def _fills_by_device(r: TortureRuntime, w: torch.Tensor) -> None:
    r["target"].copy_(w.t() if w.is_meta else w)
    if not w.is_meta:
        r["row"].fill_(0.5)


def _asserts(r: TortureRuntime, w: torch.Tensor) -> None:
    assert not bool(torch.isnan(w.float()).any())
    r["target"].copy_(w)


def _keeps(r: TortureRuntime, w: torch.Tensor) -> None:
    r["target"].copy_(w)
    r.state["cache"] = w.clone()


def _replicas_in_any_order(r: TortureRuntime, w: torch.Tensor) -> None:
    places = ["target", "second"]
    r.state["turn"] = 1 - r.state.get("turn", 0)
    for name in places[:: 1 if r.state["turn"] else -1]:
        r[name].copy_(w)


def _alternates(r: TortureRuntime, w: torch.Tensor) -> None:
    r.state["turn"] = 1 - r.state.get("turn", 0)
    r["target" if r.state["turn"] else "second"].copy_(w)


def _random_padding(r: TortureRuntime, w: torch.Tensor) -> None:
    r["target"].copy_(w)
    r["row"].copy_(torch.rand(8))


def _staged(r: TortureRuntime, w: torch.Tensor) -> None:
    buffer = torch.empty(8, 8, dtype=BF16)
    buffer.copy_(w)
    r["target"].copy_(buffer)


def _by_numpy(r: TortureRuntime, w: torch.Tensor) -> None:
    r["target"].copy_(torch.from_numpy(w.view(torch.int16).numpy().copy()).view(BF16))


def _number_times_two(r: TortureRuntime, w: torch.Tensor) -> None:
    r["single"].fill_(w.item() * 2)


def _number_kept(r: TortureRuntime, w: torch.Tensor) -> None:
    r["single"].copy_(w)
    r.state["number"] = w.item()


def _list_kept(r: TortureRuntime, w: torch.Tensor) -> None:
    r["target"].copy_(w)
    r.state["numbers"] = w.tolist()


def _array_kept(r: TortureRuntime, w: torch.Tensor) -> None:
    r["target"].copy_(w)
    r.state["array"] = w.float().numpy() * 2


def _rebinds(r: TortureRuntime, w: torch.Tensor) -> None:
    r.tensors["target"].data = w.clone()


def _replaces(r: TortureRuntime, w: torch.Tensor) -> None:
    r.tensors["target"] = w.clone()


def _sets_storage(r: TortureRuntime, w: torch.Tensor) -> None:
    r.tensors["target"].set_(w.clone())  # type: ignore[call-overload]


def _guided(r: TortureRuntime, w: torch.Tensor) -> None:
    first = int(r["order"][0].item())
    r["target"][first::2].copy_(w[first::2])
    r["target"][1 - first :: 2].copy_(w[1 - first :: 2])


def _guided_index(r: TortureRuntime, w: torch.Tensor) -> None:
    r["target"][r["order"]] = w


def _reads_back(r: TortureRuntime, w: torch.Tensor) -> None:
    r["target"].copy_(w)
    assert bool(torch.isfinite(r["target"]).any()) or True


def _through_numpy(r: TortureRuntime, w: torch.Tensor) -> None:
    r["target"].copy_(w)
    r["row"].view(torch.int16).numpy()[0] += 1


def _foreach(r: TortureRuntime, w: torch.Tensor) -> None:
    torch._foreach_copy_([r["target"][:4], r["target"][4:]], [w[:4], w[4:]])


def _shared_by_address(r: TortureRuntime, w: torch.Tensor) -> None:
    other = torch.from_numpy(r["target"].view(torch.int16).numpy())
    other.view(BF16).copy_(w)


def _hidden_in_zeros(r: TortureRuntime, w: torch.Tensor) -> None:
    r["target"].copy_(w)
    r["second"].view(torch.int16).numpy()[:] = w.view(torch.int16).numpy()


_OVERWRITE, _WHOLE = PathClass.OVERWRITE, Method.WHOLE
_row, _single, _second = zeros(row=(8,)), zeros(single=(1,)), zeros(second=(8, 8))
_ALONG = "depends on which other tensors come along"
_full = zeros(full=(8, 8, torch.float32))


def _order() -> dict[str, torch.Tensor]:
    return {"order": torch.tensor([1, 0, 3, 2, 4, 5, 6, 7])}


def _copy(view: Any) -> Any:
    return lambda r, w: r["target"].copy_(view(w))


def _wide(width: int) -> Any:
    return lambda r, w: r["wide"].copy_(w.unsqueeze(0).expand(width, 8, 8))


LEARNED = [
    Pattern("plain", _copy(lambda w: w)),
    Pattern("asks_for_the_device", _asks_for_the_device, resident=_second),
    Pattern("lays_out_by_device", _lays_out_by_device),
    Pattern("fills_by_device", _fills_by_device, resident=_row),
    Pattern("transposed", _copy(lambda w: w.t())),
    Pattern("contiguous", _copy(lambda w: w.t().contiguous())),
    Pattern("cloned_view", _copy(lambda w: w.clone()[:].view(8, 8))),
    Pattern("to_own_dtype", _copy(lambda w: w.to(BF16).cpu())),
    Pattern("spends_input", _spends_input),
    Pattern("looks_at_layout", _looks_at_layout),
    Pattern("strided_clone", _copy(lambda w: w.t().contiguous().as_strided((8, 8), (8, 1)))),
    Pattern("chunked", _chunked),
    Pattern("rows", lambda r, w: [r["target"][i].copy_(w[7 - i]) for i in range(8)]),
    Pattern("foreach", _foreach),
    Pattern("shared_by_address", _shared_by_address),
    Pattern("other_bits_type", lambda r, w: r["target"].view(torch.int16).copy_(w.view(torch.int16))),
    Pattern("padded", _padded, resident=zeros(wide=(10, 8))),
    Pattern("cleared_first", _cleared, resident=zeros(wide=(10, 8))),
    Pattern("constant_table", _constant_table, resident=_row),
    Pattern("guided_by_buffer", _guided, resident=_order),
    Pattern("asserts_values", _asserts),
    Pattern("batches", load=loads.batches, place=_copy(lambda w: w)),
    Pattern("replicas_in_any_order", _replicas_in_any_order, resident=_second),
    Pattern("cast", lambda r, w: r["full"].copy_(w), path=_OVERWRITE, resident=_full),
    Pattern("cast_before", lambda r, w: r["full"].copy_(w.t().float()), path=_OVERWRITE, resident=_full),
    Pattern("narrowed", _copy(lambda w: w), path=_OVERWRITE, specs=named("w", dtype="float32")),
    Pattern("both_types", lambda r, w: [r["target"].copy_(w), r["full"].copy_(w)], path=_OVERWRITE,
            resident=_full),
    Pattern("repeated", _wide(4), path=_OVERWRITE, resident=zeros(wide=(4, 8, 8))),
    Pattern("overlapping_equal", _twice, path=_OVERWRITE),
    Pattern("second_copy", lambda r, w: [r["target"].copy_(w), r["target"].copy_(w)], path=_OVERWRITE),
    Pattern("number", lambda r, w: r["single"].fill_(w.item()), path=_OVERWRITE, resident=_single,
            specs=named("w", shape=(1,))),
    Pattern("element", lambda r, w: r["single"].fill_(w[0]), resident=_single, specs=named("w", shape=(1,))),
]  # fmt: skip

HOOKED = [
    Pattern("repeated_widely", _wide(300), Method.HOOK, _OVERWRITE, resident=zeros(wide=(300, 8, 8))),
    Pattern("sliding_window", lambda r, w: r["windows"].copy_(w.reshape(-1).unfold(0, 8, 4)), Method.HOOK,
            _OVERWRITE, resident=zeros(windows=(15, 8))),
]  # fmt: skip

WHOLE = [
    Pattern("row_permutation", _copy(lambda w: w[torch.tensor(ORDER)]), _WHOLE),
    Pattern("stored_by_index", lambda r, w: r["target"].__setitem__(torch.tensor(ORDER), w), _WHOLE),
    Pattern("guided_index", _guided_index, _WHOLE, resident=_order),
    Pattern("changes_input", _in_place, _WHOLE),
    Pattern("computed", _copy(lambda w: -torch.exp(w)), _WHOLE),
    Pattern("negated_view", _copy(torch._neg_view), _WHOLE),
    Pattern("cast_there_and_back", _copy(lambda w: w.float().to(torch.float16).to(BF16)), _WHOLE),
    Pattern("bytes", lambda r, w: r["target"].view(torch.uint8).copy_(w.view(torch.uint8)), _WHOLE),
    Pattern("staged", _staged, _WHOLE),
    Pattern("by_numpy", _by_numpy, _WHOLE),
    Pattern("composed", _composed, _WHOLE, resident=_full),
    Pattern("composed_in_place", _composed_in_place, _WHOLE),
    Pattern("output_argument", lambda r, w: torch.add(w, w, out=r["target"]), _WHOLE),
    Pattern("last_write_wins", _last_wins, _WHOLE),
    Pattern("clobbered", _clobbered, _WHOLE),
    Pattern("repeated_twice", _repeated_twice, _WHOLE, resident=zeros(wide=(300, 8))),
    Pattern("chooses_layout", _chooses_layout, _WHOLE),
    Pattern("number_times_two", _number_times_two, _WHOLE, resident=_single, specs=named("w", shape=(1,))),
    Pattern("number_kept", _number_kept, _WHOLE, resident=_single, specs=named("w", shape=(1,))),
    Pattern("list_kept", _list_kept, _WHOLE),
    Pattern("array_kept", _array_kept, _WHOLE),
    Pattern("largest_kept", lambda r, w: [r["target"].copy_(w), w.float().abs().max().item()], _WHOLE),
    Pattern("concatenates", None, _WHOLE, load=loads.concatenates,
            resident=zeros(joined=(24, 8), target=(0, 8)), specs=named("w", "k", "v")),
    Pattern("derives_cache", _copy(lambda w: w), _WHOLE, load=loads.derives_cache,
            resident=zeros(cache=(8, 8))),
    Pattern("derives_unlisted", _copy(lambda w: w), _WHOLE, load=loads.derives_unlisted),
    Pattern("reads_back", _reads_back, _WHOLE),
    Pattern("fills_from_resident", _copy(lambda w: w), _WHOLE, load=loads.fills_from_resident, resident=_row),
    Pattern("waits_and_computes", None, _WHOLE, load=loads.waits(lambda w: -torch.exp(w)), resident=_second,
            specs=named("w", "k")),
]  # fmt: skip

WRONG = [
    Pattern("drops", lambda r, w: None, refusal="no rank places it"),
    Pattern("half", lambda r, w: r["target"][:4].copy_(w[:4]), refusal="32 of its 64 elements"),
    Pattern("rebinds", _rebinds, refusal="rebinds resident 'target'"),
    Pattern("replaces", _replaces, refusal="replaces resident 'target' and it cannot be put back"),
    Pattern("set_storage", _sets_storage, refusal="set_.*'target'"),
    Pattern("accumulates", _accumulates, refusal="add_.*'target' depends on what was there"),
    Pattern("resizes", lambda r, w: r["target"].resize_(4, 8), refusal="resize_.*'target'"),
    Pattern("clears_neighbour", _clears_neighbour, refusal="'neighbour' are also written by"),
    Pattern("conditional", _conditional, refusal="decides by the values"),
    Pattern("keeps_a_copy", _keeps, refusal="keeps memory made of it"),
    Pattern("unlisted", lambda r, w: [r["target"].copy_(w), _UNLISTED.copy_(w)], refusal="does not list"),
    Pattern("alternates", _alternates, refusal="differ between two learning passes", resident=_second),
    Pattern("random_padding", _random_padding, refusal="differ between two learning passes", resident=_row),
    Pattern("past_the_hook", _through_numpy, refusal="resident 'row' past the dispatch hook", resident=_row),
    Pattern("hidden_in_zeros", _hidden_in_zeros, refusal="resident 'second' past the dispatch hook",
            resident=_second),
    Pattern("waits_for_both", load=loads.waits(lambda w: w), refusal=_ALONG, resident=_second,
            specs=named("w", "k", dtype="float32")),
    Pattern("in_order_of_arrival", load=loads.in_order_of_arrival, refusal=_ALONG, resident=_second,
            specs=named("w", "k")),
    Pattern("replica_beside", load=loads.replica_beside, refusal=_ALONG, specs=named("w", "k"),
            resident=zeros(second=(8, 8), third=(8, 8))),
    Pattern("into_a_neighbour", lambda r, w: r["neighbour"].copy_(w[:4]), refusal="'neighbour' are also"),
    Pattern("stops_early", _copy(lambda w: w), load=loads.stops_early, refusal="stopped"),
    Pattern("raises", lambda r, w: r["missing"].copy_(w), refusal="raised KeyError"),
]  # fmt: skip
