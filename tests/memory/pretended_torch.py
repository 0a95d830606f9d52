"""A pretended allocator of PyTorch, which tells its events and its state as PyTorch's snapshots do, and keeps count."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
BASE = 0x7F00_0000_0000


class PretendedTorch:
    """Random calls. `truth` has the bytes requested, in blocks that are not free, and reserved after each event."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.events: list[dict[str, Any]] = []
        self.truth: list[tuple[int, int]] = []
        self.segments: dict[int, int] = {}  # address: size
        self.mapped: set[int] = set()  # pages of MIB bytes of the growing segment
        self.blocks: dict[int, list[Any]] = {}  # address: size, requested, frames, whether freed
        self.fresh = BASE
        self.growing = BASE + (1 << 40)
        names = [{"name": f"f{i}", "filename": f"/project/m{i}.py", "line": i} for i in range(4)]
        self.stacks = [names[:1], names[1:3], names[::-1]]

    def tell(self, action: str, addr: int, size: int, frames: Any = ()) -> None:
        event = {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": 10**15 + len(self.events) // 3}
        self.events.append(event | {"compile_context": "N/A", "frames": list(frames)})
        reserved = sum(self.segments.values()) + len(self.mapped) * MIB
        self.truth.append((sum(block[1] for block in self.blocks.values()), reserved))

    def holes(self) -> list[tuple[int, int]]:
        ranges = sorted([*self.segments.items(), *self.runs()])
        found = []
        for begin, size in ranges:
            at = begin
            for address in sorted(a for a in self.blocks if begin <= a < begin + size):
                found.append((at, address - at))
                at = address + self.blocks[address][0]
            found.append((at, begin + size - at))
        return [hole for hole in found if hole[1]]

    def runs(self) -> list[tuple[int, int]]:
        """Mapped pages that touch."""
        found: list[tuple[int, int]] = []
        for page in sorted(self.mapped):
            address = self.growing + page * MIB
            if found and sum(found[-1]) == address:
                found[-1] = (found[-1][0], found[-1][1] + MIB)
            else:
                found.append((address, MIB))
        return found

    def step(self) -> None:
        pick = self.random.random()
        live = [a for a, block in self.blocks.items() if not block[3]]
        if pick < 0.5 or not live:
            self.alloc(int(self.random.integers(1, 3 * MIB)))
        elif pick < 0.85:
            address = live[int(self.random.integers(len(live)))]
            self.blocks[address][3] = True
            self.tell("free_requested", address, self.blocks[address][1])
            if self.random.random() < 0.7:
                self.complete(address)
        elif pick < 0.92:
            for address in [a for a, block in self.blocks.items() if block[3]]:
                self.complete(address)
        else:
            self.give_back()

    def complete(self, address: int) -> None:
        requested = self.blocks.pop(address)[1]
        self.tell("free_completed", address, requested)

    def alloc(self, requested: int) -> None:
        size = -(-requested // 512) * 512
        fitting = [hole for hole in self.holes() if hole[1] >= size]
        if not fitting:
            if self.random.random() < 0.5:
                room = -(-size // (2 * MIB)) * 2 * MIB
                self.segments[self.fresh] = room
                fitting = [(self.fresh, room)]
                self.tell("segment_alloc", self.fresh, room)
                self.fresh += room + 8 * MIB
            else:
                pages = -(-size // MIB)
                first = next(p for p in range(10**6) if not any(p + i in self.mapped for i in range(pages)))
                self.mapped |= set(range(first, first + pages))
                self.tell("segment_map", self.growing + first * MIB, pages * MIB)
                fitting = [hole for hole in self.holes() if hole[1] >= size]
        frames = self.stacks[int(self.random.integers(len(self.stacks)))]
        self.blocks[fitting[0][0]] = [size, requested, frames, False]
        self.tell("alloc", fitting[0][0], requested, frames)

    def give_back(self) -> None:
        for address, size in self.holes():
            if self.segments.get(address) == size:
                del self.segments[address]
                self.tell("segment_free", address, size)
            elif address >= self.growing:
                first, last = -(-(address - self.growing) // MIB), (address + size - self.growing) // MIB
                if first < last:
                    self.mapped -= set(range(first, last))
                    self.tell("segment_unmap", self.growing + first * MIB, (last - first) * MIB)

    def snapshot(self, most: int | None = None) -> dict[str, Any]:
        """What PyTorch would write, with only the last `most` events."""
        segments = []
        for begin, size in sorted([*self.segments.items(), *self.runs()]):
            tiles = [(a, n, 0, "inactive", []) for a, n in self.holes() if begin <= a < begin + size]
            for address, (room, requested, frames, freed) in self.blocks.items():
                if begin <= address < begin + size:
                    tiles.append(
                        (address, room, requested, "active_pending_free" if freed else "active_allocated", frames)
                    )
            names = ("address", "size", "requested_size", "state", "frames")
            blocks = [dict(zip(names, tile, strict=True)) for tile in sorted(tiles)]
            about = {"device": 0, "address": begin, "total_size": size, "stream": 0, "segment_type": "large"}
            growing = begin >= self.growing
            segments.append(
                about | {"segment_pool_id": (0, 0), "is_expandable": growing, "frames": [], "blocks": blocks}
            )
        trace = self.events if most is None else self.events[len(self.events) - most :]
        return {
            "segments": segments,
            "device_traces": [trace, []],
            "allocator_settings": {},
            "external_annotations": [],
        }


def saved(path: Path, value: Any, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(value, protocol))
    return path


def event(action: str, addr: int, size: int, time_us: int = 1, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": time_us, "frames": [], **more}
