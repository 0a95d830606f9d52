/** The network that the simulation trains, and its chance. */

const MiB = 2 ** 20;

/** Small deterministic generator (mulberry32). */
export function generator(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

export interface Layer { scope: string; op: string; family: string; shape: number[]; us: number; temporary?: number; parameters?: [string, number[]][] }

export const layers: Layer[] = [
  { scope: "net.stem.conv", op: "conv2d", family: "matmul", shape: [256, 16, 8, 8], us: 430, temporary: 2.25 * MiB, parameters: [["weight", [16, 1, 3, 3]]] },
  { scope: "net.stem.bn", op: "batch_norm", family: "norm", shape: [256, 16, 8, 8], us: 290, parameters: [["weight", [16]], ["bias", [16]]] },
  { scope: "net.stem", op: "relu", family: "elementwise", shape: [256, 16, 8, 8], us: 92 },
  { scope: "net.block1.conv", op: "conv2d", family: "matmul", shape: [256, 32, 8, 8], us: 1980, temporary: 9 * MiB, parameters: [["weight", [32, 16, 3, 3]]] },
  { scope: "net.block1.bn", op: "batch_norm", family: "norm", shape: [256, 32, 8, 8], us: 560, parameters: [["weight", [32]], ["bias", [32]]] },
  { scope: "net.block1", op: "relu", family: "elementwise", shape: [256, 32, 8, 8], us: 170 },
  { scope: "net.block1.pool", op: "max_pool2d", family: "reduction", shape: [256, 32, 4, 4], us: 620 },
  { scope: "net.block2.conv", op: "conv2d", family: "matmul", shape: [256, 128, 4, 4], us: 1850, temporary: 4.5 * MiB, parameters: [["weight", [128, 32, 3, 3]]] },
  { scope: "net.block2.bn", op: "batch_norm", family: "norm", shape: [256, 128, 4, 4], us: 520, parameters: [["weight", [128]], ["bias", [128]]] },
  { scope: "net.block2", op: "relu", family: "elementwise", shape: [256, 128, 4, 4], us: 160 },
  { scope: "net.block2.pool", op: "max_pool2d", family: "reduction", shape: [256, 128, 2, 2], us: 520 },
  { scope: "net.head", op: "reshape", family: "movement", shape: [256, 512], us: 6 },
  { scope: "net.head.fc1", op: "matmul", family: "matmul", shape: [256, 256], us: 610, parameters: [["weight", [512, 256]]] },
  { scope: "net.head.fc1", op: "add", family: "elementwise", shape: [256, 256], us: 30, parameters: [["bias", [256]]] },
  { scope: "net.head", op: "relu", family: "elementwise", shape: [256, 256], us: 25 },
  { scope: "net.head.fc2", op: "matmul", family: "matmul", shape: [256, 10], us: 60, parameters: [["weight", [256, 10]]] },
  { scope: "loss", op: "log_softmax", family: "norm", shape: [256, 10], us: 38 },
  { scope: "loss", op: "nll_loss", family: "reduction", shape: [], us: 12 },
];
