/** The caching manager in miniature. */

const MiB = 2 ** 20;

export interface Block { id: number; segment: SegmentState; offset: number; size: number; free: boolean; requested: number }
export interface SegmentState { id: number; address: number; size: number; small: boolean; blocks: Block[] }

/** Best fit over segments of 2 MiB (small) and 20 MiB, blocks split and joined: the caching manager in miniature. */
export class Caching {
  readonly segments: SegmentState[] = [];
  private blocks = 0;
  private readonly onSegment: (segment: SegmentState) => void;

  constructor(onSegment: (segment: SegmentState) => void) {
    this.onSegment = onSegment;
  }

  allocate(requested: number): Block {
    const size = Math.max(512, Math.ceil(requested / 512) * 512);
    const small = size <= MiB;
    let best: Block | undefined;
    for (const segment of this.segments) {
      if (segment.small !== small) continue;
      for (const block of segment.blocks) if (block.free && block.size >= size && (!best || block.size < best.size)) best = block;
    }
    if (!best) {
      const total = small ? 2 * MiB : size < 10 * MiB ? 20 * MiB : Math.ceil(size / (2 * MiB)) * 2 * MiB;
      const segment: SegmentState = { id: this.segments.length + 1, address: 0x7f00_0000_0000 + this.segments.length * 64 * MiB, size: total, small, blocks: [] };
      best = { id: 0, segment, offset: 0, size: total, free: true, requested: 0 };
      segment.blocks.push(best);
      this.segments.push(segment);
      this.onSegment(segment);
    }
    const rest = best.size - size;
    if (small ? rest >= 512 : rest >= MiB) {
      const { blocks } = best.segment;
      blocks.splice(blocks.indexOf(best) + 1, 0, { id: 0, segment: best.segment, offset: best.offset + size, size: rest, free: true, requested: 0 });
      best.size = size;
    }
    return Object.assign(best, { id: ++this.blocks, free: false, requested });
  }

  free(block: Block): void {
    block.free = true;
    const { blocks } = block.segment;
    const at = blocks.indexOf(block);
    const next = blocks[at + 1];
    if (next?.free) {
      block.size += next.size;
      blocks.splice(at + 1, 1);
    }
    const before = blocks[at - 1];
    if (before?.free) {
      before.size += block.size;
      blocks.splice(at, 1);
    }
  }
}
